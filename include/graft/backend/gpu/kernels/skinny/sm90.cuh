// SPDX-License-Identifier: Apache-2.0
// Skinny GEMM (GEMV at one token), 1 to 64 tokens, sm_90a: y = epilogue(prologue(x) Wᵀ + U Bᵀ), U = x Aᵀ, in one launch
// that streams W once at memory speed. One launch may be a grouped (Q/K/V) or a gated GEMM (SwiGLU: gate and up).
//
//   x [m, k], m <= Tokens (8, 16 or 64)    W [n, k]    y [m, n]
//   A [rank, k]    B [n, rank]    U [m, rank], the shrink result, which a launch can store for the wgrads
//   NN: W [k, n] as it is stored, dx = dy W; tiles of W are MN-major operands
//
// Tiles        Operands are swapped: yᵀ = W xᵀ by wgmma m64nTokensk16. A block takes Rows rows of W, with the Rank rows
//              of A after them in shared memory, so that the same products yield Uᵀ; 64 of k per stage.
// Work split   Block (split, tile): a tile of Rows outputs of one layer of the group, and one of Splits parts of k. The
//              splits of a tile are a cluster. A gated tile has half of its rows from each of two layers
//              (sm90_epilogue.cuh).
// Pipeline     Stages of W, A and x, filled by three producers: full when the bytes of all have arrived. The first
//              round has no acquire, and only stages that will be refilled are released.
// Warp roles   Warps 0 to 3: consumer, products and epilogue. One producer warp each for W, x and (Rank > 0) the
//              adapter. Further warps: prologue (Fallback, Rank = 0).
// Phases       W and A are requested at once, x after griddepcontrol.wait. Mainloop. Expand: each block multiplies its
//              partial U with B; by linearity no exchange of U is needed. Split-K reduction (sm90_epilogue.cuh).
//              Epilogue and store.
// Reduction    Splits are added in their order: results are bitwise deterministic.
// Code size    A launch takes about ten microseconds and most code runs once, so fetching instructions is visible: rare
//              features have kernels of their own (Fallback), activation and residual are branches.
// Measured     H200, 16 tokens, 4096 x 4096, LoRA r16: 10.3 µs; memory floor: 7.9 µs; bare product by cuBLASLt: 12.5 µs
//              (docs/performance.md).
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/arch/wgmma.cuh>
#include <graft/backend/gpu/kernels/skinny/sm90_epilogue.cuh>
#include <graft/backend/gpu/kernels/skinny/sm90_layout.h>
#include <graft/backend/gpu/tile/epilogue.cuh>
#include <graft/backend/gpu/tile/pipeline.cuh>

#include <type_traits>

namespace graft::gpu {

template <class T, int Tokens, int Rows, int Splits, int Rank, bool Fallback, bool WeightNN = false,
          class Shape = skinny_shape<Tokens, Rows, Splits, Rank>>
struct skinny_cta {
  static_assert(!WeightNN || Rows % 64 == 0);
  using shape = Shape;
  static constexpr int blocks = shape::blocks;
  static constexpr bool scales = Fallback && Rank == 0;  // has a warpgroup for the prologue x ⊙ factor
  static constexpr int threads = shape::threads + (scales ? 128 : 0);
  using accumulators = float[blocks][Tokens / 2];
  static constexpr int row_blocks = (Rows + 63) / 64, finished = shape::finished;  // tokens per block after split-K
  using sums = float[row_blocks][finished / 2];
  static constexpr int all_rows = Rows, token_tile_count = Tokens / 8, all_splits = Splits;
  static constexpr bool can_gate = Rows == gated_tile_rows && !Fallback;
  static constexpr int half = Rows / 2, half_row_tiles = half / 16;
  static constexpr bool via_smem = !Fallback && Tokens > 16;  // results are stored by way of shared memory
  // Threads of the gated epilogue: with many tokens the producer warps take part after their last tile.
  static constexpr int epilogue_threads = can_gate && via_smem ? shape::threads : 128;

  const skinny_maps& maps;
  const skinny_args& g;
  const skinny_product& seg;
  const CUtensorMap &w_map, &x_map;
  std::uint32_t base;
  int row0, split, k_begin, k_end;

