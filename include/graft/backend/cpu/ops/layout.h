// SPDX-License-Identifier: Apache-2.0
// Operations that move elements: transpose, permute, slice, pad, concat, repeat, fold, triangles and skew matrices.
#pragma once
#include <graft/backend/cpu/ops/vector.h>
#include <graft/backend/cpu/runtime/tensor.h>

#include <algorithm>

namespace graft::cpu {

template <class Real> void transpose(tensor<Real> out, tensor<Real> a) {
  const long long rows = a.d[2], cols = a.d[3], tile_size = 16;  // rows and columns of a square that stays in the cache
  for (long long m = 0; m < a.matrices(); ++m)
    for (long long r = 0; r < rows; r += tile_size)
      for (long long c = 0; c < cols; c += tile_size)
        for (long long i = r; i < std::min(r + tile_size, rows); ++i)
          for (long long j = c; j < std::min(c + tile_size, cols); ++j)
            out.p[m * a.area() + j * rows + i] = a.p[m * a.area() + i * cols + j];
}
// Axis i of the result is axis from[i] of a.
template <class Real> void permute(tensor<Real> out, tensor<Real> a, const int (&from)[4]) {
  const long long stride[4] = {a.d[1] * a.area(), a.area(), a.d[3], 1};
  Real* to = out.p;
  for (long long i = 0; i < out.d[0]; ++i)
    for (long long j = 0; j < out.d[1]; ++j)
      for (long long k = 0; k < out.d[2]; ++k, to += out.d[3]) {
        const Real* row = a.p + i * stride[from[0]] + j * stride[from[1]] + k * stride[from[2]];
        for (long long l = 0; l < out.d[3]; ++l) to[l] = row[l * stride[from[3]]];
      }
}

// Copies n entries of an axis from one tensor to another; the other axes are equal.
template <class Real>
void copy_along(int axis, tensor<Real> to, long long to_at, tensor<Real> from, long long from_at, long long n) {
  long long outer = 1, inner = 1;
  for (int k = 0; k < 4; ++k) (k < axis ? outer : inner) *= k == axis ? 1 : to.d[k];
  for (long long i = 0; i < outer; ++i)
    std::copy_n(from.p + (i * from.d[axis] + from_at) * inner, n * inner, to.p + (i * to.d[axis] + to_at) * inner);
}
template <class Real> void slice(tensor<Real> out, tensor<Real> a, int axis, long long start) {
  copy_along(axis, out, 0, a, start, out.d[axis]);
}
template <class Real> void pad(tensor<Real> out, tensor<Real> a, int axis, long long start) {
  std::fill_n(out.p, out.count(), Real(0));
  copy_along(axis, out, start, a, 0, a.d[axis]);
}
template <class Real> void concat(tensor<Real> out, tensor<Real> a, tensor<Real> b, int axis) {
  copy_along(axis, out, 0, a, 0, a.d[axis]);
  copy_along(axis, out, a.d[axis], b, 0, b.d[axis]);
}

// Repeats the columns of each row until the row is as long as that of out.
template <class Real> void repeat(tensor<Real> out, tensor<Real> a) {
  const long long rows = a.count() / a.d[3];
  for (long long r = 0; r < rows; ++r)
    for (long long c = 0; c < out.d[3]; c += a.d[3])
      std::copy_n(a.p + r * a.d[3], std::min(a.d[3], out.d[3] - c), out.p + r * out.d[3] + c);
}
// The adjoint of repeat: sums the columns of each row modulo the row length of out.
template <class Real> void fold_columns(tensor<Real> out, tensor<Real> a) {
  const long long rows = a.count() / a.d[3], r = out.d[3];
  for (long long i = 0; i < rows; ++i) {
    std::fill_n(out.p + i * r, r, Real(0));
    for (long long c = 0; c < a.d[3]; c += r) add(out.p + i * r, a.p + i * a.d[3] + c, std::min(r, a.d[3] - c));
  }
}
template <class Real> void strict_upper(tensor<Real> out, tensor<Real> a) {
  for (long long m = 0; m < a.matrices(); ++m)
    for (long long r = 0; r < a.d[2]; ++r)
      for (long long c = 0; c < a.d[3]; ++c) {
        const long long at = m * a.area() + r * a.d[3] + c;
        out.p[at] = c > r ? a.p[at] : Real(0);
      }
}
// A skew-symmetric matrix from its packed upper triangle; unskew is the adjoint.
template <class Real> void skew(tensor<Real> out, tensor<Real> packed) {
  const long long b = out.d[3];
  for (long long m = 0; m < out.matrices(); ++m) {
    const Real* v = packed.p + m * packed.d[3];
    Real* q = out.p + m * b * b;
    std::fill_n(q, b * b, Real(0));
    for (long long r = 0; r < b; ++r)
      for (long long c = r + 1; c < b; ++c, ++v) q[r * b + c] = *v, q[c * b + r] = -*v;
  }
}
template <class Real> void unskew(tensor<Real> packed, tensor<Real> full) {
  const long long b = full.d[3];
  for (long long m = 0; m < full.matrices(); ++m) {
    Real* v = packed.p + m * packed.d[3];
    const Real* q = full.p + m * b * b;
    for (long long r = 0; r < b; ++r)
      for (long long c = r + 1; c < b; ++c) *v++ = q[r * b + c] - q[c * b + r];
  }
}
}  // namespace graft::cpu
