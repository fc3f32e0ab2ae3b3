// SPDX-License-Identifier: Apache-2.0
// GEMV of a weight in a block format of ggml with AVX, the main work of generation,
//     y = Σ_runs scale (Σ_k q_k x_k) + minimum (Σ_k x_k)
// The codes of a run become floats in registers, its scale is applied to their sum, and the sums of x that minimums
// multiply are computed once. Q8_0 and Q4_0 have kernels of their own (integer_gemv.h). Formats whose codes are looked
// up or assembled from bits (IQ4, Q5_0, Q5_1), and other processors, have no kernel here: their rows are dequantized
// into a cache (skinny.h).
#pragma once
#include <graft/backend/cpu/quantized/integer_gemv.h>

namespace graft::cpu {

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
namespace detail {

// Sums of one row. Two accumulators hide the latency of the addition; of_minimums accumulates minimum · Σ x.
struct block_sums {
  float_table::floats of_codes[2] = {float_table::zero(), float_table::zero()};
  float of_minimums = 0;
};
template <class Format, int R>
[[gnu::always_inline]] inline void add_run(const unsigned char* from, quant_formats::affine first, const float* x,
                                           const float* sums_of_x, block_sums& sums) {
  const quant_formats::affine s = Format::run_scale(from, first, R);
  signed char code[static_cast<unsigned>(Format::run)];
  quant_formats::read_codes<Format>(from, R, code);
  auto of_run = float_table::zero();
  for (long long j = 0; j < Format::run; j += float_table::lanes)
    of_run = float_table::add_product(integer_activations::load_int8(reinterpret_cast<unsigned char*>(code) + j),
                                      float_table::load(x + R * Format::run + j), of_run);
  sums.of_codes[R % 2] = float_table::add_product(of_run, float_table::broadcast(s.scale), sums.of_codes[R % 2]);
  if constexpr (Format::has_minimum) sums.of_minimums += s.minimum * sums_of_x[R];
}
template <class Format, int... R>
void block_gemv_rows(const weight_view& w, long long first, long long rows, const float* x, const float* sums_of_x,
                     float sign, float* out, std::integer_sequence<int, R...>) {
  const long long blocks = w.cols / Format::block;
  const auto* from = static_cast<const unsigned char*>(w.data) + first * blocks * Format::bytes;
  for (long long i = 0; i < rows; ++i) {
    block_sums sums;
    for (long long b = 0; b < blocks; ++b, from += Format::bytes) {
      const quant_formats::affine scale = Format::block_scale(from);
      (add_run<Format, R>(from, scale, x + b * Format::block, sums_of_x + b * Format::runs, sums), ...);
    }
    out[i] += sign * (float_table::total(sums.of_codes[0]) + float_table::total(sums.of_codes[1]) + sums.of_minimums);
  }
}

}  // namespace detail

// out[i] += sign · (row first + i of w) · x for `rows` rows. Returns false, with nothing done, for another format.
inline bool block_gemv(const weight_view& w, long long first, long long rows, const float* x, float sign, float* out) {
  if (w.format.type != dtype::ggml) return false;
  bool done = false;
  quant_formats::ggml_formats::visit(w.format, [&](auto format) {
    using block_format = decltype(format);
    if constexpr (requires { block_format::code(nullptr, 0, 0); }) {
      thread_local memory<float> sums_of_x;
      const long long runs = w.cols / block_format::run;
      sums_of_x.reserve(runs);
      if constexpr (block_format::has_minimum)
        for (long long r = 0; r < runs; ++r) {
          float sum = 0;
          for (int k = 0; k < block_format::run; ++k) sum += x[r * block_format::run + k];
          sums_of_x.data()[r] = sum;
        }
      detail::block_gemv_rows<block_format>(w, first, rows, x, sums_of_x.data(), sign, out,
                                            std::make_integer_sequence<int, block_format::runs>());
      done = true;
    }
  });
  return done;
}
#else
inline bool block_gemv(const weight_view&, long long, long long, const float*, float, float*) { return false; }
#endif

}  // namespace graft::cpu
