// SPDX-License-Identifier: Apache-2.0
// The loss over a vocabulary, row by row: log Σ exp z - z[label], and t (softmax(z) - 1[label]). A row whose label is
// negative counts for nothing. Of a part of the vocabulary: a label outside of it picks nothing.
#pragma once
#include <graft/backend/cpu/lookup.h>
#include <graft/backend/cpu/pointwise.h>
#include <graft/backend/cpu/sums.h>
#include <graft/backend/cpu/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace graft::cpu {

template <class Real>
void cross_entropy(tensor<Real> out, tensor<Real> z, const std::int64_t* labels, table_part part = {}) {
  const long long n = z.d[3];
  for (long long r = 0; r < z.d[2]; ++r) {
    const Real* const row = z.p + r * n;
    out.p[r] = Real(0);
    if (labels[r] < 0) continue;
    const Real largest = *std::max_element(row, row + n);
    const packet<Real> shift = all(largest);
    const Real total = sum_of<Real>(
        n,
        [&](packet<Real> s, long long i) {
          return Eigen::internal::padd(s, exp<Real>(Eigen::internal::psub(load(row + i), shift)));
        },
        [&](long long i) { return std::exp(row[i] - largest); });
    const long long label = labels[r] - part.first;
    out.p[r] = std::log(total) + largest - (label >= 0 && label < n ? row[label] : Real(0));
  }
}
template <class Real>
void cross_entropy_grad(tensor<Real> out, tensor<Real> z, const std::int64_t* labels, tensor<Real> t,
                        table_part part = {}) {
  const long long n = z.d[3];
  for (long long r = 0; r < z.d[2]; ++r) {
    const Real* const row = z.p + r * n;
    Real* const to = out.p + r * n;
    if (labels[r] < 0) {
      std::fill_n(to, n, Real(0));
      continue;
    }
    const Real largest = *std::max_element(row, row + n);
    each_row(binary_packets<Real>(op::sub), to, row, true, &largest, false, n);
    each_row(unary_packets<Real>(op::exp), to, to, true, to, false, n);
    put_scaled(to, t.p[r] / sum(to, n), to, n);
    const long long label = labels[r] - part.first;
    if (label >= 0 && label < n) to[label] -= t.p[r];
  }
}

}  // namespace graft::cpu
