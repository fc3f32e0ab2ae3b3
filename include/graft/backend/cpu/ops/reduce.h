// SPDX-License-Identifier: Apache-2.0
// Sums over axes, dot products of rows, and Kronecker and Khatri-Rao products.
#pragma once
#include <graft/backend/cpu/ops/vector.h>
#include <graft/backend/cpu/runtime/tensor.h>
#include <graft/backend/cpu/runtime/threads.h>

namespace graft::cpu {

// out += the sums over the axes along which out has size 1.
template <class Real> void sum_to(tensor<Real> out, tensor<Real> a) {
  for (long long i = 0; i < a.d[0]; ++i)
    for (long long j = 0; j < a.d[1]; ++j)
      for (long long k = 0; k < a.d[2]; ++k) {
        const long long x = out.d[0] == 1 ? 0 : i, y = out.d[1] == 1 ? 0 : j, z = out.d[2] == 1 ? 0 : k;
        Real* to = out.p + ((x * out.d[1] + y) * out.d[2] + z) * out.d[3];
        const Real* from = a.p + ((i * a.d[1] + j) * a.d[2] + k) * a.d[3];
        if (out.d[3] == 1)
          *to += sum(from, a.d[3]);
        else
          add(to, from, a.d[3]);
      }
}
// The dot product of each row of a with the same row of b.
template <class Real> void row_dot(tensor<Real> out, tensor<Real> a, tensor<Real> b) {
  parallel_for(a.count() / a.d[3], a.count(), [&](long long from, long long end) {
    for (long long r = from; r < end; ++r) out.p[r] = dot(a.p + r * a.d[3], b.p + r * a.d[3], a.d[3]);
  });
}
template <class Real> void kron(tensor<Real> out, tensor<Real> a, tensor<Real> b) {
  parallel_for(a.d[2], out.count(), [&](long long from, long long end) {
    for (long long i = from; i < end; ++i)
      for (long long r = 0; r < b.d[2]; ++r)
        for (long long j = 0; j < a.d[3]; ++j)
          scale_into(out.p + (i * b.d[2] + r) * out.d[3] + j * b.d[3], a.p[i * a.d[3] + j], b.p + r * b.d[3], b.d[3]);
  });
}
// The Kronecker product of each row of a with the same row of b (Khatri-Rao).
template <class Real> void row_kron(tensor<Real> out, tensor<Real> a, tensor<Real> b) {
  for (long long r = 0; r < a.d[2]; ++r)
    for (long long i = 0; i < a.d[3]; ++i)
      scale_into(out.p + (r * a.d[3] + i) * b.d[3], a.p[r * a.d[3] + i], b.p + r * b.d[3], b.d[3]);
}

}  // namespace graft::cpu
