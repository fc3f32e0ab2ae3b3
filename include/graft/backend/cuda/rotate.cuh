// SPDX-License-Identifier: Apache-2.0
// Rotations of the last axis by butterfly factors (Liu et al. 2023): x R with R = B_{m-1} … B_0. A team of threads takes
// a row through all factors: the b elements of a block lie in two halves in the natural order, so nothing is moved.
// Values between factors lie in scratch memory of the caller, in Real.
#pragma once
#include <graft/backend/cuda/product.cuh>
#include <graft/backend/cuda/targets.h>

#include <utility>

namespace graft::cuda {

// Within each stretch of b 2^i entries, chunks of half a block: the even ones first, then the odd ones.
template <class Int> __host__ __device__ Int butterfly(Int at, Int block, Int factor) {
  if (factor == 0) return at;
  const Int half = block / 2, chunks = Int(2) << factor, span = half * chunks;
  const Int chunk = at % span / half, from = chunk < chunks / 2 ? 2 * chunk : 2 * chunk - chunks + 1;
  return at / span * span + from * half + at % half;
}
// Its inverse.
template <class Int> __host__ __device__ Int natural(Int at, Int block, Int factor) {
  if (factor == 0) return at;
  const Int half = block / 2, chunks = Int(2) << factor, span = half * chunks;
  const Int from = at % span / half, chunk = from % 2 == 0 ? from / 2 : (from + chunks - 1) / 2;
  return at / span * span + chunk * half + at % half;
}

struct rotation {
  long long factors, blocks, b, in;
  bool transposed;
  rotation() = default;
  template <class Real>
  rotation(const tensor<Real>& q, long long width, bool t)
      : factors(q.d[0]), blocks(q.d[1]), b(q.d[3]), in(width), transposed(t) {}
  __host__ __device__ bool shared() const { return blocks == 1; }
  // One factor: a block of each `size` columns.
  rotation(long long width, long long size) : factors(1), blocks(width / size), b(size), in(width), transposed(false) {}
  // Columns that stay together whatever the factor.
  __host__ __device__ long long stretch() const { return b << (factors - 1); }
  // Several factors are first made one of blocks this wide, where they stay within them.
  static constexpr long long wide = 32;
  bool composes() const { return composes_factors(factors, b, in); }
  // Which factor comes when.
  __host__ __device__ long long order(long long step) const { return transposed ? step : factors - 1 - step; }
  // Where the column of a factor's block begins that makes the entry at `place`, a row of it when flipped.
  template <class Real>
  __host__ __device__ cells<Real> column(const cells<Real>& q, long long factor, long long place, bool flip) const {
    const long long block = factor * blocks + (shared() ? 0 : place / b);
    return q + (block * b * b + place % b * (flip ? b : 1));
  }
};
// Σ_l x[l] m[l step], l < n.
template <class Real>
__host__ __device__ Real turned(const cells<Real>& x, long long n, const cells<Real>& m, long long step) {
  Real sum = 0, v[4], w[4];
  long long l = 0;
  for (; l + 4 <= n; l += 4) {
    x.load(v, l, 1), m.load(w, l * step, step);
    for (int k = 0; k < 4; ++k) sum += v[k] * w[k];
  }
  for (; l < n; ++l) sum += x[l] * m[l * step];
  return sum;
}

template <class Real> struct rotated {
  tensor<Real> out, x;
  cells<Real> q;
  rotation r;
  Real* scratch;

  // Two rows of scratch memory in turns, of which the last factor needs none; or the composed blocks, and as many again.
  static long long needs(const tensor<Real>& x, const tensor<Real>& q) {
    if (const rotation r(q, x.d[3], false); r.composes()) return 2 * r.in * rotation::wide;
    return (q.d[0] > 2 ? 2 : q.d[0] - 1) * x.count();
  }
  __host__ __device__ cells<Real> between(long long row, long long step) const {
    return scratch + (step % 2 * x.rows() + row) * r.in;
  }
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    for (long long s = 0; s < r.factors; ++s) {
      const cells<Real> from = s == 0 ? x.p + row * r.in : between(row, s - 1),
                        to = s + 1 == r.factors ? out.p + row * r.in : between(row, s);
      const long long factor = r.order(s), half = factor == 0 ? r.b : r.b / 2;
      for (long long i = t.rank; i < r.in; i += t.size) {
        const long long place = butterfly(i, r.b, factor), block = place / r.b * r.b;
        const cells<Real> low = from + natural(block, r.b, factor), high = from + natural(block + half, r.b, factor),
                          m = r.column(q, factor, place, r.transposed);
        const long long step = r.transposed ? 1 : r.b;
        to.put(i, turned(low, half, m, step) + (factor == 0 ? Real(0) : turned(high, half, m + half * step, step)));
      }
      t.sync();
    }
  }
};

