// SPDX-License-Identifier: Apache-2.0
// Reference attention kernels, forward and backward, without tensor cores: any storage type and any head size up to
// 256. They evaluate single nodes and are the only ones with dropout of attention probabilities.
//
//   O = softmax(Q Kᵀ / √d) V      with P the probabilities and δ = <P, dP> of a row:
//   dP = dO Vᵀ     dS = P ⊙ (dP - δ) / √d     dQ = dS K     dK = dSᵀ Q     dV = Pᵀ dO
//   With dropout, O and dV use the scaled remaining probabilities, and dP of dropped ones is 0.
//   With a soft cap c, a score s becomes c tanh(s / c), whose slope 1 - tanh² multiplies dS. An attention sink is one more
//   score of a row and head that has no value: it joins the denominator, and its gradient is -P δ.
//
// Forward, dQ    One CTA of 8 warps per (row, query head). The warps divide the keys, each with a running maximum
//                (Milakov and Gimelshein 2018), and are combined in warp order. A row's result depends on its own range
//                alone, so a batch gives the same bits as its rows one by one. dQ also stores log-sum-exp and δ.
// dK, dV         One CTA per (key, KV head); its warps divide the rows. No atomics: the same call gives the same bits.
#pragma once
#include <graft/backend/attention_dropout.h>
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/tile/tensor.cuh>
#include <graft/graph/rules_model.h>

#include <cmath>
#include <limits>

namespace graft::gpu {

inline constexpr int attention_warps = 8, attention_lane_columns = 8, largest_head = 32 * attention_lane_columns;

// Queries, keys and values with their row pitches in elements; keys and values may be those of a cache.
template <class Real> struct attention_operands {
  element_ptr<Real> q, k, v;
  long long q_row = 0, k_row = 0;
  const std::int64_t* range = nullptr;  // [3, rows]: first key, end key, slot of the row's own key
  long long rows = 0;
  int head = 0, queries = 0, kv_heads = 0;  // columns of a head, query heads, KV heads
  attention_dropout_mask drops{};
  Real soft_cap = 0;          // 0: none
  element_ptr<Real> sinks{};  // a column for each query head, in rows of q_row; null: none

  __host__ __device__ int group_size() const { return queries / kv_heads; }
  __host__ __device__ Real scale() const { return Real(1) / std::sqrt(static_cast<Real>(head)); }
  // The score of scaled query · key.
  __host__ __device__ Real capped(Real s) const { return soft_cap > 0 ? soft_cap * std::tanh(s / soft_cap) : s; }
  // The derivative of capped(), by its value.
  __host__ __device__ Real slope(Real score) const {
    return soft_cap > 0 ? Real(1) - score * score / (soft_cap * soft_cap) : Real(1);
  }
  __host__ __device__ bool has_sinks() const { return sinks.at != nullptr; }
  __host__ __device__ Real sink(long long row, int query) const { return sinks[row * q_row + query]; }
};
template <class Real>
attention_operands<Real> attention_operands_of(const tensor<Real>& qkv, long long q_width, const std::int64_t* range,
                                               long long head, const attention_dropout_mask& drops = {},
                                               const attention_options& with = {}) {
  const long long queries = q_width / head, kv = (qkv.d[3] - q_width - (with.sinks ? queries : 0)) / 2;
  return {qkv.p,
          qkv.p + q_width,
          qkv.p + (q_width + kv),
          qkv.d[3],
          qkv.d[3],
          range,
          qkv.d[2],
          static_cast<int>(head),
          static_cast<int>(queries),
          static_cast<int>(kv / head),
          drops,
          static_cast<Real>(with.soft_cap),
          with.sinks ? qkv.p + (q_width + 2 * kv) : element_ptr<Real>{}};
}

// The columns of a head that a lane holds: lane, lane + 32, …
template <class Real> struct lane_columns {
  Real at[attention_lane_columns];
  __device__ void load(const element_ptr<Real>& from, int head, int lane) {
    from.as_stored([&](const auto& e) {
#pragma unroll
      for (int c = 0; c < attention_lane_columns; ++c) at[c] = lane + 32 * c < head ? e[lane + 32 * c] : Real(0);
    });
  }
  __device__ Real dot(const lane_columns& o) const {
    Real sum = 0;
#pragma unroll
    for (int c = 0; c < attention_lane_columns; ++c) sum += at[c] * o.at[c];
    return warp_sum(sum);
  }
  __device__ void add(Real factor, const lane_columns& o) {
#pragma unroll
    for (int c = 0; c < attention_lane_columns; ++c) at[c] += factor * o.at[c];
  }
  __device__ void scale(Real factor) {
#pragma unroll
    for (int c = 0; c < attention_lane_columns; ++c) at[c] *= factor;
  }
  __device__ void clear() {
#pragma unroll
    for (int c = 0; c < attention_lane_columns; ++c) at[c] = 0;
  }
  // Stores the sum over all warps, added in warp order and multiplied by `factor`.
  __device__ void store_sum(const element_ptr<Real>& to, int head, Real factor,
                            Real (&partial)[attention_warps][largest_head]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    __syncthreads();
#pragma unroll
    for (int c = 0; c < attention_lane_columns; ++c) partial[warp][lane + 32 * c] = at[c];
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < head; c += 32 * attention_warps) {
      Real sum = 0;
      for (int w = 0; w < attention_warps; ++w) sum += partial[w][c];
      to.put(c, sum * factor);
    }
  }
};

