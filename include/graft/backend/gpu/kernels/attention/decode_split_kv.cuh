// SPDX-License-Identifier: Apache-2.0
// Decode attention with split KV, sm_90: 1 to 64 query rows over a long contiguous KV cache (stream-K over KV).
//
//   O = softmax(Q Kᵀ / √d) V   Q, O [rows, heads, d], d <= 128   K, V [slots, kv_heads, d] in the cache   GQA up to 8:1
//
// Work split   The 64-key tiles of all (row, KV head) pairs form one list (split_kv_scheduler); each CTA, one per
//              SM, takes an equal contiguous chunk of it, so that ragged lengths stay balanced. A work item is the part
//              of one pair in one chunk; a chunk may hold the end of a pair, whole pairs, and the beginning of another.
// Warp roles   Warps 0 to 7 consume: QKᵀ, online softmax and PV (decode_mainloop.cuh).
//              Warp 8 loads K and V tiles by TMA; its pipeline runs on from one item to the next without a bubble.
//              Warp 9 loads up to item_stages items early (queries, RoPE angles, the row's new key and value) and waits
//              for the partial results of other CTAs.
// Phases       The items of a chunk are processed from its end. An item that is a whole pair is written to O at once;
//              one without the end of its pair stores (O, max, sum) in the workspace and increments the pair's counter.
// Reduction    The CTA that has the end of a pair waits until all earlier CTAs of the pair have stored their partial
//              results and combines them in chunk order, its own last: the same call gives the same bits.
// Deadlock     A chunk stores its unfinished pair first and waits last, and it waits only for lower-numbered CTAs.
// Measured     H200, token step of a four-layer Llama-3-8B shape, one sequence at 32768 tokens: 626 µs, 1.17 times the
//              floor of weights, adapter and KV cache at 4.3 TB/s (docs/performance.md).
#pragma once
#include <graft/backend/gpu/kernels/attention/decode_args.cuh>
#include <graft/backend/gpu/kernels/attention/decode_mainloop.cuh>
#include <graft/backend/gpu/tile/exchange.cuh>
#include <graft/backend/gpu/tile/tile_scheduler.cuh>

namespace graft::gpu {

// ---- Tiles

// The tiles of split-KV decode (decode_split_kv.cuh) as a list for stream_k_scheduler (tile/tile_scheduler.cuh).
//
//   cost of a (row, KV head) pair = 1 + its 64-key tiles
//
// The cuts follow from the attention ranges in device memory alone: a captured launch is right for rows of any length,
// and the same rows give the same cuts.

// Keys of the rows of a call, two rows per lane of a warp, and their tiles.
struct row_keys {
  int first[2], end[2], cost[2];
  __device__ explicit row_keys(const attention_ranges& ranges) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = half * 32 + lane;
      const bool is_one = r < ranges.rows;
      first[half] = is_one ? ranges.first(r) : 0, end[half] = is_one ? ::max(first[half], ranges.end(r)) : 0;
      cost[half] = 1 + (end[half] - first[half] + 63) / 64;
    }
  }
};

// A whole warp calls every member.
class split_kv_scheduler {
 public:
  __device__ split_kv_scheduler(const attention_ranges& ranges, int kv_heads, int blocks)
      : keys_(ranges), list_(keys_.cost, ranges.rows, kv_heads, blocks, min_chunk_cost) {}
  __device__ int chunks() const { return list_.chunks(); }
  __device__ int begin(int k) const { return list_.begin(k); }

  // The part of one (row, KV head) pair within a chunk.
  struct work_item {
    int row, group, begin, end;  // begin and end are list positions
    int first_chunk;             // chunk that has the beginning of the pair
    bool begins, ends;           // whether the item has the beginning and the end of its pair
    decode_range range;
  };
  // The item that ends at list position `to`; it does not begin before `from`.
  __device__ work_item before(int to, int from) const {
    const stream_k_scheduler::item i = list_.find(to - 1);
    const int begin = ::max(i.begin, from), tiles = i.begin + 1;
    return {i.row,
            i.column,
            begin,
            to,
            list_.first_chunk(i),
            begin == i.begin,
            to == i.begin + i.cost,
            {of_row(keys_.first, i.row), of_row(keys_.end, i.row), ::max(0, begin - tiles), to - tiles}};
  }
  template <class N> __device__ static N of_row(const N (&v)[2], int row) { return stream_k_scheduler::of_row(v, row); }

