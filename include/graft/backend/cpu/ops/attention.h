// SPDX-License-Identifier: Apache-2.0
// Attention for prefill, decode and backward: O = softmax(Q Kᵀ / √d) V for every head, with grouped queries (GQA). Who
// attends to what is an attention range per row (graph/rules_model.h). A tile is up to 64 neighboring rows with
// overlapping ranges; its scores of one head are stored, so softmax is exact and not online, and its products are GEMMs
// (gemm.h). Scores may have a soft cap, and heads sinks (attention_options). Tiles and the order of sums follow from
// the ranges alone, and a thread computes whole heads of a tile, so any number of threads gives the same bits.
#pragma once
#include <graft/backend/attention_dropout.h>
#include <graft/backend/cpu/gemm/gemm.h>
#include <graft/backend/cpu/ops/elementwise.h>
#include <graft/backend/cpu/ops/vector.h>
#include <graft/backend/cpu/runtime/tensor.h>
#include <graft/core/sequence.h>
#include <graft/graph/rules_model.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace graft::cpu {

namespace detail {

// The attention ranges of a call: first key, end of keys and KV cache slot to write, for each row.
struct attention_ranges {
  const std::int64_t* p;
  long long rows;
  long long first(long long r) const { return p[r]; }
  long long end(long long r) const { return p[rows + r]; }
  long long slot(long long r) const { return p[2 * rows + r]; }
  bool empty(long long r) const { return end(r) <= first(r); }
};

// Rows [from, to) and the keys [low, high) that at least one of them attends to.
struct tile {
  long long from, to, low, high;
  long long rows() const { return to - from; }
  long long keys() const { return high - low; }
};
inline constexpr long long tile_rows = 64, tile_scores = 1 << 18;

// The tile that begins at row r. It ends before a row that attends to none of its keys, or when it is full.
inline tile tile_at(const attention_ranges& s, long long r) {
  tile t{r, r + 1, s.first(r), std::max(s.first(r), s.end(r))};
  while (t.to < s.rows && t.rows() < tile_rows && !s.empty(t.from) && !s.empty(t.to)) {
    const long long low = std::min(t.low, s.first(t.to)), high = std::max(t.high, s.end(t.to));
    const bool disjoint = s.first(t.to) >= t.high || s.end(t.to) <= t.low;
    if (disjoint || (t.rows() + 1) * (high - low) > tile_scores) break;
    t.low = low, t.high = high, ++t.to;
  }
  return t;
}

// Queries, keys and values of a call; keys and values may be those of a KV cache.
template <class Real> struct heads {
  const Real *q, *k, *v;
  long long q_row, k_row, head, queries, groups;                  // row strides, head size, query heads, KV heads
  Real soft_cap = 0;                                              // 0: none
  const Real* sinks = nullptr;                                    // a column for each query head, in rows of q_row
  long long heads_per_group() const { return queries / groups; }  // query heads per KV head
  Real scale() const { return Real(1) / std::sqrt(static_cast<Real>(head)); }
};
template <class Real>
heads<Real> heads_of(tensor<Real> qkv, long long q_width, long long head, const attention_options& with) {
  const long long queries = q_width / head, kv = (qkv.d[3] - q_width - (with.sinks ? queries : 0)) / 2;
  return {qkv.p,
          qkv.p + q_width,
          qkv.p + q_width + kv,
          qkv.d[3],
          qkv.d[3],
          head,
          queries,
          kv / head,
          static_cast<Real>(with.soft_cap),
          with.sinks ? qkv.p + q_width + 2 * kv : nullptr};
}

// What the backward pass needs of a tile's softmax besides the probabilities: the slope 1 - tanh² of each capped score,
// and the probability of the sink of each row.
template <class Real> struct softmax_slopes { Real *of_cap = nullptr, *of_sink = nullptr; };

// Softmax of the scores s [n, keys] of a tile in place. The n rows of s are rows of the tile, or query heads of its
// only row; `head` is the query head of the tile, or the first one of its only row.
template <class Real>
void tile_softmax(Real* s, const tile& t, const attention_ranges& rows, long long n, bool one_row, long long head,
                  const heads<Real>& h, const softmax_slopes<Real>& slopes = {}) {
  for (long long i = 0; i < n; ++i) {
    const long long r = one_row ? t.from : t.from + i;
    const long long low = rows.first(r) - t.low, high = std::max(low, rows.end(r) - t.low);
    Real* const p = s + i * t.keys();
    std::fill_n(p, low, Real(0)), std::fill_n(p + high, t.keys() - high, Real(0));
    if (high == low) continue;
    scale_into(p + low, h.soft_cap > 0 ? h.scale() / h.soft_cap : h.scale(), p + low, high - low);
    if (h.soft_cap > 0) {
      each_row(unary_packets<Real>(op::tanh), p + low, p + low, true, p + low, false, high - low);
      for (long long c = low; slopes.of_cap != nullptr && c < high; ++c)
        slopes.of_cap[i * t.keys() + c] = 1 - p[c] * p[c];
      scale_into(p + low, h.soft_cap, p + low, high - low);
    }
    const Real* const sink = h.sinks != nullptr ? h.sinks + r * h.q_row + (one_row ? head + i : head) : nullptr;
    Real largest = *std::max_element(p + low, p + high);
    if (sink != nullptr) largest = std::max(largest, *sink);
    each_row(binary_packets<Real>(op::sub), p + low, p + low, true, &largest, false, high - low);
    each_row(unary_packets<Real>(op::exp), p + low, p + low, true, p + low, false, high - low);
    const Real of_sink = sink != nullptr ? std::exp(*sink - largest) : Real(0);
    const Real by = Real(1) / (sum(p + low, high - low) + of_sink);
    scale_into(p + low, by, p + low, high - low);
    if (slopes.of_sink != nullptr) slopes.of_sink[i] = by * of_sink;
  }
}
// Applies dropout to the probabilities of a tile; `head` is the query head of the tile, or the first one of its only
// row.
template <class Real>
void drop(Real* s, const tile& t, const attention_ranges& rows, long long n, bool one_row, long long head,
          const attention_dropout_mask& drops) {
  for (long long i = 0; drops && i < n; ++i) {
    const long long r = one_row ? t.from : t.from + i, h = one_row ? head + i : head;
    for (long long key = rows.first(r); key < rows.end(r); ++key)
      s[i * t.keys() + key - t.low] *= drops.template factor<Real>(r, h, key);
  }
}
// Calls f(column of the queries) for each query head of a KV head, or once for all of them if the tile is one row.
template <class F> void each_head(long long group, long long heads_per_group, long long head, bool one_row, F f) {
  for (long long j = 0; j < (one_row ? 1 : heads_per_group); ++j) f((group * heads_per_group + j) * head);
}

template <class Real>
void attention_tile(tensor<Real> out, const heads<Real>& h, const attention_ranges& rows, const tile& t,
                    long long group, const attention_dropout_mask& drops) {
  thread_local memory<Real> scratch;
  const bool one_row = t.rows() == 1;
  const long long n = one_row ? h.heads_per_group() : t.rows(), width = out.d[3];
  // The full size is reserved at once, because a growing KV cache would reallocate at every step.
  scratch.reserve(std::max(tile_scores, n * t.keys()));
  Real* const s = scratch.data();
  const strided<Real> keys{h.k + t.low * h.k_row + group * h.head, h.k_row, 1},
      values{h.v + t.low * h.k_row + group * h.head, h.k_row, 1};
  each_head(group, h.heads_per_group(), h.head, one_row, [&](long long at) {
    const strided<Real> q{h.q + t.from * h.q_row + at, one_row ? h.head : h.q_row, 1};
    gemm(n, t.keys(), h.head, q, keys.transposed(), s, t.keys(), 0);
    tile_softmax(s, t, rows, n, one_row, at / h.head, h);
    drop(s, t, rows, n, one_row, at / h.head, drops);
    gemm(n, h.head, t.keys(), {s, t.keys(), 1}, values, out.p + t.from * width + at, one_row ? h.head : width, 0);
  });
}

}  // namespace detail

