// SPDX-License-Identifier: Apache-2.0
// gemm: many tokens, sm_90a. y = post(x Wᵀ + (x Aᵀ) Bᵀ) by a persistent kernel of thread block pairs that share each
// tile of W.
//
// A block computes tiles of 128 x TileN, 64 deep per step. Warpgroup 0 produces: one thread fills a ring of stages by
// tensor copies; warpgroups 1 and 2 consume 64 rows each. The side branch is an extension of the inner axis,
// [x | S] · [W | B]ᵀ with S = x Aᵀ:
//   Rank = 0   S comes from an earlier launch (or there is no side branch): `extra` more steps read S and B instead of x, W.
//   Rank > 0   S is made on the way, in the same launch. The first `owners` tiles of each row of tiles multiply their part
//              of the inner axis with A as well and publish the partial sums; the idle warps of warpgroup 0 add them up in
//              a fixed order, round them and bring S to every tile of the row before its last step.
//   Pre        no side branch, but a factor for each column of x.
//   Across     W is stored [in, out], and read as it lies: dx = dy W with the weight of the forward product.
//   Acts       the post slot may have an activation; without, the code is shorter.
// Phases of a consumer: wait for a stage, issue its products, release the stage before; then the extension; then post,
// with a residual that comes through the ring, shared memory and a tensor store. On entry to a tile the accumulators are
// undefined, on exit all stages are released.
#pragma once
#include <graft/backend/cuda/gemm_pre.cuh>
#include <graft/backend/cuda/gemm_residual.cuh>
#include <graft/backend/cuda/gemm_side.cuh>
#include <graft/backend/cuda/gemm_write.cuh>
#include <graft/backend/cuda/wgmma.cuh>

#include <type_traits>

