// SPDX-License-Identifier: Apache-2.0
// Cross entropy over a vocabulary and its gradient, for logits z [rows, n], one CTA per row:
//     loss = log Σ exp z - z[label]          dz = t (softmax(z) - onehot(label)),   t [rows] is the incoming gradient
// A row with a negative label (ignored) gives 0; a label outside of the vocabulary gives NaN. If the logits are a shard
// of the vocabulary (tensor parallel), a label outside of the shard contributes no z[label].
#pragma once
#include <graft/backend/gpu/kernels/rowwise/rowwise.cuh>

namespace graft::gpu {

template <class Real> struct row_exponentials {
  Real most, total;  // the maximum m of the row, and Σ exp(z - m)
  template <class Team> __host__ __device__ row_exponentials(const element_ptr<Real>& z, long long n, Team t) {
    most = z[0];
    for_each_column<Real, 1>({z}, n, t, [&](long long, const Real* v) { most = *v > most ? *v : most; });
    most = t.most(most);
    kahan_sum<Real> partial;
    for_each_column<Real, 1>({z}, n, t, [&](long long, const Real* v) { partial.add(std::exp(*v - most)); });
    total = t.sum(partial.sum);
  }
};

template <class Real> struct cross_entropies {
  tensor<Real> out, z;
  const std::int64_t* labels;
  table_shard shard{};
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    const long long n = z.d[3], label = labels[row] - shard.first;
    const bool counts = labels[row] >= 0, inside = label >= 0 && label < n;
    if (!counts || !(inside || shard.is)) {
      if (t.is_leader()) out.p.put(row, counts ? static_cast<Real>(nan("")) : Real(0));
      return;
    }
    const element_ptr<Real> from = z.p + row * n;
    const row_exponentials<Real> e(from, n, t);
    if (t.is_leader()) out.p.put(row, std::log(e.total) + e.most - (inside ? from[label] : Real(0)));
  }
};
template <class Real> struct cross_entropy_grads {
  tensor<Real> out, z;
  const std::int64_t* labels;
  tensor<Real> t;
  table_shard shard{};
  template <class Team> __host__ __device__ void operator()(long long row, Team team) const {
    const long long n = z.d[3], label = labels[row] - shard.first;
    const bool counts = labels[row] >= 0, inside = label >= 0 && label < n;
    const element_ptr<Real> from = z.p + row * n, to = out.p + row * n;
    if (!counts || !(inside || shard.is)) {
      for (long long c = team.rank; c < n; c += team.size) to.put(c, counts ? static_cast<Real>(nan("")) : Real(0));
      return;
    }
    const Real weight = t.p[row];
    const row_exponentials<Real> e(from, n, team);
    const Real scale = weight / e.total;
    for_each_column<Real, 1>({from}, n, team, [&](long long c, const Real* v) {
      to.put(c, std::exp(*v - e.most) * scale - (c == label ? weight : Real(0)));
    });
  }
};

}  // namespace graft::gpu
