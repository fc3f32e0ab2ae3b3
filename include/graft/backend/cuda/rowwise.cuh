// SPDX-License-Identifier: Apache-2.0
// Sums along rows and functions of whole rows. A team of threads shares a row: every thread sums its part, the parts
// are added up in a tree. The parts are compensated (Kahan 1965), so long rows of floats lose nothing that shows.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/long_rows.cuh>

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
    compensated<Real> part;
    walk<Real, 2>({a.p + row * a.d[3], b.p + row * a.d[3]}, a.d[3], t,
                  [&](long long, const Real* v) { part.add(v[0] * v[1]); });
    const Real sum = t.sum(part.sum);
    if (t.leads()) out.p.put(row, sum);
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
    const cells<Real> from = a.p + place(i, false);
    compensated<Real> part;
    for (long long r = t.rank; r < terms; r += t.size) part.add(from[place(r, true)]);
    const Real sum = t.sum(part.sum);
    if (t.leads()) out.p.add(i, sum);
  }
};
// Neighbouring threads read neighbouring elements: along the columns that stay, else along the row that is summed.
template <class On, class Real> status sum_to(const On& on, const summed_to<Real>& f, const char* name) {
  const long long n = f.out.count();
  if (f.out.d[3] > 1) return on.columns(n, f, name);
  return n < 512 && f.terms > 2048 ? on.matrices(n, f.terms, f, name) : on.rows(n, f, name);
}

template <class Real> struct softmaxes {
  tensor<Real> out, a;
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    const long long n = a.d[3];
    const cells<Real> z = a.p + row * n, p = out.p + row * n;
    Real most = z[0];
    walk<Real, 1>({z}, n, t, [&](long long, const Real* v) { most = *v > most ? *v : most; });
    most = t.most(most);
    compensated<Real> part;
    walk<Real, 1>({z}, n, t, [&](long long, const Real* v) { part.add(std::exp(*v - most)); });
    const Real total = t.sum(part.sum);
    walk<Real, 1>({z}, n, t, [&](long long c, const Real* v) { p.put(c, std::exp(*v - most) / total); });
  }
};
// An entry is among the k largest when fewer than k are before it: larger ones, and equal ones with a smaller index.
template <class Real> struct topk_softmaxes {
  tensor<Real> out, a;
  long long k;
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    const long long n = a.d[3];
    const cells<Real> z = a.p + row * n, p = out.p + row * n;
    Real most = z[0], part = 0;
    for (long long c = 1; c < n; ++c) most = z[c] > most ? z[c] : most;
    auto share = [&](long long c) {
      const Real own = z[c];
      long long before = 0;
      for (long long o = 0; o < n && before < k; ++o) before += z[o] > own || (z[o] == own && o < c) ? 1 : 0;
      return before < k ? std::exp(own - most) : Real(0);
    };
    for (long long c = t.rank; c < n; c += t.size) part += share(c);
    const Real total = t.sum(part);
    for (long long c = t.rank; c < n; c += t.size) p.put(c, share(c) / total);
  }
};
template <class Real> struct softmax_grads {
  tensor<Real> out, p, t;
  template <class Team> __host__ __device__ void operator()(long long row, Team team) const {
    const long long n = p.d[3];
    const cells<Real> q = p.p + row * n, d = t.p + row * n, to = out.p + row * n;
    compensated<Real> part;
    walk<Real, 2>({q, d}, n, team, [&](long long, const Real* v) { part.add(v[0] * v[1]); });
    const Real mean = team.sum(part.sum);
    walk<Real, 2>({q, d}, n, team, [&](long long c, const Real* v) { to.put(c, v[0] * (v[1] - mean)); });
  }
};

