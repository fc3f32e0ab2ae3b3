// SPDX-License-Identifier: Apache-2.0
// GEMM for many tokens with low-rank branch and epilogue, sm_90a: persistent, warp-specialized, TMA and wgmma.
//
//   y = epilogue(prologue(x) Wᵀ + U Bᵀ)    U = x Aᵀ [m, rank], the shrink result
//   x [m, k]    W [n, k] (NT) or [k, n] (NN: dx = dy W)    y [m, n]    A [rank, k]    B [n, rank]
//
// Tiles        A cluster of two CTAs computes 256 x TileN of y (TileN is 128 or 256), 64 of k per stage. Each
//              block has 128 rows; it loads its own x tile and half of the W tile, which it multicasts to both blocks.
// Work split   Cluster i takes tiles i, i + clusters, …; grouped_raster in tile_order.h orders the tiles for reuse in
//              L2.
// Pipeline     Stages of x, W and A; after the mainloop the same stages bring B or R, and the residual. A stage is
//              released to both blocks of the cluster, one group of products after it was read.
// Warp roles   Warp 0: one producer thread issues all TMA loads. Warps 1 to 3, where Rank > 0: helpers that reduce and
//              fetch U. Warpgroups 1 and 2: consumers of 64 rows each, wgmma m64nTileNk16 and the epilogue.
// Branch       U Bᵀ extends the K loop, [x | U] · [W | B]ᵀ. With Rank = 0 an earlier launch computed U, and
//              gemm_args::branch_steps further k steps read U and B, none without a branch. With Rank > 0 this launch computes U: the
//              first `owners` tiles of each row of tiles also multiply a slice of k with A and publish partial sums,
//              their helpers reduce these, round to T and store U, and the helpers of every tile of the row copy U to
//              shared memory before the last step.
// Variants     Prologue: a factor per column of x, only with Rank = 0. HasActivation = false: shorter code.
// Phases       Per tile of a consumer. Mainloop: wait for a stage, issue its products, release the preceding stage; on
//              entry the accumulators are undefined. Expand: the branch. Epilogue (sm90_epilogue.cuh): the residual
//              comes through the pipeline, the result leaves through shared memory and TMA stores; on exit all stages
//              of the tile are released.
// Reduction    Partial sums of U are added in the order of the owners: results are bitwise deterministic.
// Deadlock     A tile waits for owner tiles at most (owners - 1) * group positions away; owners_are_resident() in
//              dispatch/gemm.h ensures that they run at the same time, and the launch is cooperative unless
//              gemm_operands::exclusive.
// Measured     H200, 4096 x 4096 x 4096, LoRA r16: 174 µs; the bare product by cuBLASLt: 169 µs (docs/performance.md).
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/arch/wgmma.cuh>
#include <graft/backend/gpu/kernels/gemm/sm90_epilogue.cuh>
#include <graft/backend/gpu/kernels/gemm/sm90_layout.h>
#include <graft/backend/gpu/tile/epilogue.cuh>
#include <graft/backend/gpu/tile/exchange.cuh>
#include <graft/backend/gpu/tile/pipeline.cuh>

#include <type_traits>

