// SPDX-License-Identifier: Apache-2.0
// Cross entropy over a vocabulary and its gradient, row by row: log Σ exp z - z[label], and t (softmax(z) - 1[label]),
// with the logits z and the gradient t of the loss. A row with a negative label has loss 0 and no gradient. In a shard
// of the vocabulary a label outside of the shard selects no logit.
#pragma once
#include <graft/backend/cpu/ops/elementwise.h>
#include <graft/backend/cpu/ops/gather.h>
#include <graft/backend/cpu/ops/vector.h>
#include <graft/backend/cpu/runtime/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace graft::cpu {

template <class Real>
void cross_entropy(tensor<Real> out, tensor<Real> z, const std::int64_t* labels, table_shard part = {}) {
  const long long n = z.d[3];
  for (long long r = 0; r < z.d[2]; ++r) {
    const Real* const row = z.p + r * n;
    out.p[r] = Real(0);
    if (labels[r] < 0) continue;
    const Real largest = *std::max_element(row, row + n);
    const packet<Real> shift = all(largest);
    const Real total = reduce_row<Real>(
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
                        table_shard part = {}) {
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
    scale_into(to, t.p[r] / sum(to, n), to, n);
    const long long label = labels[r] - part.first;
    if (label >= 0 && label < n) to[label] -= t.p[r];
  }
}

}  // namespace graft::cpu
