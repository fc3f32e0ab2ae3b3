// SPDX-License-Identifier: Apache-2.0
// The loss over a vocabulary, a thread block for each row: log Σ exp z - z[label], and t (softmax(z) - 1[label]). A row
// whose label is negative counts for nothing; a label beyond the vocabulary gives no number. Of a part of the vocabulary: a
// label outside of it picks nothing.
#pragma once
#include <graft/backend/cuda/rowwise.cuh>

namespace graft::cuda {

template <class Real> struct row_exponentials {
  Real most, total;
  template <class Team> __host__ __device__ row_exponentials(const cells<Real>& z, long long n, Team t) {
    most = z[0];
    walk<Real, 1>({z}, n, t, [&](long long, const Real* v) { most = *v > most ? *v : most; });
    most = t.most(most);
    compensated<Real> part;
    walk<Real, 1>({z}, n, t, [&](long long, const Real* v) { part.add(std::exp(*v - most)); });
    total = t.sum(part.sum);
  }
};

template <class Real> struct cross_entropies {
  tensor<Real> out, z;
  const std::int64_t* labels;
  table_part part{};
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    const long long n = z.d[3], label = labels[row] - part.first;
    const bool counts = labels[row] >= 0, inside = label >= 0 && label < n;
    if (!counts || !(inside || part.is)) {
      if (t.leads()) out.p.put(row, counts ? static_cast<Real>(nan("")) : Real(0));
      return;
    }
    const cells<Real> from = z.p + row * n;
    const row_exponentials<Real> e(from, n, t);
    if (t.leads()) out.p.put(row, std::log(e.total) + e.most - (inside ? from[label] : Real(0)));
  }
};
template <class Real> struct cross_entropy_grads {
  tensor<Real> out, z;
  const std::int64_t* labels;
  tensor<Real> t;
  table_part part{};
  template <class Team> __host__ __device__ void operator()(long long row, Team team) const {
    const long long n = z.d[3], label = labels[row] - part.first;
    const bool counts = labels[row] >= 0, inside = label >= 0 && label < n;
    const cells<Real> from = z.p + row * n, to = out.p + row * n;
    if (!counts || !(inside || part.is)) {
      for (long long c = team.rank; c < n; c += team.size) to.put(c, counts ? static_cast<Real>(nan("")) : Real(0));
      return;
    }
    const Real weight = t.p[row];
    const row_exponentials<Real> e(from, n, team);
    const Real scale = weight / e.total;
    walk<Real, 1>({from}, n, team, [&](long long c, const Real* v) {
      to.put(c, std::exp(*v - e.most) * scale - (c == label ? weight : Real(0)));
    });
  }
};

}  // namespace graft::cuda
