// SPDX-License-Identifier: Apache-2.0
// The one matrix product of the CPU backend: c = a b, c += a b or c -= a b on pointers, sizes and strides. The inner
// kernels and the block sizes are Eigen's (Goto's scheme: pack a block of each operand, multiply packed blocks); the
// loops around them are here, because a product of two Eigen expressions compiles every kind of product for every pair
// of operand types, and this compiles each kernel once. Sums are made in an order that follows from the sizes alone,
// wherever the operands lie. Outside of parallel regions each thread computes a share of the rows or columns.
#pragma once
#include <graft/backend/cpu/memory.h>
#include <graft/backend/cpu/threads.h>

#include <Eigen/Core>
#include <algorithm>
#include <vector>

namespace graft::cpu {

// Element (i, j) of a matrix is at p[i row + j col]; one of the strides is 1.
template <class Real> struct strided {
  const Real* p;
  long long row, col;
  strided transposed() const { return {p, col, row}; }
};

namespace detail {

// out += sign left right by columns: out(i, j) is at out[i + j stride]. These are the roles of Eigen's kernels.
template <class Real> struct by_columns {
  long long rows, cols, depth;
  strided<Real> left, right;
  Real* out;
  long long stride;
  Real sign;

  by_columns share_of_rows(long long from, long long n) const {
    by_columns s = *this;
    s.rows = n, s.left.p += from * left.row, s.out += from;
    return s;
  }
  by_columns share_of_cols(long long from, long long n) const {
    by_columns s = *this;
    s.cols = n, s.right.p += from * right.col, s.out += from * stride;
    return s;
  }
};

template <class Real> void run_blocks(const by_columns<Real>& c) {
  using namespace Eigen::internal;
  using Eigen::ColMajor;
  using Eigen::Index;
  using Eigen::RowMajor;
  using traits = gebp_traits<Real, Real>;
  using columns = const_blas_data_mapper<Real, Index, ColMajor>;
  using rows = const_blas_data_mapper<Real, Index, RowMajor>;
  using result = blas_data_mapper<Real, Index, ColMajor>;
  using packing = typename traits::LhsPacket4Packing;
  gemm_pack_lhs<Real, Index, columns, traits::mr, traits::LhsProgress, packing, ColMajor> left_columns;
  gemm_pack_lhs<Real, Index, rows, traits::mr, traits::LhsProgress, packing, RowMajor> left_rows;
  gemm_pack_rhs<Real, Index, columns, traits::nr, ColMajor> right_columns;
  gemm_pack_rhs<Real, Index, rows, traits::nr, RowMajor> right_rows;
  gebp_kernel<Real, Real, Index, result, traits::mr, traits::nr, false, false> multiply;

  gemm_blocking_space<ColMajor, Real, Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::Dynamic> block(c.rows, c.cols,
                                                                                                  c.depth, 1, true);
  const Index mc = std::min<Index>(c.rows, block.mc()), kc = std::min<Index>(c.depth, block.kc()),
              nc = std::min<Index>(c.cols, block.nc());
  // Each thread keeps its packed blocks from product to product: memory asked for anew would be new pages each time.
  thread_local memory<Real> kept;
  const long long left_size = aligned_count(mc * kc);
  kept.reserve(left_size + kc * nc);
  Real *const block_a = kept.data(), *const block_b = block_a + left_size;
  const bool right_stays = kc >= c.depth && nc >= c.cols;
  for (Index i = 0; i < c.rows; i += mc)
    for (Index k = 0; k < c.depth; k += kc) {
      const Index m = std::min<Index>(mc, c.rows - i), depth = std::min<Index>(kc, c.depth - k);
      const Real* left = c.left.p + i * c.left.row + k * c.left.col;
      if (c.left.row == 1)
        left_columns(block_a, columns(left, c.left.col), depth, m);
      else
        left_rows(block_a, rows(left, c.left.row), depth, m);
      for (Index j = 0; j < c.cols; j += nc) {
        const Index n = std::min<Index>(nc, c.cols - j);
        const Real* right = c.right.p + k * c.right.row + j * c.right.col;
        const bool packed = right_stays && i > 0;
        if (!packed && c.right.row == 1) right_columns(block_b, columns(right, c.right.col), depth, n);
        if (!packed && c.right.row != 1) right_rows(block_b, rows(right, c.right.row), depth, n);
        multiply(result(c.out + i + j * c.stride, c.stride), block_a, block_b, m, depth, n, c.sign);
      }
    }
}

// The same for one column, without packing: each element of left is used once.
template <int Order, class Real> void run_vector(const by_columns<Real>& c, long long left_stride) {
  using matrix = Eigen::internal::const_blas_data_mapper<Real, Eigen::Index, Order>;
  using vector = Eigen::internal::const_blas_data_mapper<Real, Eigen::Index, 1 - Order>;
  Eigen::internal::general_matrix_vector_product<Eigen::Index, Real, matrix, Order, false, Real, vector, false>::run(
      c.rows, c.depth, matrix(c.left.p, left_stride), vector(c.right.p, 1), c.out, 1, c.sign);
}
template <class Real> void run(by_columns<Real> c) {
  if (c.cols > 1) return run_blocks(c);
  std::vector<Real> dense;
  if (c.right.row != 1) {
    dense.resize(static_cast<std::size_t>(c.depth));
    for (long long i = 0; i < c.depth; ++i) dense[static_cast<std::size_t>(i)] = c.right.p[i * c.right.row];
    c.right.p = dense.data();
  }
  if (c.left.row == 1)
    run_vector<Eigen::ColMajor>(c, c.left.col);
  else
    run_vector<Eigen::RowMajor>(c, c.left.row);
}

}  // namespace detail

// Threads for work that falls into this many parts: each with enough multiplications to be worth waking, which takes up
// to some hundred microseconds on a busy machine.
inline int threads_for(long long parts, long long multiplications) {
  return static_cast<int>(std::clamp<long long>(std::min(parts, multiplications / 2000000), 1, thread_count()));
}

// c[m, n] with rows c_row apart; accumulate 0 overwrites, +1 adds and -1 subtracts.
template <class Real>
void gemm(long long m, long long n, long long k, strided<Real> a, strided<Real> b, Real* c, long long c_row,
          int accumulate) {
  if (accumulate == 0)
    for (long long i = 0; i < m; ++i) std::fill_n(c + i * c_row, n, Real(0));
  if (m == 0 || n == 0 || k == 0) return;
  const Real sign = accumulate < 0 ? Real(-1) : Real(1);
  if (m > 1 && m + n + k < 20) {  // packing costs more than these products
    for (long long i = 0; i < m; ++i)
      for (long long j = 0; j < n; ++j) {
        Real sum = 0;
        for (long long p = 0; p < k; ++p) sum += a.p[i * a.row + p * a.col] * b.p[p * b.row + j * b.col];
        c[i * c_row + j] += sign * sum;
      }
    return;
  }
  // By columns a row-major c is its transpose: cᵀ = bᵀ aᵀ. A single column is one either way.
  const detail::by_columns<Real> all =
      n == 1 && c_row == 1 ? detail::by_columns<Real>{m, 1, k, a, b, c, m, sign}
                           : detail::by_columns<Real>{n, m, k, b.transposed(), a.transposed(), c, c_row, sign};
  const long long unit = 48;  // a multiple of what the kernels do at a time: the same sums on any number of threads
  const bool by_rows = all.rows >= all.cols;
  const long long most = std::max(all.rows, all.cols), units = (most + unit - 1) / unit;
  const int threads = threads_for(units, m * n * k);
  on_threads(threads, [&](int t) {
    const long long from = units * t / threads * unit, end = std::min(units * (t + 1) / threads * unit, most);
    detail::run(by_rows ? all.share_of_rows(from, end - from) : all.share_of_cols(from, end - from));
  });
}

}  // namespace graft::cpu
