// SPDX-License-Identifier: Apache-2.0
// Rotations of the last axis by butterfly factors (Liu et al. 2023): x R with R = B_{m-1} … B_0. A factor is one pass
// over the activations: the b elements of a block lie in two halves in the natural order, so nothing is moved. Values
// between factors lie in scratch memory of the caller.
#pragma once
#include <graft/backend/cuda/product.cuh>

#include <utility>

namespace graft::cuda {

// Within each stretch of b 2^i entries, chunks of half a block: the even ones first, then the odd ones.
__host__ __device__ inline long long butterfly(long long at, long long block, long long factor) {
  if (factor == 0) return at;
  const long long half = block / 2, chunks = 2LL << factor, span = half * chunks;
  const long long chunk = at % span / half, from = chunk < chunks / 2 ? 2 * chunk : 2 * chunk - chunks + 1;
  return at / span * span + from * half + at % half;
}
// Its inverse.
__host__ __device__ inline long long natural(long long at, long long block, long long factor) {
  if (factor == 0) return at;
  const long long half = block / 2, chunks = 2LL << factor, span = half * chunks;
  const long long from = at % span / half, chunk = from % 2 == 0 ? from / 2 : (from + chunks - 1) / 2;
  return at / span * span + chunk * half + at % half;
}

struct rotation {
  long long factors, blocks, b, in;
  bool transposed;
  template <class Real>
  rotation(const tensor<Real>& q, long long width, bool t)
      : factors(q.d[0]), blocks(q.d[1]), b(q.d[3]), in(width), transposed(t) {}
  bool shared() const { return blocks == 1; }
  long long order(long long step) const { return transposed ? step : factors - 1 - step; }  // which factor comes when
  __host__ __device__ long long block_at(long long factor, long long k) const {
    return (factor * blocks + (blocks == 1 ? 0 : k)) * b * b;
  }
};

// One factor: to = from B, or from Bᵀ when flipped.
template <class Real> struct turned {
  Real* to;
  const Real *from, *q;
  rotation r;
  long long factor;
  bool flip;
  __host__ __device__ void operator()(long long i) const {
    const long long b = r.b, place = butterfly(i % r.in, b, factor), block = place / b, col = place % b;
    const long long half = factor == 0 ? b : b / 2;
    const Real *const row = from + i / r.in * r.in, *const m = q + r.block_at(factor, block);
    const Real *const low = row + natural(block * b, b, factor), *const high =
                                                                     row + natural(block * b + b - half, b, factor);
    Real sum = 0;
    for (long long l = 0; l < b; ++l)
      sum += (l < half ? low[l] : high[l - half]) * (flip ? m[col * b + l] : m[l * b + col]);
    to[i] = sum;
  }
};
template <class Real> struct reordered {  // the activations in a factor's order, where its blocks lie side by side
  Real* to;
  const Real* from;
  rotation r;
  long long factor;
  __host__ __device__ void operator()(long long i) const {
    to[i] = from[i / r.in * r.in + natural(i % r.in, r.b, factor)];
  }
};

template <class Real> long long rotate_scratch(const tensor<Real>& x, const tensor<Real>& q) {
  return q.d[0] > 1 ? x.count() : 0;
}
template <class On, class Real>
status rotate(const On& on, tensor<Real> out, tensor<Real> x, tensor<Real> q, bool transposed, Real* scratch) {
  const rotation r(q, x.d[3], transposed);
  const Real* from = x.p;
  for (long long s = 0; s < r.factors; ++s) {  // in turns, so that the last one writes into out
    Real* const to = (r.factors - 1 - s) % 2 == 0 ? out.p : scratch;
    const turned<Real> step{to, from, q.p, r, r.order(s), transposed};
    if (status done = on.elements(x.count(), step, "rotate"); !done) return done;
    from = to;
  }
  return ok;
}

// The inputs of all factors but the first, two gradients in turns, and an input and a gradient in a factor's order.
template <class Real> long long rotate_grad_scratch(const tensor<Real>& x, const tensor<Real>& q) {
  return q.d[0] > 1 ? (q.d[0] + 3) * x.count() : 0;
}
// Adds the gradient of every block: with z the input and dw the output gradient of a factor in its order,
// dQ = zᵀ dw (or dwᵀ z when transposed), and dz = dw Qᵀ goes on to the factor before.
template <class On, class Real>
status rotate_grad(const On& on, tensor<Real> out, tensor<Real> x, tensor<Real> t, tensor<Real> q, bool transposed,
                   Real* scratch) {
  const rotation r(q, x.d[3], transposed);
  const long long n = x.count();
  Real* const side = scratch + (r.factors - 1) * n;
  auto input = [&](long long s) { return s == 0 ? x.p : scratch + (s - 1) * n; };
  for (long long s = 0; s + 1 < r.factors; ++s) {
    const turned<Real> step{input(s + 1), input(s), q.p, r, r.order(s), transposed};
    if (status done = on.elements(n, step, "rotate"); !done) return done;
  }
  const Real* dw = t.p;
  for (long long s = r.factors - 1; s >= 0; --s) {
    const long long f = r.order(s);
    const Real *z = input(s), *d = dw;
    if (f > 0) {
      Real *const z_ordered = side + 2 * n, *const d_ordered = z_ordered + n;
      if (status done = on.elements(n, reordered<Real>{z_ordered, z, r, f}, "rotate_grad"); !done) return done;
      if (status done = on.elements(n, reordered<Real>{d_ordered, d, r, f}, "rotate_grad"); !done) return done;
      z = z_ordered, d = d_ordered;
    }
    if (transposed) std::swap(z, d);
    const products<Real> blocks{{z, 1, r.in, {0, r.b}},
                                {d, 1, r.in, {0, r.b}},
                                out.p + r.block_at(f, 0),
                                r.b,
                                r.b,
                                x.rows(),
                                {1, r.in / r.b},
                                r.shared(),
                                1};
    if (status done = multiply(on, blocks); !done) return done;
    if (s == 0) break;
    Real* const next = side + s % 2 * n;
    if (status done = on.elements(n, turned<Real>{next, dw, q.p, r, f, !transposed}, "rotate_grad"); !done) return done;
    dw = next;
  }
  return ok;
}

}  // namespace graft::cuda
