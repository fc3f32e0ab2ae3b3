// SPDX-License-Identifier: Apache-2.0
// The one matrix product of the CPU backend: c = a b, c += a b or c -= a b on pointers, sizes and strides. Here it is
// decided who computes it: a product with few rows or columns reads the large operand once, where it lies (few.h,
// short_columns.h, shallow.h); any other goes to a BLAS where there is one (blas.h), or is packed (packed.h). Our sums are
// made in an order that follows from the sizes alone, wherever the operands lie and on however many threads. Outside of
// parallel regions each thread computes a rectangle of c.
#pragma once
#include <graft/backend/cpu/blas.h>
#include <graft/backend/cpu/few.h>
#include <graft/backend/cpu/packed.h>
#include <graft/backend/cpu/product_end.h>
#include <graft/backend/cpu/shallow.h>
#include <graft/backend/cpu/short_columns.h>
#include <graft/backend/cpu/threads.h>

namespace graft::cpu {

// Who computes a product. Sums follow from it, so it is chosen for a whole product and not for a part of it.
enum class way : unsigned char { shallow, dots, rows, columns, packed };

namespace detail {

// Up to so many rows or columns are few: packing does not pay before (bench/results/cpu-products.json). Where left lies by
// columns it pays from five columns on, and with a packet of rows from 25 on. A BLAS takes 512 columns from 16 rows on in
// two thirds of the time.
inline constexpr long long few_dots = 64, many_rows = 64, blas_rows = 16;

template <class Real> way way_of(const by_columns<Real>& c) {
  const bool few_cols = c.cols <= few_dots;
  const bool shallow = c.depth <= (c.left.row == 1 ? shallow_room : shallow_depth);
  if (shallow && (few_cols || c.rows <= few_dots)) return way::shallow;
  const bool few_rows = c.rows <= (has_blas ? blas_rows - 1 : few_dots);
  if (c.left.col == 1 && (few_cols || (few_rows && c.right.row == 1))) return way::dots;
  if (c.left.row == 1 && c.cols <= row_product_cols && c.rows >= many_rows) return way::rows;
  return c.left.row == 1 && c.cols <= short_column_cols && c.rows <= short_column_rows<Real> ? way::columns
                                                                                             : way::packed;
}
// By columns a row-major c is its transpose: cᵀ = bᵀ aᵀ. A single column is one either way.
template <class Real>
by_columns<Real> transposed_roles(long long m, long long n, long long k, strided<Real> a, strided<Real> b, Real* c,
                                  long long c_row, Real sign) {
  if (n == 1 && c_row == 1) return {m, 1, k, a, b, c, m, sign};
  return {n, m, k, b.transposed(), a.transposed(), c, c_row, sign};
}
// A multiple of what the kernels do at a time: a thread's share of c begins and ends at one.
inline constexpr long long share_unit = 48;

template <class Real> void run(by_columns<Real> c, way how, bool overwrite) {
  if (how == way::shallow) return shallow_product(c, overwrite);
  for (long long j = 0; overwrite && j < c.cols; ++j) std::fill_n(c.out + j * c.stride, c.rows, Real(0));
  if (how == way::rows) return row_product(c);
  if (how == way::columns) return short_column_product(c);
  if (how == way::packed) return packed_product(c);
  if (c.right.row != 1) {  // its few columns, each in one piece
    thread_local memory<Real> columns;
    columns.reserve(c.cols * c.depth);
    for (long long k = 0; k < c.depth; ++k)
      for (long long j = 0; j < c.cols; ++j)
        columns.data()[j * c.depth + k] = c.right.p[k * c.right.row + j * c.right.col];
    c.right = {columns.data(), 1, c.depth};
  }
  dot_product(c);
}
// How many of the threads share the rows; the others share the columns. The one with most to do decides, and packing what
// meets in a share costs about a sixth of multiplying it out for one further unit.
inline int threads_along_rows(long long row_units, long long col_units, int threads) {
  int best = 1;
  long long least = -1;
  for (int d = 1; d <= threads; ++d) {
    if (threads % d != 0) continue;
    const long long rows = (row_units + d - 1) / d, cols = (col_units + threads / d - 1) / (threads / d);
    if (const long long cost = 6 * rows * cols + rows + cols; least < 0 || cost < least) best = d, least = cost;
  }
  return best;
}
// What a product takes, in multiplications: a number that comes from memory takes a core as long as eight of them.
template <class Product> long long work_of(const Product& c) { return c.rows * c.depth * (c.cols + 8); }

// f of a rectangle of c, on each thread. Where left is read past few columns it is its reading that takes the time: there
// are more shares than threads then, to whoever is free.
// Ahead of them first(part), by all threads.
template <class Real, class Left, class Right, class First, class F>
void in_shares(const by_columns<Real, Left, Right>& all, int first_parts, First first, F f) {
  constexpr long long unit = share_unit, shares_each = 4;
  const long long row_units = (all.rows + unit - 1) / unit, col_units = (all.cols + unit - 1) / unit;
  const int threads = threads_for(row_units * col_units, work_of(all));
  const bool streams = all.left.col == 1 && all.right.row == 1 && col_units == 1 && threads > 1;
  const int shares = streams ? static_cast<int>(std::min(row_units, shares_each * threads)) : threads;
  const int down = streams ? shares : threads_along_rows(row_units, col_units, threads), across = shares / down;
  on_free_threads(threads, first_parts, first, shares, [&](int t) {
    const int r = t % down, q = t / down;
    const long long row = row_units * r / down * unit, row_end = std::min(all.rows, row_units * (r + 1) / down * unit);
    const long long col = col_units * q / across * unit,
                    col_end = std::min(all.cols, col_units * (q + 1) / across * unit);
    if (row < row_end && col < col_end) f(all.share(row, row_end - row, col, col_end - col));
  });
}

template <class Real, class Left, class Right, class F> void in_shares(const by_columns<Real, Left, Right>& all, F f) {
  in_shares(
      all, 0, [](int) {}, f);
}
// A small product in parts of a few columns, or of some rows where there are no more columns. The sums are the same.
template <class Real> struct small_parts {
  static constexpr long long some_rows = 8;
  const by_columns<Real>& all;
  way how;
  bool down;
  long long unit;
  int count;
  small_parts(const by_columns<Real>& a, way by)
      : all(a),
        how(by),
        down(by == way::dots && a.cols <= few_at_once),
        unit(down ? some_rows : few_at_once),
        count(a.rows == 0 ? 0 : static_cast<int>(((down ? a.rows : a.cols) + unit - 1) / unit)) {}
  void operator()(int p) const {
    const long long at = unit * p, n = std::min(unit, (down ? all.rows : all.cols) - at);
    run(down ? all.share(at, n, 0, all.cols) : all.share(0, all.rows, at, n), how, true);
  }
};
// What follows a product, of a rectangle of it. Where a part of that is large it is a product of its own.
template <class Real> struct following {
  const product_end<Real>& end;
  way first_by, side_by;
  explicit following(const product_end<Real>& e)
      : end(e),
        first_by(e.has_first() ? way_of(e.first) : way::shallow),
        side_by(e.has_side() ? way_of(e.side) : way::shallow) {}
  bool at_once() const { return first_by != way::packed && side_by != way::packed; }
  template <class Share> void operator()(const Share& share, const Real* out) const {
    const long long at = share.out - out, col = at / share.stride, row = at % share.stride;
    if (end.has_side()) run(end.side.share(row, share.rows, col, share.cols), side_by, false);
    end.take_steps(share, row);
  }
};
template <class Real> void multiply(const by_columns<Real>& all, way how, bool overwrite, const product_end<Real>& end);

// The same when all of the product is there.
template <class Real, class Product> void finish(const Product& all, const product_end<Real>& end) {
  if (end.has_first()) multiply(end.first, way_of(end.first), true, {});
  if (end.has_side()) return multiply(end.side, way_of(end.side), false, end.without_side());
  if (end.count > 0)
    on_shares(all.cols, all.rows * all.cols,
              [&](long long from, long long to) { end.take_steps(all.share(0, all.rows, from, to - from), 0); });
}
// f of each share of a product, and what follows it.
template <class Product, class Real, class F>
void in_shares_to_the_end(const Product& all, const product_end<Real>& end, F f) {
  const following<Real> then(end);
  if (!then.at_once()) {
    in_shares(all, f);
    return finish(all, end);
  }
  const small_parts<Real> first(end.first, then.first_by);
  in_shares(all, first.count, first, [&](const Product& share) {
    f(share);
    then(share, all.out);
  });
}
template <class Real>
void multiply(const by_columns<Real>& all, way how, bool overwrite, const product_end<Real>& end) {
#if defined(GRAFT_BLAS)
  if (how == way::packed && !in_parallel() && fits_blas(all)) {
    const one_blas_thread alone;
    if (alone.has_pool())
      in_shares(all, [=](const by_columns<Real>& share) { blas_product(share, overwrite); });
    else
      blas_product(all, overwrite);
    return finish(all, end);
  }
#endif
  in_shares_to_the_end(all, end, [=](const by_columns<Real>& share) { run(share, how, overwrite); });
}

}  // namespace detail

template <class Real>
way way_of(long long m, long long n, long long k, strided<Real> a, strided<Real> b, long long c_row) {
  return detail::way_of(detail::transposed_roles<Real>(m, n, k, a, b, nullptr, c_row, Real(1)));
}
// c[m, n] with rows c_row apart; accumulate 0 overwrites, +1 adds and -1 subtracts.
template <class Real>
void gemm(long long m, long long n, long long k, strided<Real> a, strided<Real> b, Real* c, long long c_row,
          int accumulate, way how, const product_end<Real>& end = {}) {
  if (m == 0 || n == 0) return;
  const by_columns<Real> all = detail::transposed_roles(m, n, k, a, b, c, c_row, accumulate < 0 ? Real(-1) : Real(1));
  if (k > 0) return detail::multiply(all, how, accumulate == 0, end);
  for (long long i = 0; accumulate == 0 && i < m; ++i) std::fill_n(c + i * c_row, n, Real(0));
  detail::finish(all, end);
}
template <class Real>
void gemm(long long m, long long n, long long k, strided<Real> a, strided<Real> b, Real* c, long long c_row,
          int accumulate) {
  gemm(m, n, k, a, b, c, c_row, accumulate, way_of(m, n, k, a, b, c_row));
}

}  // namespace graft::cpu
