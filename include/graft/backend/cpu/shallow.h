// SPDX-License-Identifier: Apache-2.0
// Products of little depth, as S Bᵀ of an adapter of rank r, or the small matrices of a Kronecker product:
//   out(i, j) += sign Σ_k left(i, k) right(k, j)
// Sums of packets along so short a depth would take longer to be added up than to be made. So packets of rows stay in
// registers for some columns while the sum goes down the depth. Where the depth lies together in left, its rows are
// turned round first, a packet of them at a time, in registers.
#pragma once
#include <graft/backend/cpu/block_products.h>
#include <graft/backend/cpu/by_columns.h>

#include <algorithm>

namespace graft::cpu {

inline constexpr long long shallow_depth = 48, shallow_room = 64;  // so deep where the rows of left lie together

namespace detail {

// Packets of rows and columns whose sums are in registers: enough to hide the latency of a multiplication.
inline constexpr int shallow_packets = 4, shallow_cols = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? 4 : 2;

// The sums are begun with what is there, with the sign, which is 1 or -1, or with zeros.
template <int Packets, int Cols, class Real>
[[gnu::always_inline]] inline void shallow_sums(const Real* left, long long left_apart, const strided<Real>& right,
                                                long long depth, Real sign, bool overwrite, Real* out,
                                                long long stride) {
  using namespace Eigen::internal;
  constexpr long long width = packet_width<Real>;
  packet<Real> sum[Cols][Packets];
  for (int j = 0; j < Cols; ++j)
    for (int p = 0; p < Packets; ++p)
      sum[j][p] = overwrite ? all(Real(0)) : pmul(all(sign), load(out + j * stride + p * width));
  for (long long k = 0; k < depth; ++k) {
    packet<Real> l[Packets];
    for (int p = 0; p < Packets; ++p) l[p] = load(left + k * left_apart + p * width);
    for (int j = 0; j < Cols; ++j) {
      const packet<Real> r = all(right.p[k * right.row + j * right.col]);
      for (int p = 0; p < Packets; ++p) sum[j][p] = pmadd(l[p], r, sum[j][p]);
    }
  }
  for (int j = 0; j < Cols; ++j)
    for (int p = 0; p < Packets; ++p) pstoreu(out + j * stride + p * width, pmul(all(sign), sum[j][p]));
}
// All columns of right beside some packets of rows; of the last packet only some rows may be there.
template <int Packets, class Real>
void shallow_rows(const by_columns<Real>& c, bool overwrite, long long i, const Real* left, long long left_apart) {
  constexpr long long held = Packets * packet_width<Real>;
  const long long rows = std::min(held, c.rows - i);
  auto at = [&]<int Cols>(long long j) {
    const strided<Real> right{c.right.p + j * c.right.col, c.right.row, c.right.col};
    Real* const out = c.out + i + j * c.stride;
    const bool all_there = rows == held;
    Real some[Cols * held];
    if (!all_there) std::fill_n(some, Cols * held, Real(0));
    for (int q = 0; q < Cols && !all_there && !overwrite; ++q) std::copy_n(out + q * c.stride, rows, some + q * held);
    shallow_sums<Packets, Cols>(left, left_apart, right, c.depth, c.sign, overwrite, all_there ? out : some,
                                all_there ? c.stride : held);
    for (int q = 0; q < Cols && !all_there; ++q) std::copy_n(some + q * held, rows, out + q * c.stride);
  };
  constexpr int cols = shallow_cols * (Packets < shallow_packets ? 2 : 1);
  long long j = 0;
  for (; j + cols <= c.cols; j += cols) at.template operator()<cols>(j);
  for (; j < c.cols; ++j) at.template operator()<1>(j);
}

}  // namespace detail

// For depths up to shallow_room. Adds to what is there, or overwrites it.
template <class Real> void shallow_product(const by_columns<Real>& c, bool overwrite) {
  using namespace detail;
  constexpr long long width = packet_width<Real>, held = shallow_packets * width;
  Real turned[shallow_room * held];
  for (long long i = 0; i < c.rows; i += held) {
    const long long rows = std::min(held, c.rows - i);
    const Real* left = c.left.p + i * c.left.row;
    long long apart = c.left.col;
    if (c.left.row != 1 || rows % width != 0) {
      long long whole = 0;
      if (c.left.col == 1)
        for (; whole + width <= rows; whole += width)
          turn_rows<static_cast<int>(width)>(left + whole * c.left.row, c.left.row, 0, c.depth, turned + whole, held);
      for (long long k = 0; k < c.depth && whole < rows; ++k) {
        for (long long one = whole; one < rows; ++one) turned[k * held + one] = left[one * c.left.row + k * c.left.col];
        std::fill(turned + k * held + rows, turned + (k + 1) * held, Real(0));
      }
      left = turned, apart = held;
    }
    long long r = 0;
    for (; r + held <= rows; r += held) shallow_rows<4>(c, overwrite, i + r, left + r, apart);
    for (; r + 2 * width <= rows; r += 2 * width) shallow_rows<2>(c, overwrite, i + r, left + r, apart);
    for (; r < rows; r += width) shallow_rows<1>(c, overwrite, i + r, left + r, apart);
  }
}

}  // namespace graft::cpu
