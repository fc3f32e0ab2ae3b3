// SPDX-License-Identifier: Apache-2.0
// One row and one head of keys and values of a token step (attention_decode.cuh, attention_spread.cuh), as a thread block has
// it: the queries and their turns, the row's own key and value, tiles on their way through the ring, and what its warps add
// up of them. Four warps have 16 keys of a tile each, four others of the next. Products are m16n8k16 with keys or columns of
// values as rows, and the queries as columns: Sᵀ = K Qᵀ, Oᵀ = Vᵀ Pᵀ.
// The call's own keys and values are written to the cache on the way, and put in the place of what a tile brought from
// there: rows of one call may look at each other. What else lies in the cache must be numbers, as in attention_prefill.cuh.
// Queries and keys may come as products left them: then they are turned by their row's position as they are read.
// A step has a few microseconds for all this: what does not depend on the kernel ahead (tiles, angles) is asked for before
// that has ended, and what does (queries, the row's own key and value) all at once.
#pragma once
#include <graft/backend/cuda/attention_decode_args.cuh>
#include <graft/backend/cuda/gemm_mma.cuh>

namespace graft::cuda {

template <class T, class Shape> struct decode_row {
  using shape = Shape;
  static constexpr int Head = shape::head, Warps = shape::warps;

  const decode_maps& maps;
  const decode_args<T>& g;
  std::uint32_t base;
  float* memory;  // shared, for the sums of the warps
  int row, group;

  // Four warps have every tile, or every other one, and a ring for these: a stage is only filled again when they have read it.
  static constexpr int rings = Warps / 4;
  __device__ int ring() const { return g.stages / rings; }

  __device__ std::uint32_t full(int i) const { return base + g.stages * shape::tile + 8 * i; }
  __device__ std::uint32_t empty(int i) const { return full(g.stages + i); }
  __device__ int share() const { return g.share; }
  __device__ const T* queries() const { return g.q.at(row, static_cast<long long>(group) * share() * Head); }
  __device__ const float* angles_of(int r) const {
    return g.angles == nullptr ? nullptr : g.angles + g.positions[r] * Head;
  }
  // Two neighbours of one half of a head, with their partners in the other: `sign` is -1 in the lower half.
  __device__ static std::uint32_t turned(std::uint32_t own, std::uint32_t other, float2 c, float2 s, float sign) {
    const auto *const x = reinterpret_cast<const T*>(&own), *const y = reinterpret_cast<const T*>(&other);
    return pack<T>(to_float(x[0]) * c.x + sign * to_float(y[0]) * s.x,
                   to_float(x[1]) * c.y + sign * to_float(y[1]) * s.y);
  }
  // Eight columns of the key (or value) of a row of this call; a lane for each eight.
  static constexpr int pieces = Head / 8;
  __device__ uint4 own_piece(int r, bool value, int lane, const float* angles) const {
    const T* const from = (value ? g.v : g.k).at(r, static_cast<long long>(group) * Head);
    const uint4 v = __ldcg(reinterpret_cast<const uint4*>(from) + lane);
    if (angles == nullptr || value) return v;
    const bool upper = lane >= pieces / 2;
    const int partner = upper ? lane - pieces / 2 : lane + pieces / 2;
    const uint4 w = __ldcg(reinterpret_cast<const uint4*>(from) + partner);
    const float* const at = angles + (upper ? partner : lane) * 8;
    const auto turn = [&](int i, std::uint32_t own, std::uint32_t other) {
      const auto* const from = reinterpret_cast<const float2*>(at) + i;
      return turned(own, other, __ldg(from), __ldg(from + Head / 4), upper ? 1 : -1);
    };
    return make_uint4(turn(0, v.x, w.x), turn(1, v.y, w.y), turn(2, v.z, w.z), turn(3, v.w, w.w));
  }
  // By one thread, as a block begins.
  __device__ void make_ring() const {
#pragma unroll
    for (int i = 0; i < 2 * shape::stages; ++i)
      if (i < g.stages) ptx::barrier_init(full(i), 1), ptx::barrier_init(empty(i), 4 * 32);
  }
  __device__ std::uint32_t behind_ring() const { return base + g.stages * (shape::tile + 16); }

  // A tile, or of a row's last one only the sixteens of keys that there are.
  __device__ void request(std::uint32_t to, int key, int end, int chunk, std::uint32_t bar) const {
    const int pieces = (end - key + 15) / 16;
    if (pieces > 3) {
      ptx::barrier_expect(bar, shape::tile);
      return ptx::load_box(to, &maps.tile, key, chunk, bar);
    }
    ptx::barrier_expect(bar, pieces * 16 * Head * 2);
#pragma unroll 1
    for (int c = 0; c < shape::chunks; ++c)
#pragma unroll 1
      for (int p = 0; p < pieces; ++p)
        ptx::load_box(to + (c * 64 + p * 16) * shape::pitch, &maps.piece, key + p * 16, chunk + c, bar);
  }
  // The kernel ahead writes nothing of the cache: tiles are asked for while it ends. What this call writes there is put
  // into the tiles from elsewhere. Tiles are in the rings by turns.
  __device__ void produce(const decode_span& s, ring_place (&at)[2]) const {
    for (int i = 2 * s.from; i < 2 * s.to; ++i) {
      const int ring_of = i / 2 % rings, stage = ring_of * ring() + at[0].at;
      ptx::barrier_wait(empty(stage), at[0].phase);
      request(base + stage * shape::tile, s.first + i / 2 * 64, s.end, (i % 2 * g.groups + group) * shape::chunks,
              full(stage));
      at[0].advance(ring());
      if (rings == 2 && i % 2 != 0) {
        const ring_place was = at[0];
        at[0] = at[1], at[1] = was;
      }
    }
  }

  __device__ static std::uint32_t offset(int key, int column) {
    return column / shape::chunk * 64 * shape::pitch + tile_offset(key, column % shape::chunk, shape::pitch);
  }
  // Sixteens of columns further: the bits of the swizzle are those of the row, so that a step only changes its own.
  __device__ static std::uint32_t piece_of(std::uint32_t first, int k) {
    return (first ^ static_cast<std::uint32_t>(k % shape::steps_per_chunk * 32)) +
           k / shape::steps_per_chunk * 64 * shape::pitch;
  }
  // Key and value of this block's own row, which the warp that has its key keeps there.
  __device__ std::uint32_t own_row(bool value) const { return behind_ring() + shape::inbox + (value ? 2 * Head : 0); }
  // This call's keys, or values, among the sixteen of this warp.
  __device__ void patch(std::uint32_t tile, int key0, int in_tile, bool values, const int (&own)[2], int lane) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned found = __ballot_sync(~0U, own[half] >= key0 && own[half] < key0 + 16);
      for (; found != 0; found &= found - 1) {
        const int from = __ffs(static_cast<int>(found)) - 1, key = __shfl_sync(~0U, own[half], from) - key0,
                  r = half * 32 + from;
        if (lane < pieces)
          ptx::store_shared(tile + offset(in_tile + key, lane * 8),
                            r == row ? ptx::load_shared_uint4(own_row(values) + lane * 16)
                                     : own_piece(r, values, lane, angles_of(r)));
        ptx::fence_async_shared();  // before the next tile comes to this place
        __syncwarp();
      }
    }
  }
  // Eights of the row's own key and value to the cache, and to where this block looks for them.
  __device__ void append(int place, const uint4& key, const uint4& value, int lane) const {
    if (lane >= pieces) return;
    ptx::store_shared(own_row(false) + lane * 16, key), ptx::store_shared(own_row(true) + lane * 16, value);
    if (place < 0) return;
    const long long kv = static_cast<long long>(g.groups) * Head;
    auto* const to = reinterpret_cast<uint4*>(g.cache + place * 2 * kv + group * Head) + lane;
    to[0] = key, to[kv / 8] = value;
  }

  // Queries are the right operand, as columns. Angles lie in shared memory, asked for early: asked for by each lane when the
  // queries are there, they cost as much again as those.
  using query_columns = std::uint32_t[shape::steps][2];
  __device__ static void turn_queries(query_columns& q, std::uint32_t turns, int lane) {
#pragma unroll
    for (int e = 0; e < shape::steps; ++e) {  // eights of the lower half; those of the upper one are as many further
      const std::uint32_t at = turns + 4 * (e * 8 + lane % 4 * 2);
      const float2 c = ptx::load_shared_float2(at), s = ptx::load_shared_float2(at + 2 * Head);
      std::uint32_t &low = q[e / 2][e % 2], &high = q[(e + shape::steps) / 2][(e + shape::steps) % 2];
      const std::uint32_t x = low;
      low = turned(x, high, c, s, -1), high = turned(high, x, c, s, 1);
    }
  }

  // Where the call's rows have their keys, two for a lane.
  struct places {
    int own[2];
  };
  __device__ places look_up() const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    places at{{-1, -1}};
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (half * 32 + lane < g.spans.rows) at.own[half] = g.spans.own(half * 32 + lane);
    return at;
  }
  // The warp that has the row's own key; none (-1) where another block has it. Outside the row's span any warp keeps it, of
  // the block where the row begins.
  struct own_key {
    int place, warp;
  };
  __device__ own_key find_own(const decode_span& s, const places& known, bool begins) const {
    const int place = __shfl_sync(~0U, row < 32 ? known.own[0] : known.own[1], row % 32), key = place - s.first;
    if (place < s.first || place >= s.end) return {place, begins ? 0 : -1};
    return {place, key / 64 >= s.from && key / 64 < s.to ? key / 64 % rings * 4 + key % 64 / 16 : -1};
  }

  // Sums of queries 2 (lane % 4) and the next, over the keys of a warp.
  struct warp_sums {
    float o[shape::steps][4] = {}, largest[2] = {-1e30F, -1e30F}, sum[2] = {0, 0};
  };
  // `last`: no other row or head follows in this block.
  __device__ void consume(const query_columns& q, const decode_span& s, const places& known, bool last, ring_place& now,
                          warp_sums& to) const {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32),
              in_tile = warp % 4 * 16;
    const float c = g.scale * log2_e;
    int own[2];  // of those in this row's span
