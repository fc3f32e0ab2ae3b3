// SPDX-License-Identifier: Apache-2.0
// The gradient of a norm: with u the normalised row, s its scale and t what comes back, w a factor for each column,
//     dx = s (t ⊙ w - mean(t ⊙ w) - u mean(t ⊙ w ⊙ u)) + added,   without the first mean for rms
// A warp has a row, or, where rows are long, a thread block that reads it once and keeps it.
#pragma once
#include <graft/backend/cuda/rowwise.cuh>

namespace graft::cuda {

template <class Real> struct normalize_grads {
  tensor<Real> out, x;
  cells<Real> eps;
  tensor<Real> t;
  bool rms;
  cells<Real> factors{}, added{};  // or none

  template <class Team> __host__ __device__ void operator()(long long row, Team team) const {
    const long long n = x.d[3];
    const cells<Real> in = x.p + row * n, d = t.p + row * n, to = out.p + row * n;
    const row_moments<Real> m(in, n, eps[0], rms, team);
    const auto factor = [&](long long c) { return factors.at == nullptr ? Real(1) : factors[c]; };
    compensated<Real> plain, along;
    walk<Real, 2>({in, d}, n, team, [&](long long c, const Real* v) {
      plain.add(v[1] * factor(c));
      along.add(v[1] * factor(c) * ((v[0] - m.mean) * m.scale));
    });
    const Real mean = rms ? Real(0) : team.sum(plain.sum) / static_cast<Real>(n);
    const Real slope = team.sum(along.sum) / static_cast<Real>(n);
    walk<Real, 2>({in, d}, n, team, [&](long long c, const Real* v) {
      const Real dx = m.scale * (v[1] * factor(c) - mean - (v[0] - m.mean) * m.scale * slope);
      to.put(c, added.at == nullptr ? dx : dx + added[row * n + c]);
    });
  }
};

// Which rows are long follows from their length alone: a row gives the same bits whatever rows are beside it.
template <dtype Type, int Pieces> struct normalize_grads_by_blocks {
  normalize_grads<float> f;

  __device__ void operator()(long long row, const block_team& team) const {
    const long long n = f.x.d[3];
    const row_pieces<Type, Pieces> pieces{n, team.rank, team.size};
    const float share = 1 / static_cast<float>(n);
    typename row_pieces<Type, Pieces>::kept x, t, added;
    pieces.load(x, f.x.p, row * n), pieces.load(t, f.t.p, row * n);
    if (f.added.at != nullptr) pieces.load(added, f.added, row * n);
    const float eps = f.eps[0];
    auto sums_of = [&](const auto& term) {
      return pieces.sums([&](int k, long long c) {
        float u[8], d[8], w[8];
        float2 sum = make_float2(0, 0);
        x[k].read(u), t[k].read(d), read_factors(w, f.factors, c);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const float2 add = term(u[e], d[e] * w[e]);
          sum.x += add.x, sum.y += add.y;
        }
        return sum;
      });
    };
    float2 means = make_float2(0, 0);  // of x and of t
    if (!f.rms) means = sums_of([](float v, float d) { return make_float2(v, d); });
    const float mean = means.x * share, plain = means.y * share;
    const float2 sums = sums_of([&](float v, float d) { return make_float2((v - mean) * (v - mean), d * (v - mean)); });
    const float scale = rsqrtf(sums.x * share + eps), slope = scale * scale * sums.y * share;
    pieces.each([&](int k, long long c) {
      float u[8], d[8], w[8], h[8] = {};
      x[k].read(u), t[k].read(d), read_factors(w, f.factors, c);
      if (f.added.at != nullptr) added[k].read(h);
#pragma unroll
      for (int e = 0; e < 8; ++e) h[e] += scale * (d[e] * w[e] - plain - (u[e] - mean) * slope);
      store_eight(h, f.out.p, row * n + c);
    });
  }
};
template <class On, class Real> status normalize_back(const On& on, const normalize_grads<Real>& f, const char* name) {
  return on.rows(f.x.rows(), f, name);
}
template <streams On> status normalize_back(const On& on, const normalize_grads<float>& f, const char* name) {
  bool fits = f.t.p.type == f.x.p.type && (f.added.at == nullptr || f.added.type == f.x.p.type);
  for (const cells<float>& c : {f.x.p, f.t.p, f.out.p, f.factors, f.added}) fits = fits && by_sixteen_bytes(c);
  const result<bool> done = by_long_rows<normalize_grads_by_blocks>(on, f, fits, name);
  if (!done) return done.failure();
  return *done ? status(ok) : on.rows(f.x.rows(), f, name);
}

}  // namespace graft::cuda