// The product of several factors as one of wider blocks: a block of threads makes a block of it, rows of the identity taken
// through one factor after the other.
template <class Real> struct composed {
  cells<Real> q;
  rotation r;
  Real* to;  // all blocks, and behind them room for as many

  template <class Team> __host__ __device__ void operator()(long long block, Team t) const {
    constexpr auto wide = static_cast<unsigned>(rotation::wide);
    const auto b = static_cast<unsigned>(r.b), first = static_cast<unsigned>(block) * wide;
    const unsigned step = r.transposed ? 1 : b;
    Real* const place[2] = {to + block * wide * wide, to + (r.in / wide + block) * wide * wide};
    for (long long s = 0; s < r.factors; ++s) {
      const auto factor = static_cast<unsigned>(r.order(s)), half = factor == 0 ? b : b / 2;
      const long long turns = r.factors - 1 - s;  // the last one writes where the result belongs
      const Real* const from = place[(turns + 1) % 2];
      for (auto e = static_cast<unsigned>(t.rank); e < wide * wide; e += static_cast<unsigned>(t.size)) {
        const unsigned row = e / wide, own = butterfly(first + e % wide, b, factor), start = own / b * b;
        const unsigned low = natural(start, b, factor) - first, high = natural(start + half, b, factor) - first;
        const cells<Real> m = r.column(q, factor, own, r.transposed);
        Real sum = 0;
        for (unsigned l = 0; l < b; ++l) {
          const unsigned k = l < half ? low + l : high + l - half;
          sum += (s == 0 ? Real(row == k ? 1 : 0) : from[row * wide + k]) * m[l * step];
        }
        place[turns % 2][e] = sum;
      }
      t.sync();
    }
  }
};

// With several factors, the input z and the gradient dw of the output of each one: a row at a time, and left in the order
// in which the factor's blocks lie side by side, [factor][block][row][b].
template <class Real> struct rotation_traces {
  tensor<Real> x, t;
  cells<Real> q;
  rotation r;
  Real *z, *dw;

  static long long needs(const tensor<Real>& x, const tensor<Real>& q) {
    return q.d[0] > 1 ? 2 * q.d[0] * x.count() : 0;
  }
  __host__ __device__ Real* at(Real* traces, long long factor, long long place, long long row) const {
    return traces + ((factor * (r.in / r.b) + place / r.b) * x.rows() + row) * r.b + place % r.b;
  }
  // Row `row` of the trace of factor `to`: the row given, or that of factor `from` turned by it.
  template <class Team>
  __host__ __device__ void step(Real* traces, const cells<Real>& given, long long from, long long to, bool flip,
                                long long row, Team team) const {
    for (long long i = team.rank; i < r.in; i += team.size) {
      Real v;
      if (from < 0) {
        v = given[i];
      } else {
        const long long place = butterfly(i, r.b, from);
        Real* const block = at(traces, from, place / r.b * r.b, row);
        v = turned<Real>(block, r.b, r.column(q, from, place, flip), flip ? 1 : r.b);
      }
      *at(traces, to, butterfly(i, r.b, to), row) = v;
    }
    team.sync();
  }
  template <class Team> __host__ __device__ void operator()(long long row, Team team) const {
    for (long long s = 0; s < r.factors; ++s)
      step(z, x.p + row * r.in, s == 0 ? -1 : r.order(s - 1), r.order(s), r.transposed, row, team);
    for (long long s = r.factors; s-- > 0;)
      step(dw, t.p + row * r.in, s + 1 == r.factors ? -1 : r.order(s + 1), r.order(s), !r.transposed, row, team);
  }
};
// Adds the gradient of every block: dQ = zᵀ dw, or dwᵀ z when transposed. One launch for one factor, else two.
template <class On, class Real>
status rotate_grad(const On& on, tensor<Real> out, tensor<Real> x, tensor<Real> t, tensor<Real> q, bool transposed,
                   Real* scratch) {
  const rotation r(q, x.d[3], transposed);
  const long long n = x.count(), rows = x.rows();
  products<Real> p{{x.p, 1, r.in, {0, r.b}}, {t.p, 1, r.in, {0, r.b}}, out.p, r.b, r.b, rows, {1, r.in / r.b}};
  p.sum = r.shared(), p.accumulate = 1;
  if (r.factors > 1) {
    Real* const dw = scratch + r.factors * n;
    if (status s = on.matrices(rows, r.in, rotation_traces<Real>{x, t, q.p, r, scratch, dw}, "rotate_grad"); !s)
      return s;
    p.a = {scratch, 1, r.b, {n, rows * r.b}}, p.b = {dw, 1, r.b, {n, rows * r.b}};
    p.stack[0] = r.factors, p.sum = false;
    if (r.shared()) p.stack[1] = 1, p.depth = n / r.b;
  }
  if (transposed) std::swap(p.a, p.b);
  return multiply(on, p);
}

}  // namespace graft::cuda
