// SPDX-License-Identifier: Apache-2.0
// Mainloop of the sm_90 decode attention kernels (decode.cuh, decode_split_kv.cuh): one query row and one KV head with
// the query heads of its group (GQA up to 8:1), in one CTA.
//
//   Sᵀ = K Qᵀ,  Oᵀ = Vᵀ Pᵀ by mma.sync m16n8k16: keys, or columns of V, are the 16 rows, the query heads the 8 columns
//
// Tiles        64 keys or 64 values of the head, loaded by TMA. A tile is divided among four warps, 16 keys each; with
//              eight warps, warps 0 to 3 take the even tiles and 4 to 7 the odd ones, each group from its own pipeline.
// Pipeline     A ring per group of four warps, K and V tiles in turn. Every lane releases a tile with its sums as
//              register reads, because ldmatrix loads it.
// New keys     The call's own keys and values are written to the cache here and also patched into the loaded tiles, so
//              that rows of one call may attend to each other. Masked values are multiplied by 0, so every slot of the
//              cache must hold finite numbers.
// Scores       They may have a soft cap (Capped). A sink joins the sum of its row where O is written (write).
// RoPE         Queries and keys may arrive unrotated; they are rotated by their row's position as they are read.
// Latency      A call lasts a few microseconds: tiles and angles, which do not depend on the previous kernel,
//              are requested before griddepcontrol.wait; queries and the new key and value all at once after it.
// Reduction    Every warp keeps its own running maximum, sum and O; combine_warps combines them in warp order.
#pragma once
#include <graft/backend/gpu/arch/mma_sync.cuh>
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/attention/decode_args.cuh>
#include <graft/backend/gpu/tile/pipeline.cuh>