#pragma unroll
    for (int half = 0; half < 2; ++half)
      own[half] = known.own[half] < s.first || known.own[half] >= s.end ? -1 : known.own[half];
    const int last_own = __reduce_max_sync(~0U, ::max(own[0], own[1])),
              first_own = static_cast<int>(
                  __reduce_min_sync(~0U, ::min(static_cast<unsigned>(own[0]), static_cast<unsigned>(own[1]))));
    auto& [o, largest, sum] = to;
    const std::uint32_t keys_at = offset(in_tile + lane % 16, lane / 16 * 8),
                        values_at = offset(in_tile + lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8);
    const int ring_at = warp / 4 * ring();
    const auto tile_of = [&](int key0, bool values) {
      const std::uint32_t tile = base + (ring_at + now.at) * shape::tile;
      ptx::barrier_wait(full(ring_at + now.at), now.phase);
      if (key0 <= last_own && key0 + 16 > first_own) patch(tile, key0, in_tile, values, own, lane);
      return tile;
    };
    // Each lane says what it has read itself: that is what compute-sanitizer's racecheck counts.
    ptx::read_before left(share());
    const auto leave = [&] {
      left.arrive(empty(ring_at + now.at));
      now.advance(ring());
    };
#pragma unroll 1
    for (int t = s.from + (warp / 4 + s.from) % rings; t < s.to; t += rings) {
      const int key0 = s.first + t * 64 + in_tile;
      if (key0 >= s.end) {  // of a row's last tile
        if (last) break;
        for (int value = 0; value < 2; ++value) ptx::barrier_wait(full(ring_at + now.at), now.phase), leave();
        break;
      }
      const std::uint32_t keys = tile_of(key0, false);
      float x[4] = {}, y[4] = {};  // two sums: products wait for the one before
#pragma unroll
      for (int k = 0; k < shape::steps; ++k) {
        std::uint32_t a[4];
        ptx::load_matrix(a, keys + piece_of(keys_at, k));
        mma::multiply<T>(k % 2 == 0 ? x : y, a, q[k]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] += y[e];
      left.add(__float_as_uint(x[0]));
      leave();
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] = key0 + lane / 4 + e / 2 * 8 < s.end ? x[e] * c : -INFINITY;
      float factor[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float most = fmaxf(x[e], x[2 + e]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0U, most, step));
        most = fmaxf(most, largest[e]);
        factor[e] = exp2_fast(largest[e] - most), largest[e] = most;
        x[e] = exp2_fast(x[e] - most), x[2 + e] = exp2_fast(x[2 + e] - most);
        sum[e] = sum[e] * factor[e] + x[e] + x[2 + e];
      }
      const std::uint32_t p[2] = {ptx::turn_matrix(pack<T>(x[0], x[1])), ptx::turn_matrix(pack<T>(x[2], x[3]))};
