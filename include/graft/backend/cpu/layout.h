// SPDX-License-Identifier: Apache-2.0
// Ops that move or sum elements without arithmetic of their own.
#pragma once
#include <graft/backend/cpu/tensor.h>

#include <algorithm>

namespace graft::cpu {

template <class Real> void transpose(tensor<Real> out, tensor<Real> a) {
  for (long long m = 0; m < a.matrices(); ++m)
    matrix_map<Real>(out.p + m * a.area(), a.d[3], a.d[2]) =
        const_matrix_map<Real>(a.p + m * a.area(), a.d[2], a.d[3]).transpose();
}
template <class Real> void swap_inner(tensor<Real> out, tensor<Real> a) {
  for (long long i = 0; i < a.d[0]; ++i)
    for (long long j = 0; j < a.d[1]; ++j)
      for (long long k = 0; k < a.d[2]; ++k)
        std::copy_n(a.p + ((i * a.d[1] + j) * a.d[2] + k) * a.d[3], a.d[3],
                    out.p + ((i * a.d[2] + k) * a.d[1] + j) * a.d[3]);
}
template <class Real> void tile(tensor<Real> out, tensor<Real> a) {
  const long long rows = a.count() / a.d[3];
  for (long long r = 0; r < rows; ++r)
    for (long long c = 0; c < out.d[3]; c += a.d[3])
      std::copy_n(a.p + r * a.d[3], std::min(a.d[3], out.d[3] - c), out.p + r * out.d[3] + c);
}
template <class Real> void fold(tensor<Real> out, tensor<Real> a) {
  const long long rows = a.count() / a.d[3], r = out.d[3];
  for (long long i = 0; i < rows; ++i) {
    array_map<Real> sum(out.p + i * r, r);
    sum.setZero();
    for (long long c = 0; c < a.d[3]; c += r) {
      const long long n = std::min(r, a.d[3] - c);
      sum.head(n) += const_array_map<Real>(a.p + i * a.d[3] + c, n);
    }
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
template <class Real> void skew(tensor<Real> out, tensor<Real> packed) {
  const long long b = out.d[3];
  for (long long m = 0; m < out.matrices(); ++m) {
    const Real* v = packed.p + m * packed.d[3];
    matrix_map<Real> q(out.p + m * b * b, b, b);
    q.setZero();
    for (long long r = 0; r < b; ++r)
      for (long long c = r + 1; c < b; ++c, ++v) q(r, c) = *v, q(c, r) = -*v;
  }
}
template <class Real> void unskew(tensor<Real> packed, tensor<Real> full) {
  const long long b = full.d[3];
  for (long long m = 0; m < full.matrices(); ++m) {
    Real* v = packed.p + m * packed.d[3];
    const const_matrix_map<Real> q(full.p + m * b * b, b, b);
    for (long long r = 0; r < b; ++r)
      for (long long c = r + 1; c < b; ++c) *v++ = q(r, c) - q(c, r);
  }
}
// Sums over the axes along which out has size 1; adds to what is there.
template <class Real> void sum_to(tensor<Real> out, tensor<Real> a) {
  for (long long i = 0; i < a.d[0]; ++i)
    for (long long j = 0; j < a.d[1]; ++j)
      for (long long k = 0; k < a.d[2]; ++k) {
        const long long x = out.d[0] == 1 ? 0 : i, y = out.d[1] == 1 ? 0 : j, z = out.d[2] == 1 ? 0 : k;
        Real* to = out.p + ((x * out.d[1] + y) * out.d[2] + z) * out.d[3];
        const const_array_map<Real> from(a.p + ((i * a.d[1] + j) * a.d[2] + k) * a.d[3], a.d[3]);
        if (out.d[3] == 1)
          *to += from.sum();
        else
          array_map<Real>(to, out.d[3]) += from;
      }
}
template <class Real> void row_dot(tensor<Real> out, tensor<Real> a, tensor<Real> b) {
  const long long rows = a.count() / a.d[3];
  for (long long r = 0; r < rows; ++r)
    out.p[r] =
        (const_array_map<Real>(a.p + r * a.d[3], a.d[3]) * const_array_map<Real>(b.p + r * a.d[3], a.d[3])).sum();
}
template <class Real> void kron(tensor<Real> out, tensor<Real> a, tensor<Real> b) {
  matrix_map<Real> o(out.p, out.d[2], out.d[3]);
  const const_matrix_map<Real> w(b.p, b.d[2], b.d[3]);
  for (long long i = 0; i < a.d[2]; ++i)
    for (long long j = 0; j < a.d[3]; ++j) o.block(i * b.d[2], j * b.d[3], b.d[2], b.d[3]) = a.p[i * a.d[3] + j] * w;
}
template <class Real> void row_kron(tensor<Real> out, tensor<Real> a, tensor<Real> b) {
  for (long long r = 0; r < a.d[2]; ++r)
    for (long long i = 0; i < a.d[3]; ++i)
      array_map<Real>(out.p + (r * a.d[3] + i) * b.d[3], b.d[3]) =
          a.p[r * a.d[3] + i] * const_array_map<Real>(b.p + r * b.d[3], b.d[3]);
}

template <class Real> void gather(tensor<Real> out, tensor<Real> w, const std::int64_t* ids, bool by_column) {
  const long long n = out.d[3];
  for (long long t = 0; t < out.d[2]; ++t) {
    Real* to = out.p + t * n;
    if (w.narrow != nullptr)
      for (long long c = 0; c < n; ++c)
        to[c] = static_cast<Real>(widen(w.narrow[by_column ? c * w.d[3] + ids[t] : ids[t] * n + c]));
    else if (!by_column)
      std::copy_n(w.p + ids[t] * n, n, to);
    else
      for (long long c = 0; c < n; ++c) to[c] = w.p[c * w.d[3] + ids[t]];
  }
}
template <class Real> void scatter(tensor<Real> w, tensor<Real> rows, const std::int64_t* ids, bool by_column) {
  const long long n = rows.d[3];
  for (long long t = 0; t < rows.d[2]; ++t) {
    const const_array_map<Real> from(rows.p + t * n, n);
    if (!by_column)
      array_map<Real>(w.p + ids[t] * n, n) += from;
    else
      for (long long c = 0; c < n; ++c) w.p[c * w.d[3] + ids[t]] += from[c];
  }
}

struct window {
  long long kernel_h, kernel_w, stride, pad, out_w;
};
// Calls f(position in the image, position in the patch rows) for every pair that is not padding.
template <class F> void each_patch(const long long (&image)[4], const long long (&rows)[4], window s, F f) {
  for (long long n = 0; n < image[0]; ++n)
    for (long long p = 0; p < rows[2]; ++p)
      for (long long c = 0; c < image[1]; ++c)
        for (long long y = 0; y < s.kernel_h; ++y)
          for (long long x = 0; x < s.kernel_w; ++x) {
            const long long h = p / s.out_w * s.stride + y - s.pad, w = p % s.out_w * s.stride + x - s.pad;
            if (h < 0 || w < 0 || h >= image[2] || w >= image[3]) continue;
            f(((n * image[1] + c) * image[2] + h) * image[3] + w,
              (n * rows[2] + p) * rows[3] + (c * s.kernel_h + y) * s.kernel_w + x);
          }
}

}  // namespace graft::cpu