namespace graft::gpu {

template <class T, class Shape, bool Capped = false> struct decode_row_mainloop {
  using shape = Shape;
  static constexpr int Head = shape::head, Warps = shape::warps;

  const decode_maps& maps;
  const decode_args<T>& g;
  std::uint32_t base;
  float* memory;  // shared memory for the partial sums of the warps
  int row, group;

  // Pipelines of a CTA: each has four consumer warps and its own stages.
  static constexpr int rings = Warps / 4;
  __device__ int ring_stages() const { return g.stages / rings; }
  __device__ pipeline ring() const { return {base + g.stages * shape::tile, g.stages}; }
  __device__ int group_size() const { return g.group_size; }
  __device__ const T* queries() const { return g.q.at(row, static_cast<long long>(group) * group_size() * Head); }
  __device__ const float* angles_of(int r) const {
    return g.angles == nullptr ? nullptr : g.angles + g.positions[r] * Head;
  }
  // RoPE of two neighboring columns of one half of a head with their partners in the other half; `sign` is -1 for the
  // lower half and 1 for the upper.
  __device__ static std::uint32_t rotate_half(std::uint32_t own, std::uint32_t other, float2 c, float2 s, float sign) {
    const auto *const x = reinterpret_cast<const T*>(&own), *const y = reinterpret_cast<const T*>(&other);
    return pack<T>(to_float(x[0]) * c.x + sign * to_float(y[0]) * s.x,
                   to_float(x[1]) * c.y + sign * to_float(y[1]) * s.y);
  }
  // Eight columns of the new key, rotated, or of the new value of row r; each lane below head_vectors loads one vector.
  static constexpr int head_vectors = Head / 8;
  __device__ uint4 load_new_row_vector(int r, bool value, int lane, const float* angles) const {
    const T* const from = (value ? g.v : g.k).at(r, static_cast<long long>(group) * Head);
    const uint4 v = __ldcg(reinterpret_cast<const uint4*>(from) + lane);
    if (angles == nullptr || value) return v;
    const bool upper = lane >= head_vectors / 2;
    const int partner = upper ? lane - head_vectors / 2 : lane + head_vectors / 2;
    const uint4 w = __ldcg(reinterpret_cast<const uint4*>(from) + partner);
    const float* const at = angles + (upper ? partner : lane) * 8;
    const auto rotate_pair = [&](int i, std::uint32_t own, std::uint32_t other) {
      const auto* const from = reinterpret_cast<const float2*>(at) + i;
      return rotate_half(own, other, __ldg(from), __ldg(from + Head / 4), upper ? 1 : -1);
    };
    return make_uint4(rotate_pair(0, v.x, w.x), rotate_pair(1, v.y, w.y), rotate_pair(2, v.z, w.z),
                      rotate_pair(3, v.w, w.w));
  }
  // One thread initializes the mbarriers when the CTA starts.
  __device__ void init_pipeline() const {
#pragma unroll
    for (int i = 0; i < 2 * shape::stages; ++i)
      if (i < g.stages) ring().init(i, 1, 4 * 32);
  }
  __device__ std::uint32_t after_ring() const { return base + g.stages * (shape::tile + 16); }

  // Loads a tile; of the last tile of a range only as many boxes of 16 keys as exist.
  __device__ void request(std::uint32_t to, int key, int end, int chunk, int stage) const {
    const int boxes = (end - key + 15) / 16;
    if (boxes > 3) return ptx::load_box(to, &maps.tile, key, chunk, ring().producer_commit(stage, shape::tile));
    const std::uint32_t bar = ring().producer_commit(stage, boxes * 16 * Head * 2);
#pragma unroll 1
    for (int c = 0; c < shape::chunks; ++c)
#pragma unroll 1
      for (int p = 0; p < boxes; ++p)
        ptx::load_box(to + (c * 64 + p * 16) * shape::pitch, &maps.row_box, key + p * 16, chunk + c, bar);
  }
  // Producer: loads K and V of tiles [s.from, s.to), alternating between the pipelines. It does not wait for the
  // previous kernel, which does not write the cache; consume patches the slots that this call writes into the tiles.
  __device__ void produce(const decode_range& s, pipeline_state (&at)[2]) const {
    for (int i = 2 * s.from; i < 2 * s.to; ++i) {
      const int stage = i / 2 % rings * ring_stages() + at[0].stage;
      ring().producer_acquire({stage, at[0].phase});
      request(base + stage * shape::tile, s.first + i / 2 * 64, s.end, (i % 2 * g.kv_heads + group) * shape::chunks,
              stage);
      at[0].advance(ring_stages());
      if (rings == 2 && i % 2 != 0) {
        const pipeline_state was = at[0];
        at[0] = at[1], at[1] = was;
      }
    }
  }

  __device__ static std::uint32_t offset(int key, int column) {
    return column / shape::chunk * 64 * shape::pitch + tile_offset(key, column % shape::chunk, shape::pitch);
  }
  // Address k steps of 16 columns after `first`. The swizzle bits depend on the row only, so an XOR suffices.
  __device__ static std::uint32_t column_step(std::uint32_t first, int k) {
    return (first ^ static_cast<std::uint32_t>(k % shape::steps_per_chunk * 32)) +
           k / shape::steps_per_chunk * 64 * shape::pitch;
  }
  // Shared memory of the new key and value of this CTA's query row.
  __device__ std::uint32_t new_row_address(bool value) const {
    return after_ring() + shape::receive_buffer + (value ? 2 * Head : 0);
  }
  // Replaces the keys (or values) that this call writes, as far as they are among the 16 rows of this warp.
  __device__ void patch(std::uint32_t tile, int key0, int in_tile, bool values, const int (&own)[2], int lane) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned found = __ballot_sync(~0U, own[half] >= key0 && own[half] < key0 + 16);
      for (; found != 0; found &= found - 1) {
        const int from = __ffs(static_cast<int>(found)) - 1, key = __shfl_sync(~0U, own[half], from) - key0,
                  r = half * 32 + from;
        if (lane < head_vectors)
          ptx::store_shared(tile + offset(in_tile + key, lane * 8),
                            r == row ? ptx::load_shared_uint4(new_row_address(values) + lane * 16)
                                     : load_new_row_vector(r, values, lane, angles_of(r)));
        ptx::fence_async_shared();  // orders these stores before the next TMA load into the stage
        __syncwarp();
      }
    }
  }
  // Writes the row's new key and value, one vector per lane, to the cache (slot >= 0) and to shared memory for patch().
  __device__ void append(int slot, const uint4& key, const uint4& value, int lane) const {
    if (lane >= head_vectors) return;
    ptx::store_shared(new_row_address(false) + lane * 16, key),
        ptx::store_shared(new_row_address(true) + lane * 16, value);
    if (slot < 0) return;
    const long long kv = static_cast<long long>(g.kv_heads) * Head;
    auto* const to = reinterpret_cast<uint4*>(g.cache + slot * 2 * kv + group * Head) + lane;
    to[0] = key, to[kv / 8] = value;
  }

  // Queries are the B operand, one query head per column. The angles are read from shared memory, loaded early: loads
  // by each lane after the queries have arrived would double the latency.
  using query_columns = std::uint32_t[shape::steps][2];
  __device__ static void rope_queries(query_columns& q, std::uint32_t angles_at, int lane) {
#pragma unroll
    for (int e = 0; e < shape::steps; ++e) {  // 8 columns of the lower half; their partners are shape::steps further
      const std::uint32_t at = angles_at + 4 * (e * 8 + lane % 4 * 2);
      const float2 c = ptx::load_shared_float2(at), s = ptx::load_shared_float2(at + 2 * Head);
      std::uint32_t &low = q[e / 2][e % 2], &high = q[(e + shape::steps) / 2][(e + shape::steps) % 2];
      const std::uint32_t x = low;
      low = rotate_half(x, high, c, s, -1), high = rotate_half(high, x, c, s, 1);
    }
  }

  // Cache slots that the rows of the call write, two rows per lane; -1: none.
  struct new_slots {
    int own[2];
  };
  __device__ new_slots load_new_slots() const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    new_slots at{{-1, -1}};
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (half * 32 + lane < g.ranges.rows) at.own[half] = g.ranges.own(half * 32 + lane);
    return at;
  }
  // The row's slot and the warp whose keys contain it; warp is -1 where another CTA appends it. A slot outside the
  // row's attention range is appended by warp 0 of the CTA that has the beginning of the pair.
  struct new_key {
    int slot, warp;
  };
  __device__ new_key find_new_key(const decode_range& s, const new_slots& call_slots, bool begins) const {
    const int slot = __shfl_sync(~0U, row < 32 ? call_slots.own[0] : call_slots.own[1], row % 32), key = slot - s.first;
    if (slot < s.first || slot >= s.end) return {slot, begins ? 0 : -1};
    return {slot, key / 64 >= s.from && key / 64 < s.to ? key / 64 % rings * 4 + key % 64 / 16 : -1};
  }

  // Unnormalized O, running maximum and sum of query heads 2 (lane % 4) and the next, over the keys of this warp.
  struct warp_sums {
    float o[shape::steps][4] = {}, largest[2] = {-1e30F, -1e30F}, sum[2] = {0, 0};
  };
  // `last`: no other item follows in this CTA, so that stages after the end of the range need not be released.
  __device__ void consume(const query_columns& q, const decode_range& s, const new_slots& call_slots, bool last,
                          pipeline_state& now, warp_sums& to) const {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32),
              in_tile = warp % 4 * 16;
    const float c = score_unit<Capped>(g.scale, g.cap) * log2_e;
    int own[2];  // new slots within this row's range