 private:
  row_keys keys_;
  stream_k_scheduler list_;
};

// ---- The kernel

template <class T, int Head, bool Capped> struct split_kv_block : decode_row_mainloop<T, split_kv_shape<Head>, Capped> {
  using mainloop = decode_row_mainloop<T, split_kv_shape<Head>, Capped>;
  using shape = typename mainloop::shape;
  using mainloop::g, mainloop::row, mainloop::group, mainloop::group_size;

  // Work item n of a CTA uses item stage n % item_stages: the item's numbers, queries, angles, new key, new value.
  __device__ pipeline items() const { return {this->after_ring(), item_stages}; }
  __device__ std::uint32_t partials_barrier() const { return this->after_ring() + 16 * item_stages; }
  __device__ std::uint32_t item_offset(int n) const {
    return this->new_row_address(false) + shape::own + n % item_stages * shape::item;
  }
  __device__ std::uint32_t queries_of(int n) const { return item_offset(n) + 32; }
  __device__ std::uint32_t angles_of_item(int n) const { return queries_of(n) + max_decode_group * shape::query_pitch; }
  __device__ std::uint32_t new_row_of_item(int n, bool value) const {
    return angles_of_item(n) + shape::angle_bytes + (value ? 2 * Head : 0);
  }

  __device__ void init_barriers() const {
    this->init_pipeline();
    for (int n = 0; n < item_stages; ++n) items().init(n, 1, 32 * shape::warps);
    ptx::barrier_init(partials_barrier(), 1);
    ptx::barrier_init_fence();
  }

  // One thread calls this. The angles do not depend on the previous kernel and are loaded before the wait for it.
  __device__ void load_item(int n, const split_kv_scheduler::work_item& p, bool last, bool has_own,
                            const float* angles) const {
    const int stage = n % item_stages;
    if (n >= item_stages) items().producer_acquire({stage, static_cast<std::uint32_t>(n / item_stages - 1) & 1});
    const auto flags = static_cast<std::uint32_t>((p.begins ? 1 : 0) + (p.ends ? 2 : 0) + (last ? 4 : 0));
    const auto number = [](int v) { return static_cast<std::uint32_t>(v); };
    ptx::store_shared(item_offset(n), make_uint4(number(row), number(group), flags, number(p.first_chunk)));
    ptx::store_shared(item_offset(n) + 16,
                      make_uint4(number(p.range.first), number(p.range.end), number(p.range.from), number(p.range.to)));
    const std::uint32_t full = items().producer_commit(
        stage, group_size() * Head * 2 + (angles != nullptr ? 4 * Head : 0) + (has_own ? 4 * Head : 0));
    if (angles != nullptr) ptx::load_bulk(angles_of_item(n), angles, 4 * Head, full);
    if (n == 0) ptx::wait_for_dependency();
#pragma unroll 1
    for (int h = 0; h < group_size(); ++h)
      ptx::load_bulk(queries_of(n) + h * shape::query_pitch, this->queries() + h * Head, 2 * Head, full);
    if (!has_own) return;
    ptx::load_bulk(new_row_of_item(n, false), g.k.at(row, static_cast<long long>(group) * Head), 2 * Head, full);
    ptx::load_bulk(new_row_of_item(n, true), g.v.at(row, static_cast<long long>(group) * Head), 2 * Head, full);
  }
  __device__ void load_queries(typename mainloop::query_columns& q, int n, int lane) const {
    const std::uint32_t from = queries_of(n) + lane / 4 * shape::query_pitch + lane % 4 * 4;
#pragma unroll
    for (int k = 0; k < shape::steps; ++k)
#pragma unroll
      for (int h = 0; h < 2; ++h) q[k][h] = lane / 4 < group_size() ? ptx::load_shared(from + k * 32 + h * 16) : 0;
    if (g.angles != nullptr) this->rope_queries(q, angles_of_item(n), lane);
  }
  __device__ uint4 new_key(int n, int lane) const {
    constexpr int half = mainloop::head_vectors / 2;
    const bool upper = lane >= half;
    const uint4 v = ptx::load_shared_uint4(new_row_of_item(n, false) + lane * 16);
    if (g.angles == nullptr) return v;
    const uint4 w = ptx::load_shared_uint4(new_row_of_item(n, false) + (upper ? lane - half : lane + half) * 16);
    const std::uint32_t angles = angles_of_item(n) + (upper ? lane - half : lane) * 32;
    const auto rotate_pair = [&](int i, std::uint32_t own, std::uint32_t other) {
      return this->rotate_half(own, other, ptx::load_shared_float2(angles + i * 8),
                               ptx::load_shared_float2(angles + i * 8 + 2 * Head), upper ? 1 : -1);
    };
    return make_uint4(rotate_pair(0, v.x, w.x), rotate_pair(1, v.y, w.y), rotate_pair(2, v.z, w.z),
                      rotate_pair(3, v.w, w.w));
  }

  // Partial result of a chunk: [query heads of the KV head][Head] values, then maximum score and sum of exponentials
  // per head. A chunk stores at most one, because only its last item can lack the end of its pair.
  __device__ float* partial_of(int kv_chunk) const {
    return g.workspace + static_cast<long long>(kv_chunk) * group_size() * (Head + 4);
  }
  __device__ arrival_counter counter() const { return {g.counters + row * g.kv_heads + group}; }
  __device__ void store_partial(int kv_chunk, int e, const float4& v, float most, float sum) const {
    float* const to = partial_of(kv_chunk);
    __stcg(reinterpret_cast<float4*>(to + e), v);
    if (e % Head == 0) __stcg(reinterpret_cast<float2*>(to + group_size() * Head) + e / Head, make_float2(most, sum));
  }
  __device__ void signal_partial() const {
    __syncwarp();
    if (threadIdx.x >= 32) return ptx::named_arrive(2, 32 * shape::warps);
    ptx::named_barrier(2, 32 * shape::warps);
    if (threadIdx.x == 0) counter().arrive();
  }
  // One thread of the CTA that has the end of a pair waits until `splits` other CTAs have stored their partial results.
  // It resets the counter to zero for the next launch.
  __device__ void wait_for_partials(int splits) const {
    counter().wait_for<32>(splits);
    *counter().count = 0;
    ptx::barrier_arrive(partials_barrier());
  }
  __device__ void combine_splits(int from, int to, int e, float4 own, float own_most, float own_sum) const {
    float most = -1e30F, sum = 0;
    float4 v = make_float4(0, 0, 0, 0);
    const auto add = [&](const float4& x, float x_most, float x_sum) {
      const float now = fmaxf(most, x_most), before = exp2_approx(most - now), factor = exp2_approx(x_most - now);
      v.x = v.x * before + factor * x.x, v.y = v.y * before + factor * x.y;
      v.z = v.z * before + factor * x.z, v.w = v.w * before + factor * x.w;
      sum = sum * before + factor * x_sum, most = now;
    };
    ptx::barrier_wait(partials_barrier(), 0);
#pragma unroll 8
    for (int p = from; p < to; ++p) {
      const float2 n = __ldcg(reinterpret_cast<const float2*>(partial_of(p) + group_size() * Head) + e / Head);
      add(__ldcg(reinterpret_cast<const float4*>(partial_of(p) + e)), n.x, n.y);
    }
    add(own, own_most, own_sum);
    this->write(e, v, most, sum);
  }
};

