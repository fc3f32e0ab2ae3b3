// SPDX-License-Identifier: Apache-2.0
// stream: 1 to 64 tokens, sm_90a. The weights pass through once, at the speed of memory; y = post(x Wᵀ + (x Aᵀ) Bᵀ).
//
// Rows of W are the 64-row operand of the products, tokens the narrow one. The rows of A lie right behind those of W in
// shared memory, so that Sᵀ = A xᵀ falls out of the same products. By linearity each block expands its own part of S
// into its own partial sums: the side branch needs no exchange. The parts of the inner axis meet in the block that
// finishes them, written there by the others of the cluster and added in a fixed order (stream_meet.cuh). Several layers
// with the same input (Q, K, V) are segments of one launch. A layer runs for ten microseconds and most of the code runs
// once: what its instructions cost to fetch is visible, so what is rarely wanted has kernels of its own (Any), and what
// some layers want (activation, residual) stands behind a branch.
//
// Where y is the product of two layers element by element (gate and up), a tile has as many rows of one as of the other,
// and A rows of both (stream_gate.cuh).
//
// Phases: weights and adapter are requested at once, x when the kernel before has finished (programmatic dependent
// launch), and scaled where there is a pre slot (stream_pre.cuh); the warpgroup accumulates; expands; exchanges; applies
// post; stores. A norm between two launches is part of both (stream_norm.cuh).
#pragma once
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/backend/cuda/stream_gate.cuh>
#include <graft/backend/cuda/stream_meet.cuh>
#include <graft/backend/cuda/stream_norm.cuh>
#include <graft/backend/cuda/stream_shape.h>
#include <graft/backend/cuda/stream_store.cuh>
#include <graft/backend/cuda/wgmma.cuh>

#include <type_traits>

namespace graft::cuda {

template <class T, int Tokens, int Rows, int Splits, int Rank, bool Any,
          class Shape = stream_shape<Tokens, Rows, Splits, Rank>>
struct stream_block {
  using shape = Shape;
  static constexpr int blocks = shape::blocks;
  static constexpr bool scales = Any && Rank == 0;  // has a warpgroup for the pre slot
  static constexpr int threads = shape::threads + (scales ? 128 : 0);
  static constexpr bool norms = !Any && Tokens <= most_normed_tokens;  // has a warp for 1 / rms of each token
  static constexpr int launched = threads + (norms ? 32 : 0);
  using accumulators = float[blocks][Tokens / 2];
  static constexpr int with_rows = (Rows + 63) / 64, finished = shape::finished;  // what is left of them at the end
  using sums = float[with_rows][finished / 2];
  static constexpr int all_rows = Rows, all_eights = Tokens / 8, all_splits = Splits;
  static constexpr bool can_gate = Rows == gated_rows && !Any;
  static constexpr int half = Rows / 2, half_units = half / 16;
  static constexpr bool by_pieces = !Any && Tokens > 16;  // sums are stored by way of shared memory
  // Threads at the end of a gate: with many tokens also those that have requested the last tiles.
  static constexpr int enders = can_gate && by_pieces ? shape::threads : 128;

  const stream_maps& maps;
  const stream_args& g;
  const stream_segment& seg;
  const CUtensorMap &w_map, &x_map;
  std::uint32_t base;
  int row0, split, k_begin, k_end;

  // Stages in use: beside other warps as many as the launch says.
  __device__ int ring() const { return shape::adjusts && g.ring < shape::stages ? g.ring : shape::stages; }
  __device__ std::uint32_t full(int q) const { return base + shape::barriers + 8 * q; }
  __device__ std::uint32_t empty(int q) const { return full(shape::stages + q); }
  __device__ std::uint32_t b_ready() const { return full(2 * shape::stages); }
  __device__ std::uint32_t received() const { return b_ready() + 8; }
  __device__ std::uint32_t x_here(int q) const { return received() + 8 + 8 * q; }
  // Eights of tokens that there are, where a kernel has room for many more.
  __device__ int eights() const { return Tokens <= 16 ? Tokens / 8 : (g.m + 7) / 8; }
  __device__ bool gated() const { return can_gate && g.gated; }
  // Has this warp rows of the second layer of a gate in block b?
  __device__ bool is_second(int b) const { return gated() && b * 4 + static_cast<int>(threadIdx.x) / 32 >= half_units; }
  __device__ const T* pre() const { return scales ? static_cast<const T*>(seg.slot.pre) : nullptr; }

