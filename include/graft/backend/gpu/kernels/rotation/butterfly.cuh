// SPDX-License-Identifier: Apache-2.0
// Rotations by butterfly factors, BOFT (Liu et al. 2023), and their gradients: reference kernels for any type.
//
//   x R with R = B_{m-1} … B_0      x [rows, in]; a permuted block-diagonal factor has blocks [b, b]
//
// A team of threads takes a row through all factors. The b elements of a block are two contiguous halves in natural
// order, so nothing is moved. Values between factors are stored in scratch memory of the caller, in Real.
#pragma once
#include <graft/backend/gpu/kernels/gemm/batched.cuh>
#include <graft/backend/gpu/kernels/rotation/capabilities.h>

#include <utility>

namespace graft::gpu {

// Permuted position of element `at`: within each b 2^factor elements, even half blocks come first, then odd ones.
template <class Int> __host__ __device__ Int butterfly(Int at, Int block, Int factor) {
  if (factor == 0) return at;
  const Int half = block / 2, chunks = Int(2) << factor, period = half * chunks;
  const Int chunk = at % period / half, from = chunk < chunks / 2 ? 2 * chunk : 2 * chunk - chunks + 1;
  return at / period * period + from * half + at % half;
}
// Inverse permutation of butterfly().
template <class Int> __host__ __device__ Int butterfly_inverse(Int at, Int block, Int factor) {
  if (factor == 0) return at;
  const Int half = block / 2, chunks = Int(2) << factor, period = half * chunks;
  const Int from = at % period / half, chunk = from % 2 == 0 ? from / 2 : (from + chunks - 1) / 2;
  return at / period * period + chunk * half + at % half;
}

// Sizes of a rotation, q [factors, blocks, b, b]; one block is shared by all columns.
struct rotation {
  long long factors, blocks, b, in;
  bool transposed;
  rotation() = default;
  template <class Real>
  rotation(const tensor<Real>& q, long long width, bool t)
      : factors(q.d[0]), blocks(q.d[1]), b(q.d[3]), in(width), transposed(t) {}
  __host__ __device__ bool shared() const { return blocks == 1; }
  // One factor with a block for each `size` columns.
  rotation(long long width, long long size) : factors(1), blocks(width / size), b(size), in(width), transposed(false) {}
  // Width of the column ranges that no factor mixes with others.
  __host__ __device__ long long stretch() const { return b << (factors - 1); }
  // Width of composed blocks, for factors that stay within such column ranges.
  static constexpr long long composed_width = 32;
  bool composes() const { return composes_factors(factors, b, in); }
  // The factor that is applied in step `step`.
  __host__ __device__ long long order(long long step) const { return transposed ? step : factors - 1 - step; }
  // Column of the factor's block that computes the element at permuted position `place`; a row of it if `flip`.
  template <class Real>
  __host__ __device__ element_ptr<Real> column(const element_ptr<Real>& q, long long factor, long long place,
                                               bool flip) const {
    const long long block = factor * blocks + (shared() ? 0 : place / b);
    return q + (block * b * b + place % b * (flip ? b : 1));
  }
};
// Dot product Σ_l x[l] m[l step], l < n.
template <class Real>
__host__ __device__ Real rotated_element(const element_ptr<Real>& x, long long n, const element_ptr<Real>& m,
                                         long long step) {
  Real sum = 0, v[4], w[4];
  long long l = 0;
  for (; l + 4 <= n; l += 4) {
    x.load(v, l, 1), m.load(w, l * step, step);
    for (int k = 0; k < 4; ++k) sum += v[k] * w[k];
  }
  for (; l < n; ++l) sum += x[l] * m[l * step];
  return sum;
}

// x R of a row per team, through all factors.
template <class Real> struct rotate_functor {
  tensor<Real> out, x;
  element_ptr<Real> q;
  rotation r;
  Real* scratch;

  // Scratch elements: two alternating buffers of x's size between factors, or twice the composed blocks.
  static long long needs(const tensor<Real>& x, const tensor<Real>& q) {
    if (const rotation r(q, x.d[3], false); r.composes()) return 2 * r.in * rotation::composed_width;
    return (q.d[0] > 2 ? 2 : q.d[0] - 1) * x.count();
  }
  __host__ __device__ element_ptr<Real> between(long long row, long long step) const {
    return scratch + (step % 2 * x.rows() + row) * r.in;
  }
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    for (long long s = 0; s < r.factors; ++s) {
      const element_ptr<Real> from = s == 0 ? x.p + row * r.in : between(row, s - 1),
                              to = s + 1 == r.factors ? out.p + row * r.in : between(row, s);
      const long long factor = r.order(s), half = factor == 0 ? r.b : r.b / 2;
      for (long long i = t.rank; i < r.in; i += t.size) {
        const long long place = butterfly(i, r.b, factor), block = place / r.b * r.b;
        const element_ptr<Real> low = from + butterfly_inverse(block, r.b, factor),
                                high = from + butterfly_inverse(block + half, r.b, factor),
                                m = r.column(q, factor, place, r.transposed);
        const long long step = r.transposed ? 1 : r.b;
        to.put(i, rotated_element(low, half, m, step) +
                      (factor == 0 ? Real(0) : rotated_element(high, half, m + half * step, step)));
      }
      t.sync();
    }
  }
};