namespace graft::gpu {

// Loads A and B of the low-rank branch: one adapter for all tokens. multi_lora_branch_loader (kernels/multi_lora/
// gemm_sm90.cuh) and rotation_loader (sm90_fused_rotation.cuh) replace it with the same members.
template <int TileN, int Rank> struct single_branch_loader {
  static constexpr bool rotates = false;  // the stage after the mainloop holds B, not a rotation R
  // TMA copies of a 128-token block. Each block of the cluster multicasts half of B to both.
  struct loads {
    const gemm_args& g;

    __device__ std::uint32_t a_bytes() const { return Rank * 128; }
    __device__ void load_a(std::uint32_t to, int k, std::uint32_t bar) const {
      ptx::load_bulk(to, static_cast<const char*>(g.adapter.a_tiles) + static_cast<long long>(k) * a_bytes(), a_bytes(),
                     bar);
    }
    __device__ int pitch() const { return Rank > 0 ? 2 * Rank : g.branch_pitch(); }
    __device__ std::uint32_t b_bytes() const { return TileN * pitch(); }
    __device__ void load_b(std::uint32_t to, int slab, int n_tile, std::uint32_t half, std::uint32_t bar) const {
      const long long row = n_tile * TileN + half * (TileN / 2);
      ptx::load_bulk_multicast(to + half * (TileN / 2) * pitch(),
                               static_cast<const char*>(g.adapter.b_tiles) + (slab * padded_rows(g.n) + row) * pitch(),
                               TileN / 2 * pitch(), bar, 3);
    }
  };
  __device__ loads of(const gemm_args& g, int) const { return {g}; }

  // For the helper warps. set_branches() publishes the adapters of a token block to the consumers; has() says whether
  // column c of U exists for a token.
  __device__ void set_branches(int) const {}
  __device__ bool has(int, int) const { return true; }

  // For the consumers: whether a tile has a branch, the descriptor of sixteen columns of B in a stage, and per-token
  // factors after the mainloop.
  __device__ std::uint32_t branch_offset(int) const { return 0; }
  __device__ bool has_branch(std::uint32_t) const { return true; }
  __device__ std::uint64_t b_columns(std::uint32_t at, int chunk, std::uint32_t) const {
    return tile_descriptor(at, 2 * Rank) + 2 * chunk;
  }
  template <int N> __device__ void finish(float (&)[N], const gemm_consumer&, const tile_coord&) const {}
};

// Prologue x ⊙ factor: a thread's wgmma A fragments of a 64 x 64 tile of x, for the four k16 products of one k step,
// scaled in registers. The factors of a step are loaded two steps ahead.
template <class T> struct scaled_x {
  std::uint32_t x[4][4], factor[8];

  __device__ __forceinline__ void load_factors(const void* prologue, const gemm_consumer& c, int step) {
    const auto* from = static_cast<const std::uint32_t*>(prologue) + step * 32 + c.lane % 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) factor[i] = __ldg(from + 4 * i);
  }
  // `tile` has 128 rows of x in shared memory; this warpgroup takes 64 of them.
  __device__ __forceinline__ void load(std::uint32_t tile, const gemm_consumer& c) {
    const int row = c.warp * 16 + c.lane % 16;
#pragma unroll
    for (int kk = 0; kk < 4; ++kk)
      ptx::load_matrix(x[kk], tile + (c.group * 64 + row) * 128 + (((2 * kk + c.lane / 16) ^ (row & 7)) << 4));
#pragma unroll
    for (int e = 0; e < 16; ++e) x[e / 4][e % 4] = times<T>(x[e / 4][e % 4], factor[e / 4 * 2 + e % 4 / 2]);
  }
};

template <class T, int TileN, class Block> struct tile_rotation;  // sm90_fused_rotation.cuh

template <class T, int TileN, int Rank, bool Prologue, bool WeightNN, class BranchLoader, bool HasActivation>
struct gemm_cta {
  static_assert(!Prologue || Rank == 0);
  using shape = gemm_shape<TileN, Rank>;
  static constexpr int shrink_columns = Rank > 0 ? Rank : 16;  // 16 keeps unused arrays well-formed where Rank = 0

  const gemm_maps& maps;
  const gemm_args& g;
  std::uint32_t base, rank;
  int k_steps, tiles, first, stride;
  BranchLoader branch_loader;

  __device__ pipeline ring() const { return {base + shape::barriers, shape::stages}; }
  __device__ std::uint32_t slice_stored() const { return base + shape::barriers + pipeline::bytes(shape::stages); }
  __device__ pipeline u_ring() const { return {slice_stored() + 8, 1}; }  // U of a tile, from the helpers
  __device__ std::uint32_t stage(int q) const { return base + q * shape::stage; }