// One row and one query head; `unit` = row * queries + head.
template <class Real> struct attention_row {
  long long row, first, end;
  int query, head_at, lane, warp;
  long long group_at;
  __device__ attention_row(const attention_operands<Real>& a, long long unit) {
    row = unit / a.queries;
    query = static_cast<int>(unit % a.queries);
    head_at = query * a.head, group_at = static_cast<long long>(query / a.group_size()) * a.head;
    first = a.range[row], end = a.range[a.rows + row];
    lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  }
};
// Maximum score, sum of exponentials and a weighted sum (`weighted_sum`, for δ); reduce_warps combines the warps of a CTA.
template <class Real> struct softmax_totals {
  Real most, sum, weighted_sum;
  __device__ void reduce_warps(int lane, int warp) {
    __shared__ Real warp_partials[3][attention_warps];
    __syncthreads();
    if (lane == 0) warp_partials[0][warp] = most, warp_partials[1][warp] = sum, warp_partials[2][warp] = weighted_sum;
    __syncthreads();
    Real all = warp_partials[0][0];
    for (int w = 1; w < attention_warps; ++w) all = warp_partials[0][w] > all ? warp_partials[0][w] : all;
    Real total = 0, with = 0;
    for (int w = 0; w < attention_warps; ++w) {
      const Real f = warp_partials[1][w] > 0 ? std::exp(warp_partials[0][w] - all) : Real(0);
      total += warp_partials[1][w] * f, with += warp_partials[2][w] * f;
    }
    most = all, sum = total, weighted_sum = with;
  }
  // Adds a score without a value.
  __device__ void add_sink(Real score) {
    const Real all = score > most ? score : most, before = sum > 0 ? std::exp(most - all) : Real(0);
    sum = sum * before + std::exp(score - all), weighted_sum *= before, most = all;
  }
};

