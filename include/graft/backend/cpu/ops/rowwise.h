// SPDX-License-Identifier: Apache-2.0
// Functions of whole rows with their adjoints: softmax over all or the top k entries, layer norm and RMS norm.
#pragma once
#include <graft/backend/cpu/ops/elementwise.h>
#include <graft/backend/cpu/ops/vector.h>
#include <graft/backend/cpu/runtime/tensor.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace graft::cpu {

template <class Real> void softmax(tensor<Real> out, tensor<Real> a) {
  const long long n = a.d[3];
  for (long long r = 0; r < a.count() / n; ++r) {
    const Real* z = a.p + r * n;
    Real* p = out.p + r * n;
    const Real largest = *std::max_element(z, z + n);  // shifted by it, no exponential overflows
    each_row(binary_packets<Real>(op::sub), p, z, true, &largest, false, n);
    each_row(unary_packets<Real>(op::exp), p, p, true, p, false, n);
    scale_into(p, Real(1) / sum(p, n), p, n);
  }
}
// Softmax over the k largest entries of a row (MoE routing), zeros elsewhere; of equal entries the first ones are
// taken.
template <class Real> void topk_softmax(tensor<Real> out, tensor<Real> a, long long k) {
  const long long n = a.d[3];
  for (long long r = 0; r < a.count() / n; ++r) {
    const Real* z = a.p + r * n;
    Real* p = out.p + r * n;
    const Real largest = *std::max_element(z, z + n);
    std::fill_n(p, n, Real(0));
    Real total = 0;
    for (long long i = 0, last = -1; i < std::min(k, n); ++i) {
      long long next = -1;  // the first of the largest entries that are not taken yet
      for (long long c = 0; c < n; ++c) {
        const bool after = last < 0 || z[c] < z[last] || (z[c] == z[last] && c > last);
        if (after && (next < 0 || z[c] > z[next])) next = c;
      }
      if (next < 0) break;  // all other entries are NaN
      total += p[next] = std::exp(z[next] - largest);
      last = next;
    }
    scale_into(p, Real(1) / total, p, n);
  }
}
// dz = p ⊙ (dp - <p, dp>), with the probabilities p and their gradient dp; entries outside the top k have p = 0.
template <class Real> void softmax_grad(tensor<Real> out, tensor<Real> p, tensor<Real> t) {
  const long long n = p.d[3];
  for (long long r = 0; r < p.count() / n; ++r) {
    const Real *q = p.p + r * n, *d = t.p + r * n, mean = dot(q, d, n);
    for (long long i = 0; i < n; ++i) out.p[r * n + i] = q[i] * (d[i] - mean);
  }
}

// u = (x - mean) scale, with mean square 1 up to eps; returns scale. For RMS norm the mean is taken as 0.
template <class Real> Real normalize_row(Real* u, const Real* x, long long n, Real eps, bool rms) {
  const Real count = static_cast<Real>(n), mean = rms ? Real(0) : sum(x, n) / count;
  for (long long i = 0; i < n; ++i) u[i] = x[i] - mean;
  const Real scale = Real(1) / std::sqrt(dot(u, u, n) / count + eps);
  for (long long i = 0; i < n; ++i) u[i] *= scale;
  return scale;
}
template <class Real> void normalize(tensor<Real> out, tensor<Real> x, Real eps, bool rms) {
  const long long n = x.d[3];
  for (long long r = 0; r < x.count() / n; ++r) normalize_row(out.p + r * n, x.p + r * n, n, eps, rms);
}
// dx = scale (t - mean(t) - u mean(t ⊙ u)), with u the normalized row and t its gradient, without mean(t) for RMS norm.
template <class Real> void normalize_grad(tensor<Real> out, tensor<Real> x, Real eps, tensor<Real> t, bool rms) {
  const long long n = x.d[3];
  const Real count = static_cast<Real>(n);
  std::vector<Real> u(static_cast<std::size_t>(n));
  for (long long r = 0; r < x.count() / n; ++r) {
    const Real* d = t.p + r * n;
    const Real scale = normalize_row(u.data(), x.p + r * n, n, eps, rms);
    const Real mean = rms ? Real(0) : sum(d, n) / count, slope = dot(d, u.data(), n) / count;
    for (long long i = 0; i < n; ++i) out.p[r * n + i] = scale * (d[i] - mean - u[static_cast<std::size_t>(i)] * slope);
  }
}

}  // namespace graft::cpu