  __device__ void start() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < shape::stages; ++i) ring().init(i, 1, 4);  // released by two warpgroups of two blocks
      ptx::barrier_init(slice_stored(), 256);
      u_ring().init(0, helpers, 256);
      ptx::barrier_init_fence();
    }
    ptx::cluster_sync();
    ptx::launch_dependents();
  }

  // An NN (MN-major) tile of W consists of boxes of 64 x 64.
  static constexpr std::uint32_t nn_box_bytes = 64 * 128;
  static constexpr int next_k = WeightNN ? 128 : 2;  // descriptor increment of W for the next sixteen elements of k
  __device__ static std::uint64_t w_descriptor(std::uint32_t at) {
    return WeightNN ? mn_major_descriptor(at, nn_box_bytes) : tile_descriptor(at);
  }

  // Stages of W requested before griddepcontrol.wait. A deeper prefetch would delay the first x tile.
  static constexpr int prefetched_weight_stages = 2;

  // ---- producer: one thread -----------------------------------------------------------------------------------------
  __device__ void produce() {
    pipeline_state to = pipeline_state::producer();
    for (int t = first; t < tiles; t += stride) {
      const tile_coord at = g.tile_at(t, rank);
      const k_slice mine = g.slice(at.n_tile, k_steps);
      const bool owner = Rank > 0 && at.n_tile < g.owners;
      const typename BranchLoader::loads branch = branch_loader.of(g, at.m_block);
      const int begin = owner ? mine.start : 0;
      auto with_a = [&](int s) { return owner && s >= mine.from && s < mine.to; };
      auto load_w = [&](int s, int q) {
        const int k = begin + s < k_steps ? begin + s : begin + s - k_steps;
        const std::uint32_t full = ring().producer_commit(q, shape::x + shape::w + (with_a(s) ? branch.a_bytes() : 0));
        const std::uint32_t half = stage(q) + shape::x + rank * (shape::w / 2);
        const int column = at.n_tile * TileN + rank * (TileN / 2);
        if constexpr (WeightNN) {
#pragma unroll
          for (int i = 0; i < TileN / 128; ++i)
            ptx::load_tile_multicast(half + i * nn_box_bytes, &maps.w, column + i * 64, k * 64, full, 3);
        } else {
          ptx::load_tile_multicast(half, &maps.w, k * 64, column, full, 3);
        }
      };
      int early = 0;  // weights are not written by the preceding kernel, so they may be read before the wait
      if (t == first) {
        for (; early < prefetched_weight_stages && early < k_steps; ++early) load_w(early, early);
        ptx::wait_for_dependency();
      }
      for (int s = 0; s < k_steps; ++s) {
        const int k = begin + s < k_steps ? begin + s : begin + s - k_steps;
        if (s >= early) ring().producer_acquire(to), load_w(s, to.stage);
        ptx::load_tile(stage(to.stage), &maps.x, k * 64, at.m_block * 128, ring().full(to.stage));
        if (with_a(s)) branch.load_a(stage(to.stage) + shape::x + shape::w, k, ring().full(to.stage));
        to.advance(shape::stages);
      }
      constexpr bool b_alone = Rank > 0 || BranchLoader::rotates;
      const int branch_steps = b_alone ? 1 : g.branch_steps;
      for (int s = 0; s < branch_steps; ++s) {
        ring().producer_acquire(to);
        const std::uint32_t full =
            ring().producer_commit(to.stage, branch.b_bytes() + (b_alone ? 0 : 128 * g.branch_pitch()));
        if (!b_alone) ptx::load_tile(stage(to.stage), &maps.u, s * 64, at.m_block * 128, full);
        branch.load_b(stage(to.stage) + shape::x, s, at.n_tile, rank, full);
        to.advance(shape::stages);
      }
      for (int chunk = 0; g.residual != nullptr && chunk < TileN / 64; chunk += shape::residual_chunks_per_stage) {
        const int left = TileN / 64 - chunk,
                  count = left < shape::residual_chunks_per_stage ? left : shape::residual_chunks_per_stage;
        ring().producer_acquire(to);
        const std::uint32_t full = ring().producer_commit(to.stage, count * shape::residual_chunk);
        for (int i = 0; i < count; ++i)
          ptx::load_tile(stage(to.stage) + i * shape::residual_chunk, &maps.residual,
                         at.n_tile * TileN + (chunk + i) * 64, at.m_block * 128, full);
        to.advance(shape::stages);
      }
    }
  }

  // ---- helpers: three warps, Rank > 0 only --------------------------------------------------------------------------
  static constexpr int helpers = 96;
  static constexpr int block_quads = 128 * shrink_columns / 4;

  // Reduces this owner's 1/owners of the [128, Rank] partial sums, in the order of the owners, and stores U (`s`).
  __device__ void reduce(const tile_coord& at, int thread) {
    const int quads = block_quads / g.owners;
    const float4* from = reinterpret_cast<const float4*>(g.partial) +
                         static_cast<long long>(at.m_block) * g.owners * block_quads + at.n_tile * quads;
    T* u = static_cast<T*>(g.u);
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
      const long long to = static_cast<long long>(at.m_block) * 128 * shrink_columns + (at.n_tile * quads + e) * 4;
      const int row = static_cast<int>(to / shrink_columns), column = static_cast<int>(to % shrink_columns);
      if (row < g.m && !branch_loader.has(row, column)) sum = make_float4(0, 0, 0, 0);
      if (to < static_cast<long long>(g.m) * shrink_columns)
        *reinterpret_cast<uint2*>(u + to) = make_uint2(pack<T>(sum.x, sum.y), pack<T>(sum.z, sum.w));
    }
  }
  // Copies the rows of U for this block of 128 tokens to shared memory.
  __device__ void fetch(const tile_coord& at, int thread) {
    const T* u = static_cast<const T*>(g.u);
    constexpr int vectors = 128 * shrink_columns / 8, in_flight = 4;
#pragma unroll 1
    for (int e0 = thread; e0 < vectors; e0 += helpers * in_flight) {
      uint4 v[in_flight];
#pragma unroll
      for (int i = 0; i < in_flight; ++i) {
        const int e = e0 + helpers * i, row = e / (shrink_columns / 8), col = e % (shrink_columns / 8) * 8;
        v[i] = make_uint4(0, 0, 0, 0);
        if (e < vectors && at.m_block * 128 + row < g.m)
          v[i] = __ldcg(reinterpret_cast<const uint4*>(
              u + static_cast<long long>(at.m_block * 128 + row) * shrink_columns + col));
      }
#pragma unroll
      for (int i = 0; i < in_flight; ++i) {
        const int e = e0 + helpers * i, row = e / (shrink_columns / 8), col = e % (shrink_columns / 8) * 8;
        if (e < vectors) ptx::store_shared(base + shape::u_at + row * shape::u_pitch + col * 2, v[i]);
      }
    }
  }
  __device__ void help() {
    const int helper = threadIdx.x - 32;
    std::uint32_t slice_phase = 0;
    pipeline_state u = pipeline_state::producer();
    ptx::wait_for_dependency();  // the preceding kernel may use the same counters until it ends
    for (int t = first; t < tiles; t += stride) {
      const tile_coord at = g.tile_at(t, rank);
      std::uint32_t* published = g.counters + at.m_block * 4;
      const arrival_counter stored{published}, reduced{published + 1};
      int thread = helper;
      ptx::keep(thread);  // prevents hoisting of the addresses below, which would spill registers
      const bool owner = at.n_tile < g.owners;
      if (owner) {
        ptx::barrier_wait(slice_stored(), slice_phase), slice_phase ^= 1;
        if (helper == 0) branch_loader.set_branches(at.m_block);  // consumers have finished the preceding tile
        if (helper == 0) {
          stored.arrive_acquire();
          stored.wait_for<20>(g.owners);
        }
        ptx::named_barrier(1, helpers);
        reduce(at, thread);
        ptx::named_barrier(1, helpers);
        if (helper == 0) reduced.arrive_acquire();
      }
      if (helper == 0) reduced.wait_for<20>(g.owners);
      ptx::named_barrier(1, helpers);
      u_ring().producer_acquire(u);
      if (helper == 0 && !owner) branch_loader.set_branches(at.m_block);
      fetch(at, thread);
      u_ring().producer_commit(0);
      u.advance(1);
      // The last user of the counters resets them to zero for the next launch or graph replay.
      const int users = g.n_tiles() + (at.m_block * 128 < g.m ? g.waiting_wgrad_blocks : 0);
      if (helper == 0 && arrival_counter{published + 2}.arrive_last(users))
        published[0] = published[1] = published[2] = 0;
    }
  }

  // ---- consumers: two warpgroups ------------------------------------------------------------------------------------
  using consumer = gemm_consumer;
  template <bool Rotates>
  using epilogue_stage =
      std::conditional_t<Rotates, tile_rotation<T, TileN, gemm_cta>, tile_residual<T, TileN, gemm_cta>>;
  // Both blocks of the cluster multicast into a stage, so that it is released to both.
  __device__ __forceinline__ void release(const consumer& c, int q, reads_done done) const {
    if (c.thread < 2) ring().consumer_release(q, c.thread, done);
  }
  __device__ __forceinline__ std::uint32_t next_stage(const consumer& c) const {
    ring().consumer_wait(c.at);
    return stage(c.at.stage);
  }
  __device__ __forceinline__ void finish_step(consumer& c) const {
    c.at.commit(shape::stages, true, [&](int before, reads_done done) { release(c, before, done); });
    ++c.step;
  }
  template <bool Shrink>
  __device__ __forceinline__ void k_step(consumer& c, float (&acc)[TileN / 2], float (&u)[shrink_columns / 2],
                                         bool first_shrink) const {
    const std::uint32_t at = next_stage(c);
    const std::uint64_t x = tile_descriptor(at + c.group * 64 * 128), w = w_descriptor(at + shape::x),
                        a = tile_descriptor(at + shape::x + shape::w);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
      wgmma<T, TileN>::template shared<false, WeightNN>(acc, x + 2 * kk, w + next_k * kk, c.step > 0 || kk > 0);
      if constexpr (Shrink) wgmma<T, shrink_columns>::shared(u, x + 2 * kk, a + 2 * kk, !(first_shrink && kk == 0));
    }
    finish_step(c);
  }
  // A k step with the prologue: x is the A operand in registers, and the next x tile is loaded and scaled while the
  // products of this step run.
  __device__ __forceinline__ void prologue_step(consumer& c, float (&acc)[TileN / 2], const scaled_x<T>& now,
                                                scaled_x<T>& next) const {
    const int q = c.at.stage;
    const std::uint64_t w = w_descriptor(stage(q) + shape::x);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; ++kk)
      wgmma<T, TileN>::template registers<WeightNN>(acc, now.x[kk], w + next_k * kk, c.step > 0 || kk > 0);
    wgmma_commit();
    ++c.step;
    c.at.advance(shape::stages);
    if (c.step < k_steps) next.load(next_stage(c), c), next.load_factors(g.adapter.prologue, c, c.step + 2);
    release(c, q, products_done<0>());  // the products have used x, which they have in registers
  }
  __device__ __forceinline__ void prologue_steps(consumer& c, float (&acc)[TileN / 2]) const {
    scaled_x<T> even, odd;
    even.load_factors(g.adapter.prologue, c, 0), odd.load_factors(g.adapter.prologue, c, 1);
    even.load(next_stage(c), c), even.load_factors(g.adapter.prologue, c, 2);
    while (true) {
      prologue_step(c, acc, even, odd);
      if (c.step == k_steps) return;
      prologue_step(c, acc, odd, even);
      if (c.step == k_steps) return;
    }
  }
  // Rank = 0: a k step on U and B from an earlier shrink launch, 16 * deep columns wide.
  __device__ __forceinline__ void expand_step(consumer& c, float (&acc)[TileN / 2], int deep) const {
    const std::uint32_t at = next_stage(c), pitch = g.branch_pitch();
    const std::uint64_t u = tile_descriptor(at + c.group * 64 * pitch, pitch),
                        b = tile_descriptor(at + shape::x, pitch);
    for (int kk = 0; kk < deep; ++kk) {
      wgmma_fence();
      wgmma<T, TileN>::shared(acc, u + 2 * kk, b + 2 * kk, true);
      wgmma_commit();
      wgmma_wait<0>();
    }
    finish_step(c);
  }
  // Owner tiles: mainloop up to the end of the owner's slice, then the partial sums of U go to global memory. The k
  // step after the slice is issued first, so that the tensor cores are busy during the stores.
  __device__ __forceinline__ void shrink(consumer& c, float (&acc)[TileN / 2], const tile_coord& at) const {
    const k_slice mine = g.slice(at.n_tile, k_steps);
    float u[shrink_columns / 2];
    while (c.step < mine.from) k_step<false>(c, acc, u, false);
    while (c.step < mine.to) k_step<true>(c, acc, u, c.step == mine.from);
    if (c.step < k_steps)
      k_step<false>(c, acc, u, false);
    else
      wgmma_wait<0>();
    float* to = g.partial + (static_cast<long long>(at.m_block) * g.owners + at.n_tile) * 128 * shrink_columns;
    const int row = c.group * 64 + c.warp * 16 + c.lane / 4, col = (c.lane % 4) * 2;
#pragma unroll
    for (int j = 0; j < shrink_columns / 8; ++j) {
      *reinterpret_cast<float2*>(to + row * shrink_columns + j * 8 + col) = make_float2(u[4 * j], u[4 * j + 1]);
      *reinterpret_cast<float2*>(to + (row + 8) * shrink_columns + j * 8 + col) =
          make_float2(u[4 * j + 2], u[4 * j + 3]);
    }
    ptx::barrier_arrive(slice_stored());
  }
  // Rank > 0: the last step of a tile, U Bᵀ, with U from shared memory as the A operand in registers.
  __device__ __forceinline__ void expand(consumer& c, float (&acc)[TileN / 2]) const {
    u_ring().consumer_wait(c.u);
    c.u.advance(1);
    const std::uint32_t from =
        base + shape::u_at + (c.group * 64 + c.warp * 16 + c.lane / 4) * shape::u_pitch + (c.lane % 4) * 4;
    std::uint32_t u[shrink_columns / 16][4], branch_offset[shrink_columns / 16];
    register_reads reads(g.owners);
#pragma unroll
    for (int kk = 0; kk < shrink_columns / 16; ++kk) {
      branch_offset[kk] = branch_loader.branch_offset(kk);
      u[kk][0] = ptx::load_shared(from + kk * 32), u[kk][1] = ptx::load_shared(from + kk * 32 + 8 * shape::u_pitch);
      u[kk][2] = ptx::load_shared(from + kk * 32 + 16);
      u[kk][3] = ptx::load_shared(from + kk * 32 + 16 + 8 * shape::u_pitch);
#pragma unroll
      for (const std::uint32_t word : u[kk]) reads.add(word);
      reads.add(branch_offset[kk]);
    }
    reads.release(u_ring(), 0);
    const std::uint32_t b = next_stage(c) + shape::x;
    if (branch_loader.has_branch(branch_offset[0])) {
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < shrink_columns / 16; ++kk)
        wgmma<T, TileN>::registers(acc, u[kk], branch_loader.b_columns(b, kk, branch_offset[kk]), true);
    }
    finish_step(c);
  }
  __device__ void consume() {
    consumer c{static_cast<int>(threadIdx.x / 128) - 1, static_cast<int>(threadIdx.x % 128),
               static_cast<int>(threadIdx.x / 32 % 4), static_cast<int>(threadIdx.x % 32)};
    const epilogue_args<T> epilogue{
        g.adapter.scale, g.adapter.shift, static_cast<const T*>(g.residual), g.act, g.m, g.n};
    for (int t = first; t < tiles; t += stride) {
      const tile_coord at = g.tile_at(t, rank);
      float acc[TileN / 2], none[shrink_columns / 2];
      c.step = 0, c.at.in_flight = -1;
      if constexpr (Rank > 0)
        if (at.n_tile < g.owners) shrink(c, acc, at);
      if constexpr (Prologue) prologue_steps(c, acc);
      while (c.step < k_steps) k_step<false>(c, acc, none, false);
      if constexpr (Rank > 0)
        expand(c, acc);
      else if constexpr (!Prologue && !BranchLoader::rotates)
        for (int s = 0; s < g.branch_steps; ++s) expand_step(c, acc, s + 1 < g.branch_steps ? 4 : g.rank / 16 - 4 * s);
      const tile_writer<T, TileN, shape, HasActivation> write{
          maps.y, maps.before, g.stores_pre_epilogue, epilogue, base + shape::out, c, at};
      column_values<shape::round> scale;  // loaded early to hide the latency
      if (epilogue.scale != nullptr) write.load(scale, epilogue.scale, 0);
      const reads_done done = products_done<0>();
      if (!Prologue) release(c, c.at.in_flight, done);
      branch_loader.finish(acc, c, at);
      write(acc, scale, epilogue_stage<BranchLoader::rotates>{*this, c});
    }
    if (c.thread == 0) ptx::wait_for_stores();
  }
};