template <class Real>
void attention(tensor<Real> out, detail::heads<Real> h, const std::int64_t* attention_range,
               const attention_dropout_mask& drops = {}) {
  const detail::attention_ranges rows{attention_range, out.d[2]};
  thread_local sequence<detail::tile> tiles;  // thread_local, so that calls allocate nothing
  tiles.clear();
  long long work = 0;
  for (long long r = 0; r < rows.rows; r = tiles.back().to) {
    tiles.push(detail::tile_at(rows, r));
    work += tiles.back().rows() * tiles.back().keys() * h.queries * h.head * 2;
  }
  const long long tasks = tiles.size() * h.groups;
  const int threads = threads_for(tasks, work);
  run_on_threads(threads, [&, all = tiles.data()](int t) {
    for (long long p = tasks * t / threads; p < tasks * (t + 1) / threads; ++p)
      detail::attention_tile(out, h, rows, all[p / h.groups], p % h.groups, drops);
  });
}
template <class Real>
void attention(tensor<Real> out, tensor<Real> qkv, const std::int64_t* attention_range, long long head,
               const attention_dropout_mask& drops = {}, const attention_options& with = {}) {
  attention(out, detail::heads_of(qkv, out.d[3], head, with), attention_range, drops);
}
// Attention over a KV cache [slots, 2 kv]: first writes the keys and values of the call to their slots, then reads the
// cache.
template <class Real>
void cached_attention(tensor<Real> out, tensor<Real> qkv, const std::int64_t* attention_range, tensor<Real> cache,
                      long long head, const attention_options& with = {}) {
  detail::heads<Real> h = detail::heads_of(qkv, out.d[3], head, with);
  const detail::attention_ranges rows{attention_range, out.d[2]};
  for (long long r = 0; r < rows.rows; ++r)
    if (rows.slot(r) >= 0) std::copy_n(h.k + r * h.k_row, cache.d[3], cache.p + rows.slot(r) * cache.d[3]);
  h.k = cache.p, h.v = cache.p + cache.d[3] / 2, h.k_row = cache.d[3];
  attention(out, h, attention_range);
}