namespace graft::cuda {

template <class T, int TileN, class Block> struct tile_turn;  // gemm_turn.cuh

template <class T, int TileN, int Rank, bool Pre, bool Across, class Sides, bool Acts> struct gemm_block {
  static_assert(!Pre || Rank == 0);
  using shape = gemm_shape<TileN, Rank>;
  static constexpr int held = Rank > 0 ? Rank : 16;  // keeps the arrays of the plain kernel well formed

  const gemm_maps& maps;
  const gemm_args& g;
  std::uint32_t base, rank;
  int k_steps, tiles, first, stride;
  Sides sides;

  __device__ std::uint32_t full(int q) const { return base + shape::barriers + 8 * q; }
  __device__ std::uint32_t empty(int q) const { return full(shape::stages + q); }
  __device__ std::uint32_t slice_stored() const { return full(2 * shape::stages); }
  __device__ std::uint32_t s_ready() const { return slice_stored() + 8; }
  __device__ std::uint32_t s_read() const { return slice_stored() + 16; }
  __device__ std::uint32_t stage(int q) const { return base + q * shape::stage; }

  __device__ void start() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < shape::stages; ++i) {
        ptx::barrier_init(full(i), 1);
        ptx::barrier_init(empty(i), 4);  // two warpgroups of two blocks
      }
      ptx::barrier_init(slice_stored(), 256);
      ptx::barrier_init(s_ready(), helpers);
      ptx::barrier_init(s_read(), 256);
      ptx::barrier_init_fence();
    }
    ptx::cluster_sync();
    ptx::let_next_kernel_start();
  }

  // A tile of W that lies across is cut into boxes of 64 x 64.
  static constexpr std::uint32_t across_box = 64 * 128;
  static constexpr int next_k = Across ? 128 : 2;  // sixteen inner elements further, in a descriptor of W
  __device__ static std::uint64_t w_descriptor(std::uint32_t at) {
    return Across ? across_descriptor(at, across_box) : tile_descriptor(at);
  }

  // More would only stand in the way of the first x.
  static constexpr int weights_ahead = 2;

  // ---- producer: one thread -----------------------------------------------------------------------------------------
  __device__ void produce() {
    int q = 0;
    std::uint32_t phase = 1;
    auto advance = [&] {
      if (++q == shape::stages) q = 0, phase ^= 1;
    };
    for (int t = first; t < tiles; t += stride) {
      const tile_place at = g.place(t, rank);
      const k_slice mine = g.slice(at.n_tile, k_steps);
      const bool owner = Rank > 0 && at.n_tile < g.owners;
      const typename Sides::loads side = sides.of(g, at.m_block);
      const int begin = owner ? mine.start : 0;
      auto with_a = [&](int s) { return owner && s >= mine.from && s < mine.to; };
      auto load_w = [&](int s, int to) {
        const int k = begin + s < k_steps ? begin + s : begin + s - k_steps;
        ptx::barrier_expect(full(to), shape::x + shape::w + (with_a(s) ? side.a_bytes() : 0));
        const std::uint32_t half = stage(to) + shape::x + rank * (shape::w / 2);
        const int column = at.n_tile * TileN + rank * (TileN / 2);
        if constexpr (Across) {
#pragma unroll
          for (int i = 0; i < TileN / 128; ++i)
            ptx::load_tile_multicast(half + i * across_box, &maps.w, column + i * 64, k * 64, full(to), 3);
        } else {
          ptx::load_tile_multicast(half, &maps.w, k * 64, column, full(to), 3);
        }
      };
      int early = 0;  // the first weights depend on no kernel before
      if (t == first) {
        for (; early < weights_ahead && early < k_steps; ++early) load_w(early, early);
        ptx::wait_for_previous_kernel();
      }
      for (int s = 0; s < k_steps; ++s) {
        const int k = begin + s < k_steps ? begin + s : begin + s - k_steps;
        if (s >= early) ptx::barrier_wait(empty(q), phase), load_w(s, q);
        ptx::load_tile(stage(q), &maps.x, k * 64, at.m_block * 128, full(q));
        if (with_a(s)) side.load_a(stage(q) + shape::x + shape::w, k, full(q));
        advance();
      }
      constexpr bool b_alone = Rank > 0 || Sides::turns;
      const int extra = b_alone ? 1 : g.extra;
      for (int s = 0; s < extra; ++s) {
        ptx::barrier_wait(empty(q), phase);
        ptx::barrier_expect(full(q), side.b_bytes() + (b_alone ? 0 : 128 * g.side_pitch()));
        if (!b_alone) ptx::load_tile(stage(q), &maps.s, s * 64, at.m_block * 128, full(q));
        side.load_b(stage(q) + shape::x, s, at.n_tile, rank, full(q));
        advance();
      }
      for (int chunk = 0; g.residual != nullptr && chunk < TileN / 64; chunk += shape::more_in_stage) {
        const int left = TileN / 64 - chunk, count = left < shape::more_in_stage ? left : shape::more_in_stage;
        ptx::barrier_wait(empty(q), phase);
        ptx::barrier_expect(full(q), count * shape::more);
        for (int i = 0; i < count; ++i)
          ptx::load_tile(stage(q) + i * shape::more, &maps.residual, at.n_tile * TileN + (chunk + i) * 64,
                         at.m_block * 128, full(q));
        advance();
      }
    }
  }

  // ---- helpers: three warps -----------------------------------------------------------------------------------------
  static constexpr int helpers = 96;
  static constexpr int block_quads = 128 * held / 4;

  // Adds up this block's share of the partial sums, always in the order of the owners, and writes S.
  __device__ void reduce(const tile_place& at, int thread) {
    const int quads = block_quads / g.owners;
    const float4* from = reinterpret_cast<const float4*>(g.partial) +
                         static_cast<long long>(at.m_block) * g.owners * block_quads + at.n_tile * quads;
    T* s = static_cast<T*>(g.s);
#pragma unroll 1
    for (int e = thread; e < quads; e += helpers) {
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
      for (int j = 0; j < g.owners; j += 4) {
        float4 v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = __ldcg(from + static_cast<long long>(j + i) * block_quads + e);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.x += v[i].x, sum.y += v[i].y, sum.z += v[i].z, sum.w += v[i].w;
      }
      const long long to = static_cast<long long>(at.m_block) * 128 * held + (at.n_tile * quads + e) * 4;
      const int row = static_cast<int>(to / held), column = static_cast<int>(to % held);
      if (row < g.m && !sides.has(row, column)) sum = make_float4(0, 0, 0, 0);
      if (to < static_cast<long long>(g.m) * held)
        *reinterpret_cast<uint2*>(s + to) = make_uint2(pack<T>(sum.x, sum.y), pack<T>(sum.z, sum.w));
    }
  }
  // The rows of S that belong to this block of 128 tokens, into shared memory.
  __device__ void fetch(const tile_place& at, int thread) {
    const T* s = static_cast<const T*>(g.s);
    constexpr int pieces = 128 * held / 8, in_flight = 4;
#pragma unroll 1
    for (int e0 = thread; e0 < pieces; e0 += helpers * in_flight) {
      uint4 v[in_flight];
#pragma unroll
      for (int i = 0; i < in_flight; ++i) {
        const int e = e0 + helpers * i, row = e / (held / 8), col = e % (held / 8) * 8;
        v[i] = make_uint4(0, 0, 0, 0);
        if (e < pieces && at.m_block * 128 + row < g.m)
          v[i] =
              __ldcg(reinterpret_cast<const uint4*>(s + static_cast<long long>(at.m_block * 128 + row) * held + col));
      }
#pragma unroll
      for (int i = 0; i < in_flight; ++i) {
        const int e = e0 + helpers * i, row = e / (held / 8), col = e % (held / 8) * 8;
        if (e < pieces) ptx::store_shared(base + shape::s_at + row * shape::s_pitch + col * 2, v[i]);
      }
    }
  }
  __device__ void help() {
    const int helper = threadIdx.x - 32;
    std::uint32_t slice_phase = 0, s_phase = 1;
    ptx::wait_for_previous_kernel();  // it may be this layer's: then the counters are its own until it ends
    for (int t = first; t < tiles; t += stride) {
      const tile_place at = g.place(t, rank);
      std::uint32_t* published = g.counters + at.m_block * 4;
      int thread = helper;
      asm volatile("" : "+r"(thread));  // keeps the addresses below out of the loop's invariants, where they spilled
      const bool owner = at.n_tile < g.owners;
      if (owner) {
        ptx::barrier_wait(slice_stored(), slice_phase), slice_phase ^= 1;
        if (helper == 0) sides.note(at.m_block);  // the tile before has been multiplied
        if (helper == 0) {
          ptx::add_acquire_release(published, 1);  // releases the consumers' stores as well: it is cumulative
          while (ptx::load_acquire(published) != static_cast<std::uint32_t>(g.owners)) __nanosleep(20);
        }
        ptx::named_barrier(1, helpers);
        reduce(at, thread);
        ptx::named_barrier(1, helpers);
        if (helper == 0) ptx::add_acquire_release(published + 1, 1);
      }
      if (helper == 0)
        while (ptx::load_acquire(published + 1) != static_cast<std::uint32_t>(g.owners)) __nanosleep(20);
      ptx::named_barrier(1, helpers);
      ptx::barrier_wait(s_read(), s_phase), s_phase ^= 1;
      if (helper == 0 && !owner) sides.note(at.m_block);
      fetch(at, thread);
      ptx::barrier_arrive(s_ready());
      // The last tile of the row leaves the counters as it found them: zero, for the next launch or replay.
      const int users = g.n_tiles() + (at.m_block * 128 < g.m ? g.watchers : 0);
      if (helper == 0 && ptx::add_acquire_release(published + 2, 1) == static_cast<std::uint32_t>(users) - 1)
        published[0] = published[1] = published[2] = 0;
    }
  }

  // ---- consumers: two warpgroups ------------------------------------------------------------------------------------
  using consumer = gemm_consumer;
  template <bool Turns>
  using way_out = std::conditional_t<Turns, tile_turn<T, TileN, gemm_block>, tile_residual<T, TileN, gemm_block>>;
  __device__ __forceinline__ void release(const consumer& c, int q) const {
    if (c.thread < 2) ptx::barrier_arrive_at(empty(q), c.thread);
  }
  __device__ __forceinline__ std::uint32_t next_stage(const consumer& c) const {
    ptx::barrier_wait(full(c.q), c.phase);
    return stage(c.q);
  }
  // One group of products stays in flight; the stage before it is free.
  __device__ __forceinline__ void finish_step(consumer& c) const {
    wgmma_commit();
    wgmma_wait<1>();
    if (c.before >= 0) release(c, c.before);
    c.before = c.q;
    ++c.step;
    if (++c.q == shape::stages) c.q = 0, c.phase ^= 1;
  }
  template <bool Shrink>
  __device__ __forceinline__ void k_step(consumer& c, float (&acc)[TileN / 2], float (&s)[held / 2],
                                         bool first_shrink) const {
    const std::uint32_t at = next_stage(c);
    const std::uint64_t x = tile_descriptor(at + c.group * 64 * 128), w = w_descriptor(at + shape::x),
                        a = tile_descriptor(at + shape::x + shape::w);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
      wgmma<T, TileN>::template shared<false, Across>(acc, x + 2 * kk, w + next_k * kk, c.step > 0 || kk > 0);
      if constexpr (Shrink) wgmma<T, held>::shared(s, x + 2 * kk, a + 2 * kk, !(first_shrink && kk == 0));
    }
    finish_step(c);
  }
  // A step on x ⊙ pre: x goes through registers, and the next one is brought there while this one is multiplied.
  __device__ __forceinline__ void scaled_step(consumer& c, float (&acc)[TileN / 2], const scaled_input<T>& now,
                                              scaled_input<T>& next) const {
    const int q = c.q;
    const std::uint64_t w = w_descriptor(stage(q) + shape::x);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; ++kk)
      wgmma<T, TileN>::template registers<Across>(acc, now.x[kk], w + next_k * kk, c.step > 0 || kk > 0);
    wgmma_commit();
    ++c.step;
    if (++c.q == shape::stages) c.q = 0, c.phase ^= 1;
    if (c.step < k_steps) next.load(next_stage(c), c), next.load_factors(g.slot.pre, c, c.step + 2);
    wgmma_wait<0>();
    release(c, q);
  }
  __device__ __forceinline__ void scaled_steps(consumer& c, float (&acc)[TileN / 2]) const {
    scaled_input<T> even, odd;
    even.load_factors(g.slot.pre, c, 0), odd.load_factors(g.slot.pre, c, 1);
    even.load(next_stage(c), c), even.load_factors(g.slot.pre, c, 2);
    while (true) {
      scaled_step(c, acc, even, odd);
      if (c.step == k_steps) return;
      scaled_step(c, acc, odd, even);
      if (c.step == k_steps) return;
    }
  }
  // A step on S and B, which are `deep` times 16 wide.
  __device__ __forceinline__ void side_step(consumer& c, float (&acc)[TileN / 2], int deep) const {
    const std::uint32_t at = next_stage(c), pitch = g.side_pitch();
    const std::uint64_t s = tile_descriptor(at + c.group * 64 * pitch, pitch),
                        b = tile_descriptor(at + shape::x, pitch);
    for (int kk = 0; kk < deep; ++kk) {
      wgmma_fence();
      wgmma<T, TileN>::shared(acc, s + 2 * kk, b + 2 * kk, true);
      wgmma_commit();
      wgmma_wait<0>();
    }
    finish_step(c);
  }
  // An owner's tile up to the publication of its part of S; the step after the slice is already in flight.
  __device__ __forceinline__ void shrink(consumer& c, float (&acc)[TileN / 2], const tile_place& at) const {
    const k_slice mine = g.slice(at.n_tile, k_steps);
    float s[held / 2];
    while (c.step < mine.from) k_step<false>(c, acc, s, false);
    while (c.step < mine.to) k_step<true>(c, acc, s, c.step == mine.from);
    if (c.step < k_steps)
      k_step<false>(c, acc, s, false);
    else
      wgmma_wait<0>();
    float* to = g.partial + (static_cast<long long>(at.m_block) * g.owners + at.n_tile) * 128 * held;
    const int row = c.group * 64 + c.warp * 16 + c.lane / 4, col = (c.lane % 4) * 2;
#pragma unroll
    for (int j = 0; j < held / 8; ++j) {
      *reinterpret_cast<float2*>(to + row * held + j * 8 + col) = make_float2(s[4 * j], s[4 * j + 1]);
      *reinterpret_cast<float2*>(to + (row + 8) * held + j * 8 + col) = make_float2(s[4 * j + 2], s[4 * j + 3]);
    }
    ptx::barrier_arrive(slice_stored());
  }
  // The last step of a tile with a side branch of its own: S from shared memory through registers.
  __device__ __forceinline__ void expand(consumer& c, float (&acc)[TileN / 2]) const {
    ptx::barrier_wait(s_ready(), c.s_phase), c.s_phase ^= 1;
    const std::uint32_t from =
        base + shape::s_at + (c.group * 64 + c.warp * 16 + c.lane / 4) * shape::s_pitch + (c.lane % 4) * 4;
    std::uint32_t s[held / 16][4], noted[held / 16];
#pragma unroll
    for (int kk = 0; kk < held / 16; ++kk) {
      noted[kk] = sides.noted(kk);
      s[kk][0] = ptx::load_shared(from + kk * 32), s[kk][1] = ptx::load_shared(from + kk * 32 + 8 * shape::s_pitch);
      s[kk][2] = ptx::load_shared(from + kk * 32 + 16);
      s[kk][3] = ptx::load_shared(from + kk * 32 + 16 + 8 * shape::s_pitch);
    }
    ptx::barrier_arrive(s_read());
    const std::uint32_t b = next_stage(c) + shape::x;
    if (sides.brought(noted[0])) {
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < held / 16; ++kk)
        wgmma<T, TileN>::registers(acc, s[kk], sides.b_columns(b, kk, noted[kk]), true);
    }
    finish_step(c);
  }
  __device__ void consume() {
    consumer c{static_cast<int>(threadIdx.x / 128) - 1, static_cast<int>(threadIdx.x % 128),
               static_cast<int>(threadIdx.x / 32 % 4), static_cast<int>(threadIdx.x % 32)};
    const post_slot<T> post{g.slot.scale, g.slot.shift, static_cast<const T*>(g.residual), g.act, g.m, g.n};
    for (int t = first; t < tiles; t += stride) {
      const tile_place at = g.place(t, rank);
      float acc[TileN / 2], none[held / 2];
      c.step = 0, c.before = -1;
      if constexpr (Rank > 0)
        if (at.n_tile < g.owners) shrink(c, acc, at);
      if constexpr (Pre) scaled_steps(c, acc);
      while (c.step < k_steps) k_step<false>(c, acc, none, false);
      if constexpr (Rank > 0)
        expand(c, acc);
      else if constexpr (!Pre && !Sides::turns)
        for (int s = 0; s < g.extra; ++s) side_step(c, acc, s + 1 < g.extra ? 4 : g.rank / 16 - 4 * s);
      const tile_writer<T, TileN, shape, Acts> write{maps.y, maps.before, g.stores_before, post, base + shape::out,
                                                     c,      at};
      column_values<shape::round> scale;  // asked for before they are needed
      if (post.scale != nullptr) write.load(scale, post.scale, 0);
      wgmma_wait<0>();
      if (!Pre) release(c, c.before);
      sides.finish(acc, c, at);
      write(acc, scale, way_out<Sides::turns>{*this, c});
    }
    if (c.thread == 0) ptx::stores_done();
  }
};