  __device__ pipeline ring() const { return {base + shape::barriers, shape::stages}; }
  // Stages in use. Kernels with ExtraBytes let the launch choose fewer.
  __device__ int stages() const { return shape::adjustable_stages && g.ring < shape::stages ? g.ring : shape::stages; }
  __device__ std::uint32_t b_ready() const { return base + shape::barriers + pipeline::bytes(shape::stages); }
  __device__ cluster_mailbox partials() const { return {b_ready() + 8}; }
  __device__ std::uint32_t x_full(int q) const { return b_ready() + 16 + 8 * q; }
  // Groups of eight tokens in this call.
  __device__ int token_tiles() const { return Tokens <= 16 ? Tokens / 8 : (g.m + 7) / 8; }
  __device__ bool gated() const { return can_gate && g.gated; }
  // Returns true if this warp's rows in 64-row block b belong to the second layer of a gate.
  __device__ bool is_second(int b) const {
    return gated() && b * 4 + static_cast<int>(threadIdx.x) / 32 >= half_row_tiles;
  }
  __device__ const T* prologue() const { return scales ? static_cast<const T*>(seg.adapter.prologue) : nullptr; }

  __device__ void start() const {
    constexpr int barriers = (scales ? 3 : 2) * shape::stages + 2;
    if (threadIdx.x == 0) {  // one thread, unrolled: takes half as long as a thread per barrier
#pragma unroll
      for (int i = 0; i < barriers; ++i)
        // With a prologue, full(q) also waits for the warp that scales x.
        ptx::barrier_init(ring().full(i), scales && i < shape::stages && prologue() != nullptr ? 2 : 1);
      ptx::barrier_init_fence();
      if (Splits > 1)
        partials().expect(shape::receive_buffer_bytes / (Tokens / 8) *
                          (shape::split_by_tokens ? Tokens / 8 : token_tiles()));
    }
    if (Splits > 1)
      ptx::cluster_sync_relaxed();
    else
      __syncthreads();
    ptx::launch_dependents();
  }

  // ---- producers: one thread each for W, x and the adapter ----------------------------------------------------------
  // A thread needs tens of nanoseconds per TMA request, so W, x and A have a producer warp each. A producer requests
  // `first` stages, runs pause() (usually griddepcontrol.wait), fills the remaining stages, and from then on acquires
  // each stage from the consumers.
  template <class Request, class Pause>
  __device__ __forceinline__ void request_all(int first, const Request& request, const Pause& pause) const {
    const int used = stages(), first_stages = used < k_end - k_begin ? used : k_end - k_begin;
    int i = 0;
#pragma unroll 1
    for (; i < first_stages && i < first; ++i) request(k_begin + i, i);
    pause();
#pragma unroll 1
    for (; i < first_stages; ++i) request(k_begin + i, i);
    pipeline_state at;  // the first round had no acquire
#pragma unroll 1
    for (int k = k_begin + first_stages; k < k_end; ++k) {
      ring().producer_acquire(at);
      request(k, at.stage);
      at.advance(used);
    }
  }
  __device__ void request_w() const {
    // With swap-AB, as in the shrink before a GEMM, these rows are x and will be read again.
    const std::uint64_t policy = Fallback && g.transposed_y ? ptx::evict_last : ptx::evict_first;
    request_all(
        shape::stages_before_x,
        [&](int k, int q) {
          const std::uint32_t full =
              ring().producer_commit(q, shape::stage - shape::x + (prologue() != nullptr ? 0 : g.x_bytes));
          if constexpr (WeightNN) {
#pragma unroll
            for (int box = 0; box < Rows / 64; ++box)
              ptx::load_tile(base + q * shape::stage + box * 8192, &w_map, row0 + box * 64, k * 64, full, policy);
          } else {
            ptx::load_tile(base + q * shape::stage, &w_map, k * 64, row0, full, policy);
            if (gated())  // a box has half of the tile's rows
              ptx::load_tile(base + q * shape::stage + half * 128, &maps.w[1], k * 64, row0, full, policy);
          }
        },
        [] { ptx::wait_for_dependency(); });
  }
  __device__ void request_x() const {
    request_all(
        0,
        [&](int k, int q) {
          const std::uint32_t here = prologue() != nullptr ? x_full(q) : ring().full(q);
          if (prologue() != nullptr) ptx::barrier_arrive_expect_tx(here, g.x_bytes);
          ptx::load_tile(base + q * shape::stage + shape::w + shape::a, &x_map, k * 64, 0, here, ptx::evict_last);
        },
        [&] {
          ptx::prefetch(&x_map);
          ptx::wait_for_dependency();
        });
  }
  __device__ void request_adapter() const {
    const char* a = static_cast<const char*>(seg.adapter.a_tiles);
    const auto b_of = [&](const skinny_product& s) {
      return static_cast<const char*>(s.adapter.b_tiles) + static_cast<long long>(row0) * shape::pitch;
    };
    request_all(
        0,
        [&](int k, int q) {
          const std::uint32_t to = base + q * shape::stage + shape::w;
          const long long from = static_cast<long long>(k) * shape::a;
          if (!gated()) return ptx::load_bulk(to, a + from, shape::a, ring().full(q));
          ptx::load_bulk(to, a + from, shape::a / 2, ring().full(q));
          ptx::load_bulk(to + shape::a / 2,
                         static_cast<const char*>(g.segment[1].adapter.a_tiles) + from + shape::a / 2, shape::a / 2,
                         ring().full(q));
        },
        [&] {
          ptx::barrier_arrive_expect_tx(b_ready(), Rows * shape::pitch);
          if (!gated()) return ptx::load_bulk(base + shape::b_at, b_of(seg), Rows * shape::pitch, b_ready());
          ptx::load_bulk(base + shape::b_at, b_of(seg), half * shape::pitch, b_ready());
          ptx::load_bulk(base + shape::b_at + half * shape::pitch, b_of(g.segment[1]), half * shape::pitch, b_ready());
        });
  }

