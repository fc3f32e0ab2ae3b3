// SPDX-License-Identifier: Apache-2.0
// Attention of few rows over a cache, sm_90: a token step. Each row has its own place and length in the cache, read from
// device memory. The cache is contiguous: a sequence's keys and values lie side by side, [places, 2 kv], so that a tile
// of them is one tensor copy and a row's span two numbers; pages would need a table in front of every copy.
//
// A thread block has one row, one head of keys and values with all heads of queries that share it, and a part of the
// row's keys. One warp requests tiles of 64 keys and values; four have 16 keys of a tile each, four others of the next.
// Products are m16n8k16 with keys or columns of values as rows, and the queries as columns: Sᵀ = K Qᵀ, Oᵀ = Vᵀ Pᵀ. The
// warps' sums meet in shared memory; those of the parts, which are a cluster, are written to the block that finishes their
// columns, and added there always in the same order.
// The call's own keys and values are written to the cache on the way, and put in the place of what a tile brought from
// there: rows of one call may look at each other. What else lies in the cache must be numbers, as in attention_prefill.cuh.
// Queries and keys may come as products left them: then they are turned by their row's position as they are read.
// A step has a few microseconds for all this: what does not depend on the kernel ahead (tiles, angles) is asked for before
// that has ended, and what does (queries, the row's own key and value) all at once.
#pragma once
#include <graft/backend/cuda/attention_decode_args.cuh>
#include <graft/backend/cuda/gemm_mma.cuh>

