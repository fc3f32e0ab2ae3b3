// SPDX-License-Identifier: Apache-2.0
// Skinny GEMM of a quantized weight: a tile of four rows and 512 columns is dequantized into the L1 cache and
// multiplied there, so that only the quantized values are read from memory. Sums have the order of gemm/skinny.h, as if
// the weight had been dequantized as a whole.
#pragma once
#include <graft/backend/cpu/gemm/skinny.h>
#include <graft/backend/cpu/runtime/convert.h>

namespace graft::cpu {

namespace detail {

inline constexpr long long dequantize_chunk = 512;  // columns of a tile: four rows of floats are 8 KiB

// Four rows of w from `row` on, which are the rows of c from i on, times Cols columns of right.
template <int Cols, class Real>
void dequantizing_tile(const gemm_problem<Real>& c, const weight_view& w, long long row, long long i, long long j) {
  constexpr long long width = packet_width<Real>;
  const long long rows = std::min(4LL, c.rows - i);
  Real dequantized[4][dequantize_chunk], last[4][packet_lanes<Real>];
  four_rows<Real> left{dequantized[0], dequantized[1], dequantized[2], dequantized[3]}, right, last_right;
  const packet<Real> zero = all(Real(0));
  four_packets<Real> s0{zero, zero, zero, zero}, s1 = s0, s2 = s0, s3 = s0;
  auto step = [&](const four_rows<Real>& r_rows, long long in_left, long long in_right) {
    const four_packets<Real> l = load_four<Real>(left, in_left);
    add_products<Real>(s0, l, load(r_rows[0] + in_right));
    if constexpr (Cols > 1) add_products<Real>(s1, l, load(r_rows[1] + in_right));
    if constexpr (Cols > 2) add_products<Real>(s2, l, load(r_rows[2] + in_right));
    if constexpr (Cols > 2) add_products<Real>(s3, l, load(r_rows[3] + in_right));
  };
  for (int a = 0; a < 4; ++a) right[a] = c.right.p + (j + std::min(a, Cols - 1)) * c.right.col, last_right[a] = last[a];
  for (long long k = 0; k < c.depth; k += dequantize_chunk) {
    const long long n = std::min(dequantize_chunk, c.depth - k), whole = n / width * width;
    for (int a = 0; a < 4; ++a) {
      dequantize_elements(w, (row + std::min<long long>(a, rows - 1)) * w.cols + k, n, dequantized[a]);
      if (whole < n) std::fill(dequantized[a] + n, dequantized[a] + whole + width, Real(0));
    }
    for (long long at = 0; at < whole; at += width) step(right, at, k + at);
    if (whole == n) continue;
    for (int a = 0; a < 4; ++a)
      std::fill(std::copy_n(right[a] + k + whole, n - whole, last[a]), last[a] + width, Real(0));
    step(last_right, whole, 0);
  }
  Real* const out = c.out + i + j * c.stride;
  if constexpr (has_tile_reduction && Cols == 4 && std::is_same_v<Real, float>)
    return store_tile(s0, s1, s2, s3, c.sign, out, c.stride, rows);
  store_sums(s0, c.sign, out, rows);
  if constexpr (Cols > 1) store_sums(s1, c.sign, out + c.stride, rows);
  if constexpr (Cols > 2) store_sums(s2, c.sign, out + 2 * c.stride, rows);
  if constexpr (Cols > 2) store_sums(s3, c.sign, out + 3 * c.stride, rows);
}

}  // namespace detail

// The left operand is w from row `first` on; c.left only has its sizes, its pointer is not read. The columns of right
// are contiguous.
template <class Real>
void skinny_dequantizing_gemm(const gemm_problem<Real>& c, const weight_view& w, long long first) {
  for (long long i = 0; i < c.rows; i += 4) {
    long long j = 0;
    for (; j + skinny_cols <= c.cols; j += skinny_cols) detail::dequantizing_tile<skinny_cols>(c, w, first + i, i, j);
    for (; j < c.cols; ++j) detail::dequantizing_tile<1>(c, w, first + i, i, j);
  }
}

}  // namespace graft::cpu