namespace detail {

// The backward pass of one KV head over the tiles of rows [from, to). With the probabilities P and O = P V,
//     dV = Pᵀ dO     dP = dO Vᵀ     dS = P ⊙ (dP - <P, dP>_row) / √head     dQ = dS K     dK = dSᵀ Q
// With dropout dV uses the dropped probabilities, and dP is multiplied with the dropout mask. With a soft cap dS is
// also multiplied with 1 - tanh². A sink has no value, so that its gradient is -P_sink <P, dP>.
template <class Real>
void attention_tile_backward(tensor<Real> d, const heads<Real>& h, const attention_ranges& rows, tensor<Real> dout,
                             long long from, long long to, long long group, const attention_dropout_mask& drops) {
  thread_local memory<Real> scratch;
  const long long kv = h.groups * h.head, q_width = h.queries * h.head, width = dout.d[3];
  for (long long r = from; r < to;) {
    const tile t = tile_at(rows, r);
    const bool one_row = t.rows() == 1;
    const long long n = one_row ? h.heads_per_group() : t.rows(), keys = t.keys();
    const long long of_sinks = aligned_count(std::max(n, tile_rows));
    scratch.reserve((h.soft_cap > 0 ? 3 : 2) * std::max(tile_scores, aligned_count(n * keys)) + of_sinks);
    Real *const sinks = scratch.data(), *const p = sinks + of_sinks, *const dp = p + aligned_count(n * keys);
    const softmax_slopes<Real> slopes{h.soft_cap > 0 ? dp + aligned_count(n * keys) : nullptr,
                                      h.sinks != nullptr ? sinks : nullptr};
    const long long key = t.low * h.k_row + group * h.head;
    const strided<Real> k{h.k + key, h.k_row, 1}, v{h.v + key, h.k_row, 1};
    Real *const dk = d.p + q_width + key, *const dv = d.p + q_width + kv + key;
    each_head(group, h.heads_per_group(), h.head, one_row, [&](long long at) {
      const long long q_row = one_row ? h.head : h.q_row, o_row = one_row ? h.head : width;
      const strided<Real> q{h.q + t.from * h.q_row + at, q_row, 1}, o{dout.p + t.from * width + at, o_row, 1};
      gemm(n, keys, h.head, q, k.transposed(), p, keys, 0);
      tile_softmax(p, t, rows, n, one_row, at / h.head, h, slopes);
      if (drops) std::copy_n(p, n * keys, dp), drop(dp, t, rows, n, one_row, at / h.head, drops);
      gemm(keys, h.head, n, strided<Real>{drops ? dp : p, keys, 1}.transposed(), o, dv, h.k_row, 1);
      gemm(n, keys, h.head, o, v.transposed(), dp, keys, 0);
      drop(dp, t, rows, n, one_row, at / h.head, drops);
      for (long long i = 0; i < n; ++i) {
        Real *const s = dp + i * keys, *const w = p + i * keys;
        const Real mean = dot(w, s, keys);
        for (long long c = 0; c < keys; ++c) s[c] = h.scale() * w[c] * (s[c] - mean);
        const long long row = one_row ? t.from : t.from + i, query = at / h.head + (one_row ? i : 0);
        // Scores outside of a row's range have probability 0 and no slope.
        for (long long c = rows.first(row) - t.low; slopes.of_cap != nullptr && c < rows.end(row) - t.low; ++c)
          s[c] *= slopes.of_cap[i * keys + c];
        if (slopes.of_sink != nullptr && !rows.empty(row))
          d.p[row * h.q_row + q_width + 2 * kv + query] = -slopes.of_sink[i] * mean;
      }
      gemm(n, h.head, keys, {dp, keys, 1}, k, d.p + t.from * h.q_row + at, q_row, 0);
      gemm(keys, h.head, n, strided<Real>{dp, keys, 1}.transposed(), q, dk, h.k_row, 1);
    });
    r = t.to;
  }
}

}  // namespace detail

