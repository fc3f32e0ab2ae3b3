// SPDX-License-Identifier: Apache-2.0
// Decode attention, sm_90: 1 to 64 query rows over a contiguous KV cache, split KV within a cluster.
//
//   O = softmax(Q Kᵀ / √d) V   Q, O [rows, heads, d]   K, V [slots, 2 kv_heads d] in the cache   GQA up to 8:1
//
// Every row has its own position and attention range, read from device memory. A sequence occupies contiguous slots
// (not paged), so that a tile is one TMA copy and a row's range two numbers; pages would need a lookup per copy.
//
// Work split   grid (KV splits, KV heads, rows): a CTA has one row, one KV head with the query heads of its group, and
//              a contiguous part of the row's 64-key tiles. The splits of a row and head are one cluster of up to 8.
// Warp roles   The last warp loads tiles by TMA; the other 8 (or 4) warps compute (decode_mainloop.cuh).
// Phases       Tiles and angles are requested before griddepcontrol.wait; then queries, RoPE, mainloop, sum over warps.
// Reduction    Each CTA sends its (O, max, sum) of every column range by st.async to the CTA of the cluster that
//              finishes this range, which combines them in split order: the same call gives the same bits.
// Measured     H200, token step of a four-layer Llama-3-8B shape, one sequence at 1024 tokens: 475 µs, 1.15 times the
//              floor of weights, adapter and KV cache at 4.3 TB/s (docs/performance.md).
#pragma once
#include <graft/backend/gpu/kernels/attention/decode_mainloop.cuh>
#include <graft/backend/gpu/tile/exchange.cuh>

namespace graft::gpu {

template <class T, int Head, int Warps, bool Capped>
struct decode_cta : decode_row_mainloop<T, decode_shape<Head, Warps>, Capped> {
  using mainloop = decode_row_mainloop<T, decode_shape<Head, Warps>, Capped>;
  using shape = typename mainloop::shape;
  using mainloop::g, mainloop::row, mainloop::group_size;

  int kv_split, kv_splits;

  __device__ decode_range split_range() const {
    const int first = g.ranges.first(row), end = ::max(first, g.ranges.end(row)), tiles = (end - first + 63) / 64;
    const auto before = [&](int p) {
      return static_cast<int>(static_cast<unsigned>(tiles * p) / static_cast<unsigned>(kv_splits));
    };
    return {first, end, before(kv_split), before(kv_split + 1)};
  }