namespace graft::cuda {

template <class T, int Head, int Warps> struct decode_block {
  using shape = decode_shape<Head, Warps>;

  const decode_maps& maps;
  const decode_args<T>& g;
  std::uint32_t base;
  float* memory;  // the same shared memory
  int part, parts, row, group;

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

  using span = decode_span;
  __device__ span own_span() const {
    const int first = g.spans.first(row), end = ::max(first, g.spans.end(row)), tiles = (end - first + 63) / 64;
    const auto before = [&](int p) {
      return static_cast<int>(static_cast<unsigned>(tiles * p) / static_cast<unsigned>(parts));
    };
    return {first, end, before(part), before(part + 1)};
  }

  // Columns of the heads that a part finishes, and where they begin.
  __device__ int first_column(int p) const { return ::min(p * g.finished * 4, share() * Head); }
  __device__ int finishing_part(int column) const {
    return static_cast<int>(static_cast<unsigned>(column / 4) * g.one_of_finished >> 20);
  }
  __device__ std::uint32_t received() const { return full(2 * g.stages); }
  __device__ std::uint32_t turns_here() const { return received() + 8; }
  // From each part a largest score and a sum for each head, and behind them its values.
  __device__ std::uint32_t numbers_from(int p) const { return received() + 16 + p * most_decode_group * 16; }
  __device__ std::uint32_t values_from(int p) const { return numbers_from(parts) + p * g.finished * 16; }

  __device__ void start() const {
    if (threadIdx.x == 0) {
#pragma unroll
      for (int i = 0; i < 2 * shape::stages; ++i)
        if (i < g.stages) ptx::barrier_init(full(i), 1), ptx::barrier_init(empty(i), 4 * 32);
      ptx::barrier_init(received(), 1), ptx::barrier_init(turns_here(), 1);
      ptx::barrier_init_fence();
      const int from = first_column(part), to = first_column(part + 1),
                heads = to > from ? (to - 1) / Head - from / Head + 1 : 0;
      if (parts > 1) ptx::barrier_expect(received(), parts * ((to - from) * 4 + heads * 16));
    }
    if (parts > 1)
      ptx::cluster_meet();
    else
      __syncthreads();
  }
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
  // into the tiles from elsewhere.
  __device__ void produce(const span& s) const {
    ring_place now{1}, other{1};
    for (int i = 2 * s.from; i < 2 * s.to; ++i) {
      const int at = i / 2 % rings * ring() + now.at;
      ptx::barrier_wait(empty(at), now.phase);
      request(base + at * shape::tile, s.first + i / 2 * 64, s.end, (i % 2 * g.groups + group) * shape::chunks,
              full(at));
      now.advance(ring());
      if (rings == 2 && i % 2 != 0) {
        const ring_place was = now;
        now = other, other = was;
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
  __device__ std::uint32_t own_row(bool value) const {
    return base + g.stages * (shape::tile + 16) + shape::inbox + (value ? 2 * Head : 0);
  }
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
  __device__ void append(int place, const float* angles, int lane) const {
    if (lane >= pieces) return;
    const uint4 key = own_piece(row, false, lane, angles), value = own_piece(row, true, lane, angles);
    ptx::store_shared(own_row(false) + lane * 16, key), ptx::store_shared(own_row(true) + lane * 16, value);
    if (place < 0) return;
    const long long kv = static_cast<long long>(g.groups) * Head;
    auto* const to = reinterpret_cast<uint4*>(g.cache + place * 2 * kv + group * Head) + lane;
    to[0] = key, to[kv / 8] = value;
  }

  // As the right operand: queries are columns.
  __device__ void load_queries(std::uint32_t (&q)[shape::steps][2], int lane) const {
    const int query = lane / 4;
    const auto* const from = reinterpret_cast<const std::uint32_t*>(queries() + query * Head) + lane % 4;
#pragma unroll
    for (int k = 0; k < shape::steps; ++k)
#pragma unroll
      for (int h = 0; h < 2; ++h) q[k][h] = query < share() ? __ldcg(from + k * 8 + h * 4) : 0;
  }
  // Their angles come to shared memory by a copy that is asked for early: asked for by each lane when the queries are
  // there, they cost as much again as those.
  __device__ std::uint32_t turns() const { return own_row(false) + shape::own; }
  __device__ void turn_queries(std::uint32_t (&q)[shape::steps][2], int lane) const {
    ptx::barrier_wait(turns_here(), 0);
#pragma unroll
    for (int e = 0; e < shape::steps; ++e) {  // eights of the lower half; those of the upper one are as many further
      const std::uint32_t at = turns() + 4 * (e * 8 + lane % 4 * 2);
      const float2 c = ptx::load_shared_float2(at), s = ptx::load_shared_float2(at + 2 * Head);
      std::uint32_t &low = q[e / 2][e % 2], &high = q[(e + shape::steps) / 2][(e + shape::steps) % 2];
      const std::uint32_t x = low;
      low = turned(x, high, c, s, -1), high = turned(high, x, c, s, 1);
    }
  }

  // Places of the call's rows, two for a lane, and where this row's angles are, as far as that is known before the wait.
  struct places {
    int own[2];
    const float* angles;
  };
  __device__ places look_up() const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    places at{{-1, -1}, nullptr};
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (half * 32 + lane < g.spans.rows) at.own[half] = g.spans.own(half * 32 + lane);
    if (g.settled) at.angles = angles_of(row);
    return at;
  }

  __device__ void consume(const span& s, const places& known) const {
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
    const int place = __shfl_sync(~0U, row < 32 ? known.own[0] : known.own[1], row % 32), key = place - s.first;
    const bool in_span = place >= s.first && place < s.end,
               in_block = in_span ? key / 64 >= s.from && key / 64 < s.to : part == 0;
    const int holder = in_span && in_block ? key / 64 % (Warps / 4) * 4 + key % 64 / 16 : 0;  // the warp with that key
    if (!g.settled) ptx::wait_for_previous_kernel();
    const float* const angles = g.settled ? known.angles : angles_of(row);
    if (angles != nullptr && threadIdx.x == 0) {
      ptx::barrier_expect(turns_here(), 4 * Head);
      ptx::load_bytes(turns(), angles, 4 * Head, turns_here());
    }
    ptx::wait_for_previous_kernel();
    std::uint32_t q[shape::steps][2];
    load_queries(q, lane);
    if (in_block && warp == holder) append(place, angles, lane);
    __syncwarp();
    if (!g.settled && warp == holder) {  // kernels that begin from now on find the cache written, waiting or not
      __threadfence();
      ptx::fence_async();
      __syncwarp();
      ptx::let_next_kernel_start();
    }
    if (angles != nullptr) turn_queries(q, lane);
    // Once the queries are there, which the vote waits for, little is asked for from memory: what the next kernel asks for
    // delays nobody.
    if (g.settled && warp == 0 && __any_sync(~0U, q[0][0] != 0x7fc17fc1U)) ptx::let_next_kernel_start();
    float o[shape::steps][4] = {}, largest[2] = {-1e30F, -1e30F},
          sum[2] = {0, 0};  // of queries 2 (lane % 4) and the next
    const std::uint32_t keys_at = offset(in_tile + lane % 16, lane / 16 * 8),
                        values_at = offset(in_tile + lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8);
    ring_place now{0};
    const int ring_at = warp / 4 * ring();
    const auto tile_of = [&](int key0, bool values) {
      const std::uint32_t tile = base + (ring_at + now.at) * shape::tile;
      ptx::barrier_wait(full(ring_at + now.at), now.phase);
      if (key0 <= last_own && key0 + 16 > first_own) patch(tile, key0, in_tile, values, own, lane);
      return tile;
    };
    // Each lane says what it has read itself: that is what compute-sanitizer's racecheck counts.
    const auto leave = [&] {
      ptx::barrier_arrive(empty(ring_at + now.at));
      now.advance(ring());
    };
#pragma unroll 1
    for (int t = s.from + (warp / 4 + s.from) % rings; t < s.to; t += rings) {
      const int key0 = s.first + t * 64 + in_tile;
      if (key0 >= s.end) break;  // nobody waits for this warp: the row's last tile is not followed by another
      const std::uint32_t keys = tile_of(key0, false);
      float x[4] = {}, y[4] = {};  // two sums: products wait for the one before
#pragma unroll
      for (int k = 0; k < shape::steps; ++k) {
        std::uint32_t a[4];
        ptx::load_matrix(a, keys + piece_of(keys_at, k));
        mma::multiply<T>(k % 2 == 0 ? x : y, a, q[k]);
      }
      leave();
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] += y[e];
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
      leave();
    }
    ptx::named_barrier_of_lanes(1, 32 * shape::warps);  // nobody reads the ring any more
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int query = lane % 4 * 2 + e;
      float* const to = memory + (warp * most_decode_group + query) * shape::sum_pitch + lane / 4;
#pragma unroll
      for (int n = 0; n < shape::steps; ++n) to[n * 16] = o[n][e], to[n * 16 + 8] = o[n][2 + e];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum[e] += __shfl_xor_sync(~0U, sum[e], step);
      if (lane < 4) warp_numbers(warp)[query] = make_float2(largest[e], sum[e]);
    }
    ptx::named_barrier_of_lanes(1, 32 * shape::warps);
    add_warps();
    if (parts > 1) add_parts();
  }

  __device__ float2* warp_numbers(int warp) const {
    return reinterpret_cast<float2*>(memory + shape::sums / 4) + warp * most_decode_group;
  }
  __device__ void add_warps() const {
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
      if (parts == 1) {
        write(e, v, sum);
      } else {
        const int to = finishing_part(e), first = first_column(to);
        ptx::store_at(values_from(part) + (e - first) * 4, received(), to, v);
        if (e == first || e % Head == 0)
          ptx::store_at(numbers_from(part) + head * 16, received(), to, make_float4(most, sum, 0, 0));
      }
    }
  }
  __device__ void write(int e, const float4& v, float sum) const {
    const float f = sum > 0 ? 1 / sum : 0;
    T* const to = g.out + (static_cast<long long>(row) * g.heads + static_cast<long long>(group) * share()) * Head + e;
    *reinterpret_cast<uint2*>(to) = make_uint2(pack<T>(v.x * f, v.y * f), pack<T>(v.z * f, v.w * f));
  }
  // This block's share of the columns, over all parts.
  __device__ void add_parts() const {
    const int from = first_column(part), to = first_column(part + 1);
    for (int e = from + static_cast<int>(threadIdx.x) * 4; e < to; e += 32 * shape::warps * 4) {
      ptx::barrier_wait(received(), 0);
      const auto numbers = [&](int p) { return ptx::load_shared_float4(numbers_from(p) + e / Head * 16); };
      float most = -1e30F, sum = 0;
      float4 v = make_float4(0, 0, 0, 0);
#pragma unroll 4
      for (int p = 0; p < parts; ++p) most = fmaxf(most, numbers(p).x);
#pragma unroll 4
      for (int p = 0; p < parts; ++p) {
        const float4 n = numbers(p), x = ptx::load_shared_float4(values_from(p) + (e - from) * 4);
        const float factor = exp2_fast(n.x - most);
        v.x += factor * x.x, v.y += factor * x.y, v.z += factor * x.z, v.w += factor * x.w;
        sum += factor * n.y;
      }
      write(e, v, sum);
    }
  }
};

template <class T, int Head, int Warps = 8>
__global__ void __launch_bounds__(decode_shape<Head, Warps>::threads, (decode_shape<Head, Warps>::resident))
    decode_kernel(const __grid_constant__ decode_maps maps, const __grid_constant__ decode_args<T> g) {
#if __CUDA_ARCH__ >= 900
  using shape = decode_shape<Head, Warps>;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  const decode_block<T, Head, Warps> block{maps,
                                           g,
                                           base,
                                           reinterpret_cast<float*>(raw + (base - at)),
                                           static_cast<int>(blockIdx.x),
                                           static_cast<int>(gridDim.x),
                                           static_cast<int>(blockIdx.z),
                                           static_cast<int>(blockIdx.y)};
  const auto span = block.own_span();  // asked for before the blocks of a cluster have found each other
  const auto known = block.look_up();
  if (threadIdx.x == 32 * shape::warps) ptx::bring(&maps.tile), ptx::bring(&maps.piece);
  block.start();
  if (threadIdx.x < 32 * shape::warps)
    block.consume(span, known);
  else if (threadIdx.x == 32 * shape::warps)
    block.produce(span);
#endif
}

}  // namespace graft::cuda
