// SPDX-License-Identifier: Apache-2.0
// The kernels whose speed depends most on the instructions of the processor, as a set of function pointers. The library
// graft::cpu_compiled has such a set for every instruction set that it knows (src/kernels/variant.cpp, compiled once
// for each), and chooses one when a program first needs it. All data are plain structures outside of the library's
// namespace, which each variant renames.
#pragma once
#include <cstdint>

namespace graft_kernels {

struct matrix {
  const void* p;
  long long row, col;
};
// gemm_problem (gemm/problem.h).
struct product {
  long long rows, cols, depth;
  matrix left, right;
  float* out;
  long long stride;
  float sign;
};
// weight_view with its quant_state (core/quant_format.h).
struct quantized {
  int type, scaled, block, block_rows, scales_type, second_block, second_scales_type, block_bytes, block_type;
  long long rows, cols;
  const void *data, *scales;
  const float *second_scales, *second_codebook;
  float offset, tensor_scale;
  const unsigned char* zeros;
  const std::int32_t* column_group;
};

struct set {
  const char* name;
  int level;  // sets of a higher level are faster; 0 is what every processor of the architecture has
  // detail::run and detail::reserve_scratch of gemm/gemm.h; `kernel` is a gemm_kernel.
  void (*multiply)(const product&, int kernel, bool overwrite);
  void (*reserve)(const product&, int kernel);
  // skinny_nt_gemm with a left in bf16 or f16.
  void (*multiply_bf16)(const product&);
  void (*multiply_f16)(const product&);
  // detail::reads_quantized, detail::quantized_share and dequantize() of quantized weights.
  bool (*reads_quantized)(const quantized&, long long tokens);
  void (*multiply_quantized)(const product&, const quantized&, long long first);
  void (*dequantize)(const quantized&, long long first, long long n, float* to);
};

// The fastest set that this processor runs; null if it has no more instructions than every processor has.
const set* best();
// Set k of those that this processor runs, slowest first; null from their number on.
const set* supported(int k);

}  // namespace graft_kernels
