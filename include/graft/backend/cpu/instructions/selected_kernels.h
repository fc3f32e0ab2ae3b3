// SPDX-License-Identifier: Apache-2.0
// The set of kernels that replaces those which were compiled with the flags of this file. There is one where the
// program links graft::cpu_compiled, which defines GRAFT_CPU_KERNELS, and the processor has more instructions than the
// flags say; a program of headers alone has the user's flags.
#pragma once
#include <graft/backend/cpu/gemm/problem.h>
#include <graft/backend/cpu/instructions/kernel_set.h>
#include <graft/core/quant_format.h>

namespace graft::cpu {

// The level of the flags of this file, in the order of the sets in src/cpu_kernels.cpp.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
inline constexpr int instruction_level = 2;
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
inline constexpr int instruction_level = 1;
#elif defined(__ARM_FEATURE_MATMUL_INT8)
inline constexpr int instruction_level = 2;
#elif defined(__ARM_FEATURE_DOTPROD)
inline constexpr int instruction_level = 1;
#else
inline constexpr int instruction_level = 0;
#endif

// Null where the kernels of this file are the fastest ones.
#if defined(GRAFT_CPU_KERNELS)
inline const graft_kernels::set* faster_kernels() {
  if constexpr (instruction_level == 2) return nullptr;
  static const graft_kernels::set* const chosen = [] {
    const graft_kernels::set* const best = graft_kernels::best();
    return best != nullptr && best->level > instruction_level ? best : nullptr;
  }();
  return chosen;
}
#else
constexpr const graft_kernels::set* faster_kernels() { return nullptr; }
#endif

template <class Left> graft_kernels::product as_kernel_product(const gemm_problem<float, Left>& c) {
  return {c.rows, c.cols,   c.depth, {c.left.p, c.left.row, c.left.col}, {c.right.p, c.right.row, c.right.col},
          c.out,  c.stride, c.sign};
}
template <class Left> gemm_problem<float, Left> problem_of(const graft_kernels::product& c) {
  return {c.rows,
          c.cols,
          c.depth,
          {static_cast<const Left*>(c.left.p), c.left.row, c.left.col},
          {static_cast<const float*>(c.right.p), c.right.row, c.right.col},
          c.out,
          c.stride,
          c.sign};
}
inline graft_kernels::quantized as_kernel_weight(const weight_view& w) {
  const quant_format& f = w.format;
  const quant_state& q = *w.quant;
  return {static_cast<int>(f.type),
          static_cast<int>(f.scaled),
          f.block,
          f.block_rows,
          static_cast<int>(f.scales),
          f.second_block,
          static_cast<int>(f.second_scales),
          f.block_bytes,
          f.block_type,
          w.rows,
          w.cols,
          w.data,
          q.scales,
          q.second_scales,
          q.second_codebook,
          q.offset,
          q.tensor_scale,
          q.zeros,
          q.column_group};
}
// A weight_view with the state that it points to.
struct weight_of_kernel {
  quant_state state;
  weight_view view;

  explicit weight_of_kernel(const graft_kernels::quantized& w) {
    state.format = {.type = static_cast<dtype>(w.type),
                    .scaled = static_cast<scale_granularity>(w.scaled),
                    .block = w.block,
                    .block_rows = w.block_rows,
                    .scales = static_cast<dtype>(w.scales_type),
                    .second_block = w.second_block,
                    .second_scales = static_cast<dtype>(w.second_scales_type),
                    .block_bytes = w.block_bytes,
                    .block_type = w.block_type};
    state.scales = w.scales, state.second_scales = w.second_scales, state.second_codebook = w.second_codebook;
    state.offset = w.offset, state.tensor_scale = w.tensor_scale, state.zeros = w.zeros;
    state.column_group = w.column_group;
    view = {state.format, w.rows, w.cols, w.cols, 1, w.data, &state};
  }
  weight_of_kernel(const weight_of_kernel&) = delete;
  weight_of_kernel& operator=(const weight_of_kernel&) = delete;
};

}  // namespace graft::cpu