// Runs the tile loop as CTA `number` of `blocks`; fused wgrads give the tiles only some blocks of a grid.
template <class T, int TileN, int Rank, bool Prologue, bool WeightNN,
          class BranchLoader = single_branch_loader<TileN, Rank>, bool HasActivation = true>
__device__ __forceinline__ void run_tiles(const gemm_maps& maps, const gemm_args& g, std::uint32_t base, int number,
                                          int blocks, const BranchLoader& branch_loader = {}) {
  gemm_cta<T, TileN, Rank, Prologue, WeightNN, BranchLoader, HasActivation> block{
      maps,       g,          base,         ptx::cluster_rank(), (g.k + 63) / 64, g.m_pairs() * g.n_tiles(),
      number / 2, blocks / 2, branch_loader};
  block.start();
  if (threadIdx.x < 128) {
    ptx::dealloc_registers<(Rank > 0 ? 56 : 40)>();
    if (threadIdx.x == 0)
      block.produce();
    else if (Rank > 0 && threadIdx.x >= 32)
      block.help();
  } else {
    ptx::alloc_registers<(Rank > 0 ? 224 : 232)>();
    block.consume();
  }
  ptx::cluster_sync();  // a block must not exit while its peer may still multicast into its shared memory
}
template <class T, int TileN, int Rank, bool Prologue, bool WeightNN>
__global__ void __launch_bounds__(384, 1)
    gemm_kernel(const __grid_constant__ gemm_maps maps, const __grid_constant__ gemm_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  run_tiles<T, TileN, Rank, Prologue, WeightNN>(maps, g, (ptx::shared_address(raw) + 1023) & ~1023U,
                                                static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
#endif
}

}  // namespace graft::gpu