  __device__ void start() const {
    constexpr int barriers = (scales ? 3 : 2) * shape::stages + 2;
    if (threadIdx.x == 0) {  // one after the other: a thread for each would be a loop over threads, and twice as long
#pragma unroll
      for (int i = 0; i < barriers; ++i)
        // A stage is complete with its bytes and, where x is scaled, when that is done.
        ptx::barrier_init(full(i), scales && i < shape::stages && pre() != nullptr ? 2 : 1);
      ptx::barrier_init_fence();
      if (Splits > 1)
        ptx::barrier_expect(received(), shape::inbox_bytes / (Tokens / 8) * (shape::by_tokens ? Tokens / 8 : eights()));
    }
    if (Splits > 1)
      ptx::cluster_meet();
    else
      __syncthreads();
    ptx::let_next_kernel_start();
  }

  // ---- three threads ------------------------------------------------------------------------------------------------
  // A thread needs tens of nanoseconds to request a tile: W, x and A are requested by a thread of a warp of its own
  // each. `ahead` stages are free at the start, of which some are asked for before a pause; then each waits until the
  // consumers have released a stage.
  template <class Request, class Pause>
  __device__ __forceinline__ void request_all(int first, const Request& request, const Pause& pause) const {
    const int stages = ring(), ahead = stages < k_end - k_begin ? stages : k_end - k_begin;
    int i = 0;
#pragma unroll 1
    for (; i < ahead && i < first; ++i) request(k_begin + i, i);
    pause();
#pragma unroll 1
    for (; i < ahead; ++i) request(k_begin + i, i);
    int q = 0;
    std::uint32_t phase = 0;
#pragma unroll 1
    for (int k = k_begin + ahead; k < k_end; ++k) {
      ptx::barrier_wait(empty(q), phase);
      request(k, q);
      if (++q == stages) q = 0, phase ^= 1;
    }
  }
  __device__ void request_w() const {
    // As the shrink before a gemm, the rows are those of x and will be read again.
    const std::uint64_t policy = Any && g.by_row ? ptx::evict_last : ptx::evict_first;
    request_all(
        shape::before_x,
        [&](int k, int q) {
          ptx::barrier_expect(full(q), shape::stage - shape::x + (pre() != nullptr ? 0 : g.x_bytes));
          ptx::load_tile(base + q * shape::stage, &w_map, k * 64, row0, full(q), policy);
          if (gated())  // the boxes have half of the rows
            ptx::load_tile(base + q * shape::stage + half * 128, &maps.w[1], k * 64, row0, full(q), policy);
        },
        [] { ptx::wait_for_previous_kernel(); });  // only what is left waits for it
  }
  __device__ void request_x() const {
    request_all(
        0,
        [&](int k, int q) {
          const std::uint32_t here = pre() != nullptr ? x_here(q) : full(q);
          if (pre() != nullptr) ptx::barrier_expect(here, g.x_bytes);
          ptx::load_tile(base + q * shape::stage + shape::w + shape::a, &x_map, k * 64, 0, here, ptx::evict_last);
        },
        [&] {
          ptx::bring(&maps.x);
          ptx::wait_for_previous_kernel();
        });
  }
  __device__ void request_adapter() const {
    const char* a = static_cast<const char*>(seg.slot.a_tiles);
    const auto b_of = [&](const stream_segment& s) {
      return static_cast<const char*>(s.slot.b_tiles) + static_cast<long long>(row0) * shape::pitch;
    };
    request_all(
        0,
        [&](int k, int q) {
          const std::uint32_t to = base + q * shape::stage + shape::w;
          const long long from = static_cast<long long>(k) * shape::a;
          if (!gated()) return ptx::load_bytes(to, a + from, shape::a, full(q));
          ptx::load_bytes(to, a + from, shape::a / 2, full(q));
          ptx::load_bytes(to + shape::a / 2, static_cast<const char*>(g.segment[1].slot.a_tiles) + from + shape::a / 2,
                          shape::a / 2, full(q));
        },
        [&] {
          ptx::barrier_expect(b_ready(), Rows * shape::pitch);
          if (!gated()) return ptx::load_bytes(base + shape::b_at, b_of(seg), Rows * shape::pitch, b_ready());
          ptx::load_bytes(base + shape::b_at, b_of(seg), half * shape::pitch, b_ready());
          ptx::load_bytes(base + shape::b_at + half * shape::pitch, b_of(g.segment[1]), half * shape::pitch, b_ready());
        });
  }