  // ---- consumer: one warpgroup --------------------------------------------------------------------------------------
  __device__ __forceinline__ void accumulate(accumulators& acc) const {
    wgmma_pipeline_state at;
    const int used = stages();
    if constexpr (Fallback)
      for (auto& block : acc)
        for (float& v : block) v = 0;  // with a short K a split may have no step
#pragma unroll 1
    for (int k = k_begin; k < k_end; ++k) {
      ring().consumer_wait(at);
      const std::uint32_t tile = base + at.stage * shape::stage;
      const std::uint64_t w = tile_descriptor(tile), x = tile_descriptor(tile + shape::w + shape::a);
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < 4; ++kk)
#pragma unroll
        for (int b = 0; b < blocks; ++b)  // 64 rows of 128 bytes are 512 descriptor units of 16 bytes
          if (WeightNN && b * 64 < Rows)
            wgmma<T, Tokens>::template shared<true>(acc[b], mn_major_descriptor(tile + b * 8192, 0) + 128 * kk,
                                                    x + 2 * kk, k != k_begin || kk != 0);
          else
            wgmma<T, Tokens>::shared(acc[b], w + b * 512 + 2 * kk, x + 2 * kk, k != k_begin || kk != 0);
      // Only stages that will be refilled are released: nobody waits for the others.
      at.commit(used, k - 1 + used < k_end && threadIdx.x == 0,
                [&](int before, reads_done done) { ring().consumer_release(before, done); });
    }
    wgmma_wait<0>();
    // Keeps the compiler from moving reads of accumulators above the wait, which would serialize the products.
#pragma unroll
    for (auto& block : acc) ptx::pin(block);
  }
  // The accumulator rows after those of W are Uᵀ. They go to shared memory as U [token][rank], then acc += B Uᵀ.
  __device__ __forceinline__ void expand(accumulators& acc) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < blocks; ++b) {
      if ((b + 1) * 64 <= Rows) continue;
      const int r = b * 64 + warp * 16 - Rows;
      if (r < 0 || r >= Rank) continue;
      const std::uint32_t to = base + shape::u_at + tile_offset(lane % 8, r + lane / 8 % 2 * 8, shape::pitch);
#pragma unroll
      for (int j = 0; j < Tokens / 8; ++j)
        ptx::store_matrix_trans(to + j * 8 * shape::pitch, pack<T>(acc[b][4 * j], acc[b][4 * j + 1]),
                                pack<T>(acc[b][4 * j + 2], acc[b][4 * j + 3]));
    }
    ptx::fence_async_shared();
    ptx::named_barrier(1, 128);
    ptx::barrier_wait(b_ready(), 0);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < Rank / 16; ++kk)