template <class Real> struct row_moments {
  Real mean = 0, scale;
  template <class Team> __host__ __device__ row_moments(const cells<Real>& x, long long n, Real eps, bool rms, Team t) {
    compensated<Real> sum, squares;
    if (!rms) {
      walk<Real, 1>({x}, n, t, [&](long long, const Real* v) { sum.add(*v); });
      mean = t.sum(sum.sum) / static_cast<Real>(n);
    }
    walk<Real, 1>({x}, n, t, [&](long long, const Real* v) { squares.add((*v - mean) * (*v - mean)); });
    scale = Real(1) / std::sqrt(t.sum(squares.sum) / static_cast<Real>(n) + eps);
  }
};
template <class Real> struct normalized {
  tensor<Real> out, x;
  cells<Real> eps;
  bool rms;
  cells<Real> factors{};  // one for each column, or none
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    const long long n = x.d[3];
    const cells<Real> in = x.p + row * n, to = out.p + row * n;
    const row_moments<Real> m(in, n, eps[0], rms, t);
    if (factors.at == nullptr)
      return walk<Real, 1>({in}, n, t, [&](long long c, const Real* v) { to.put(c, (*v - m.mean) * m.scale); });
    walk<Real, 2>({in, factors}, n, t,
                  [&](long long c, const Real* v) { to.put(c, (v[0] - m.mean) * m.scale * v[1]); });
  }
};
// Long rows by a thread block each. Which rows these are follows from their length alone: a row gives the same bits
// whatever rows are beside it.
template <dtype Type, int Pieces> struct normalized_by_blocks {
  normalized<float> f;

  __device__ void operator()(long long row, const block_team& t) const {
    const long long n = f.x.d[3];
    const row_pieces<Type, Pieces> pieces{n, t.rank, t.size};
    const float share = 1 / static_cast<float>(n);
    typename row_pieces<Type, Pieces>::kept x;
    pieces.load(x, f.x.p, row * n);
    float w[8];
    if constexpr (Pieces == 1)  // few rows: all that is read is asked for at once
      pieces.each([&](int, long long c) { read_factors(w, f.factors, c); });
    const float eps = f.eps[0];
    auto sum_of = [&](const auto& term) {
      return pieces.sums([&](int k, long long) {
        float v[8], sum = 0;
        x[k].read(v);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum += term(v[e]);
        return make_float2(sum, 0);
      });
    };
    const float mean = f.rms ? 0 : sum_of([](float v) { return v; }).x * share;
    const float squares = sum_of([&](float v) { return (v - mean) * (v - mean); }).x;
    const float scale = 1 / std::sqrt(squares * share + eps);
    pieces.each([&](int k, long long c) {
      float v[8];
      x[k].read(v);
      if constexpr (Pieces > 1) read_factors(w, f.factors, c);
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] = (v[e] - mean) * scale * w[e];
      store_eight(v, f.out.p, row * n + c);
    });
  }
};
// A few rows of what most models have, an RMS norm of bf16: little code, which runs once, and all types known. The same bits.
template <dtype Factors> struct rms_of_few_rows {
  const uint4* x;
  uint4* out;
  const void* factors;
  const float* eps;
  int pieces;  // of eight columns, one to a thread

  __device__ void operator()(long long row, const block_team& t) const {
    __shared__ float trees[longest_long_row / 256];
    const bool inside = t.rank < pieces;
    const long long at = row * pieces + t.rank;
    uint4 bits = make_uint4(0, 0, 0, 0);
    float v[8], w[8];
    if (inside) bits = x[at], load_eight(w, {const_cast<void*>(factors), Factors}, 8LL * t.rank);
    const float more = *eps;
    widen_eight<dtype::bf16>(v, bits);
    float sum = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += v[e] * v[e];
    sum = warp_sum(sum);
    if (t.rank % 32 == 0) trees[t.rank / 32] = sum;
    __syncthreads();
    float squares = 0;
#pragma unroll 8
    for (int k = 0; k < t.size / 32; ++k) squares += trees[k];
    const float scale = 1 / std::sqrt(squares * (1 / static_cast<float>(8 * pieces)) + more);
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e] = v[e] * scale * w[e];
    if (inside) out[at] = narrow_eight<dtype::bf16>(v);
  }
};
inline bool takes_few_rows(const normalized<float>& f) {
  const long long rows = f.x.rows();
  return f.rms && !are_many_rows(rows) && is_long_row(f.x.d[3]) && f.factors.at != nullptr &&
         f.x.p.type == dtype::bf16 && f.out.p.type == dtype::bf16 && f.eps.type == dtype::f32 &&
         (f.factors.type == dtype::f32 || f.factors.type == dtype::bf16);
}
template <dtype Factors, class On>
status normalize_few_rows(const On& on, const normalized<float>& f, const char* name) {
  const long long n = f.x.d[3];
  return on.blocks(f.x.rows(), threads_of_row<1>(n),
                   rms_of_few_rows<Factors>{static_cast<const uint4*>(f.x.p.at), static_cast<uint4*>(f.out.p.at),
                                            f.factors.at, static_cast<const float*>(f.eps.at), static_cast<int>(n / 8)},
                   name);
}
template <class On, class Real> status normalize(const On& on, const normalized<Real>& f, const char* name) {
  return on.rows(f.x.rows(), f, name);
}
template <streams On> status normalize(const On& on, const normalized<float>& f, const char* name) {
  bool aligned = true;
  for (const cells<float>& c : {f.x.p, f.out.p, f.factors}) aligned = aligned && by_sixteen_bytes(c);
  if (aligned && takes_few_rows(f))
    return f.factors.type == dtype::f32 ? normalize_few_rows<dtype::f32>(on, f, name)
                                        : normalize_few_rows<dtype::bf16>(on, f, name);
  const result<bool> done = by_long_rows<normalized_by_blocks>(on, f, aligned, name);
  if (!done) return done.failure();
  return *done ? status(ok) : on.rows(f.x.rows(), f, name);
}

}  // namespace graft::cuda
