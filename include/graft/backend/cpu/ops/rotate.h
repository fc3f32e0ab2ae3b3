// SPDX-License-Identifier: Apache-2.0
// Rotation of the last axis by block-diagonal matrices, one factor (OFT) or butterfly factors (BOFT, Liu et al. 2023):
// x R with R = B_{m-1} … B_0. Factor i scatters the activations into its butterfly order p_i, multiplies the blocks,
// and gathers by p_i. No [in, in] matrix exists, except in the oracle.
#pragma once
#include <graft/backend/cpu/gemm/gemm.h>
#include <graft/backend/cpu/gemm/rotation_block_gemm.h>
#include <graft/backend/cpu/runtime/tensor.h>

#include <algorithm>
#include <vector>

namespace graft::cpu {

// The butterfly order of a factor: within each period of block · 2^factor entries, the even half blocks come first,
// then the odd ones.
inline long long butterfly(long long at, long long block, long long factor) {
  if (factor == 0) return at;
  const long long half = block / 2, chunks = 2LL << factor, period = half * chunks;
  const long long chunk = at % period / half, from = chunk < chunks / 2 ? 2 * chunk : 2 * chunk - chunks + 1;
  return at / period * period + from * half + at % half;
}

struct rotation {
  long long factors, blocks, b, in;
  bool shared, transposed;
  template <class Real>
  rotation(tensor<Real> q, long long width, bool t)
      : factors(q.d[0]), blocks(q.d[1]), b(q.d[3]), in(width), shared(q.d[1] == 1), transposed(t) {}
  long long order(long long step) const { return transposed ? step : factors - 1 - step; }  // the factor of a step
  long long count() const { return in / b; }
  long long block_at(long long factor, long long k) const { return (factor * blocks + (shared ? 0 : k)) * b * b; }
};

// Moves rows into a factor's order or back, half a block at a time. Factor 0 has the natural order.
template <class Real>
void permute(const Real* from, Real* to, long long rows, const rotation& r, long long factor, bool scatter) {
  const long long half = factor == 0 ? r.b : r.b / 2;
  std::vector<long long> order(static_cast<std::size_t>(r.in / half));
  for (std::size_t c = 0; c < order.size(); ++c) order[c] = butterfly(static_cast<long long>(c) * half, r.b, factor);
  for (long long t = 0; t < rows; ++t, from += r.in, to += r.in)
    for (std::size_t c = 0; c < order.size(); ++c) {
      const long long here = static_cast<long long>(c) * half, there = order[c];
      std::copy_n(from + (scatter ? here : there), half, to + (scatter ? there : here));
    }
}

// Rows that run through all blocks before the next rows do; more would be more streams than the hardware prefetcher
// follows.
inline constexpr long long rows_in_cache = 32;

// y = x blockdiag(Q), or x blockdiag(Q)ᵀ if `flip`, for one factor; x is in its order.
template <class Real>
void multiply_blocks(const Real* x, Real* y, long long rows, const rotation& r, const Real* q, long long f, bool flip) {
  const bool small = with_block(r.b, [&]<int B>() {
    for (long long t = 0; t < rows; t += rows_in_cache)
      for (long long k = 0; k < r.count(); ++k)
        block_product<B>(x + t * r.in + k * B, y + t * r.in + k * B, std::min(rows_in_cache, rows - t), r.in,
                         q + r.block_at(f, k), flip);
  });
  for (long long k = 0; k < r.count() && !small; ++k) {
    const strided<Real> from{x + k * r.b, r.in, 1}, m{q + r.block_at(f, k), r.b, 1};
    gemm(rows, r.b, r.b, from, flip ? m.transposed() : m, y + k * r.b, r.in, 0);
  }
}
// Adds zᵀ dw, or dwᵀ z if transposed, for each block of one factor (wgrad).
template <class Real>
void sum_blocks(const Real* z, const Real* dw, long long rows, const rotation& r, Real* out, long long f) {
  if (r.transposed) std::swap(z, dw);
  const bool small = with_block(r.b, [&]<int B>() {
    for (long long k = 0; k < r.count(); ++k) block_sum<B>(z + k * B, dw + k * B, rows, r.in, out + r.block_at(f, k));
  });
  for (long long k = 0; k < r.count() && !small; ++k) {
    const strided<Real> a{z + k * r.b, r.in, 1}, d{dw + k * r.b, r.in, 1};
    gemm(r.b, r.b, rows, a.transposed(), d, out + r.block_at(f, k), r.b, 1);
  }
}

template <class Real> void rotate(tensor<Real> out, tensor<Real> x, tensor<Real> q, bool transposed) {
  const rotation r(q, x.d[3], transposed);
  const long long rows = x.count() / x.d[3];
  if (r.factors == 1) return multiply_blocks(x.p, out.p, rows, r, q.p, 0, transposed);
  // All factors run on a few rows at a time, which stay in the cache; the last factor writes to out.
  const long long batch_rows = 16;
  std::vector<Real> natural(static_cast<std::size_t>(batch_rows * r.in)), ordered(natural.size()),
      rotated_rows(natural.size());
  for (long long t = 0; t < rows; t += batch_rows) {
    const long long n = std::min(batch_rows, rows - t);
    const Real* from = x.p + t * r.in;
    for (long long s = 0; s < r.factors; ++s) {
      const long long f = r.order(s);
      Real* const last = s + 1 == r.factors ? out.p + t * r.in : nullptr;
      if (f == 0) {
        Real* const to = last != nullptr ? last : natural.data();
        multiply_blocks(from, to, n, r, q.p, f, transposed);
        from = to;
        continue;
      }
      permute(from, ordered.data(), n, r, f, true);
      multiply_blocks(ordered.data(), rotated_rows.data(), n, r, q.p, f, transposed);
      permute(rotated_rows.data(), last != nullptr ? last : natural.data(), n, r, f, false);
      from = natural.data();
    }
  }
}

// Adds the gradient of every block. With z the input and dw the output gradient of a factor in its order, dQ = zᵀ dw
// (or dwᵀ z if transposed), and dz = dw Qᵀ is the output gradient of the factor before it.
template <class Real>
void rotate_grad(tensor<Real> out, tensor<Real> x, tensor<Real> t, tensor<Real> q, bool transposed) {
  const rotation r(q, x.d[3], transposed);
  const long long rows = x.count() / x.d[3];
  if (r.factors == 1) return sum_blocks(x.p, t.p, rows, r, out.p, 0);
  const auto size = static_cast<std::size_t>(x.count());
  std::vector<std::vector<Real>> z(static_cast<std::size_t>(r.factors), std::vector<Real>(size));
  std::vector<Real> now(x.p, x.p + x.count()), rotated_rows(size);
  for (long long s = 0; s < r.factors; ++s) {
    auto& in = z[static_cast<std::size_t>(s)];
    permute(now.data(), in.data(), rows, r, r.order(s), true);
    multiply_blocks(in.data(), rotated_rows.data(), rows, r, q.p, r.order(s), transposed);
    permute(rotated_rows.data(), now.data(), rows, r, r.order(s), false);
  }
  now.assign(t.p, t.p + t.count());
  for (long long s = r.factors - 1; s >= 0; --s) {
    const long long f = r.order(s);
    permute(now.data(), rotated_rows.data(), rows, r, f, true);
    const auto& in = z[static_cast<std::size_t>(s)];
    sum_blocks(in.data(), rotated_rows.data(), rows, r, out.p, f);
    multiply_blocks(rotated_rows.data(), now.data(), rows, r, q.p, f, !transposed);
    rotated_rows = now;
    permute(rotated_rows.data(), now.data(), rows, r, f, false);
  }
}

// R as a dense matrix [in, in], for the oracle.
template <class Real> std::vector<Real> dense_rotation(tensor<Real> q, long long in) {
  const rotation r(q, in, false);
  std::vector<Real> all(static_cast<std::size_t>(in * in)), factor(all.size()), product(all.size());
  for (long long i = 0; i < in; ++i) all[static_cast<std::size_t>(i * in + i)] = Real(1);
  for (long long s = 0; s < r.factors; ++s) {
    std::fill(factor.begin(), factor.end(), Real(0));
    const long long f = r.order(s);
    for (long long i = 0; i < in; ++i)
      for (long long j = 0; j < in; ++j) {
        const long long pi = butterfly(i, r.b, f), pj = butterfly(j, r.b, f);
        if (pi / r.b == pj / r.b)
          factor[static_cast<std::size_t>(i * in + j)] = q.p[r.block_at(f, pi / r.b) + pi % r.b * r.b + pj % r.b];
      }
    gemm<Real>(in, in, in, {all.data(), in, 1}, {factor.data(), in, 1}, product.data(), in, 0);
    std::swap(all, product);
  }
  return all;
}

}  // namespace graft::cpu
