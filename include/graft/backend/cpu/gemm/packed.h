// SPDX-License-Identifier: Apache-2.0
// Large GEMM without a BLAS, by Goto's scheme: pack a block of each operand, then multiply packed blocks. The kernels
// are Eigen's (gebp). The loops around them are here, because a product of two Eigen expressions compiles every kind of
// product for every pair of operand types, and these compile each kernel once. Block sizes do not depend on sizes or
// threads, so the order of sums follows from the inner size alone.
#pragma once
#include <graft/backend/cpu/gemm/problem.h>
#include <graft/backend/cpu/runtime/eigen.h>
#include <graft/backend/cpu/runtime/memory.h>

#include <algorithm>

namespace graft::cpu {

// Rows of left, inner size and columns of right that are packed at a time. The kernel reads the block of right once per
// few rows of left, so that block has to fit the nearest caches while left is streamed. The sizes come from the sweep
// in bench/results/cpu-products.json.
struct blocking {
  long long rows, depth, cols;
};
inline constexpr blocking default_blocking{1024, 128, 64};

// The packed blocks of a thread live on between products: freshly allocated memory would fault new pages each time.
template <class Real> memory<Real>& packed_blocks() {
  thread_local memory<Real> packed;
  return packed;
}
template <class Real> void reserve_packed_blocks(const gemm_problem<Real>& c, const blocking& by = default_blocking) {
  const long long depth = std::min(c.depth, by.depth);
  packed_blocks<Real>().reserve(aligned_count(std::min(c.rows, by.rows) * depth) + depth * std::min(c.cols, by.cols));
}

template <class Real> void packed_gemm(const gemm_problem<Real>& c, const blocking& by = default_blocking) {
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

  const long long mc = std::min(c.rows, by.rows), kc = std::min(c.depth, by.depth), nc = std::min(c.cols, by.cols);
  const long long left_size = aligned_count(mc * kc);
  reserve_packed_blocks(c, by);
  Real *const block_a = packed_blocks<Real>().data(), *const block_b = block_a + left_size;
  for (long long i = 0; i < c.rows; i += mc)
    for (long long k = 0; k < c.depth; k += kc) {
      const long long m = std::min(mc, c.rows - i), depth = std::min(kc, c.depth - k);
      const Real* left = c.left.p + i * c.left.row + k * c.left.col;
      if (c.left.row == 1)
        left_columns(block_a, columns(left, c.left.col), depth, m);
      else
        left_rows(block_a, rows(left, c.left.row), depth, m);
      for (long long j = 0; j < c.cols; j += nc) {
        const long long n = std::min(nc, c.cols - j);
        const Real* right = c.right.p + k * c.right.row + j * c.right.col;
        if (c.right.row == 1)
          right_columns(block_b, columns(right, c.right.col), depth, n);
        else
          right_rows(block_b, rows(right, c.right.row), depth, n);
        multiply(result(c.out + i + j * c.stride, c.stride), block_a, block_b, m, depth, n, c.sign);
      }
    }
}

}  // namespace graft::cpu
