// SPDX-License-Identifier: Apache-2.0
// Products whose left lies by columns and has few rows, as x U with the r columns of an adapter's U for a few tokens:
//   out(i, j) += sign Σ_k left(i, k) right(k, j)
// A packet of rows stays in registers for four columns of right while the sum goes down the depth. Packing left, or a
// call of a BLAS, takes longer than that. A packet that is wider than the rows that are left reads on into the next
// column of left, whose numbers are not stored; in the last columns, where nothing may follow, they are copied first.
#pragma once
#include <graft/backend/cpu/by_columns.h>
#include <graft/backend/cpu/packets.h>

#include <algorithm>

namespace graft::cpu {

// Up to a packet of rows, and to so many columns of right (bench: 6 of 8 µs with 16 of them, even with 32).
inline constexpr long long short_column_cols = 24;
template <class Real> inline constexpr long long short_column_rows = packet_width<Real>;

namespace detail {

template <int Cols, class Real> void short_column_tile(const by_columns<Real>& c, long long i, long long j) {
  using Eigen::internal::pmadd;
  constexpr long long width = packet_width<Real>;
  const long long rows = std::min(width, c.rows - i), last = (c.depth - 1) * c.left.col + c.rows;
  const long long room = last - i - width;  // from the first packet to the last that lies in left
  const long long whole = room < 0 ? 0 : std::min(c.depth, room / c.left.col + 1);
  const Real* const right[4] = {c.right.p + j * c.right.col, c.right.p + (j + std::min(1, Cols - 1)) * c.right.col,
                                c.right.p + (j + std::min(2, Cols - 1)) * c.right.col,
                                c.right.p + (j + Cols - 1) * c.right.col};
  // From what is there on, so that a sum may be made in pieces of the depth. The sign is 1 or -1.
  auto begin = [&](long long column) {
    Real sums[width] = {};
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
  const long long apart = c.right.row;
  long long k = 0;
  for (; k < whole; ++k, left += c.left.col) step(load(left), k * apart);
  for (; k < c.depth; ++k, left += c.left.col) {
    Real few[width] = {};
    std::copy_n(left, rows, few);
    step(load(few), k * apart);
  }
  auto give_column = [&](packet<Real> s, long long column) {
    Real sums[width];
    Eigen::internal::pstoreu(sums, s);
    for (long long r = 0; r < rows; ++r) c.out[i + r + column * c.stride] = c.sign * sums[r];
  };
  give_column(s0, j);
  if constexpr (Cols > 1) give_column(s1, j + 1);
  if constexpr (Cols > 2) give_column(s2, j + 2), give_column(s3, j + 3);
}

}  // namespace detail

template <class Real> void short_column_product(const by_columns<Real>& c) {
  for (long long i = 0; i < c.rows; i += packet_width<Real>) {
    long long j = 0;
    for (; j + 4 <= c.cols; j += 4) detail::short_column_tile<4>(c, i, j);
    for (; j < c.cols; ++j) detail::short_column_tile<1>(c, i, j);
  }
}

}  // namespace graft::cpu
