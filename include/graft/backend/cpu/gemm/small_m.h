// SPDX-License-Identifier: Apache-2.0
// GEMM whose left is column-major and has few rows (small m): the shrink x A with A stored [in, rank], for a few
// tokens,
//   out(i, j) += sign Σ_k left(i, k) right(k, j)
// A packet of rows stays in registers for four columns of right while k advances. Packing left, or a call of a BLAS,
// takes longer than that. A packet that is wider than the remaining rows reads into the next column of left, and its
// surplus sums are not stored; in the last columns, where nothing may follow in memory, the rows are copied first.
#pragma once
#include <graft/backend/cpu/gemm/problem.h>
#include <graft/backend/cpu/runtime/packets.h>

#include <algorithm>

namespace graft::cpu {

// The limits: one packet of rows, and this many columns (16 columns take 6 µs instead of 8, 32 columns are no faster).
inline constexpr long long small_m_cols = 24;
template <class Real> inline constexpr long long small_m_rows = packet_width<Real>;

namespace detail {

template <int Cols, class Real> void small_m_tile(const gemm_problem<Real>& c, long long i, long long j) {
  using Eigen::internal::pmadd;
  constexpr long long width = packet_width<Real>;
  const long long rows = std::min(width, c.rows - i), last = (c.depth - 1) * c.left.col + c.rows;
  const long long last_start = last - i - width;  // offset of the last packet that ends inside left
  const long long whole = last_start < 0 ? 0 : std::min(c.depth, last_start / c.left.col + 1);
  const Real* const right[4] = {c.right.p + j * c.right.col, c.right.p + (j + std::min(1, Cols - 1)) * c.right.col,
                                c.right.p + (j + std::min(2, Cols - 1)) * c.right.col,
                                c.right.p + (j + Cols - 1) * c.right.col};
  // The sums start with sign · out, where the sign is 1 or -1.
  auto begin = [&](long long column) {
    Real sums[packet_lanes<Real>] = {};
    for (long long r = 0; r < rows; ++r) sums[r] = c.sign * c.out[i + r + column * c.stride];
    return load(sums);
  };
  packet<Real> s0 = begin(j), s1 = s0, s2 = s0, s3 = s0;
  if constexpr (Cols > 1) s1 = begin(j + 1);
  if constexpr (Cols > 2) s2 = begin(j + 2), s3 = begin(j + 3);
  auto step = [&](packet<Real> l, long long k) {
    s0 = pmadd(l, all(right[0][k]), s0);
    if constexpr (Cols > 1) s1 = pmadd(l, all(right[1][k]), s1);
    if constexpr (Cols > 2) s2 = pmadd(l, all(right[2][k]), s2), s3 = pmadd(l, all(right[3][k]), s3);
  };
  const Real* left = c.left.p + i;
  const long long depth_stride = c.right.row;
  long long k = 0;
  for (; k < whole; ++k, left += c.left.col) step(load(left), k * depth_stride);
  for (; k < c.depth; ++k, left += c.left.col) {
    Real padded_rows[packet_lanes<Real>] = {};
    std::copy_n(left, rows, padded_rows);
    step(load(padded_rows), k * depth_stride);
  }
  auto store_column = [&](packet<Real> s, long long column) {
    Real sums[packet_lanes<Real>];
    Eigen::internal::pstoreu(sums, s);
    for (long long r = 0; r < rows; ++r) c.out[i + r + column * c.stride] = c.sign * sums[r];
  };
  store_column(s0, j);
  if constexpr (Cols > 1) store_column(s1, j + 1);
  if constexpr (Cols > 2) store_column(s2, j + 2), store_column(s3, j + 3);
}

}  // namespace detail

template <class Real> void small_m_gemm(const gemm_problem<Real>& c) {
  for (long long i = 0; i < c.rows; i += packet_width<Real>) {
    long long j = 0;
    for (; j + 4 <= c.cols; j += 4) detail::small_m_tile<4>(c, i, j);
    for (; j < c.cols; ++j) detail::small_m_tile<1>(c, i, j);
  }
}

}  // namespace graft::cpu