#pragma unroll
    for (int half = 0; half < 2; ++half)
      own[half] = call_slots.own[half] < s.first || call_slots.own[half] >= s.end ? -1 : call_slots.own[half];
    const int last_own = __reduce_max_sync(~0U, ::max(own[0], own[1])),
              first_own = static_cast<int>(
                  __reduce_min_sync(~0U, ::min(static_cast<unsigned>(own[0]), static_cast<unsigned>(own[1]))));
    auto& [o, largest, sum] = to;
    const std::uint32_t keys_at = offset(in_tile + lane % 16, lane / 16 * 8),
                        values_at = offset(in_tile + lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8);
    const int ring_at = warp / 4 * ring_stages();
    const auto tile_of = [&](int key0, bool values) {
      const std::uint32_t tile = base + (ring_at + now.stage) * shape::tile;
      ring().consumer_wait({ring_at + now.stage, now.phase});
      if (key0 <= last_own && key0 + 16 > first_own) patch(tile, key0, in_tile, values, own, lane);
      return tile;
    };
    // Every lane arrives for its own reads, which compute-sanitizer's racecheck requires.
    register_reads reads(group_size());
    const auto release_stage = [&] {
      reads.release(ring(), ring_at + now.stage);
      now.advance(ring_stages());
    };
#pragma unroll 1
    for (int t = s.from + (warp / 4 + s.from) % rings; t < s.to; t += rings) {
      const int key0 = s.first + t * 64 + in_tile;
      if (key0 >= s.end) {  // the last tile has no keys for this warp
        if (last) break;
        for (int value = 0; value < 2; ++value) ring().consumer_wait({ring_at + now.stage, now.phase}), release_stage();
        break;
      }
      const std::uint32_t keys = tile_of(key0, false);
      float x[4] = {}, y[4] = {};  // two accumulators halve the chain of dependent products
#pragma unroll
      for (int k = 0; k < shape::steps; ++k) {
        std::uint32_t a[4];
        ptx::load_matrix(a, keys + column_step(keys_at, k));
        ptx::mma_m16n8k16<T>(k % 2 == 0 ? x : y, a, q[k]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] += y[e];
      reads.add(__float_as_uint(x[0]));
      release_stage();
      if constexpr (Capped) cap_scores(x, g.cap);
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] = key0 + lane / 4 + e / 2 * 8 < s.end ? x[e] * c : -INFINITY;
      float factor[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float most = fmaxf(x[e], x[2 + e]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0U, most, step));
        most = fmaxf(most, largest[e]);
        factor[e] = exp2_approx(largest[e] - most), largest[e] = most;
        x[e] = exp2_approx(x[e] - most), x[2 + e] = exp2_approx(x[2 + e] - most);
        sum[e] = sum[e] * factor[e] + x[e] + x[2 + e];
      }
      const std::uint32_t p[2] = {ptx::transpose_matrix(pack<T>(x[0], x[1])),
                                  ptx::transpose_matrix(pack<T>(x[2], x[3]))};
