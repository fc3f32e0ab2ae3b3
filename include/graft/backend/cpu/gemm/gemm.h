// SPDX-License-Identifier: Apache-2.0
// GEMM of the CPU backend: c = a b, c += a b or c -= a b on pointers, sizes and strides, with an epilogue. A product
// with few rows or columns reads its large operand once, in place; the kernel follows from sizes and strides:
//   small_k   small inner size, the expand U Bᵀ of an adapter (small_k.h)
//   dots      GEMV and skinny GEMM, both operands contiguous along the inner axis (skinny.h)
//   rows      up to 4 rows of x and a weight in NN layout (skinny.h)
//   columns   few tokens times few columns in NN layout, the shrink (small_m.h)
//   packed    all others: a BLAS if there is one (blas.h), else packed blocks (packed.h)
// Our sums have an order that follows from the sizes alone, for all addresses and numbers of threads. Outside of
// parallel regions each thread computes rectangles of c. Packed products add in another order than the others, so a
// batch-invariant product (threads.h) is never packed: then the order follows from the inner size alone.
#pragma once
#include <graft/backend/cpu/gemm/blas.h>
#include <graft/backend/cpu/gemm/epilogue.h>
#include <graft/backend/cpu/gemm/packed.h>
#include <graft/backend/cpu/gemm/skinny.h>
#include <graft/backend/cpu/gemm/small_k.h>
#include <graft/backend/cpu/gemm/small_m.h>
#include <graft/backend/cpu/instructions/selected_kernels.h>
#include <graft/backend/cpu/runtime/threads.h>