// The work of one CTA on its chunk; each of request_tiles, load_items and consume_items runs on warps of its own.
template <class T, int Head, bool Capped> struct split_kv_chunk {
  using block = split_kv_block<T, Head, Capped>;
  using shape = split_kv_shape<Head>;
  using new_slots = typename block::new_slots;

  const decode_maps& maps;
  const decode_args<T>& g;
  std::uint32_t base;
  float* memory;
  int kv_chunk;

  __device__ block of(int row, int group) const { return {{maps, g, base, memory, row, group}}; }

  __device__ void request_tiles(const split_kv_scheduler& list) const {
    const int from = list.begin(kv_chunk);
    pipeline_state stage[2] = {pipeline_state::producer(), pipeline_state::producer()};
    int ring = 0;
#pragma unroll 1
    for (int to = list.begin(kv_chunk + 1); to > from;) {
      const split_kv_scheduler::work_item item = list.before(to, from);
      if (item.range.from % 2 != ring) {
        const pipeline_state was = stage[0];
        stage[0] = stage[1], stage[1] = was;
      }
      if (threadIdx.x % 32 == 0) of(item.row, item.group).produce(item.range, stage);
      __syncwarp();
      ring = item.range.to % 2, to = item.begin;
    }
  }
  __device__ void load_items(const split_kv_scheduler& list, const new_slots& call_slots) const {
    const int lane = static_cast<int>(threadIdx.x % 32), from = list.begin(kv_chunk);
    if (!g.no_pending_writes) ptx::wait_for_dependency();
    long long positions[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (g.angles != nullptr && half * 32 + lane < g.ranges.rows) positions[half] = g.positions[half * 32 + lane];
    int n = 0;
#pragma unroll 1
    for (int to = list.begin(kv_chunk + 1); to > from; ++n) {
      const split_kv_scheduler::work_item item = list.before(to, from);
      const block here = of(item.row, item.group);
      const bool has_own = here.find_new_key(item.range, call_slots, item.begins).warp >= 0;
      const long long position = list.of_row(positions, item.row);
      to = item.begin;
      if (lane == 0)
        here.load_item(n, item, to == from, has_own, g.angles == nullptr ? nullptr : g.angles + position * Head);
      __syncwarp();
      if (to == from && item.ends && !item.begins && lane == 0) here.wait_for_partials(kv_chunk - item.first_chunk);
    }
  }
  __device__ void consume_items(const new_slots& call_slots) const {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    pipeline_state now;
    bool last = false;
    ptx::wait_for_dependency();
#pragma unroll 1
    for (int n = 0; !last; ++n) {
      of(0, 0).items().consumer_wait({n % item_stages, static_cast<std::uint32_t>(n / item_stages) & 1});
      const uint4 what = ptx::load_shared_uint4(of(0, 0).item_offset(n)),
                  keys = ptx::load_shared_uint4(of(0, 0).item_offset(n) + 16);
      const block here = of(static_cast<int>(what.x), static_cast<int>(what.y));
      const bool begins = (what.z & 1) != 0, ends = (what.z & 2) != 0;
      last = (what.z & 4) != 0;
      const decode_range range{static_cast<int>(keys.x), static_cast<int>(keys.y), static_cast<int>(keys.z),
                               static_cast<int>(keys.w)};
      typename block::query_columns q;
      here.load_queries(q, n, lane);
      register_reads reads(here.group_size());
#pragma unroll
      for (const auto& step : q) reads.add(step[0]), reads.add(step[1]);
      const auto own = here.find_new_key(range, call_slots, begins);
      if (warp == own.warp && lane < block::head_vectors)
        here.append(own.slot, here.new_key(n, lane), ptx::load_shared_uint4(here.new_row_of_item(n, true) + lane * 16),
                    lane);
      __syncwarp();
      if (!g.no_pending_writes && warp == ::max(0, own.warp)) {  // kernels that start after this see the cache writes
        __threadfence();
        ptx::fence_async();
        __syncwarp();
        if (last) ptx::launch_dependents();
      }
      reads.release(here.items(), n % item_stages);
      if (g.no_pending_writes && n == 0 && warp == 0) ptx::launch_dependents();
      typename block::warp_sums sums;
      here.consume(q, range, call_slots, last, now, sums);
      here.combine_warps(sums, [&](int e, const float4& v, float most, float sum) {
        if (!ends) return here.store_partial(kv_chunk, e, v, most, sum);
        if (begins) return here.write(e, v, most, sum);
        here.combine_splits(static_cast<int>(what.w), kv_chunk, e, v, most, sum);
      });
      if (!ends) here.signal_partial();
    }
  }
};

template <class T, int Head, bool Capped = false>
__global__ void __launch_bounds__(split_kv_shape<Head>::threads, 1)
    split_kv_kernel(const __grid_constant__ decode_maps maps, const __grid_constant__ decode_args<T> g) {
#if __CUDA_ARCH__ >= 900
  using shape = split_kv_shape<Head>;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  const split_kv_chunk<T, Head, Capped> own{maps, g, base, reinterpret_cast<float*>(raw + (base - at) + shape::sums_at),
                                            static_cast<int>(blockIdx.x)};
  const split_kv_scheduler list(g.ranges, g.kv_heads, static_cast<int>(gridDim.x));
  const auto call_slots = own.of(0, 0).load_new_slots();
  if (own.kv_chunk >= list.chunks()) return;
  if (threadIdx.x == 32 * shape::warps) ptx::prefetch(&maps.tile), ptx::prefetch(&maps.row_box);
  if (threadIdx.x == 0) own.of(0, 0).init_barriers();
  __syncthreads();
  if (threadIdx.x < 32 * shape::warps)
    own.consume_items(call_slots);
  else if (threadIdx.x < 32 * (shape::warps + 1))
    own.request_tiles(list);
  else
    own.load_items(list, call_slots);
#endif
}

}  // namespace graft::gpu