#pragma unroll
      for (int b = 0; b < blocks; ++b)
        if (b * 64 < Rows)
          wgmma<T, Tokens>::shared(acc[b],
                                   tile_descriptor(base + shape::b_at + b * 64 * shape::pitch, shape::pitch) + 2 * kk,
                                   tile_descriptor(base + shape::u_at, shape::pitch) + 2 * kk, true);
    wgmma_commit();
    wgmma_wait<0>();
  }
  // Stores U by the blocks of the first tile, each for its share of the tokens: the partial results of the splits, as
  // expand() left them in shared memory, in their order.
  __device__ __forceinline__ void store_shrink() const {
    constexpr int row_vectors = Rank / 8, vectors = Tokens * row_vectors;
    if (Splits > 1) ptx::cluster_sync();
    for (int i = vectors * split / Splits + static_cast<int>(threadIdx.x); i < vectors * (split + 1) / Splits;
         i += 128) {
      const int token = i / row_vectors, column = i % row_vectors * 8;
      if (token >= g.m) break;
      float sum[8] = {};
#pragma unroll
      for (int s = 0; s < Splits; ++s) {
        const float4 v =
            ptx::load_dsmem4(base + shape::u_at + tile_offset(token, column, shape::pitch), static_cast<unsigned>(s));
        const float words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float2 pair = unpack<T>(__float_as_uint(words[e]));
          sum[2 * e] += pair.x, sum[2 * e + 1] += pair.y;
        }
      }
      static_cast<uint4*>(g.shrink_result)[token * row_vectors + column / 8] = make_uint4(
          pack<T>(sum[0], sum[1]), pack<T>(sum[2], sum[3]), pack<T>(sum[4], sum[5]), pack<T>(sum[6], sum[7]));
    }
    __syncwarp();
    if (Splits > 1) ptx::cluster_sync();  // a block must not exit while the other reads its partial result
  }
  // The j-th group of eight tokens that this block finishes.
  __device__ int token_tile_of(int j) const { return shape::split_by_tokens ? 2 * j + split : j; }
  // Scale and shift of the two rows that a thread holds per 16-row unit, loaded early to hide the latency.
  struct row_epilogue {
    bool any;  // false: all are 1 and 0
    float scale[row_blocks][2], shift[row_blocks][2];
  };
  __device__ __forceinline__ void load_epilogue(row_epilogue& p) const {
    const auto has = [](const adapter_args& adapter) { return adapter.scale != nullptr || adapter.shift != nullptr; };
    p.any = has(seg.adapter) || (gated() && has(g.segment[1].adapter));
    if (!p.any) return;
#pragma unroll
    for (int b = 0; b < row_blocks; ++b)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int unit = b * 4 + threadIdx.x / 32;
        const bool second = is_second(b);
        const adapter_args& adapter = second ? g.segment[1].adapter : seg.adapter;
        const int row = row0 + (unit - (second ? half_row_tiles : 0)) * 16 + (threadIdx.x % 32) / 4 + 8 * h;
        const bool inside = unit < shape::units;  // scale and shift are padded beyond the last row
        p.scale[b][h] = inside && adapter.scale != nullptr ? __ldg(adapter.scale + row) : 1.0F;
        p.shift[b][h] = inside && adapter.shift != nullptr ? __ldg(adapter.shift + row) : 0.0F;
      }
  }
  // Token and row of element e of a thread's sums.
  static constexpr int each = finished / 2, sums_per_thread = row_blocks * each;
  __device__ int token_of(int e) const { return token_tile_of(e % each / 4) * 8 + (threadIdx.x % 4) * 2 + (e & 1); }
  __device__ int row_of(int e) const {
    return row0 + (e / each * 4 + threadIdx.x / 32) * 16 + threadIdx.x % 32 / 4 + 8 * ((e >> 1) & 1);
  }
  // Returns true if this warp finishes its rows in 64-row block b, or another block of the cluster does.
  __device__ bool finishes(int b) const {
    const int unit = b * 4 + threadIdx.x / 32;
    return unit < shape::units && (shape::split_by_tokens || unit / shape::owned == split);
  }
  // Element-wise store for odd sizes and for transposed results (swap-AB). Fallback kernels only.
  __device__ __forceinline__ void store_any(const sums& acc, const epilogue_args<T>& epilogue) const {
    T* y = static_cast<T*>(seg.y);
#pragma unroll
    for (int e = 0; e < sums_per_thread; ++e) {
      const int token = token_of(e), row = row_of(e);
      if (!finishes(e / each) || token >= g.m || row >= seg.n) continue;
      const float v = acc[e / each][e % each];
      if (g.transposed_y)
        y[static_cast<long long>(row) * g.m + token] = from_float<T>(v);
      else
        y[static_cast<long long>(token) * seg.n + row] = from_float<T>(epilogue.finish(v, token, row));
    }
  }
  // Lanes of neighboring rows hold the same tokens; after a swap each lane holds two neighboring rows of one token.
  // Calls f(b, j, h, at) for every such pair of this thread, with `at` the element offset in y, or -1 outside y.
  template <class F> __device__ __forceinline__ void each_pair(const F& f) const {
    const int lane = threadIdx.x % 32, odd = (lane / 4) & 1;
#pragma unroll
    for (int b = 0; b < row_blocks; ++b) {
      if (!finishes(b)) continue;
      const int unit = b * 4 + threadIdx.x / 32;
      const int row = row0 + unit * 16 + lane / 4 - odd, token = token_tile_of(0) * 8 + (lane % 4) * 2 + odd;
      const long long first = static_cast<long long>(token) * seg.n + row;
#pragma unroll
      for (int j = 0; j < finished / 8; ++j) {
        if (!shape::split_by_tokens && j >= token_tiles()) break;
        const int further = 8 * (token_tile_of(j) - token_tile_of(0));
#pragma unroll
        for (int h = 0; h < 2; ++h)
          f(b, j, h,
            token + further < g.m && row + 8 * h < seg.n ? first + static_cast<long long>(further) * seg.n + 8 * h
                                                         : -1);
      }
    }
  }
  // The residual of the pairs, loaded as soon as the preceding kernel has finished.
  using tile = skinny_tile<T, Rows, finished>;
  using pairs = std::conditional_t<via_smem, typename tile::vectors, std::uint32_t[row_blocks][finished / 8][2]>;
  __device__ int token_at(int local_token) const { return 8 * token_tile_of(local_token / 8) + local_token % 8; }
  __device__ __forceinline__ void load_residual(pairs& to) const {
    if constexpr (via_smem) {
      tile{seg, g.m, row0}.load_residual(to, [&](int local_token) { return token_at(local_token); });
    } else {
      ptx::wait_for_dependency();
      each_pair([&](int b, int j, int h, long long at) {
        if (at >= 0) to[b][j][h] = *reinterpret_cast<const std::uint32_t*>(static_cast<const T*>(seg.residual) + at);
      });
    }
  }
  __device__ __forceinline__ void activate_all(sums& acc) const {
    if (seg.act == activation::none) return;
#pragma unroll
    for (auto& block : acc)
#pragma unroll
      for (int e = 0; e < each; e += 4) {
        const float4 v = activate_vec4(seg.act, make_float4(block[e], block[e + 1], block[e + 2], block[e + 3]));
        block[e] = v.x, block[e + 1] = v.y, block[e + 2] = v.z, block[e + 3] = v.w;
      }
  }
  __device__ __forceinline__ void store(const sums& acc, const pairs& residual) const {
    const int odd = (threadIdx.x / 4) & 1;
    T* const y = static_cast<T*>(seg.y);
    each_pair([&](int b, int j, int h, long long at) {
      const float low = acc[b][4 * j + 2 * h], high = acc[b][4 * j + 2 * h + 1];
      const float got = __shfl_xor_sync(0xffffffffU, odd ? low : high, 4);
      float first = odd ? got : low, second = odd ? high : got;
      if (seg.residual != nullptr) {
        const T* const more = reinterpret_cast<const T*>(&residual[b][j][h]);
        first += to_float(more[0]), second += to_float(more[1]);
      }
      if (at >= 0) *reinterpret_cast<std::uint32_t*>(y + at) = pack<T>(first, second);
    });
  }
  __device__ void consume() const {
    row_epilogue p;
    load_epilogue(p);
    accumulators acc;
    pairs residual;
    if (by_pairs() && seg.residual != nullptr) load_residual(residual);
    accumulate(acc);
    if constexpr (Rank > 0) expand(acc);
    if constexpr (shape::split_by_tokens) {
      sums mine;
      reduce_tokens(*this, acc, mine);
      finish(mine, p, residual);
    } else {
      if constexpr (Splits > 1) reduce_rows(*this, acc);
      finish(reinterpret_cast<sums&>(acc), p, residual);
    }
    if constexpr (Rank > 0)
      if (g.shrink_result != nullptr && row0 == 0) store_shrink();
  }
  __device__ bool by_pairs() const { return !Fallback || (!g.transposed_y && seg.n % 2 == 0); }
  // Epilogue: scale and shift, activation or gate, residual, store.
  __device__ __forceinline__ void finish(sums& acc, const row_epilogue& p, const pairs& residual) const {
    if (p.any) {
#pragma unroll
      for (int b = 0; b < row_blocks; ++b)
#pragma unroll
        for (int e = 0; e < each; ++e) acc[b][e] = fmaf(acc[b][e], p.scale[b][(e >> 1) & 1], p.shift[b][(e >> 1) & 1]);
    }
    if (!by_pairs())
      return store_any(
          acc, {seg.adapter.scale, seg.adapter.shift, static_cast<const T*>(seg.residual), seg.act, g.m, seg.n});
    if constexpr (can_gate)
      if (g.gated) return store_gated<T, Tokens>(*this, acc);
    if constexpr (via_smem) {
      sums_to_smem(*this, acc);
      ptx::named_barrier(1, 128);
      return tile{seg, g.m, row0}.store(base, sum_pitch(Rows), residual,
                                        [&](int local_token) { return token_at(local_token); });
    } else {
      activate_all(acc);
      store(acc, residual);
    }
  }
};

