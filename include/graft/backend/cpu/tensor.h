// SPDX-License-Identifier: Apache-2.0
// What the CPU kernels work on: a pointer and four numbers, row-major and contiguous; and the way in and out of
// storage.
#pragma once
#include <graft/core/bf16.h>
#include <graft/core/f16.h>
#include <graft/core/view.h>
#include <graft/graph/graph.h>

#include <Eigen/Core>
#include <cstring>

namespace graft::cpu {

template <class Real> struct tensor {
  Real* p = nullptr;
  long long d[4] = {1, 1, 1, 1};
  const bf16* narrow = nullptr;  // a weight still in storage, decoded panel by panel inside the product

  long long count() const { return d[0] * d[1] * d[2] * d[3]; }
  long long matrices() const { return d[0] * d[1]; }
  long long area() const { return d[2] * d[3]; }
};

template <class Real> using row_major = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Real> using matrix_map = Eigen::Map<row_major<Real>>;
template <class Real> using const_matrix_map = Eigen::Map<const row_major<Real>>;
template <class Real> using array_map = Eigen::Map<Eigen::Array<Real, Eigen::Dynamic, 1>>;
template <class Real> using const_array_map = Eigen::Map<const Eigen::Array<Real, Eigen::Dynamic, 1>>;

template <class Real> tensor<Real> shaped(const graph& g, id i, const size_values& s, Real* p) {
  tensor<Real> t;
  t.p = p;
  for (int k = 0; k < 4; ++k) t.d[k] = g.sizes.value(g[i].d[k], s);
  return t;
}

// Elements [from, from + n) of stored data as Real.
template <class Real> void decode(const void* data, dtype type, long long from, long long n, Real* to) {
  auto copy = [&](auto* typed) {
    for (long long k = 0; k < n; ++k) to[k] = static_cast<Real>(typed[from + k]);
  };
  switch (type) {
    case dtype::f32: copy(static_cast<const float*>(data)); return;
    case dtype::f64: copy(static_cast<const double*>(data)); return;
    case dtype::i64: copy(static_cast<const std::int64_t*>(data)); return;
    case dtype::bf16:
      for (long long k = 0; k < n; ++k) to[k] = static_cast<Real>(widen(static_cast<const bf16*>(data)[from + k]));
      return;
    case dtype::f16:
      for (long long k = 0; k < n; ++k) to[k] = static_cast<Real>(widen(static_cast<const f16*>(data)[from + k]));
      return;
    case dtype::nf4:
    case dtype::int8: return;  // refused before any call gets here
  }
}
template <class Real> void encode(const Real* from, long long n, void* data, dtype type, long long at) {
  switch (type) {
    case dtype::f32:
      for (long long k = 0; k < n; ++k) static_cast<float*>(data)[at + k] = static_cast<float>(from[k]);
      return;
    case dtype::f64:
      for (long long k = 0; k < n; ++k) static_cast<double*>(data)[at + k] = static_cast<double>(from[k]);
      return;
    case dtype::bf16:
      for (long long k = 0; k < n; ++k) static_cast<bf16*>(data)[at + k] = narrow(static_cast<float>(from[k]));
      return;
    case dtype::f16:
      for (long long k = 0; k < n; ++k) static_cast<f16*>(data)[at + k] = narrow_to_f16(static_cast<float>(from[k]));
      return;
    case dtype::i64:
    case dtype::nf4:
    case dtype::int8: return;
  }
}

}  // namespace graft::cpu
