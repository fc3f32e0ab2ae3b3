// SPDX-License-Identifier: Apache-2.0
// The gradient of a norm: with u the normalised row, s its scale and t what comes back, w a factor for each column,
//     dx = s (t ⊙ w - mean(t ⊙ w) - u mean(t ⊙ w ⊙ u)) + added,   without the first mean for rms
// A warp has a row, or, where rows are long, a thread block that reads it once and keeps it.
#pragma once
#include <graft/backend/cuda/eights.cuh>
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
struct normalize_grads_by_blocks {
  static constexpr int most_threads = 512, most_pieces = 2;
  normalize_grads<float> f;

  static bool fits(const normalize_grads<float>& f) {
    const long long n = f.x.d[3];
    bool aligned = true;
    for (const cells<float>& c : {f.x.p, f.t.p, f.out.p, f.factors, f.added}) aligned = aligned && by_sixteen_bytes(c);
    return n >= 1024 && n <= 8LL * most_threads * most_pieces && n % 8 == 0 && aligned;
  }
  static unsigned threads(long long n) {
    return static_cast<unsigned>(std::min<long long>((n / 8 + 31) / 32 * 32, most_threads));
  }
  __device__ void operator()(long long row, const block_team& team) const {
    const long long n = f.x.d[3];
    const float share = 1 / static_cast<float>(n);
    float x[most_pieces][8] = {}, t[most_pieces][8] = {};
    const auto each_piece = [&](const auto& g) {
#pragma unroll
      for (int k = 0; k < most_pieces; ++k)
        if (const long long c = 8LL * (team.rank + k * team.size); c < n) g(k, c);
    };
    const auto mean_of = [&](const auto& term) {
      float part = 0;
      each_piece([&](int k, long long) {
#pragma unroll
        for (int e = 0; e < 8; ++e) part += term(x[k][e], t[k][e]);
      });
      return team.sum(part) * share;
    };
    each_piece([&](int k, long long c) {
      load_eight(x[k], f.x.p, row * n + c), load_eight(t[k], f.t.p, row * n + c);
      if (f.factors.at == nullptr) return;
      float w[8];
      load_eight(w, f.factors, c);
      for (int e = 0; e < 8; ++e) t[k][e] *= w[e];
    });
    const float mean = f.rms ? 0 : mean_of([](float v, float) { return v; });
    const float scale = rsqrtf(mean_of([&](float v, float) { return (v - mean) * (v - mean); }) + f.eps[0]);
    const float plain = f.rms ? 0 : mean_of([](float, float d) { return d; });
    const float slope = scale * mean_of([&](float v, float d) { return d * (v - mean); });
    each_piece([&](int k, long long c) {
      float add[8] = {};
      if (f.added.at != nullptr) load_eight(add, f.added, row * n + c);
      for (int e = 0; e < 8; ++e) add[e] += scale * (t[k][e] - plain - (x[k][e] - mean) * scale * slope);
      store_eight(add, f.out.p, row * n + c);
    });
  }
};
template <class On, class Real> status normalize_back(const On& on, const normalize_grads<Real>& f, const char* name) {
  return on.rows(f.x.rows(), f, name);
}
inline status normalize_back(const on_stream& on, const normalize_grads<float>& f, const char* name) {
  if (!normalize_grads_by_blocks::fits(f)) return on.rows(f.x.rows(), f, name);
  return on.blocks(f.x.rows(), normalize_grads_by_blocks::threads(f.x.d[3]), normalize_grads_by_blocks{f}, name);
}

}  // namespace graft::cuda