// Prologue x ⊙ factor by a warpgroup, in place in shared memory, before the stage becomes full. Each warp takes every
// fourth stage, because the first x tiles arrive together. A thread has the same eight columns of every fourth token.
template <class T, int Tokens, class Block> __device__ void scale_x(const Block& block) {
  using shape = typename Block::shape;
  const int thread = static_cast<int>(threadIdx.x) - shape::threads, lane = thread % 32, column = lane % 8 * 8;
  constexpr int in_flight = 3;  // stages of this warp whose factors are in flight
  uint4 factors[in_flight];
  auto prefetch = [&](int i, int k) {
    if (k < block.k_end) factors[i] = __ldg(reinterpret_cast<const uint4*>(block.prologue() + k * 64LL + column));
  };
  const int first = block.k_begin + thread / 32;
#pragma unroll
  for (int i = 0; i < in_flight; ++i) prefetch(i, first + 4 * i);
  for (int k0 = first; k0 < block.k_end; k0 += 4 * in_flight)
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      const int k = k0 + 4 * i, q = (k - block.k_begin) % shape::stages;
      if (k >= block.k_end) break;
      ptx::barrier_wait(block.x_full(q), (k - block.k_begin) / shape::stages % 2);
      const std::uint32_t x = block.base + q * shape::stage + shape::w + shape::a;
#pragma unroll
      for (int token = lane / 8; token < Tokens; token += 4) {
        const std::uint32_t at = x + tile_offset(token, column, 128);
        const uint4 v = ptx::load_shared_uint4(at);
        ptx::store_shared(at, make_uint4(times<T>(v.x, factors[i].x), times<T>(v.y, factors[i].y),
                                         times<T>(v.z, factors[i].z), times<T>(v.w, factors[i].w)));
      }
      ptx::fence_async_shared();
      __syncwarp();
      if (lane == 0) block.ring().producer_commit(q);
      prefetch(i, k + 4 * in_flight);
    }
}

