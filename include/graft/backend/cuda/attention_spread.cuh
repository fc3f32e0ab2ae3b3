// SPDX-License-Identifier: Apache-2.0
// Attention of few rows over a long cache, sm_90: thread blocks, one to a processor, have equal pieces of the tiles of all
// rows and heads (attention_spread_list.cuh). However long one row is beside the others, every processor reads until the end.
//
// A piece may have the end of one row and head, some whole ones, and the beginning of another, and is gone through from its
// end. One warp asks for tiles (attention_decode_row.cuh), which come through the ring without a pause between rows; one
// brings what belongs to a row and head, ahead of its time: queries, angles, the row's own key and value. What is whole is
// written at once. Of what is cut, the block that has its end adds up what all blocks before it have left in device memory,
// in their order, with its own. It comes to that end last, the block ahead of it to its part first: mostly nobody waits, and
// who waits does so for blocks that were started earlier.
#pragma once
#include <graft/backend/cuda/attention_decode_row.cuh>
#include <graft/backend/cuda/attention_spread_list.cuh>

namespace graft::cuda {

template <class T, int Head> struct spread_block : decode_row<T, spread_shape<Head>> {
  using in_row = decode_row<T, spread_shape<Head>>;
  using shape = typename in_row::shape;
  using in_row::g, in_row::row, in_row::group, in_row::share;

  // What the n-th row and head of a block brings lies in one of four places, by turns: its numbers, queries, angles, its own
  // key and value.
  __device__ std::uint32_t is_full(int n) const { return this->behind_ring() + 8 * (n % brought_places); }
  __device__ std::uint32_t is_free(int n) const { return is_full(n) + 8 * brought_places; }
  __device__ std::uint32_t parts_here() const { return this->behind_ring() + 16 * brought_places; }
  __device__ std::uint32_t brought(int n) const {
    return this->own_row(false) + shape::own + n % brought_places * shape::brought;
  }
  __device__ std::uint32_t queries_of(int n) const { return brought(n) + 32; }
  __device__ std::uint32_t turns_of(int n) const { return queries_of(n) + most_decode_group * shape::query_pitch; }
  __device__ std::uint32_t own_of(int n, bool value) const {
    return turns_of(n) + shape::turns + (value ? 2 * Head : 0);
  }

  __device__ void make_barriers() const {
    this->make_ring();
    for (int n = 0; n < brought_places; ++n)
      ptx::barrier_init(is_full(n), 1), ptx::barrier_init(is_free(n), 32 * shape::warps);
    ptx::barrier_init(parts_here(), 1);
    ptx::barrier_init_fence();
  }

  // By one thread. Angles do not depend on the kernel ahead.
  __device__ void bring(int n, const spread_list::part& p, bool last, bool has_own, const float* angles) const {
    if (n >= brought_places) ptx::barrier_wait(is_free(n), (n / brought_places - 1) & 1);
    const auto flags = static_cast<std::uint32_t>((p.begins ? 1 : 0) + (p.ends ? 2 : 0) + (last ? 4 : 0));
    const auto number = [](int v) { return static_cast<std::uint32_t>(v); };
    ptx::store_shared(brought(n), make_uint4(number(row), number(group), flags, number(p.first_piece)));
    ptx::store_shared(brought(n) + 16,
                      make_uint4(number(p.span.first), number(p.span.end), number(p.span.from), number(p.span.to)));
    ptx::barrier_expect(is_full(n), share() * Head * 2 + (angles != nullptr ? 4 * Head : 0) + (has_own ? 4 * Head : 0));
    if (angles != nullptr) ptx::load_bytes(turns_of(n), angles, 4 * Head, is_full(n));
    if (n == 0) ptx::wait_for_previous_kernel();
#pragma unroll 1
    for (int h = 0; h < share(); ++h)
      ptx::load_bytes(queries_of(n) + h * shape::query_pitch, this->queries() + h * Head, 2 * Head, is_full(n));
    if (!has_own) return;
    ptx::load_bytes(own_of(n, false), g.k.at(row, static_cast<long long>(group) * Head), 2 * Head, is_full(n));
    ptx::load_bytes(own_of(n, true), g.v.at(row, static_cast<long long>(group) * Head), 2 * Head, is_full(n));
  }
  __device__ void load_queries(typename in_row::query_columns& q, int n, int lane) const {
    const std::uint32_t from = queries_of(n) + lane / 4 * shape::query_pitch + lane % 4 * 4;
#pragma unroll
    for (int k = 0; k < shape::steps; ++k)
#pragma unroll
      for (int h = 0; h < 2; ++h) q[k][h] = lane / 4 < share() ? ptx::load_shared(from + k * 32 + h * 16) : 0;
    if (g.angles != nullptr) this->turn_queries(q, turns_of(n), lane);
  }
  __device__ uint4 own_key(int n, int lane) const {
    constexpr int half = in_row::pieces / 2;
    const bool upper = lane >= half;
    const uint4 v = ptx::load_shared_uint4(own_of(n, false) + lane * 16);
    if (g.angles == nullptr) return v;
    const uint4 w = ptx::load_shared_uint4(own_of(n, false) + (upper ? lane - half : lane + half) * 16);
    const std::uint32_t angles = turns_of(n) + (upper ? lane - half : lane) * 32;
    const auto turn = [&](int i, std::uint32_t own, std::uint32_t other) {
      return this->turned(own, other, ptx::load_shared_float2(angles + i * 8),
                          ptx::load_shared_float2(angles + i * 8 + 2 * Head), upper ? 1 : -1);
    };
    return make_uint4(turn(0, v.x, w.x), turn(1, v.y, w.y), turn(2, v.z, w.z), turn(3, v.w, w.w));
  }

  // Sums of a head, then a largest score and a sum for each. A block leaves at most one part.
  __device__ float* left_by(int piece) const { return g.room + static_cast<long long>(piece) * share() * (Head + 4); }
  __device__ std::uint32_t* counter() const { return g.counters + row * g.groups + group; }
  __device__ void leave(int piece, int e, const float4& v, float most, float sum) const {
    float* const to = left_by(piece);
    __stcg(reinterpret_cast<float4*>(to + e), v);
    if (e % Head == 0) __stcg(reinterpret_cast<float2*>(to + share() * Head) + e / Head, make_float2(most, sum));
  }
  __device__ void say_that_it_is_left() const {
    __syncwarp();
    if (threadIdx.x >= 32) return ptx::named_arrive(2, 32 * shape::warps);
    ptx::named_barrier(2, 32 * shape::warps);
    if (threadIdx.x == 0) ptx::add_release(counter(), 1);
  }
  // By one thread of the block that has the end: `parts` others have theirs. Leaves the counter as it was.
  __device__ void wait_for_parts(int parts) const {
    while (ptx::load_acquire(counter()) < static_cast<std::uint32_t>(parts)) __nanosleep(32);
    *counter() = 0;
    ptx::barrier_arrive(parts_here());
  }
  __device__ void add_parts(int from, int to, int e, float4 own, float own_most, float own_sum) const {
    float most = -1e30F, sum = 0;
    float4 v = make_float4(0, 0, 0, 0);
    const auto add = [&](const float4& x, float x_most, float x_sum) {
      const float now = fmaxf(most, x_most), before = exp2_fast(most - now), factor = exp2_fast(x_most - now);
      v.x = v.x * before + factor * x.x, v.y = v.y * before + factor * x.y;
      v.z = v.z * before + factor * x.z, v.w = v.w * before + factor * x.w;
      sum = sum * before + factor * x_sum, most = now;
    };
    ptx::barrier_wait(parts_here(), 0);
#pragma unroll 8
    for (int p = from; p < to; ++p) {
      const float2 n = __ldcg(reinterpret_cast<const float2*>(left_by(p) + share() * Head) + e / Head);
      add(__ldcg(reinterpret_cast<const float4*>(left_by(p) + e)), n.x, n.y);
    }
    add(own, own_most, own_sum);
    this->write(e, v, sum);
  }
};

// What a thread block does with its piece: each of these by warps of their own.
template <class T, int Head> struct spread_piece {
  using block = spread_block<T, Head>;
  using shape = spread_shape<Head>;
  using places = typename block::places;

  const decode_maps& maps;
  const decode_args<T>& g;
  std::uint32_t base;
  float* memory;
  int piece;

  __device__ block of(int row, int group) const { return {{maps, g, base, memory, row, group}}; }

  __device__ void ask_for_tiles(const spread_list& list) const {
    const int from = list.begin(piece);
    ring_place stage[2] = {{1}, {1}};
    int ring = 0;
#pragma unroll 1
    for (int to = list.begin(piece + 1); to > from;) {
      const spread_list::part part = list.before(to, from);
      if (part.span.from % 2 != ring) {
        const ring_place was = stage[0];
        stage[0] = stage[1], stage[1] = was;
      }
      if (threadIdx.x % 32 == 0) of(part.row, part.group).produce(part.span, stage);
      __syncwarp();
      ring = part.span.to % 2, to = part.begin;
    }
  }
  __device__ void bring_rows(const spread_list& list, const places& known) const {
    const int lane = static_cast<int>(threadIdx.x % 32), from = list.begin(piece);
    if (!g.settled) ptx::wait_for_previous_kernel();
    long long positions[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (g.angles != nullptr && half * 32 + lane < g.spans.rows) positions[half] = g.positions[half * 32 + lane];
    int n = 0;
#pragma unroll 1
    for (int to = list.begin(piece + 1); to > from; ++n) {
      const spread_list::part part = list.before(to, from);
      const block here = of(part.row, part.group);
      const bool has_own = here.find_own(part.span, known, part.begins).warp >= 0;
      const long long position = list.of_row(positions, part.row);
      to = part.begin;
      if (lane == 0)
        here.bring(n, part, to == from, has_own, g.angles == nullptr ? nullptr : g.angles + position * Head);
      __syncwarp();
      if (to == from && part.ends && !part.begins && lane == 0) here.wait_for_parts(piece - part.first_piece);
    }
  }
  __device__ void read_rows(const places& known) const {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    ring_place now{0};
    bool last = false;
    ptx::wait_for_previous_kernel();
#pragma unroll 1
    for (int n = 0; !last; ++n) {
      ptx::barrier_wait(of(0, 0).is_full(n), (n / brought_places) & 1);
      const uint4 what = ptx::load_shared_uint4(of(0, 0).brought(n)),
                  keys = ptx::load_shared_uint4(of(0, 0).brought(n) + 16);
      const block here = of(static_cast<int>(what.x), static_cast<int>(what.y));
      const bool begins = (what.z & 1) != 0, ends = (what.z & 2) != 0;
      last = (what.z & 4) != 0;
      const decode_span span{static_cast<int>(keys.x), static_cast<int>(keys.y), static_cast<int>(keys.z),
                             static_cast<int>(keys.w)};
      typename block::query_columns q;
      here.load_queries(q, n, lane);
      ptx::read_before left(here.share());
#pragma unroll
      for (const auto& step : q) left.add(step[0]), left.add(step[1]);
      const auto own = here.find_own(span, known, begins);
      if (warp == own.warp && lane < block::pieces)
        here.append(own.place, here.own_key(n, lane), ptx::load_shared_uint4(here.own_of(n, true) + lane * 16), lane);
      __syncwarp();
      if (!g.settled && warp == ::max(0, own.warp)) {  // kernels that begin from now on find the cache written
        __threadfence();
        ptx::fence_async();
        __syncwarp();
        if (last) ptx::let_next_kernel_start();
      }
      left.arrive(here.is_free(n));
      if (g.settled && n == 0 && warp == 0) ptx::let_next_kernel_start();
      typename block::warp_sums sums;
      here.consume(q, span, known, last, now, sums);
      here.add_warps(sums, [&](int e, const float4& v, float most, float sum) {
        if (!ends) return here.leave(piece, e, v, most, sum);
        if (begins) return here.write(e, v, sum);
        here.add_parts(static_cast<int>(what.w), piece, e, v, most, sum);
      });
      if (!ends) here.say_that_it_is_left();
    }
  }
};

template <class T, int Head>
__global__ void __launch_bounds__(spread_shape<Head>::threads, 1)
    spread_kernel(const __grid_constant__ decode_maps maps, const __grid_constant__ decode_args<T> g) {
#if __CUDA_ARCH__ >= 900
  using shape = spread_shape<Head>;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  const spread_piece<T, Head> own{maps, g, base, reinterpret_cast<float*>(raw + (base - at) + shape::sums_at),
                                  static_cast<int>(blockIdx.x)};
  const spread_list list(g.spans, g.groups, static_cast<int>(gridDim.x));
  const auto known = own.of(0, 0).look_up();
  if (own.piece >= list.pieces()) return;
  if (threadIdx.x == 32 * shape::warps) ptx::bring(&maps.tile), ptx::bring(&maps.piece);
  if (threadIdx.x == 0) own.of(0, 0).make_barriers();
  __syncthreads();
  if (threadIdx.x < 32 * shape::warps)
    own.read_rows(known);
  else if (threadIdx.x < 32 * (shape::warps + 1))
    own.ask_for_tiles(list);
  else
    own.bring_rows(list, known);
#endif
}

}  // namespace graft::cuda