namespace graft::cpu {

// The kernel of a product. It determines the order of sums, so it is chosen once for a whole product, never for a
// share.
enum class gemm_kernel : unsigned char { small_k, skinny_nt, rows, columns, packed };

namespace detail {

// A product is skinny up to this many rows or columns: packing costs more than it saves
// (bench/results/cpu-products.json). For a column-major left packing pays from 5 columns on, or from 25 if left has at
// most one packet of rows. From 16 rows on a BLAS computes 512 columns in two thirds of our time.
inline constexpr long long skinny_max = 64, min_rows_by_column = 64, blas_rows = 16;

// The kernel of a batch-invariant product. With a column-major left, small_k, rows and columns all add one product
// after the other to a sum, so that their results have the same bits.
template <class Real> gemm_kernel choose_batch_invariant_kernel(const gemm_problem<Real>& c) {
  if (c.left.col == 1 && c.depth > small_k_max) return gemm_kernel::skinny_nt;
  if (c.left.row != 1) return gemm_kernel::small_k;
  if (c.cols <= column_major_cols && c.rows >= min_rows_by_column) return gemm_kernel::rows;
  return c.cols <= small_m_cols && c.rows <= small_m_rows<Real> ? gemm_kernel::columns : gemm_kernel::small_k;
}
template <class Real> gemm_kernel choose_kernel(const gemm_problem<Real>& c) {
  if (is_batch_invariant()) return choose_batch_invariant_kernel(c);
  const bool few_cols = c.cols <= skinny_max;
  const bool small_k = c.depth <= (c.left.row == 1 ? small_k_capacity : small_k_max);
  if (small_k && (few_cols || c.rows <= skinny_max)) return gemm_kernel::small_k;
  const bool few_rows = c.rows <= (has_blas ? blas_rows - 1 : skinny_max);
  if (c.left.col == 1 && (few_cols || (few_rows && c.right.row == 1))) return gemm_kernel::skinny_nt;
  if (c.left.row == 1 && c.cols <= column_major_cols && c.rows >= min_rows_by_column) return gemm_kernel::rows;
  return c.left.row == 1 && c.cols <= small_m_cols && c.rows <= small_m_rows<Real> ? gemm_kernel::columns
                                                                                   : gemm_kernel::packed;
}
// A row-major c is the column-major cᵀ = bᵀ aᵀ; a single contiguous column needs no transposition.
template <class Real>
gemm_problem<Real> column_major_problem(long long m, long long n, long long k, strided<Real> a, strided<Real> b,
                                        Real* c, long long c_row, Real sign) {
  if (n == 1 && c_row == 1) return {m, 1, k, a, b, c, m, sign};
  return {n, m, k, b.transposed(), a.transposed(), c, c_row, sign};
}
// Shares of c begin and end at multiples of this number, which is itself a multiple of the register tiles of Eigen's
// kernels and of skinny_nt_gemm.
inline constexpr long long share_granularity = 48;

// The columns of right that a thread copied so that each is contiguous.
template <class Real> memory<Real>& copied_columns() {
  thread_local memory<Real> columns;
  return columns;
}
// Reserves what run() needs on the calling thread, so that a thread which gets its first share in a later call does not
// allocate then.
template <class Real> void reserve_scratch(const gemm_problem<Real>& c, gemm_kernel kernel) {
  if constexpr (std::is_same_v<Real, float>)
    if (const auto* k = faster_kernels()) return k->reserve(as_kernel_product(c), static_cast<int>(kernel));
  if (kernel == gemm_kernel::packed) reserve_packed_blocks(c);
  if (kernel == gemm_kernel::skinny_nt && c.right.row != 1) copied_columns<Real>().reserve(c.cols * c.depth);
}
template <class Real> void run(gemm_problem<Real> c, gemm_kernel kernel, bool overwrite) {
  if constexpr (std::is_same_v<Real, float>)
    if (const auto* k = faster_kernels()) return k->multiply(as_kernel_product(c), static_cast<int>(kernel), overwrite);
  if (kernel == gemm_kernel::small_k) return small_k_gemm(c, overwrite);
  for (long long j = 0; overwrite && j < c.cols; ++j) std::fill_n(c.out + j * c.stride, c.rows, Real(0));
  if (kernel == gemm_kernel::rows) return skinny_nn_gemm(c);
  if (kernel == gemm_kernel::columns) return small_m_gemm(c);
  if (kernel == gemm_kernel::packed) return packed_gemm(c);
  if (c.right.row != 1) {  // copies the few columns of right, so that each is contiguous
    memory<Real>& columns = copied_columns<Real>();
    columns.reserve(c.cols * c.depth);
    for (long long k = 0; k < c.depth; ++k)
      for (long long j = 0; j < c.cols; ++j)
        columns.data()[j * c.depth + k] = c.right.p[k * c.right.row + j * c.right.col];
    c.right = {columns.data(), 1, c.depth};
  }
  skinny_nt_gemm(c);
}
// How many of the threads divide the rows; threads / that many divide the columns. The cost is that of the largest
// share, in which packing a unit of rows or columns costs a sixth of multiplying a unit of both.
inline int row_threads(long long row_units, long long col_units, int threads) {
  int best = 1;
  long long least = -1;
  for (int d = 1; d <= threads; ++d) {
    if (threads % d != 0) continue;
    const long long rows = (row_units + d - 1) / d, cols = (col_units + threads / d - 1) / (threads / d);
    if (const long long cost = 6 * rows * cols + rows + cols; least < 0 || cost < least) best = d, least = cost;
  }
  return best;
}
// The cost of a product in multiplications: loading an element from memory takes a core as long as eight of them.
template <class Product> long long gemm_cost(const Product& c) { return c.rows * c.depth * (c.cols + 8); }

// Runs prepare(share) once on every thread, with the largest share, then first(k) for all prologue tasks, then f(share)
// for rectangles that cover c, on all threads.
// If left is only streamed past few columns, memory bandwidth is the limit, so there are more shares than threads and a
// free thread takes the next one.
template <class Real, class Left, class Right, class Prepare, class First, class F>
void for_each_share(const gemm_problem<Real, Left, Right>& all, Prepare prepare, int prologue_tasks, First first, F f) {
  constexpr long long unit = share_granularity, shares_each = 4;
  const long long row_units = (all.rows + unit - 1) / unit, col_units = (all.cols + unit - 1) / unit;
  const int threads = threads_for(row_units * col_units, gemm_cost(all));
  const bool streams = all.left.col == 1 && all.right.row == 1 && col_units == 1 && threads > 1;
  const int shares = streams ? static_cast<int>(std::min(row_units, shares_each * threads)) : threads;
  const int down = streams ? shares : row_threads(row_units, col_units, threads), col_shares = shares / down;
  const long long most_rows = std::min(all.rows, (row_units + down - 1) / down * unit),
                  most_cols = std::min(all.cols, (col_units + col_shares - 1) / col_shares * unit);
  const auto largest = [&] { prepare(all.share(0, most_rows, 0, most_cols)); };
  parallel_dynamic(threads, largest, prologue_tasks, first, shares, [&](int t) {
    const int r = t % down, q = t / down;
    const long long row = row_units * r / down * unit, row_end = std::min(all.rows, row_units * (r + 1) / down * unit);
    const long long col = col_units * q / col_shares * unit,
                    col_end = std::min(all.cols, col_units * (q + 1) / col_shares * unit);
    if (row < row_end && col < col_end) f(all.share(row, row_end - row, col, col_end - col));
  });
}

template <class Real, class Left, class Right, class Prepare, class F>
void for_each_share(const gemm_problem<Real, Left, Right>& all, Prepare prepare, F f) {
  for_each_share(
      all, prepare, 0, [](int) {}, f);
}
// The prologue of an epilogue, U = x Aᵀ, in tasks of a few columns, or of 8 rows if it has no more columns than one
// task.
template <class Real> struct shrink_tasks {
  static constexpr long long rows_per_task = 8;
  const gemm_problem<Real>& all;
  gemm_kernel kernel;
  bool down;
  long long unit;
  int count;
  shrink_tasks(const gemm_problem<Real>& a, gemm_kernel by)
      : all(a),
        kernel(by),
        down(by == gemm_kernel::skinny_nt && a.cols <= skinny_cols),
        unit(down ? rows_per_task : skinny_cols),
        count(a.rows == 0 ? 0 : static_cast<int>(((down ? a.rows : a.cols) + unit - 1) / unit)) {}
  void reserve() const {
    const long long n = std::min(unit, down ? all.rows : all.cols);
    reserve_scratch(down ? all.share(0, n, 0, all.cols) : all.share(0, all.rows, 0, n), kernel);
  }
  void operator()(int p) const {
    const long long at = unit * p, n = std::min(unit, (down ? all.rows : all.cols) - at);
    run(down ? all.share(at, n, 0, all.cols) : all.share(0, all.rows, at, n), kernel, true);
  }
};
// The epilogue on one share of a product. can_fuse() is false if the branch is so large that it has to be a GEMM of its
// own.
template <class Real> struct share_epilogue {
  const gemm_epilogue<Real>& end;
  gemm_kernel shrink_kernel, branch_kernel;
  explicit share_epilogue(const gemm_epilogue<Real>& e)
      : end(e),
        shrink_kernel(e.has_shrink() ? choose_kernel(e.first) : gemm_kernel::small_k),
        branch_kernel(e.has_branch() ? choose_kernel(e.branch) : gemm_kernel::small_k) {}
  bool can_fuse() const { return shrink_kernel != gemm_kernel::packed && branch_kernel != gemm_kernel::packed; }
  template <class Share> void operator()(const Share& share, const Real* out) const {
    const long long at = share.out - out, col = at / share.stride, row = at % share.stride;
    if (end.has_branch()) run(end.branch.share(row, share.rows, col, share.cols), branch_kernel, false);
    end.apply_epilogue(share, row);
  }
};
template <class Real>
void multiply(const gemm_problem<Real>& all, gemm_kernel kernel, bool overwrite, const gemm_epilogue<Real>& end);

// Runs the epilogue after the whole product has been computed.
template <class Real, class Product> void run_epilogue(const Product& all, const gemm_epilogue<Real>& end) {
  if (end.has_shrink()) multiply(end.first, choose_kernel(end.first), true, {});
  if (end.has_branch()) return multiply(end.branch, choose_kernel(end.branch), false, end.without_branch());
  if (end.count > 0)
    parallel_for(all.cols, all.rows * all.cols,
                 [&](long long from, long long to) { end.apply_epilogue(all.share(0, all.rows, from, to - from), 0); });
}
// Computes a product with f(share) and applies the epilogue to each share while it is in the cache.
template <class Product, class Real, class Prepare, class F>
void for_each_share_with_epilogue(const Product& all, const gemm_epilogue<Real>& end, Prepare prepare, F f) {
  const share_epilogue<Real> then(end);
  if (!then.can_fuse()) {
    for_each_share(all, prepare, f);
    return run_epilogue(all, end);
  }
  const shrink_tasks<Real> first(end.first, then.shrink_kernel);
  const auto prepare_all = [&](const Product& share) {
    prepare(share);
    if (end.has_shrink()) first.reserve();
  };
  for_each_share(all, prepare_all, first.count, first, [&](const Product& share) {
    f(share);
    then(share, all.out);
  });
}
template <class Real>
void multiply(const gemm_problem<Real>& all, gemm_kernel kernel, bool overwrite, const gemm_epilogue<Real>& end) {
#if defined(GRAFT_BLAS)
  if (kernel == gemm_kernel::packed && !in_parallel() && fits_blas(all)) {
    const single_blas_thread alone;
    if (alone.has_pool())
      for_each_share(
          all, [](const gemm_problem<Real>&) {}, [=](const gemm_problem<Real>& share) { blas_gemm(share, overwrite); });
    else
      blas_gemm(all, overwrite);
    return run_epilogue(all, end);
  }
#endif
  for_each_share_with_epilogue(
      all, end, [=](const gemm_problem<Real>& share) { reserve_scratch(share, kernel); },
      [=](const gemm_problem<Real>& share) { run(share, kernel, overwrite); });
}

}  // namespace detail

template <class Real>
gemm_kernel choose_kernel(long long m, long long n, long long k, strided<Real> a, strided<Real> b, long long c_row) {
  return detail::choose_kernel(detail::column_major_problem<Real>(m, n, k, a, b, nullptr, c_row, Real(1)));
}
// c[m, n] has the row stride c_row; accumulate 0 overwrites, +1 adds and -1 subtracts.
template <class Real>
void gemm(long long m, long long n, long long k, strided<Real> a, strided<Real> b, Real* c, long long c_row,
          int accumulate, gemm_kernel kernel, const gemm_epilogue<Real>& end = {}) {
  if (m == 0 || n == 0) return;
  const gemm_problem<Real> all =
      detail::column_major_problem(m, n, k, a, b, c, c_row, accumulate < 0 ? Real(-1) : Real(1));
  if (k > 0) return detail::multiply(all, kernel, accumulate == 0, end);
  for (long long i = 0; accumulate == 0 && i < m; ++i) std::fill_n(c + i * c_row, n, Real(0));
  detail::run_epilogue(all, end);
}
template <class Real>
void gemm(long long m, long long n, long long k, strided<Real> a, strided<Real> b, Real* c, long long c_row,
          int accumulate) {
  gemm(m, n, k, a, b, c, c_row, accumulate, choose_kernel(m, n, k, a, b, c_row));
}

}  // namespace graft::cpu
