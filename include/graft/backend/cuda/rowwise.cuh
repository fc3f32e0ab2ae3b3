// SPDX-License-Identifier: Apache-2.0
// Sums along rows and functions of whole rows. A team of threads shares a row: every thread sums its part, the parts
// are added up in a tree. The parts are compensated (Kahan 1965), so long rows of floats lose nothing that shows.
#pragma once
#include <graft/backend/cuda/error.h>
#include <graft/backend/cuda/tensor.h>

#include <cmath>

namespace graft::cuda {

template <class Real> struct compensated {
  Real sum = 0, lost = 0;
  __host__ __device__ void add(Real v) {
    const Real y = v - lost, t = sum + y;
    lost = t - t == Real(0) ? (t - sum) - y : Real(0);  // an infinite sum stays one
    sum = t;
  }
};

template <class Real> struct row_dots {
  tensor<Real> out, a, b;
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    const Real *const x = a.p + row * a.d[3], *const y = b.p + row * a.d[3];
    compensated<Real> part;
    for (long long c = t.rank; c < a.d[3]; c += t.size) part.add(x[c] * y[c]);
    const Real sum = t.sum(part.sum);
    if (t.leads()) out.p[row] = sum;
  }
};

// Sums over the axes along which out has size 1; adds to what is there.
template <class Real> struct summed_to {
  tensor<Real> out, a;
  long long terms = 1;  // of a for each element of out

  summed_to(const tensor<Real>& to, const tensor<Real>& from) : out(to), a(from) {
    for (int k = 0; k < 4; ++k)
      if (out.d[k] == 1) terms *= a.d[k];
  }
  // Element i along the axes that stay, or along those that are summed.
  __host__ __device__ long long place(long long i, bool summed) const {
    long long at = 0, stride = 1;
    for (int k = 3; k >= 0; --k) {
      if (a.d[k] != 1 && (out.d[k] == 1) == summed) {
        at += i % a.d[k] * stride;
        i /= a.d[k];
      }
      stride *= a.d[k];
    }
    return at;
  }
  template <class Team> __host__ __device__ void operator()(long long i, Team t) const {
    const Real* const from = a.p + place(i, false);
    compensated<Real> part;
    for (long long r = t.rank; r < terms; r += t.size) part.add(from[place(r, true)]);
    const Real sum = t.sum(part.sum);
    if (t.leads()) out.p[i] += sum;
  }
};
// Neighbouring threads read neighbouring elements: along the columns that stay, else along the row that is summed.
template <class On, class Real> status sum_to(const On& on, const summed_to<Real>& f, const char* name) {
  const long long n = f.out.count();
  if (f.out.d[3] > 1) return on.columns(n, f, name);
  return n < 512 && f.terms > 2048 ? on.matrices(n, f.terms, f, name) : on.rows(n, f, name);
}

// An entry is among the k largest when fewer than k are before it: larger ones, and equal ones with a smaller index.
template <class Real> struct topk_softmaxes {
  tensor<Real> out, a;
  long long k;
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    const long long n = a.d[3];
    const Real* const z = a.p + row * n;
    Real* const p = out.p + row * n;
    Real most = z[0], part = 0;
    for (long long c = 1; c < n; ++c) most = z[c] > most ? z[c] : most;
    for (long long c = t.rank; c < n; c += t.size) {
      long long before = 0;
      for (long long o = 0; o < n; ++o) before += z[o] > z[c] || (z[o] == z[c] && o < c) ? 1 : 0;
      p[c] = before < k ? std::exp(z[c] - most) : Real(0);
      part += p[c];
    }
    const Real total = t.sum(part);
    for (long long c = t.rank; c < n; c += t.size)
      if (p[c] != Real(0)) p[c] /= total;
  }
};
template <class Real> struct softmax_grads {
  tensor<Real> out, p, t;
  template <class Team> __host__ __device__ void operator()(long long row, Team team) const {
    const long long n = p.d[3];
    const Real *const q = p.p + row * n, *const d = t.p + row * n;
    compensated<Real> part;
    for (long long c = team.rank; c < n; c += team.size) part.add(q[c] * d[c]);
    const Real mean = team.sum(part.sum);
    for (long long c = team.rank; c < n; c += team.size) out.p[row * n + c] = q[c] * (d[c] - mean);
  }
};

template <class Real> struct row_moments {
  Real mean = 0, scale;
  template <class Team> __host__ __device__ row_moments(const Real* x, long long n, Real eps, bool rms, Team t) {
    compensated<Real> sum, squares;
    for (long long c = t.rank; c < n && !rms; c += t.size) sum.add(x[c]);
    if (!rms) mean = t.sum(sum.sum) / static_cast<Real>(n);
    for (long long c = t.rank; c < n; c += t.size) squares.add((x[c] - mean) * (x[c] - mean));
    scale = Real(1) / std::sqrt(t.sum(squares.sum) / static_cast<Real>(n) + eps);
  }
};
template <class Real> struct normalized {
  tensor<Real> out, x;
  const Real* eps;
  bool rms;
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    const long long n = x.d[3];
    const Real* const in = x.p + row * n;
    const row_moments<Real> m(in, n, *eps, rms, t);
    for (long long c = t.rank; c < n; c += t.size) out.p[row * n + c] = (in[c] - m.mean) * m.scale;
  }
};
// With u the normalised row: dx = scale (t - mean(t) - u mean(t ⊙ u)), without mean(t) for rms.
template <class Real> struct normalize_grads {
  tensor<Real> out, x;
  const Real* eps;
  tensor<Real> t;
  bool rms;
  template <class Team> __host__ __device__ void operator()(long long row, Team team) const {
    const long long n = x.d[3];
    const Real *const in = x.p + row * n, *const d = t.p + row * n;
    const row_moments<Real> m(in, n, *eps, rms, team);
    compensated<Real> plain, along;
    for (long long c = team.rank; c < n; c += team.size) {
      plain.add(d[c]);
      along.add(d[c] * ((in[c] - m.mean) * m.scale));
    }
    const Real mean = rms ? Real(0) : team.sum(plain.sum) / static_cast<Real>(n);
    const Real slope = team.sum(along.sum) / static_cast<Real>(n);
    for (long long c = team.rank; c < n; c += team.size)
      out.p[row * n + c] = m.scale * (d[c] - mean - (in[c] - m.mean) * m.scale * slope);
  }
};

}  // namespace graft::cuda