// Composes several factors into blocks of rotation::composed_width columns: a team rotates an identity block by all factors.
template <class Real> struct compose_functor {
  element_ptr<Real> q;
  rotation r;
  Real* to;  // all blocks, followed by as much scratch memory

  template <class Team> __host__ __device__ void operator()(long long block, Team t) const {
    constexpr auto composed_width = static_cast<unsigned>(rotation::composed_width);
    const auto b = static_cast<unsigned>(r.b), first = static_cast<unsigned>(block) * composed_width;
    const unsigned step = r.transposed ? 1 : b;
    Real* const place[2] = {to + block * composed_width * composed_width,
                            to + (r.in / composed_width + block) * composed_width * composed_width};
    for (long long s = 0; s < r.factors; ++s) {
      const auto factor = static_cast<unsigned>(r.order(s)), half = factor == 0 ? b : b / 2;
      const long long remaining = r.factors - 1 - s;  // the last factor writes the result
      const Real* const from = place[(remaining + 1) % 2];
      for (auto e = static_cast<unsigned>(t.rank); e < composed_width * composed_width;
           e += static_cast<unsigned>(t.size)) {
        const unsigned row = e / composed_width, own = butterfly(first + e % composed_width, b, factor),
                       start = own / b * b;
        const unsigned low = butterfly_inverse(start, b, factor) - first,
                       high = butterfly_inverse(start + half, b, factor) - first;
        const element_ptr<Real> m = r.column(q, factor, own, r.transposed);
        Real sum = 0;
        for (unsigned l = 0; l < b; ++l) {
          const unsigned k = l < half ? low + l : high + l - half;
          sum += (s == 0 ? Real(row == k ? 1 : 0) : from[row * composed_width + k]) * m[l * step];
        }
        place[remaining % 2][e] = sum;
      }
      t.sync();
    }
  }
};

// For gradients of several factors: stores the input z and the output gradient dw of every factor, a row per team,
// permuted so that a factor's blocks are contiguous: [factor][block][row][b].
template <class Real> struct rotation_traces {
  tensor<Real> x, t;
  element_ptr<Real> q;
  rotation r;
  Real *z, *dw;

  static long long needs(const tensor<Real>& x, const tensor<Real>& q) {
    return q.d[0] > 1 ? 2 * q.d[0] * x.count() : 0;
  }
  __host__ __device__ Real* at(Real* traces, long long factor, long long place, long long row) const {
    return traces + ((factor * (r.in / r.b) + place / r.b) * x.rows() + row) * r.b + place % r.b;
  }
  // Stores row `row` of factor `to`: `given` where from < 0, else factor `from` applied to its own row.
  template <class Team>
  __host__ __device__ void step(Real* traces, const element_ptr<Real>& given, long long from, long long to, bool flip,
                                long long row, Team team) const {
    for (long long i = team.rank; i < r.in; i += team.size) {
      Real v;
      if (from < 0) {
        v = given[i];
      } else {
        const long long place = butterfly(i, r.b, from);
        Real* const block = at(traces, from, place / r.b * r.b, row);
        v = rotated_element<Real>(block, r.b, r.column(q, from, place, flip), flip ? 1 : r.b);
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
// Adds the gradient of every block to `out`: dQ = zᵀ dw, or dwᵀ z when transposed. One launch for one factor, else two.
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

}  // namespace graft::gpu
