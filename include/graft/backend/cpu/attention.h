// SPDX-License-Identifier: Apache-2.0
// Attention over spans of rows: softmax(Q Kᵀ / √head) V for every head, exact, a tile of neighbouring rows at a time, so
// that only the scores of one tile and one head exist. Rows whose spans overlap share a tile, and the products of a tile
// are those of gemm.h. Tiles and sums follow from the spans alone; threads take whole heads, so that any number of them
// gives the same bits.
#pragma once
#include <graft/backend/attention_drops.h>
#include <graft/backend/cpu/gemm.h>
#include <graft/backend/cpu/pointwise.h>
#include <graft/backend/cpu/sums.h>
#include <graft/backend/cpu/tensor.h>
#include <graft/core/sequence.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace graft::cpu {

namespace detail {

// The rows that each row looks at.
struct spans {
  const std::int64_t* p;
  long long rows;
  long long first(long long r) const { return p[r]; }
  long long end(long long r) const { return p[rows + r]; }
  long long own(long long r) const { return p[2 * rows + r]; }
  bool empty(long long r) const { return end(r) <= first(r); }
};

// Rows [from, to) and the keys [low, high) that one of them looks at.
struct tile {
  long long from, to, low, high;
  long long rows() const { return to - from; }
  long long keys() const { return high - low; }
};
inline constexpr long long tile_rows = 64, tile_scores = 1 << 18;

// The tile that begins at row r: it ends where the next row looks at none of its keys, or where it is full.
inline tile tile_at(const spans& s, long long r) {
  tile t{r, r + 1, s.first(r), std::max(s.first(r), s.end(r))};
  while (t.to < s.rows && t.rows() < tile_rows && !s.empty(t.from) && !s.empty(t.to)) {
    const long long low = std::min(t.low, s.first(t.to)), high = std::max(t.high, s.end(t.to));
    const bool apart = s.first(t.to) >= t.high || s.end(t.to) <= t.low;
    if (apart || (t.rows() + 1) * (high - low) > tile_scores) break;
    t.low = low, t.high = high, ++t.to;
  }
  return t;
}

// Where queries, keys and values of a call lie; the keys may be those of a cache.
template <class Real> struct heads {
  const Real *q, *k, *v;
  long long q_row, k_row, head, queries, groups;        // groups: heads of keys and values
  long long share() const { return queries / groups; }  // heads of queries for each
  Real scale() const { return Real(1) / std::sqrt(static_cast<Real>(head)); }
};
template <class Real> heads<Real> heads_of(tensor<Real> qkv, long long q_width, long long head) {
  const long long kv = (qkv.d[3] - q_width) / 2;
  return {qkv.p, qkv.p + q_width, qkv.p + q_width + kv, qkv.d[3], qkv.d[3], head, q_width / head, kv / head};
}

// The probabilities of scores s[n, keys] of a tile, row by row of it, or head by head of its one row.
template <class Real>
void tile_softmax(Real* s, const tile& t, const spans& rows, long long n, bool one_row, Real scale) {
  for (long long i = 0; i < n; ++i) {
    const long long r = one_row ? t.from : t.from + i;
    const long long low = rows.first(r) - t.low, high = std::max(low, rows.end(r) - t.low);
    Real* const p = s + i * t.keys();
    std::fill_n(p, low, Real(0)), std::fill_n(p + high, t.keys() - high, Real(0));
    if (high == low) continue;
    put_scaled(p + low, scale, p + low, high - low);
    const Real largest = *std::max_element(p + low, p + high);
    each_row(binary_packets<Real>(op::sub), p + low, p + low, true, &largest, false, high - low);
    each_row(unary_packets<Real>(op::exp), p + low, p + low, true, p + low, false, high - low);
    put_scaled(p + low, Real(1) / sum(p + low, high - low), p + low, high - low);
  }
}
// The same rows where probabilities are dropped; `head`: the tile's, or the first of its one row.
template <class Real>
void drop(Real* s, const tile& t, const spans& rows, long long n, bool one_row, long long head,
          const attention_drops& drops) {
  for (long long i = 0; drops && i < n; ++i) {
    const long long r = one_row ? t.from : t.from + i, h = one_row ? head + i : head;
    for (long long key = rows.first(r); key < rows.end(r); ++key)
      s[i * t.keys() + key - t.low] *= drops.template factor<Real>(r, h, key);
  }
}
// f(where the queries begin) for the heads of a group: one after the other, or all at once where the tile is one row.
template <class F> void each_head(long long group, long long share, long long head, bool one_row, F f) {
  for (long long j = 0; j < (one_row ? 1 : share); ++j) f((group * share + j) * head);
}

template <class Real>
void attend(tensor<Real> out, const heads<Real>& h, const spans& rows, const tile& t, long long group,
            const attention_drops& drops) {
  thread_local memory<Real> kept;
  const bool one_row = t.rows() == 1;
  const long long n = one_row ? h.share() : t.rows(), width = out.d[3];
  kept.reserve(std::max(tile_scores, n * t.keys()));  // at once: a growing cache would ask for more at every step
  Real* const s = kept.data();
  const strided<Real> keys{h.k + t.low * h.k_row + group * h.head, h.k_row, 1},
      values{h.v + t.low * h.k_row + group * h.head, h.k_row, 1};
  each_head(group, h.share(), h.head, one_row, [&](long long at) {
    const strided<Real> q{h.q + t.from * h.q_row + at, one_row ? h.head : h.q_row, 1};
    gemm(n, t.keys(), h.head, q, keys.transposed(), s, t.keys(), 0);
    tile_softmax(s, t, rows, n, one_row, h.scale());
    drop(s, t, rows, n, one_row, at / h.head, drops);
    gemm(n, h.head, t.keys(), {s, t.keys(), 1}, values, out.p + t.from * width + at, one_row ? h.head : width, 0);
  });
}

}  // namespace detail