#pragma unroll
      for (int e = 0; e < 4 * shape::steps; ++e) o[e / 4][e % 4] *= factor[e % 2];
      const std::uint32_t values = tile_of(key0, true);
#pragma unroll
      for (int n = 0; n < shape::steps; ++n) {
        std::uint32_t a[4];
        ptx::load_matrix_trans(a, values + column_step(values_at, n));
        ptx::mma_m16n8k16<T>(o[n], a, p);
      }
#pragma unroll
      for (int n = 0; n < shape::steps; ++n) reads.add(__float_as_uint(o[n][0]));
      release_stage();
    }
  }
  // Combines the partial sums of all warps through shared memory, in warp order. `give(e, v, max, sum)` receives four
  // columns of unnormalized O at element e with their maximum score and sum. The first barrier
  // ensures that no warp still reads what `memory` held.
  template <class F> __device__ void combine_warps(warp_sums& s, const F& give) const {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    ptx::named_barrier_reconverge(1, 32 * shape::warps);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int query = lane % 4 * 2 + e;
      float* const to = memory + (warp * max_decode_group + query) * shape::sum_pitch + lane / 4;
#pragma unroll
      for (int n = 0; n < shape::steps; ++n) to[n * 16] = s.o[n][e], to[n * 16 + 8] = s.o[n][2 + e];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) s.sum[e] += __shfl_xor_sync(~0U, s.sum[e], step);
      if (lane < 4) warp_statistics(warp)[query] = make_float2(s.largest[e], s.sum[e]);
    }
    ptx::named_barrier_reconverge(1, 32 * shape::warps);
    for (int e = static_cast<int>(threadIdx.x) * 4; e < group_size() * Head; e += 32 * shape::warps * 4) {
      const int head = e / Head;
      float most = -1e30F, sum = 0;
      float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int w = 0; w < shape::warps; ++w) most = fmaxf(most, warp_statistics(w)[head].x);
#pragma unroll
      for (int w = 0; w < shape::warps; ++w) {
        const float factor = exp2_approx(warp_statistics(w)[head].x - most);
        const float4 x =
            *reinterpret_cast<const float4*>(memory + (w * max_decode_group + head) * shape::sum_pitch + e % Head);
        v.x += factor * x.x, v.y += factor * x.y, v.z += factor * x.z, v.w += factor * x.w;
        sum += factor * warp_statistics(w)[head].y;
      }
      give(e, v, most, sum);
    }
  }
  __device__ float2* warp_statistics(int warp) const {
    return reinterpret_cast<float2*>(memory + shape::sums / 4) + warp * max_decode_group;
  }
  // Writes four columns of O from their sums over all keys; only here, once for each row and head, the sink is added.
  __device__ void write(int e, const float4& v, float most, float sum) const {
    float factor = 1;
    if (g.sinks.p != nullptr) factor = add_sink(most, sum, load_sink<T>(g.sinks, row, group * group_size() + e / Head));
    const float f = sum > 0 ? factor / sum : 0;
    T* const to =
        g.out + (static_cast<long long>(row) * g.heads + static_cast<long long>(group) * group_size()) * Head + e;
    *reinterpret_cast<uint2*>(to) = make_uint2(pack<T>(v.x * f, v.y * f), pack<T>(v.z * f, v.w * f));
  }
};

}  // namespace graft::gpu
