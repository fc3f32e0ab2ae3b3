// SPDX-License-Identifier: Apache-2.0
// GEMM with a small inner size (small k): the expand U Bᵀ of an adapter of rank r, or the factors of a Kronecker
// product,
//   out(i, j) += sign Σ_k left(i, k) right(k, j)
// Sums along so short an inner axis would take longer to reduce than to compute. So packets of rows stay in registers
// for some columns while k advances. If left is contiguous along k, it is first transposed in registers, a packet of
// rows at a time.
#pragma once
#include <graft/backend/cpu/gemm/problem.h>
#include <graft/backend/cpu/gemm/rotation_block_gemm.h>
#include <graft/core/array_size.h>

#include <algorithm>

namespace graft::cpu {

inline constexpr long long small_k_max = 48, small_k_capacity = 64;  // small_k_capacity: for a column-major left

namespace detail {

// The register tile in packets of rows and in columns: it has enough sums to hide the latency of a multiply-add.
inline constexpr int small_k_packets = 4, small_k_cols = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? 4 : 2;

// One register tile. The sums start with zeros or with sign · out, where the sign is 1 or -1.
template <int Packets, int Cols, class Real>
[[gnu::always_inline]] inline void small_k_tile(const Real* left, long long left_stride, const strided<Real>& right,
                                                long long depth, Real sign, bool overwrite, Real* out,
                                                long long stride) {
  using namespace Eigen::internal;
  constexpr long long width = packet_width<Real>;
  packet<Real> sum[array_size(Cols)][array_size(Packets)];
  for (int j = 0; j < Cols; ++j)
    for (int p = 0; p < Packets; ++p)
      sum[j][p] = overwrite ? all(Real(0)) : pmul(all(sign), load(out + j * stride + p * width));
  for (long long k = 0; k < depth; ++k) {
    packet<Real> l[array_size(Packets)];
    for (int p = 0; p < Packets; ++p) l[p] = load(left + k * left_stride + p * width);
    for (int j = 0; j < Cols; ++j) {
      const packet<Real> r = all(right.p[k * right.row + j * right.col]);
      for (int p = 0; p < Packets; ++p) sum[j][p] = pmadd(l[p], r, sum[j][p]);
    }
  }
  for (int j = 0; j < Cols; ++j)
    for (int p = 0; p < Packets; ++p) pstoreu(out + j * stride + p * width, pmul(all(sign), sum[j][p]));
}
// Some packets of rows times all columns of right; the last packet may have fewer rows.
template <int Packets, class Real>
void small_k_rows(const gemm_problem<Real>& c, bool overwrite, long long i, const Real* left, long long left_stride) {
  constexpr long long held = Packets * packet_width<Real>;
  const long long rows = std::min(held, c.rows - i);
  auto at = [&]<int Cols>(long long j) {
    const strided<Real> right{c.right.p + j * c.right.col, c.right.row, c.right.col};
    Real* const out = c.out + i + j * c.stride;
    const bool all_there = rows == held;
    Real some[array_size(Cols * held)];
    if (!all_there) std::fill_n(some, Cols * held, Real(0));
    for (int q = 0; q < Cols && !all_there && !overwrite; ++q) std::copy_n(out + q * c.stride, rows, some + q * held);
    small_k_tile<Packets, Cols>(left, left_stride, right, c.depth, c.sign, overwrite, all_there ? out : some,
                                all_there ? c.stride : held);
    for (int q = 0; q < Cols && !all_there; ++q) std::copy_n(some + q * held, rows, out + q * c.stride);
  };
  constexpr int cols = small_k_cols * (Packets < small_k_packets ? 2 : 1);
  long long j = 0;
  for (; j + cols <= c.cols; j += cols) at.template operator()<cols>(j);
  for (; j < c.cols; ++j) at.template operator()<1>(j);
}

}  // namespace detail

// Computes a product and adds it to out or overwrites out. A larger inner size than small_k_capacity runs in slices, in
// which each sum goes on where it was stored, so that its order is the same.
template <class Real> void small_k_gemm(const gemm_problem<Real>& c, bool overwrite) {
  using namespace detail;
  if (c.depth > small_k_capacity) {
    gemm_problem<Real> slice = c;
    for (long long k = 0; k < c.depth; k += small_k_capacity) {
      slice.depth = std::min(small_k_capacity, c.depth - k);
      slice.left.p = c.left.p + k * c.left.col, slice.right.p = c.right.p + k * c.right.row;
      small_k_gemm(slice, overwrite && k == 0);
    }
    return;
  }
  constexpr long long width = packet_width<Real>, held = small_k_packets * width;
  Real transposed[array_size(small_k_capacity * held)];
  for (long long i = 0; i < c.rows; i += held) {
    const long long rows = std::min(held, c.rows - i);
    const Real* left = c.left.p + i * c.left.row;
    long long row_stride = c.left.col;
    if (c.left.row != 1 || rows % width != 0) {
      long long whole = 0;
      if (c.left.col == 1)
        for (; whole + width <= rows; whole += width)
          transpose_rows<static_cast<int>(width)>(left + whole * c.left.row, c.left.row, 0, c.depth, transposed + whole,
                                                  held);
      for (long long k = 0; k < c.depth && whole < rows; ++k) {
        for (long long one = whole; one < rows; ++one)
          transposed[k * held + one] = left[one * c.left.row + k * c.left.col];
        std::fill(transposed + k * held + rows, transposed + (k + 1) * held, Real(0));
      }
      left = transposed, row_stride = held;
    }
    long long r = 0;
    for (; r + held <= rows; r += held) small_k_rows<4>(c, overwrite, i + r, left + r, row_stride);
    for (; r + 2 * width <= rows; r += 2 * width) small_k_rows<2>(c, overwrite, i + r, left + r, row_stride);
    for (; r < rows; r += width) small_k_rows<1>(c, overwrite, i + r, left + r, row_stride);
  }
}

}  // namespace graft::cpu