  // ---- one warpgroup ------------------------------------------------------------------------------------------------
  __device__ __forceinline__ void accumulate(accumulators& acc) const {
    int q = 0, before = -1;
    const int stages = ring();
    std::uint32_t phase = 0;
    if constexpr (Any)
      for (auto& block : acc)
        for (float& v : block) v = 0;  // a short inner axis leaves a part without a step
#pragma unroll 1
    for (int k = k_begin; k < k_end; ++k) {
      ptx::barrier_wait(full(q), phase);
      const std::uint32_t at = base + q * shape::stage;
      const std::uint64_t w = tile_descriptor(at), x = tile_descriptor(at + shape::w + shape::a);
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < 4; ++kk)
#pragma unroll
        for (int b = 0; b < blocks; ++b)  // 64 rows of 128 bytes further is 512 units of 16 bytes
          wgmma<T, Tokens>::shared(acc[b], w + b * 512 + 2 * kk, x + 2 * kk, k != k_begin || kk != 0);
      wgmma_commit();
      wgmma_wait<1>();
      // Only stages that will be filled again: nobody arrives at a barrier that no one waits for.
      if (before >= 0 && k - 1 + stages < k_end && threadIdx.x == 0) ptx::barrier_arrive(empty(before));
      before = q;
      if (++q == stages) q = 0, phase ^= 1;
    }
    wgmma_wait<0>();
    // Nothing below reads a sum before they are there: the compiler would where little follows, and serialize the products.
#pragma unroll
    for (auto& block : acc)
#pragma unroll
      for (float& v : block) asm volatile("" : "+f"(v)::"memory");
  }
  // The rows behind those of W are Sᵀ: to shared memory as [token][rank], then one product more.
  __device__ __forceinline__ void expand(accumulators& acc) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < blocks; ++b) {
      if ((b + 1) * 64 <= Rows) continue;
      const int r = b * 64 + warp * 16 - Rows;
      if (r < 0 || r >= Rank) continue;
      const std::uint32_t to = base + shape::s_at + tile_offset(lane % 8, r + lane / 8 % 2 * 8, shape::pitch);
#pragma unroll
      for (int j = 0; j < Tokens / 8; ++j)
        ptx::store_matrix_turned(to + j * 8 * shape::pitch, pack<T>(acc[b][4 * j], acc[b][4 * j + 1]),
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
                                   tile_descriptor(base + shape::s_at, shape::pitch) + 2 * kk, true);
    wgmma_commit();
    wgmma_wait<0>();
  }
  // Which eight of the tokens is the j-th that this block finishes?
  __device__ int eight_of(int j) const { return shape::by_tokens ? 2 * j + split : j; }
  // Factor and summand of the two rows a thread holds of each unit, asked for before they are needed.
  struct row_post {
    bool any;  // else they are 1 and 0
    float scale[with_rows][2], shift[with_rows][2];
  };
  __device__ __forceinline__ void load_post(row_post& p) const {
    const auto has = [](const adapter_slot& slot) { return slot.scale != nullptr || slot.shift != nullptr; };
    p.any = has(seg.slot) || (gated() && has(g.segment[1].slot));
    if (!p.any) return;
#pragma unroll
    for (int b = 0; b < with_rows; ++b)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int unit = b * 4 + threadIdx.x / 32;
        const bool second = is_second(b);
        const adapter_slot& slot = second ? g.segment[1].slot : seg.slot;
        const int row = row0 + (unit - (second ? half_units : 0)) * 16 + (threadIdx.x % 32) / 4 + 8 * h;
        const bool inside = unit < shape::units;  // the vectors reach beyond the last row
        p.scale[b][h] = inside && slot.scale != nullptr ? __ldg(slot.scale + row) : 1.0F;
        p.shift[b][h] = inside && slot.shift != nullptr ? __ldg(slot.shift + row) : 0.0F;
      }
  }
  // Sums one after the other.
  static constexpr int each = finished / 2, held = with_rows * each;
  __device__ int token_of(int e) const { return eight_of(e % each / 4) * 8 + (threadIdx.x % 4) * 2 + (e & 1); }
  __device__ int row_of(int e) const {
    return row0 + (e / each * 4 + threadIdx.x / 32) * 16 + threadIdx.x % 32 / 4 + 8 * ((e >> 1) & 1);
  }
  // Does this warp finish the rows that it has in block b?
  __device__ bool finishes(int b) const {
    const int unit = b * 4 + threadIdx.x / 32;
    return unit < shape::units && (shape::by_tokens || unit / shape::owned == split);
  }
  // Odd sizes, and the shrink's own layout. (Any)
  __device__ __forceinline__ void store_any(const sums& acc, const post_slot<T>& post) const {
    T* y = static_cast<T*>(seg.y);
#pragma unroll
    for (int e = 0; e < held; ++e) {
      const int token = token_of(e), row = row_of(e);
      if (!finishes(e / each) || token >= g.m || row >= seg.n) continue;
      const float v = acc[e / each][e % each];
      if (g.by_row)
        y[static_cast<long long>(row) * g.m + token] = from_float<T>(v);
      else
        y[static_cast<long long>(token) * seg.n + row] = from_float<T>(post.finish(v, token, row));
    }
  }
  // The lane of the next row has the same tokens: after a swap each holds two rows of one token. f(b, j, h, at) is called
  // for every such pair that this thread stores, `at` elements behind the beginning of y.
  template <class F> __device__ __forceinline__ void each_pair(const F& f) const {
    const int lane = threadIdx.x % 32, odd = (lane / 4) & 1;
#pragma unroll
    for (int b = 0; b < with_rows; ++b) {
      if (!finishes(b)) continue;
      const int unit = b * 4 + threadIdx.x / 32;
      const int row = row0 + unit * 16 + lane / 4 - odd, token = eight_of(0) * 8 + (lane % 4) * 2 + odd;
      const long long first = static_cast<long long>(token) * seg.n + row;
#pragma unroll
      for (int j = 0; j < finished / 8; ++j) {
        if (!shape::by_tokens && j >= eights()) break;
        const int further = 8 * (eight_of(j) - eight_of(0));
#pragma unroll
        for (int h = 0; h < 2; ++h)
          f(b, j, h,
            token + further < g.m && row + 8 * h < seg.n ? first + static_cast<long long>(further) * seg.n + 8 * h
                                                         : -1);
      }
    }
  }
  // What is added to the pairs, asked for as soon as the kernel before has finished.
  using tile = stream_tile<T, Rows, finished>;
  using pairs = std::conditional_t<by_pieces, typename tile::pieces, std::uint32_t[with_rows][finished / 8][2]>;
  __device__ int token_at(int place) const { return 8 * eight_of(place / 8) + place % 8; }
  __device__ __forceinline__ void load_residual(pairs& to) const {
    if constexpr (by_pieces) {
      tile{seg, g.m, row0}.load_residual(to, [&](int place) { return token_at(place); });
    } else {
      ptx::wait_for_previous_kernel();
      each_pair([&](int b, int j, int h, long long at) {
        if (at >= 0) to[b][j][h] = *reinterpret_cast<const std::uint32_t*>(static_cast<const T*>(seg.residual) + at);
      });
    }
  }
  // 1 / rms of each token, which a warp finds meanwhile, and the factors of a norm behind y for the rows of each pair.
  __device__ std::uint32_t token_factors() const { return base + shape::barriers + shape::barrier_bytes - 4 * Tokens; }
  using gains = float2[with_rows][2];
  __device__ __forceinline__ void activate_all(sums& acc) const {
    if (seg.act == activation::none) return;
#pragma unroll
    for (auto& block : acc)
#pragma unroll
      for (int e = 0; e < each; e += 4) {
        const float4 v = activate_four(seg.act, make_float4(block[e], block[e + 1], block[e + 2], block[e + 3]));
        block[e] = v.x, block[e + 1] = v.y, block[e + 2] = v.z, block[e + 3] = v.w;
      }
  }
  __device__ __forceinline__ void store(const sums& acc, const pairs& residual) const {
    store(acc, residual, [](int, int, long long, std::uint32_t) {});
  }
  // `also` is called for every pair as it is stored: also(b, h, at, pair).
  template <class Also>
  __device__ __forceinline__ void store(const sums& acc, const pairs& residual, const Also& also) const {
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
      const std::uint32_t pair = pack<T>(first, second);
      if (at >= 0) *reinterpret_cast<std::uint32_t*>(y + at) = pair;
      also(b, h, at, pair);
    });
  }
  __device__ void consume() const {
    row_post p;
    load_post(p);
    accumulators acc;
    pairs residual;
    if (by_pairs() && seg.residual != nullptr) load_residual(residual);
    gains gain;
    if (norms && g.behind.gain != nullptr) load_gains<T>(*this, gain);
    accumulate(acc);
    if constexpr (Rank > 0) expand(acc);
    if constexpr (shape::by_tokens) {
      sums mine;
      exchange_tokens(*this, acc, mine);
      finish(mine, p, residual, gain);
    } else {
      if constexpr (Splits > 1) exchange_rows(*this, acc);
      finish(reinterpret_cast<sums&>(acc), p, residual, gain);
    }
  }
  __device__ bool by_pairs() const { return !Any || (!g.by_row && seg.n % 2 == 0); }
  // What follows the sums: factors, summands, activation, residual, and what a norm behind needs.
  __device__ __forceinline__ void finish(sums& acc, const row_post& p, const pairs& residual, const gains& gain) const {
    if constexpr (norms)
      if (g.ahead.squares != nullptr) normalize_tokens(*this, acc);
    if (p.any) {
#pragma unroll
      for (int b = 0; b < with_rows; ++b)
#pragma unroll
        for (int e = 0; e < each; ++e) acc[b][e] = fmaf(acc[b][e], p.scale[b][(e >> 1) & 1], p.shift[b][(e >> 1) & 1]);
    }
    if (!by_pairs())
      return store_any(acc, {seg.slot.scale, seg.slot.shift, static_cast<const T*>(seg.residual), seg.act, g.m, seg.n});
    if constexpr (can_gate)
      if (g.gated) return store_gated<T, Tokens>(*this, acc);
    if constexpr (by_pieces) {
      share_sums(*this, acc);
      ptx::named_barrier(1, 128);
      return tile{seg, g.m, row0}.store(base, sum_pitch(Rows), residual, [&](int place) { return token_at(place); });
    } else {
      finish_pairs(acc, residual, gain);
    }
  }
  __device__ __forceinline__ void finish_pairs(sums& acc, const pairs& residual, const gains& gain) const {
    activate_all(acc);
    if constexpr (norms)
      if (g.behind.gain != nullptr) {
        squares_of_rows squares;
        return store(acc, residual, [&](int b, int h, long long at, std::uint32_t pair) {
          squares.store<T>(g.behind, gain[b][h], h, at, pair);
        });
      }
    store(acc, residual);
  }
};

}  // namespace graft::cuda
