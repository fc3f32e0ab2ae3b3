// SPDX-License-Identifier: Apache-2.0
// One matrix product as the CPU kernels see it: out += sign · left · right, on pointers, sizes and strides. A row-major
// y = x Wᵀ is computed as yᵀ = W xᵀ: left is W, right is xᵀ, rows are outputs, cols are tokens, depth is the inner
// size.
#pragma once

namespace graft::cpu {

// Element (i, j) of a matrix is p[i row + j col]; one of the strides is 1.
template <class Real> struct strided {
  const Real* p;
  long long row, col;
  strided transposed() const { return {p, col, row}; }
};

// out(i, j) is out[i + j stride]: out is column-major, as Eigen's kernels expect. Left and right may be stored in a
// narrower type.
template <class Real, class Left = Real, class Right = Real> struct gemm_problem {
  long long rows, cols, depth;
  strided<Left> left;
  strided<Right> right;
  Real* out;
  long long stride;
  Real sign;

  // The product of a rectangle of out.
  gemm_problem share(long long row, long long n_rows, long long col, long long n_cols) const {
    gemm_problem s = *this;
    s.rows = n_rows, s.left.p += row * left.row;
    s.cols = n_cols, s.right.p += col * right.col;
    s.out += row + col * stride;
    return s;
  }
};

}  // namespace graft::cpu
