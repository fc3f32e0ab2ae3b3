// SPDX-License-Identifier: Apache-2.0
// Gradient of RMS norm and layer norm. With x [rows, n], u the normalized row, s its scale (1 / rms or 1 / σ), t the
// incoming gradient and w the gain per column:
//     dx = s (t ⊙ w - mean(t ⊙ w) - u mean(t ⊙ w ⊙ u)) + residual,   without the first mean for RMS norm
// A warp computes a row; for long rows a CTA reads the row once and keeps it in registers (rowwise.cuh).
#pragma once
#include <graft/backend/gpu/kernels/rowwise/rowwise.cuh>

namespace graft::gpu {

template <class Real> struct normalize_grads {
  tensor<Real> out, x;
  element_ptr<Real> eps;
  tensor<Real> t;
  bool rms;
  element_ptr<Real> factors{}, residual{};  // optional: w [n] and a summand [rows, n]

  template <class Team> __host__ __device__ void operator()(long long row, Team team) const {
    const long long n = x.d[3];
    const element_ptr<Real> in = x.p + row * n, d = t.p + row * n, to = out.p + row * n;
    const row_moments<Real> m(in, n, eps[0], rms, team);
    const auto factor = [&](long long c) { return factors.at == nullptr ? Real(1) : factors[c]; };
    kahan_sum<Real> plain, along;
    for_each_column<Real, 2>({in, d}, n, team, [&](long long c, const Real* v) {
      plain.add(v[1] * factor(c));
      along.add(v[1] * factor(c) * ((v[0] - m.mean) * m.scale));
    });
    const Real mean = rms ? Real(0) : team.sum(plain.sum) / static_cast<Real>(n);
    const Real slope = team.sum(along.sum) / static_cast<Real>(n);
    for_each_column<Real, 2>({in, d}, n, team, [&](long long c, const Real* v) {
      const Real dx = m.scale * (v[1] * factor(c) - mean - (v[0] - m.mean) * m.scale * slope);
      to.put(c, residual.at == nullptr ? dx : dx + residual[row * n + c]);
    });
  }
};

// One CTA per row. The kernel is chosen by the row length only, so a row gives the same bits in every batch.
template <dtype Type, int Vectors> struct normalize_grads_by_blocks {
  normalize_grads<float> f;

  __device__ void operator()(long long row, const block_team& team) const {
    const long long n = f.x.d[3];
    const row_vectors<Type, Vectors> vectors{n, team.rank, team.size};
    const float share = 1 / static_cast<float>(n);
    typename row_vectors<Type, Vectors>::row_registers x, t, residual;
    vectors.load(x, f.x.p, row * n), vectors.load(t, f.t.p, row * n);
    if (f.residual.at != nullptr) vectors.load(residual, f.residual, row * n);
    const float eps = f.eps[0];
    auto sums_of = [&](const auto& term) {
      return vectors.sums([&](int k, long long c) {
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
    float2 means = make_float2(0, 0);  // means of x and of t ⊙ w
    if (!f.rms) means = sums_of([](float v, float d) { return make_float2(v, d); });
    const float mean = means.x * share, plain = means.y * share;
    const float2 sums = sums_of([&](float v, float d) { return make_float2((v - mean) * (v - mean), d * (v - mean)); });
    const float scale = rsqrtf(sums.x * share + eps), slope = scale * scale * sums.y * share;
    vectors.each([&](int k, long long c) {
      float u[8], d[8], w[8], h[8] = {};
      x[k].read(u), t[k].read(d), read_factors(w, f.factors, c);
      if (f.residual.at != nullptr) residual[k].read(h);
#pragma unroll
      for (int e = 0; e < 8; ++e) h[e] += scale * (d[e] * w[e] - plain - (u[e] - mean) * slope);
      store_vec8(h, f.out.p, row * n + c);
    });
  }
};
template <class On, class Real>
status normalize_backward(const On& on, const normalize_grads<Real>& f, const char* name) {
  return on.rows(f.x.rows(), f, name);
}
template <runs_on_stream On>
status normalize_backward(const On& on, const normalize_grads<float>& f, const char* name) {
  bool fits = f.t.p.type == f.x.p.type && (f.residual.at == nullptr || f.residual.type == f.x.p.type);
  for (const element_ptr<float>& c : {f.x.p, f.t.p, f.out.p, f.factors, f.residual}) fits = fits && is_aligned16(c);
  const result<bool> done = run_block_per_row<normalize_grads_by_blocks>(on, f, fits, name);
  if (!done) return done.failure();
  return *done ? status(ok) : on.rows(f.x.rows(), f, name);
}

}  // namespace graft::gpu