template <class T, int Tokens, int Rows, int Splits, int Rank, bool Fallback, bool WeightNN = false>
__global__ void __launch_bounds__(skinny_cta<T, Tokens, Rows, Splits, Rank, Fallback, WeightNN>::threads)
    skinny_kernel(const __grid_constant__ skinny_maps maps, const __grid_constant__ skinny_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  const int tile = static_cast<int>(blockIdx.y), split = static_cast<int>(blockIdx.x);
  const int s =
      (tile >= g.first_tile[1] ? 1 : 0) + (tile >= g.first_tile[2] ? 1 : 0) + (tile >= g.first_tile[3] ? 1 : 0);
  using kernel = skinny_cta<T, Tokens, Rows, Splits, Rank, Fallback, WeightNN>;
  const kernel block{maps,
                     g,
                     g.segment[s],
                     maps.w[s],
                     maps.x[s],
                     (ptx::shared_address(raw) + 1023) & ~1023U,
                     (tile - g.first_tile[s]) * (g.gated ? Rows / 2 : Rows),
                     split,
                     g.k_steps * split / Splits,
                     g.k_steps * (split + 1) / Splits};
  block.start();
  if (threadIdx.x < 128)
    block.consume();
  else if (threadIdx.x == 128)
    block.request_w();
  else if (threadIdx.x == 160)
    block.request_x();
  else if (Rank > 0 && threadIdx.x == 192)
    block.request_adapter();
  else if (block.prologue() != nullptr && threadIdx.x >= 192)
    scale_x<T, Tokens>(block);
  if constexpr (kernel::epilogue_threads > 128)
    if (threadIdx.x >= 128 && g.gated) {
      __syncwarp();
      finish_gated<T, Tokens>(block);
    }
#endif
}

}  // namespace graft::gpu