  // First column of O [query heads of the KV head][Head] that split p finishes, and the split that finishes a column.
  __device__ int first_column(int p) const { return ::min(p * g.float4s_per_split * 4, group_size() * Head); }
  __device__ int finishing_split(int column) const {
    return static_cast<int>(static_cast<unsigned>(column / 4) * g.inverse_float4s_per_split >> 20);
  }
  __device__ cluster_mailbox partials() const { return {this->after_ring()}; }
  __device__ std::uint32_t angles_full() const { return this->after_ring() + 8; }
  __device__ std::uint32_t angles_at() const { return this->new_row_address(false) + shape::own; }
  // Receive buffer: per split, maximum score and sum of each head (16 bytes); then per split its values.
  __device__ std::uint32_t statistics_from(int p) const { return this->after_ring() + 16 + p * max_decode_group * 16; }
  __device__ std::uint32_t values_from(int p) const {
    return statistics_from(kv_splits) + p * g.float4s_per_split * 16;
  }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      this->init_pipeline();
      partials().init(), ptx::barrier_init(angles_full(), 1);
      ptx::barrier_init_fence();
      const int from = first_column(kv_split), to = first_column(kv_split + 1),
                heads = to > from ? (to - 1) / Head - from / Head + 1 : 0;
      if (kv_splits > 1) partials().expect(kv_splits * ((to - from) * 4 + heads * 16));
    }
    if (kv_splits > 1)
      ptx::cluster_sync_relaxed();
    else
      __syncthreads();
  }
  __device__ void load_queries(typename mainloop::query_columns& q, int lane) const {
    const int query = lane / 4;
    const auto* const from = reinterpret_cast<const std::uint32_t*>(this->queries() + query * Head) + lane % 4;
#pragma unroll
    for (int k = 0; k < shape::steps; ++k)
#pragma unroll
      for (int h = 0; h < 2; ++h) q[k][h] = query < group_size() ? __ldcg(from + k * 8 + h * 4) : 0;
  }
  // `angles` is null on entry unless no_pending_writes allowed to find them before the wait.
  __device__ void read(const decode_range& s, const typename mainloop::new_slots& call_slots,
                       const float* angles) const {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const auto own = this->find_new_key(s, call_slots, kv_split == 0);
    if (!g.no_pending_writes) ptx::wait_for_dependency(), angles = this->angles_of(row);
    if (angles != nullptr && threadIdx.x == 0) {
      ptx::barrier_arrive_expect_tx(angles_full(), 4 * Head);
      ptx::load_bulk(angles_at(), angles, 4 * Head, angles_full());
    }
    ptx::wait_for_dependency();
    typename mainloop::query_columns q;
    load_queries(q, lane);
    if (warp == own.warp && lane < mainloop::head_vectors)
      this->append(own.slot, this->load_new_row_vector(row, false, lane, angles),
                   this->load_new_row_vector(row, true, lane, angles), lane);
    __syncwarp();
    if (!g.no_pending_writes && warp == ::max(0, own.warp)) {  // kernels that start after this see the cache writes
      __threadfence();
      ptx::fence_async();
      __syncwarp();
      ptx::launch_dependents();
    }
    if (angles != nullptr) ptx::barrier_wait(angles_full(), 0), this->rope_queries(q, angles_at(), lane);
    // The vote waits for the queries. After them this CTA loads little from memory besides its tiles, so that the loads
    // of the next kernel no longer delay it.
    if (g.no_pending_writes && warp == 0 && __any_sync(~0U, q[0][0] != 0x7fc17fc1U)) ptx::launch_dependents();
    typename mainloop::warp_sums sums;
    pipeline_state now;
    this->consume(q, s, call_slots, true, now, sums);
    this->combine_warps(sums, [&](int e, const float4& v, float most, float sum) {
      if (kv_splits == 1) return this->write(e, v, most, sum);
      const int to = finishing_split(e), first = first_column(to);
      partials().send(values_from(kv_split) + (e - first) * 4, to, v);
      if (e == first || e % Head == 0)
        partials().send(statistics_from(kv_split) + e / Head * 16, to, make_float4(most, sum, 0, 0));
    });
    if (kv_splits > 1) combine_splits();
  }
  // Combines the columns that this CTA finishes over all splits, in split order.
  __device__ void combine_splits() const {
    const int from = first_column(kv_split), to = first_column(kv_split + 1);
    for (int e = from + static_cast<int>(threadIdx.x) * 4; e < to; e += 32 * shape::warps * 4) {
      partials().wait();
      const auto numbers = [&](int p) { return ptx::load_shared_float4(statistics_from(p) + e / Head * 16); };
      float most = -1e30F, sum = 0;
      float4 v = make_float4(0, 0, 0, 0);
#pragma unroll 4
      for (int p = 0; p < kv_splits; ++p) most = fmaxf(most, numbers(p).x);
#pragma unroll 4
      for (int p = 0; p < kv_splits; ++p) {
        const float4 n = numbers(p), x = ptx::load_shared_float4(values_from(p) + (e - from) * 4);
        const float factor = exp2_approx(n.x - most);
        v.x += factor * x.x, v.y += factor * x.y, v.z += factor * x.z, v.w += factor * x.w;
        sum += factor * n.y;
      }
      this->write(e, v, most, sum);
    }
  }
};

template <class T, int Head, int Warps = 8, bool Capped = false>
__global__ void __launch_bounds__(decode_shape<Head, Warps>::threads, (decode_shape<Head, Warps>::resident))
    decode_kernel(const __grid_constant__ decode_maps maps, const __grid_constant__ decode_args<T> g) {
#if __CUDA_ARCH__ >= 900
  using shape = decode_shape<Head, Warps>;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  const decode_cta<T, Head, Warps, Capped> block{{maps, g, base, reinterpret_cast<float*>(raw + (base - at)),
                                                  static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y)},
                                                 static_cast<int>(blockIdx.x),
                                                 static_cast<int>(gridDim.x)};
  const decode_range range = block.split_range();  // read before the cluster barrier to hide the latency
  const auto call_slots = block.load_new_slots();
  const float* const angles = g.no_pending_writes ? block.angles_of(block.row) : nullptr;
  if (threadIdx.x == 32 * shape::warps) ptx::prefetch(&maps.tile), ptx::prefetch(&maps.row_box);
  block.start();
  if (threadIdx.x < 32 * shape::warps) return block.read(range, call_slots, angles);
  pipeline_state at_stage[2] = {pipeline_state::producer(), pipeline_state::producer()};
  if (threadIdx.x == 32 * shape::warps) block.produce(range, at_stage);
#endif
}

}  // namespace graft::gpu
