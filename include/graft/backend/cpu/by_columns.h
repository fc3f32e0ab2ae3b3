// SPDX-License-Identifier: Apache-2.0
// A matrix product as the kernels see it: out += sign left right, on pointers, sizes and strides.
#pragma once

namespace graft::cpu {

// Element (i, j) of a matrix is at p[i row + j col]; one of the strides is 1.
template <class Real> struct strided {
  const Real* p;
  long long row, col;
  strided transposed() const { return {p, col, row}; }
};

// out(i, j) is at out[i + j stride]: the rows of a column lie together, as in the roles of Eigen's kernels. Left and right
// may be stored as something narrower.
template <class Real, class Left = Real, class Right = Real> struct by_columns {
  long long rows, cols, depth;
  strided<Left> left;
  strided<Right> right;
  Real* out;
  long long stride;
  Real sign;

  by_columns share(long long row, long long n_rows, long long col, long long n_cols) const {
    by_columns s = *this;
    s.rows = n_rows, s.left.p += row * left.row;
    s.cols = n_cols, s.right.p += col * right.col;
    s.out += row + col * stride;
    return s;
  }
};

}  // namespace graft::cpu