template <class Real>
void attention(tensor<Real> out, detail::heads<Real> h, const std::int64_t* span, const attention_drops& drops = {}) {
  const detail::spans rows{span, out.d[2]};
  thread_local sequence<detail::tile> tiles;  // its memory stays from call to call
  tiles.clear();
  long long work = 0;
  for (long long r = 0; r < rows.rows; r = tiles.back().to) {
    tiles.push(detail::tile_at(rows, r));
    work += tiles.back().rows() * tiles.back().keys() * h.queries * h.head * 2;
  }
  const long long parts = tiles.size() * h.groups;
  const int threads = threads_for(parts, work);
  on_threads(threads, [&, all = tiles.data()](int t) {
    for (long long p = parts * t / threads; p < parts * (t + 1) / threads; ++p)
      detail::attend(out, h, rows, all[p / h.groups], p % h.groups, drops);
  });
}
template <class Real>
void attention(tensor<Real> out, tensor<Real> qkv, const std::int64_t* span, long long head,
               const attention_drops& drops = {}) {
  attention(out, detail::heads_of(qkv, out.d[3], head), span, drops);
}
// Keys and values are first written to their places in the cache, which the call then reads.
template <class Real>
void cached_attention(tensor<Real> out, tensor<Real> qkv, const std::int64_t* span, tensor<Real> cache,
                      long long head) {
  detail::heads<Real> h = detail::heads_of(qkv, out.d[3], head);
  const detail::spans rows{span, out.d[2]};
  for (long long r = 0; r < rows.rows; ++r)
    if (rows.own(r) >= 0) std::copy_n(h.k + r * h.k_row, cache.d[3], cache.p + rows.own(r) * cache.d[3]);
  h.k = cache.p, h.v = cache.p + cache.d[3] / 2, h.k_row = cache.d[3];
  attention(out, h, span);
}

