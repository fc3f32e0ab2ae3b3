// SPDX-License-Identifier: Apache-2.0
// Attention over spans of rows as a node, exact, for any storage type and any head up to 256: softmax(Q Kᵀ / √head) V, a
// thread block for each row and head. Its warps share the keys, each with a running maximum (Milakov, Gimelshein 2018), and
// meet in a fixed order; what a row gets follows from its own span alone, so a batch gives the bits of its rows one by
// one. Backward, with P the probabilities and δ = <P, dP> of a row:
//     dP = dO Vᵀ     dS = P ⊙ (dP - δ) / √head     dQ = dS K     dK = dSᵀ Q     dV = Pᵀ dO
// dQ by rows, which also leaves the row's log-sum and δ; then dK and dV by keys: no atomics. Where probabilities are
// dropped, O and dV are of those that are kept, and dP of the others is 0.
#pragma once
#include <graft/backend/attention_drops.h>
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/tensor.cuh>

#include <cmath>
#include <limits>

namespace graft::cuda {

inline constexpr int attention_warps = 8, attention_lane_columns = 8, largest_head = 32 * attention_lane_columns;

// Where queries, keys and values lie, in elements between rows; keys and values may be those of a cache.
template <class Real> struct attention_operands {
  cells<Real> q, k, v;
  long long q_row = 0, k_row = 0;
  const std::int64_t* span = nullptr;  // [3, rows]: first, end, and where a row's own keys are kept
  long long rows = 0;
  int head = 0, queries = 0, groups = 0;  // groups: heads of keys and values
  attention_drops drops{};

  __host__ __device__ int share() const { return queries / groups; }
  __host__ __device__ Real scale() const { return Real(1) / std::sqrt(static_cast<Real>(head)); }
};
template <class Real>
attention_operands<Real> attention_of(const tensor<Real>& qkv, long long q_width, const std::int64_t* span,
                                      long long head, const attention_drops& drops = {}) {
  const long long kv = (qkv.d[3] - q_width) / 2;
  return {qkv.p,
          qkv.p + q_width,
          qkv.p + (q_width + kv),
          qkv.d[3],
          qkv.d[3],
          span,
          qkv.d[2],
          static_cast<int>(head),
          static_cast<int>(q_width / head),
          static_cast<int>(kv / head),
          drops};
}

// The columns of a head that a lane has: lane, lane + 32, …
template <class Real> struct lane_columns {
  Real at[attention_lane_columns];
  __device__ void load(const cells<Real>& from, int head, int lane) {
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
  // The sum of all warps, in their order, goes to `to`, times `factor`.
  __device__ void store_sum(const cells<Real>& to, int head, Real factor,
                            Real (&part)[attention_warps][largest_head]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    __syncthreads();
#pragma unroll
    for (int c = 0; c < attention_lane_columns; ++c) part[warp][lane + 32 * c] = at[c];
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < head; c += 32 * attention_warps) {
      Real sum = 0;
      for (int w = 0; w < attention_warps; ++w) sum += part[w][c];
      to.put(c, sum * factor);
    }
  }
};

// One row and one head of the queries.
template <class Real> struct attention_row {
  long long row, first, end;
  int query, head_at, lane, warp;
  long long group_at;
  __device__ attention_row(const attention_operands<Real>& a, long long unit) {
    row = unit / a.queries;
    query = static_cast<int>(unit % a.queries);
    head_at = query * a.head, group_at = static_cast<long long>(query / a.share()) * a.head;
    first = a.span[row], end = a.span[a.rows + row];
    lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  }
};
// What the warps of a block found, as one: the largest score, the sum of exponentials and a sum that goes with it.
template <class Real> struct attention_totals {
  Real most, sum, along;
  __device__ void meet(int lane, int warp) {
    __shared__ Real parts[3][attention_warps];
    __syncthreads();
    if (lane == 0) parts[0][warp] = most, parts[1][warp] = sum, parts[2][warp] = along;
    __syncthreads();
    Real all = parts[0][0];
    for (int w = 1; w < attention_warps; ++w) all = parts[0][w] > all ? parts[0][w] : all;
    Real total = 0, with = 0;
    for (int w = 0; w < attention_warps; ++w) {
      const Real f = parts[1][w] > 0 ? std::exp(parts[0][w] - all) : Real(0);
      total += parts[1][w] * f, with += parts[2][w] * f;
    }
    most = all, sum = total, along = with;
  }
};

template <class Real> __global__ void attend_rows(attention_operands<Real> a, cells<Real> out, long long out_row) {
  __shared__ Real part[attention_warps][largest_head];
  const attention_row<Real> r(a, blockIdx.x);
  lane_columns<Real> q, k, v, o;
  q.load(a.q + (r.row * a.q_row + r.head_at), a.head, r.lane);
  q.scale(a.scale()), o.clear();
  attention_totals<Real> t{-std::numeric_limits<Real>::infinity(), 0, 0};
  for (long long key = r.first + r.warp; key < r.end; key += attention_warps) {
    k.load(a.k + (key * a.k_row + r.group_at), a.head, r.lane);
    v.load(a.v + (key * a.k_row + r.group_at), a.head, r.lane);
    const Real s = q.dot(k), most = s > t.most ? s : t.most, before = std::exp(t.most - most), p = std::exp(s - most);
    t.sum = t.sum * before + p, t.most = most;
    o.scale(before), o.add(p * a.drops.template factor<Real>(r.row, r.query, key), v);
  }
  const Real own = t.most;
  t.meet(r.lane, r.warp);
  o.scale(own == -std::numeric_limits<Real>::infinity() ? Real(0) : std::exp(own - t.most));
  o.store_sum(out + (r.row * out_row + r.head_at), a.head, t.sum > 0 ? Real(1) / t.sum : Real(0), part);
}

// dQ of a row and head; `stats` [rows, queries, 2] keeps log Σ exp and δ for the keys.
template <class Real>
__global__ void attend_rows_back(attention_operands<Real> a, cells<Real> dout, long long out_row, cells<Real> d,
                                 Real* stats) {
  __shared__ Real part[attention_warps][largest_head];
  const attention_row<Real> r(a, blockIdx.x);
  lane_columns<Real> q, k, v, o, dq;
  q.load(a.q + (r.row * a.q_row + r.head_at), a.head, r.lane);
  o.load(dout + (r.row * out_row + r.head_at), a.head, r.lane);
  q.scale(a.scale()), dq.clear();
  attention_totals<Real> t{-std::numeric_limits<Real>::infinity(), 0, 0};
  for (long long key = r.first + r.warp; key < r.end; key += attention_warps) {
    k.load(a.k + (key * a.k_row + r.group_at), a.head, r.lane);
    v.load(a.v + (key * a.k_row + r.group_at), a.head, r.lane);
    const Real s = q.dot(k), most = s > t.most ? s : t.most, before = std::exp(t.most - most), p = std::exp(s - most);
    const Real kept = a.drops.template factor<Real>(r.row, r.query, key);
    t.sum = t.sum * before + p, t.along = t.along * before + p * kept * o.dot(v), t.most = most;
  }
  t.meet(r.lane, r.warp);
  const Real log_sum = t.sum > 0 ? t.most + std::log(t.sum) : Real(0), mean = t.sum > 0 ? t.along / t.sum : Real(0);
  if (threadIdx.x == 0) stats[2 * blockIdx.x] = log_sum, stats[2 * blockIdx.x + 1] = mean;
  for (long long key = r.first + r.warp; key < r.end; key += attention_warps) {
    k.load(a.k + (key * a.k_row + r.group_at), a.head, r.lane);
    v.load(a.v + (key * a.k_row + r.group_at), a.head, r.lane);
    const Real kept = a.drops.template factor<Real>(r.row, r.query, key);
    dq.add(std::exp(q.dot(k) - log_sum) * (kept * o.dot(v) - mean), k);
  }
  dq.store_sum(d + (r.row * a.q_row + r.head_at), a.head, a.scale(), part);
}
// dK and dV of a key and a group of heads: the rows that look at it, found by all lanes together, in their order.
template <class Real>
__global__ void attend_keys_back(attention_operands<Real> a, cells<Real> dout, long long out_row, cells<Real> d,
                                 const Real* stats) {
  __shared__ Real part[attention_warps][largest_head];
  const long long key = blockIdx.x / static_cast<unsigned>(a.groups),
                  q_width = static_cast<long long>(a.queries) * a.head;
  const int group = static_cast<int>(blockIdx.x) % a.groups, lane = static_cast<int>(threadIdx.x) % 32,
            warp = static_cast<int>(threadIdx.x) / 32;
  const long long at = key * a.k_row + static_cast<long long>(group) * a.head;
  lane_columns<Real> q, k, v, o, dk, dv;
  k.load(a.k + at, a.head, lane), v.load(a.v + at, a.head, lane);
  k.scale(a.scale()), dk.clear(), dv.clear();
  for (long long first = 32LL * warp; first < a.rows; first += 32LL * attention_warps) {
    const long long mine = first + lane;
    const bool looks = mine < a.rows && a.span[mine] <= key && key < a.span[a.rows + mine];
    for (unsigned found = __ballot_sync(0xffffffffU, looks); found != 0; found &= found - 1) {
      const long long row = first + __ffs(static_cast<int>(found)) - 1;
      for (int h = group * a.share(); h < (group + 1) * a.share(); ++h) {
        q.load(a.q + (row * a.q_row + static_cast<long long>(h) * a.head), a.head, lane);
        o.load(dout + (row * out_row + static_cast<long long>(h) * a.head), a.head, lane);
        const Real p = std::exp(q.dot(k) - stats[2 * (row * a.queries + h)]);
        const Real kept = a.drops.template factor<Real>(row, h, key);
        dk.add(p * (kept * o.dot(v) - stats[2 * (row * a.queries + h) + 1]), q), dv.add(p * kept, o);
      }
    }
  }
  const long long kv = static_cast<long long>(a.groups) * a.head;
  dk.store_sum(d + (at + q_width), a.head, a.scale(), part);
  dv.store_sum(d + (at + q_width + kv), a.head, Real(1), part);
}

// Keys and values of a call to their places in the cache.
template <class Real> struct kept_keys {
  tensor<Real> cache, qkv;
  const std::int64_t* span;
  __host__ __device__ void operator()(long long i) const {
    const long long width = cache.d[3], row = i / width, c = i % width, own = span[2 * qkv.d[2] + row];
    if (own >= 0 && own < cache.d[2]) cache.p.put(own * width + c, qkv.p[row * qkv.d[3] + (qkv.d[3] - width) + c]);
  }
};

inline status check_head(long long head) {
  if (head <= largest_head) return ok;
  return fail("attention with heads of ", head, " columns has no kernel on the GPU, the largest is ", largest_head);
}
template <class Real>
status attend(const on_stream& on, const attention_operands<Real>& a, const cells<Real>& out, long long out_row) {
  if (status s = check_head(a.head); !s) return s;
  return launch(on.stream, &attend_rows<Real>, static_cast<unsigned>(a.rows * a.queries), 32 * attention_warps,
                "attention", a, out, out_row);
}
template <class Real>
status attend_back(const on_stream& on, const attention_operands<Real>& a, const cells<Real>& dout, long long out_row,
                   const cells<Real>& d, Real* stats) {
  if (status s = check_head(a.head); !s) return s;
  constexpr unsigned threads = 32 * attention_warps;
  if (status s = launch(on.stream, &attend_rows_back<Real>, static_cast<unsigned>(a.rows * a.queries), threads,
                        "attention_grad", a, dout, out_row, d, stats);
      !s)
    return s;
  return launch(on.stream, &attend_keys_back<Real>, static_cast<unsigned>(a.rows * a.groups), threads, "attention_grad",
                a, dout, out_row, d, static_cast<const Real*>(stats));
}

}  // namespace graft::cuda