template <class Real>
__global__ void attention_rows_kernel(attention_operands<Real> a, element_ptr<Real> out, long long out_row) {
  __shared__ Real partial[attention_warps][largest_head];
  const attention_row<Real> r(a, blockIdx.x);
  lane_columns<Real> q, k, v, o;
  q.load(a.q + (r.row * a.q_row + r.head_at), a.head, r.lane);
  q.scale(a.scale()), o.clear();
  softmax_totals<Real> t{-std::numeric_limits<Real>::infinity(), 0, 0};
  for (long long key = r.first + r.warp; key < r.end; key += attention_warps) {
    k.load(a.k + (key * a.k_row + r.group_at), a.head, r.lane);
    v.load(a.v + (key * a.k_row + r.group_at), a.head, r.lane);
    const Real s = a.capped(q.dot(k)), most = s > t.most ? s : t.most, before = std::exp(t.most - most),
               p = std::exp(s - most);
    t.sum = t.sum * before + p, t.most = most;
    o.scale(before), o.add(p * a.drops.template factor<Real>(r.row, r.query, key), v);
  }
  const Real own = t.most;
  t.reduce_warps(r.lane, r.warp);
  if (a.has_sinks()) t.add_sink(a.sink(r.row, r.query));
  o.scale(own == -std::numeric_limits<Real>::infinity() ? Real(0) : std::exp(own - t.most));
  o.store_sum(out + (r.row * out_row + r.head_at), a.head, t.sum > 0 ? Real(1) / t.sum : Real(0), partial);
}

// dQ of a row and head; stores log-sum-exp and δ in `stats` [rows, queries, 2] for attention_dkv_rows_kernel.
template <class Real>
__global__ void attention_dq_rows_kernel(attention_operands<Real> a, element_ptr<Real> dout, long long out_row,
                                         element_ptr<Real> d, Real* stats) {
  __shared__ Real partial[attention_warps][largest_head];
  const attention_row<Real> r(a, blockIdx.x);
  lane_columns<Real> q, k, v, o, dq;
  q.load(a.q + (r.row * a.q_row + r.head_at), a.head, r.lane);
  o.load(dout + (r.row * out_row + r.head_at), a.head, r.lane);
  q.scale(a.scale()), dq.clear();
  softmax_totals<Real> t{-std::numeric_limits<Real>::infinity(), 0, 0};
  for (long long key = r.first + r.warp; key < r.end; key += attention_warps) {
    k.load(a.k + (key * a.k_row + r.group_at), a.head, r.lane);
    v.load(a.v + (key * a.k_row + r.group_at), a.head, r.lane);
    const Real s = a.capped(q.dot(k)), most = s > t.most ? s : t.most, before = std::exp(t.most - most),
               p = std::exp(s - most);
    const Real dropout_scale = a.drops.template factor<Real>(r.row, r.query, key);
    t.sum = t.sum * before + p, t.weighted_sum = t.weighted_sum * before + p * dropout_scale * o.dot(v), t.most = most;
  }
  t.reduce_warps(r.lane, r.warp);
  if (a.has_sinks()) t.add_sink(a.sink(r.row, r.query));
  const Real log_sum = t.sum > 0 ? t.most + std::log(t.sum) : Real(0),
             mean = t.sum > 0 ? t.weighted_sum / t.sum : Real(0);
  if (threadIdx.x == 0) stats[2 * blockIdx.x] = log_sum, stats[2 * blockIdx.x + 1] = mean;
  for (long long key = r.first + r.warp; key < r.end; key += attention_warps) {
    k.load(a.k + (key * a.k_row + r.group_at), a.head, r.lane);
    v.load(a.v + (key * a.k_row + r.group_at), a.head, r.lane);
    const Real dropout_scale = a.drops.template factor<Real>(r.row, r.query, key);
    const Real s = a.capped(q.dot(k));
    dq.add(std::exp(s - log_sum) * (dropout_scale * o.dot(v) - mean) * a.slope(s), k);
  }
  if (a.has_sinks() && threadIdx.x == 0) {
    const long long kv = static_cast<long long>(a.kv_heads) * a.head,
                    sinks_at = a.queries * static_cast<long long>(a.head) + 2 * kv;
    d.put(r.row * a.q_row + sinks_at + r.query, -std::exp(a.sink(r.row, r.query) - log_sum) * mean);
  }
  dq.store_sum(d + (r.row * a.q_row + r.head_at), a.head, a.scale(), partial);
}
// dK and dV of a key and a KV head. Each warp finds the rows that attend to the key by ballots and adds them in order.
template <class Real>
__global__ void attention_dkv_rows_kernel(attention_operands<Real> a, element_ptr<Real> dout, long long out_row,
                                          element_ptr<Real> d, const Real* stats) {
  __shared__ Real partial[attention_warps][largest_head];
  const long long key = blockIdx.x / static_cast<unsigned>(a.kv_heads),
                  q_width = static_cast<long long>(a.queries) * a.head;
  const int group = static_cast<int>(blockIdx.x) % a.kv_heads, lane = static_cast<int>(threadIdx.x) % 32,
            warp = static_cast<int>(threadIdx.x) / 32;
  const long long at = key * a.k_row + static_cast<long long>(group) * a.head;
  lane_columns<Real> q, k, v, o, dk, dv;
  k.load(a.k + at, a.head, lane), v.load(a.v + at, a.head, lane);
  k.scale(a.scale()), dk.clear(), dv.clear();
  for (long long first = 32LL * warp; first < a.rows; first += 32LL * attention_warps) {
    const long long mine = first + lane;
    const bool attended = mine < a.rows && a.range[mine] <= key && key < a.range[a.rows + mine];
    for (unsigned found = __ballot_sync(0xffffffffU, attended); found != 0; found &= found - 1) {
      const long long row = first + __ffs(static_cast<int>(found)) - 1;
      for (int h = group * a.group_size(); h < (group + 1) * a.group_size(); ++h) {
        q.load(a.q + (row * a.q_row + static_cast<long long>(h) * a.head), a.head, lane);
        o.load(dout + (row * out_row + static_cast<long long>(h) * a.head), a.head, lane);
        const Real s = a.capped(q.dot(k)), p = std::exp(s - stats[2 * (row * a.queries + h)]);
        const Real dropout_scale = a.drops.template factor<Real>(row, h, key);
        dk.add(p * (dropout_scale * o.dot(v) - stats[2 * (row * a.queries + h) + 1]) * a.slope(s), q);
        dv.add(p * dropout_scale, o);
      }
    }
  }
  const long long kv = static_cast<long long>(a.kv_heads) * a.head;
  dk.store_sum(d + (at + q_width), a.head, a.scale(), partial);
  dv.store_sum(d + (at + q_width + kv), a.head, Real(1), partial);
}