namespace detail {

// One head of keys over the tiles of one run of rows: with P the probabilities and O = P V,
//     dV = Pᵀ dO     dP = dO Vᵀ     dS = P ⊙ (dP - <P, dP>_row) / √head     dQ = dS K     dK = dSᵀ Q
// Where probabilities are dropped, dV is of those that were used, and dP of the others is 0.
template <class Real>
void attend_back(tensor<Real> d, const heads<Real>& h, const spans& rows, tensor<Real> dout, long long from,
                 long long to, long long group, const attention_drops& drops) {
  thread_local memory<Real> kept;
  const long long kv = h.groups * h.head, q_width = h.queries * h.head, width = dout.d[3];
  for (long long r = from; r < to;) {
    const tile t = tile_at(rows, r);
    const bool one_row = t.rows() == 1;
    const long long n = one_row ? h.share() : t.rows(), keys = t.keys();
    kept.reserve(2 * std::max(tile_scores, aligned_count(n * keys)));
    Real *const p = kept.data(), *const dp = p + aligned_count(n * keys);
    const long long key = t.low * h.k_row + group * h.head;
    const strided<Real> k{h.k + key, h.k_row, 1}, v{h.v + key, h.k_row, 1};
    Real *const dk = d.p + q_width + key, *const dv = d.p + q_width + kv + key;
    each_head(group, h.share(), h.head, one_row, [&](long long at) {
      const long long q_row = one_row ? h.head : h.q_row, o_row = one_row ? h.head : width;
      const strided<Real> q{h.q + t.from * h.q_row + at, q_row, 1}, o{dout.p + t.from * width + at, o_row, 1};
      gemm(n, keys, h.head, q, k.transposed(), p, keys, 0);
      tile_softmax(p, t, rows, n, one_row, h.scale());
      if (drops) std::copy_n(p, n * keys, dp), drop(dp, t, rows, n, one_row, at / h.head, drops);
      gemm(keys, h.head, n, strided<Real>{drops ? dp : p, keys, 1}.transposed(), o, dv, h.k_row, 1);
      gemm(n, keys, h.head, o, v.transposed(), dp, keys, 0);
      drop(dp, t, rows, n, one_row, at / h.head, drops);
      for (long long i = 0; i < n; ++i) {
        Real *const s = dp + i * keys, *const w = p + i * keys;
        const Real mean = dot(w, s, keys);
        for (long long c = 0; c < keys; ++c) s[c] = h.scale() * w[c] * (s[c] - mean);
      }
      gemm(n, h.head, keys, {dp, keys, 1}, k, d.p + t.from * h.q_row + at, q_row, 0);
      gemm(keys, h.head, n, strided<Real>{dp, keys, 1}.transposed(), q, dk, h.k_row, 1);
    });
    r = t.to;
  }
}

}  // namespace detail

// Runs of rows that share no keys with any other are independent, and so are heads of keys.
template <class Real>
void attention_grad(tensor<Real> d, tensor<Real> qkv, const std::int64_t* span, tensor<Real> dout, long long head,
                    const attention_drops& drops = {}) {
  const detail::heads<Real> h = detail::heads_of(qkv, dout.d[3], head);
  const detail::spans rows{span, qkv.d[2]};
  std::fill_n(d.p, d.count(), Real(0));
  thread_local std::vector<long long> later, runs;  // later: the first key of any row from here on
  later.assign(static_cast<std::size_t>(rows.rows) + 1, rows.rows), runs.clear();
  for (long long r = rows.rows - 1; r >= 0; --r) {
    const auto k = static_cast<std::size_t>(r);
    later[k] = rows.empty(r) ? later[k + 1] : std::min(later[k + 1], rows.first(r));
  }
  long long high = 0, work = 0;
  for (long long r = 0; r < rows.rows; ++r) {
    if (runs.empty() || later[static_cast<std::size_t>(r)] >= high) runs.push_back(r);
    if (!rows.empty(r)) high = std::max(high, rows.end(r)), work += (rows.end(r) - rows.first(r)) * dout.d[3] * 5;
  }
  const auto parts = static_cast<long long>(runs.size()) * h.groups;
  runs.push_back(rows.rows);
  const int threads = threads_for(parts, work);
  on_threads(threads, [&, run = runs.data()](int t) {
    for (long long p = parts * t / threads; p < parts * (t + 1) / threads; ++p)
      detail::attend_back(d, h, rows, dout, run[p / h.groups], run[p / h.groups + 1], p % h.groups, drops);
  });
}

}  // namespace graft::cpu
