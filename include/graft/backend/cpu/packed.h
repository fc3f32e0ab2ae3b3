// SPDX-License-Identifier: Apache-2.0
// Large products by Goto's scheme: pack a block of each operand, multiply packed blocks. The kernels are Eigen's; the
// loops around them are here, because a product of two Eigen expressions compiles every kind of product for every pair
// of operand types, and this compiles each kernel once. Block sizes are the same for all sizes of operands and all
// threads, so that the order of sums follows from the depth alone.
#pragma once
#include <graft/backend/cpu/by_columns.h>
#include <graft/backend/cpu/eigen.h>
#include <graft/backend/cpu/memory.h>

#include <algorithm>

namespace graft::cpu {

// Rows of left, depth, and columns of right that are packed at a time. The kernel goes through the block of right once for
// every few rows of left, so that one has to stay in the nearest caches, and left only streams by. Chosen from the sweep in
// bench/results/cpu-products.json.
struct blocking {
  long long rows, depth, cols;
};
inline constexpr blocking usual_blocking{1024, 128, 64};

template <class Real> void packed_product(const by_columns<Real>& c, const blocking& by = usual_blocking) {
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
  // Each thread keeps its packed blocks from product to product: memory asked for anew would be new pages each time.
  thread_local memory<Real> kept;
  const long long left_size = aligned_count(mc * kc);
  kept.reserve(left_size + kc * nc);
  Real *const block_a = kept.data(), *const block_b = block_a + left_size;
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