// The tiles of a launch, by thread block `number` of so many.
template <class T, int TileN, int Rank, bool Pre, bool Across, class Sides = one_side<TileN, Rank>, bool Acts = true>
__device__ __forceinline__ void run_tiles(const gemm_maps& maps, const gemm_args& g, std::uint32_t base, int number,
                                          int blocks, const Sides& sides = {}) {
  gemm_block<T, TileN, Rank, Pre, Across, Sides, Acts> block{
      maps, g, base, ptx::cluster_rank(), (g.k + 63) / 64, g.m_pairs() * g.n_tiles(), number / 2, blocks / 2, sides};
  block.start();
  if (threadIdx.x < 128) {
    ptx::give_registers<(Rank > 0 ? 56 : 40)>();
    if (threadIdx.x == 0)
      block.produce();
    else if (Rank > 0 && threadIdx.x >= 32)
      block.help();
  } else {
    ptx::take_registers<(Rank > 0 ? 224 : 232)>();
    block.consume();
  }
  ptx::cluster_sync();  // nobody leaves while the other block may still write into its shared memory
}
template <class T, int TileN, int Rank, bool Pre, bool Across>
__global__ void __launch_bounds__(384, 1)
    gemm_kernel(const __grid_constant__ gemm_maps maps, const __grid_constant__ gemm_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  run_tiles<T, TileN, Rank, Pre, Across>(maps, g, (ptx::shared_address(raw) + 1023) & ~1023U,
                                         static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
#endif
}

}  // namespace graft::cuda