#pragma unroll
      for (int e = 0; e < 4 * shape::steps; ++e) o[e / 4][e % 4] *= factor[e % 2];
      const std::uint32_t values = tile_of(key0, true);
#pragma unroll
      for (int n = 0; n < shape::steps; ++n) {
        std::uint32_t a[4];
        ptx::load_matrix_across(a, values + piece_of(values_at, n));
        mma::multiply<T>(o[n], a, p);
      }
#pragma unroll
      for (int n = 0; n < shape::steps; ++n) left.add(__float_as_uint(o[n][0]));
      leave();
    }
  }
  // To shared memory, and from there over all warps: `give` takes a four of columns with its largest score and its sum. No
  // warp reads what lay there before.
  template <class F> __device__ void add_warps(warp_sums& s, const F& give) const {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    ptx::named_barrier_of_lanes(1, 32 * shape::warps);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int query = lane % 4 * 2 + e;
      float* const to = memory + (warp * most_decode_group + query) * shape::sum_pitch + lane / 4;
#pragma unroll
      for (int n = 0; n < shape::steps; ++n) to[n * 16] = s.o[n][e], to[n * 16 + 8] = s.o[n][2 + e];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) s.sum[e] += __shfl_xor_sync(~0U, s.sum[e], step);
      if (lane < 4) warp_numbers(warp)[query] = make_float2(s.largest[e], s.sum[e]);
    }
    ptx::named_barrier_of_lanes(1, 32 * shape::warps);
    for (int e = static_cast<int>(threadIdx.x) * 4; e < share() * Head; e += 32 * shape::warps * 4) {
      const int head = e / Head;
      float most = -1e30F, sum = 0;
      float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int w = 0; w < shape::warps; ++w) most = fmaxf(most, warp_numbers(w)[head].x);
#pragma unroll
      for (int w = 0; w < shape::warps; ++w) {
        const float factor = exp2_fast(warp_numbers(w)[head].x - most);
        const float4 x =
            *reinterpret_cast<const float4*>(memory + (w * most_decode_group + head) * shape::sum_pitch + e % Head);
        v.x += factor * x.x, v.y += factor * x.y, v.z += factor * x.z, v.w += factor * x.w;
        sum += factor * warp_numbers(w)[head].y;
      }
      give(e, v, most, sum);
    }
  }
  __device__ float2* warp_numbers(int warp) const {
    return reinterpret_cast<float2*>(memory + shape::sums / 4) + warp * most_decode_group;
  }
  __device__ void write(int e, const float4& v, float sum) const {
    const float f = sum > 0 ? 1 / sum : 0;
    T* const to = g.out + (static_cast<long long>(row) * g.heads + static_cast<long long>(group) * share()) * Head + e;
    *reinterpret_cast<uint2*>(to) = make_uint2(pack<T>(v.x * f, v.y * f), pack<T>(v.z * f, v.w * f));
  }
};

}  // namespace graft::cuda
