// SPDX-License-Identifier: Apache-2.0
// Products that are not packed: left is read once, where it lies, at the speed of the memory. A few elements of the result
// are held in registers at a time. Where the depth lies together in both operands these are sums of packets along it;
// where the rows of left do, packets of rows, and the sum goes down the depth. Either way the order of a sum follows
// from the depth alone: not from addresses, threads, or the number of columns.
#pragma once
#include <graft/backend/cpu/by_columns.h>
#include <graft/backend/cpu/tile_sums.h>

#include <algorithm>
#include <type_traits>

namespace graft::cpu {

// Columns that are multiplied at a time: with four rows of left, as many sums as there are registers for.
inline constexpr int few_at_once = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? 4 : 2;

namespace detail {

template <class Real> using four_rows = const Real* [4];

template <class Real, class Left>
[[gnu::always_inline]] inline four_packets<Real> load_four(const four_rows<Left>& rows, long long k) {
  return {load(rows[0] + k), load(rows[1] + k), load(rows[2] + k), load(rows[3] + k)};
}
template <class Real>
[[gnu::always_inline]] inline void add_products(four_packets<Real>& sum, const four_packets<Real>& l, packet<Real> r) {
  using Eigen::internal::pmadd;
  sum = {pmadd(l.a, r, sum.a), pmadd(l.b, r, sum.b), pmadd(l.c, r, sum.c), pmadd(l.d, r, sum.d)};
}
// The last n numbers of a row beside zeros.
template <class Real, class Stored> void copy_last(const Stored* from, long long n, Real* to) {
  std::fill(to + n, to + packet_width<Real>, Real(0));
  for (long long k = 0; k < n; ++k)
    if constexpr (std::is_same_v<Stored, bf16>)
      to[k] = widen(from[k]);
    else
      to[k] = from[k];
}
// Elements that come from memory at a time.
template <class Stored> inline constexpr long long line = 64 / static_cast<long long>(sizeof(Stored));

// Sums of four rows of left with each of some columns of right, along a depth that both have together in memory. What is
// left of the rows after the last whole packet is copied beside zeros first: no call comes between the sums, which
// would throw them out of their registers. `next`: what is multiplied after these rows, which is asked for meanwhile, in
// the order in which it lies: a processor that sees only four short rows at a time fetches too little ahead.
template <int Cols, class Real, class Left>
void dot_tile(const by_columns<Real, Left>& c, long long i, long long j, const Left* next) {
  constexpr long long width = packet_width<Real>;
  const long long whole = c.depth / width * width, rest = c.depth - whole, rows = std::min(4LL, c.rows - i);
  Real last[8][width];
  four_rows<Left> left;
  four_rows<Real> right, last_left, last_right;
  for (int a = 0; a < 4; ++a) {
    left[a] = c.left.p + (i + std::min<long long>(a, rows - 1)) * c.left.row, last_left[a] = last[a];
    right[a] = c.right.p + (j + std::min(a, Cols - 1)) * c.right.col, last_right[a] = last[4 + a];
    if (rest == 0) continue;
    copy_last(left[a] + whole, rest, last[a]), copy_last(right[a] + whole, rest, last[4 + a]);
  }
  const packet<Real> zero = all(Real(0));
  four_packets<Real> s0{zero, zero, zero, zero}, s1 = s0, s2 = s0, s3 = s0;
  auto step = [&](const auto& l_rows, const four_rows<Real>& r_rows, long long k) {
    const four_packets<Real> l = load_four<Real>(l_rows, k);
    add_products<Real>(s0, l, load(r_rows[0] + k));
    if constexpr (Cols > 1) add_products<Real>(s1, l, load(r_rows[1] + k));
    if constexpr (Cols > 2) add_products<Real>(s2, l, load(r_rows[2] + k));
    if constexpr (Cols > 2) add_products<Real>(s3, l, load(r_rows[3] + k));
  };
  long long k = 0;
  if (next != nullptr)
    for (; k + line<Left> <= whole; k += line<Left>) {
      for (int a = 0; a < 4; ++a) __builtin_prefetch(next + 4 * k + a * line<Left>, 0, 2);
      for (long long in_line = 0; in_line < line<Left>; in_line += width) step(left, right, k + in_line);
    }
  for (; k < whole; k += width) step(left, right, k);
  if (rest > 0) step(last_left, last_right, 0);
  Real* const out = c.out + i + j * c.stride;
  if constexpr (has_tile_sums && Cols == 4 && std::is_same_v<Real, float>)
    return give_tile(s0, s1, s2, s3, c.sign, out, c.stride, rows);
  give(s0, c.sign, out, rows);
  if constexpr (Cols > 1) give(s1, c.sign, out + c.stride, rows);
  if constexpr (Cols > 2) give(s2, c.sign, out + 2 * c.stride, rows);
  if constexpr (Cols > 2) give(s3, c.sign, out + 3 * c.stride, rows);
}
// How far ahead one column asks for what lies there, and for which cache: measured with weights beyond all caches. On
// x86-64 a page ahead, for the second cache, is a third faster than a KiB ahead for the first.
#if defined(__x86_64__)
inline constexpr long long lines_ahead = 64;
inline constexpr int for_cache = 2;
#else
inline constexpr long long lines_ahead = 16;
inline constexpr int for_cache = 3;
#endif
// The same sums for one column, row after row: memory is quickest when it is read in its order.
template <class Real, class Left> void dot_rows(const by_columns<Real, Left>& c) {
  constexpr long long width = packet_width<Real>, ahead = lines_ahead * line<Left>;
  const long long whole = c.depth / width * width, rest = c.depth - whole;
  Real last_left[width], last_right[width];
  if (rest > 0) copy_last(c.right.p + whole, rest, last_right);
  for (long long i = 0; i < c.rows; ++i) {
    const Left* const left = c.left.p + i * c.left.row;
    packet<Real> sum = all(Real(0));
    auto step = [&](long long k) { sum = Eigen::internal::pmadd(load(left + k), load(c.right.p + k), sum); };
    long long k = 0;
    for (; k + line<Left> <= whole; k += line<Left>) {
      __builtin_prefetch(left + k + ahead, 0, for_cache);
      for (long long in_line = 0; in_line < line<Left>; in_line += width) step(k + in_line);
    }
    for (; k < whole; k += width) step(k);
    if (rest > 0) {
      copy_last(left + whole, rest, last_left);
      sum = Eigen::internal::pmadd(load(last_left), load(last_right), sum);
    }
    c.out[i] += c.sign * Eigen::internal::predux(sum);
  }
}

}  // namespace detail

// Along the longer side a few at a time, which stay in the nearest cache until the other side has gone by.
template <class Real, class Left> void dot_product(const by_columns<Real, Left>& c) {
  if constexpr (detail::has_tile_sums && std::is_same_v<Left, float> && std::is_same_v<Real, float>)
    if (c.depth <= detail::short_row && (c.cols == 1 || c.depth % packet_width<Real> != 0)) {
      for (long long j = 0; j < c.cols; ++j) detail::short_rows(c.share(0, c.rows, j, 1));  // no copies of what is left
      return;
    }
  if (c.cols == 1 && sizeof(Left) == sizeof(Real)) return detail::dot_rows(c);
  const long long whole_cols = c.cols / few_at_once * few_at_once;
  auto column = [&](long long i, long long j, const Left* next) {
    if (j < whole_cols) return detail::dot_tile<few_at_once>(c, i, j, next);
    for (long long one = j; one < c.cols; ++one) detail::dot_tile<1>(c, i, one, one == 0 ? next : nullptr);
  };
  if (c.rows >= c.cols) {
    const bool in_order = c.left.row == c.depth;
    for (long long i = 0; i < c.rows; i += 4)
      for (long long j = 0; j < c.cols; j += few_at_once)
        column(i, j, j == 0 && in_order && i + 8 <= c.rows ? c.left.p + (i + 4) * c.left.row : nullptr);
  } else {
    for (long long j = 0; j < c.cols; j += few_at_once)
      for (long long i = 0; i < c.rows; i += 4) column(i, j, nullptr);
  }
}

namespace detail {

// A few steps of the depth of right, with the sign: columns that are multiplied at a time lie together.
template <class Real> struct right_steps {
  static constexpr long long most_cols = 4, most_steps = 16;
  Real v[most_steps * most_cols];
  long long cols, steps;

  right_steps(const by_columns<Real>& c, long long from, long long n) : cols(c.cols), steps(n) {
    for (long long j = 0; j < c.cols; ++j)
      for (long long k = 0; k < n; ++k)
        v[k * c.cols + j] = c.sign * c.right.p[(from + k) * c.right.row + j * c.right.col];
  }
};
template <class Real> [[gnu::always_inline]] inline four_packets<Real> four_packets_at(const Real* p) {
  constexpr long long width = packet_width<Real>;
  return {load(p), load(p + width), load(p + 2 * width), load(p + 3 * width)};
}
template <class Real> [[gnu::always_inline]] inline void store_four(four_packets<Real> s, Real* p) {
  using Eigen::internal::pstoreu;
  constexpr long long width = packet_width<Real>;
  pstoreu(p, s.a), pstoreu(p + width, s.b), pstoreu(p + 2 * width, s.c), pstoreu(p + 3 * width, s.d);
}
// Four packets of rows of some columns. `left`: where these rows begin in the first of the steps.
template <int Cols, class Real>
void row_tile(Real* out, long long stride, const Real* left, long long left_stride, const right_steps<Real>& right,
              long long j) {
  four_packets<Real> s0 = four_packets_at(out), s1 = s0, s2 = s0, s3 = s0;
  if constexpr (Cols > 1) s1 = four_packets_at(out + stride);
  if constexpr (Cols > 2) s2 = four_packets_at(out + 2 * stride), s3 = four_packets_at(out + 3 * stride);
  for (long long k = 0; k < right.steps; ++k) {
    __builtin_prefetch(left + k * left_stride + 8 * line<Real>);  // more streams than a processor follows by itself
    const four_packets<Real> l = four_packets_at(left + k * left_stride);
    const Real* const r = right.v + k * right.cols + j;
    add_products<Real>(s0, l, all(r[0]));
    if constexpr (Cols > 1) add_products<Real>(s1, l, all(r[1]));
    if constexpr (Cols > 2) add_products<Real>(s2, l, all(r[2])), add_products<Real>(s3, l, all(r[3]));
  }
  store_four(s0, out);
  if constexpr (Cols > 1) store_four(s1, out + stride);
  if constexpr (Cols > 2) store_four(s2, out + 2 * stride), store_four(s3, out + 3 * stride);
}
// The rows after the last four packets: one packet after the other, each beside zeros.
template <class Real>
void last_rows(const by_columns<Real>& c, long long i, const Real* left, const right_steps<Real>& right) {
  constexpr long long width = packet_width<Real>;
  for (; i < c.rows; i += width) {
    const long long n = std::min(width, c.rows - i);
    for (long long j = 0; j < c.cols; ++j) {
      Real sum[width] = {}, l[width] = {};
      std::copy_n(c.out + i + j * c.stride, n, sum);
      packet<Real> s = load(sum);
      for (long long k = 0; k < right.steps; ++k) {
        const Real* at = left + i + k * c.left.col;
        if (n < width) at = std::copy_n(at, n, l) - n;
        s = Eigen::internal::pmadd(load(at), all(right.v[k * right.cols + j]), s);
      }
      Eigen::internal::pstoreu(sum, s);
      std::copy_n(sum, n, c.out + i + j * c.stride);
    }
  }
}

}  // namespace detail

// Left lies by columns: a few of them go by at a time, as many streams as a processor fetches ahead. For up to
// row_product_cols columns of right.
inline constexpr long long row_product_cols = detail::right_steps<float>::most_cols;
template <class Real> void row_product(const by_columns<Real>& c) {
  constexpr long long at_once = 4 * packet_width<Real>;
  const long long whole = c.rows / at_once * at_once, whole_cols = c.cols / few_at_once * few_at_once;
  for (long long k = 0; k < c.depth; k += detail::right_steps<Real>::most_steps) {
    const detail::right_steps<Real> right(c, k, std::min(detail::right_steps<Real>::most_steps, c.depth - k));
    const Real* const left = c.left.p + k * c.left.col;
    for (long long i = 0; i < whole; i += at_once) {
      for (long long j = 0; j < whole_cols; j += few_at_once)
        detail::row_tile<few_at_once>(c.out + i + j * c.stride, c.stride, left + i, c.left.col, right, j);
      for (long long j = whole_cols; j < c.cols; ++j)
        detail::row_tile<1>(c.out + i + j * c.stride, c.stride, left + i, c.left.col, right, j);
    }
    detail::last_rows(c, whole, left, right);
  }
}

}  // namespace graft::cpu
