// SPDX-License-Identifier: Apache-2.0
// Functions of whole rows: softmax over the k largest entries, and normalisation.
#pragma once
#include <graft/backend/cpu/tensor.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace graft::cpu {

template <class Real> void topk_softmax(tensor<Real> out, tensor<Real> a, long long k) {
  const long long n = a.d[3], rows = a.count() / n;
  std::vector<long long> order(static_cast<std::size_t>(n));
  for (long long r = 0; r < rows; ++r) {
    const Real* z = a.p + r * n;
    Real* p = out.p + r * n;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + std::min(k, n), order.end(),
                      [&](long long i, long long j) { return z[i] != z[j] ? z[i] > z[j] : i < j; });
    std::fill_n(p, n, Real(0));
    Real total = 0;
    for (long long i = 0; i < std::min(k, n); ++i) {
      const long long c = order[static_cast<std::size_t>(i)];
      total += p[c] = std::exp(z[c] - z[order[0]]);
    }
    for (long long i = 0; i < std::min(k, n); ++i) p[order[static_cast<std::size_t>(i)]] /= total;
  }
}
// dz = p ⊙ (dp - <p, dp>); entries outside the top k have p = 0 and get none.
template <class Real> void softmax_grad(tensor<Real> out, tensor<Real> p, tensor<Real> t) {
  const long long n = p.d[3];
  for (long long r = 0; r < p.count() / n; ++r) {
    const const_array_map<Real> q(p.p + r * n, n), d(t.p + r * n, n);
    array_map<Real>(out.p + r * n, n) = q * (d - (q * d).sum());
  }
}

template <class Real> struct row_moments {
  Real mean, scale;
  row_moments(const_array_map<Real> x, Real eps, bool rms)
      : mean(rms ? Real(0) : x.mean()), scale(Real(1) / std::sqrt((x - mean).square().mean() + eps)) {}
};
template <class Real> void normalize(tensor<Real> out, tensor<Real> x, Real eps, bool rms) {
  const long long n = x.d[3];
  for (long long r = 0; r < x.count() / n; ++r) {
    const const_array_map<Real> in(x.p + r * n, n);
    const row_moments<Real> m(in, eps, rms);
    array_map<Real>(out.p + r * n, n) = (in - m.mean) * m.scale;
  }
}
// With u the normalised row: dx = scale (t - mean(t) - u mean(t ⊙ u)), without mean(t) for rms.
template <class Real> void normalize_grad(tensor<Real> out, tensor<Real> x, Real eps, tensor<Real> t, bool rms) {
  const long long n = x.d[3];
  for (long long r = 0; r < x.count() / n; ++r) {
    const const_array_map<Real> in(x.p + r * n, n), d(t.p + r * n, n);
    const row_moments<Real> m(in, eps, rms);
    const Eigen::Array<Real, Eigen::Dynamic, 1> u = (in - m.mean) * m.scale;
    array_map<Real>(out.p + r * n, n) = m.scale * (d - (rms ? Real(0) : d.mean()) - u * (d * u).mean());
  }
}

}  // namespace graft::cpu