// The gradients of queries, keys and values. Segments of rows that share no keys with other rows are independent, and
// so are KV heads.
template <class Real>
void attention_grad(tensor<Real> d, tensor<Real> qkv, const std::int64_t* attention_range, tensor<Real> dout,
                    long long head, const attention_dropout_mask& drops = {}, const attention_options& with = {}) {
  const detail::heads<Real> h = detail::heads_of(qkv, dout.d[3], head, with);
  const detail::attention_ranges rows{attention_range, qkv.d[2]};
  std::fill_n(d.p, d.count(), Real(0));
  // first_key_after[r] is the smallest first key of row r and all later rows.
  thread_local std::vector<long long> first_key_after, segments;
  first_key_after.assign(static_cast<std::size_t>(rows.rows) + 1, rows.rows), segments.clear();
  for (long long r = rows.rows - 1; r >= 0; --r) {
    const auto k = static_cast<std::size_t>(r);
    first_key_after[k] = rows.empty(r) ? first_key_after[k + 1] : std::min(first_key_after[k + 1], rows.first(r));
  }
  long long high = 0, work = 0;
  for (long long r = 0; r < rows.rows; ++r) {
    if (segments.empty() || first_key_after[static_cast<std::size_t>(r)] >= high) segments.push_back(r);
    if (!rows.empty(r)) high = std::max(high, rows.end(r)), work += (rows.end(r) - rows.first(r)) * dout.d[3] * 5;
  }
  const auto tasks = static_cast<long long>(segments.size()) * h.groups;
  segments.push_back(rows.rows);
  const int threads = threads_for(tasks, work);
  run_on_threads(threads, [&, run = segments.data()](int t) {
    for (long long p = tasks * t / threads; p < tasks * (t + 1) / threads; ++p)
      detail::attention_tile_backward(d, h, rows, dout, run[p / h.groups], run[p / h.groups + 1], p % h.groups, drops);
  });
}

}  // namespace graft::cpu