// Appends the keys and values of a call to the cache, one element per index.
template <class Real> struct append_keys {
  tensor<Real> cache, qkv;
  const std::int64_t* range;
  long long first;  // column of the keys in qkv
  __host__ __device__ void operator()(long long i) const {
    const long long width = cache.d[3], row = i / width, c = i % width, own = range[2 * qkv.d[2] + row];
    if (own >= 0 && own < cache.d[2]) cache.p.put(own * width + c, qkv.p[row * qkv.d[3] + first + c]);
  }
};

inline status check_head(long long head) {
  if (head <= largest_head) return ok;
  return fail("attention with heads of ", head, " columns has no kernel on the GPU, the largest is ", largest_head);
}
template <class Real>
status attention_forward(const on_stream& on, const attention_operands<Real>& a, const element_ptr<Real>& out,
                         long long out_row) {
  if (status s = check_head(a.head); !s) return s;
  return launch(on.stream, &attention_rows_kernel<Real>, static_cast<unsigned>(a.rows * a.queries),
                32 * attention_warps, "attention", a, out, out_row);
}
template <class Real>
status attention_backward(const on_stream& on, const attention_operands<Real>& a, const element_ptr<Real>& dout,
                          long long out_row, const element_ptr<Real>& d, Real* stats) {
  if (status s = check_head(a.head); !s) return s;
  constexpr unsigned threads = 32 * attention_warps;
  if (status s = launch(on.stream, &attention_dq_rows_kernel<Real>, static_cast<unsigned>(a.rows * a.queries), threads,
                        "attention_grad", a, dout, out_row, d, stats);
      !s)
    return s;
  return launch(on.stream, &attention_dkv_rows_kernel<Real>, static_cast<unsigned>(a.rows * a.kv_heads), threads,
                "attention_grad", a, dout, out_row, d, static_cast<const Real*>(stats));
}

}  // namespace graft::gpu
