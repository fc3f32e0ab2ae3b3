// SPDX-License-Identifier: Apache-2.0
// stream: 1 to 64 tokens, sm_90a. The weights pass through once, at the speed of memory; y = post(x Wᵀ + (x Aᵀ) Bᵀ).
//
// Rows of W are the 64-row operand of the products, tokens the narrow one. A thread block takes `rows` rows of W and one
// of `splits` parts of the inner axis; the rows of A lie right behind those of W in shared memory, so that Sᵀ = A xᵀ falls
// out of the same products. By linearity each block expands its own part of S into its own partial sums: the side branch
// needs no exchange. The parts meet in the block that finishes a unit of 16 rows, written there by the others of the
// cluster and added in a fixed order. Several layers with the same input (Q, K, V) are segments of one launch.
//
// Phases: the copying thread requests weights at once, then waits for the kernel before (programmatic dependent launch)
// and requests x; the warpgroup accumulates; expands; exchanges; applies post; stores.
#pragma once
#include <graft/backend/cuda/stream_shape.h>

#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/backend/cuda/wgmma.cuh>

namespace graft::cuda {

template <class T, int Tokens, int Blocks> struct stream_block {
  const stream_maps& maps;
  const stream_args& g;
  std::uint32_t base;
  const stream_segment& seg;
  const adapter_slot* slot;
  int row0, split, k_begin, k_end;

  __device__ std::uint32_t full(int q) const { return base + g.at.barriers + 8 * q; }
  __device__ std::uint32_t empty(int q) const { return full(g.at.stages + q); }
  __device__ std::uint32_t b_ready() const { return full(2 * g.at.stages); }
  __device__ std::uint32_t received() const { return b_ready() + 8; }
  __device__ int units() const { return g.rows / 16; }
  // Units of 16 rows are dealt to the splits in order, the same number to each.
  __device__ int owned() const { return units() / g.splits; }

  __device__ void start() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < g.at.stages; ++i) ptx::barrier_init(full(i), 1), ptx::barrier_init(empty(i), 1);
      ptx::barrier_init(b_ready(), 1);
      ptx::barrier_init(received(), 1);
      ptx::barrier_init_fence();
      if (g.splits > 1) ptx::barrier_expect(received(), (g.splits - 1) * owned() * (Tokens / 8) * 512);
    }
    if (g.splits > 1)
      ptx::cluster_sync();
    else
      __syncthreads();
    ptx::let_next_kernel_start();
  }

  // ---- one thread ---------------------------------------------------------------------------------------------------
  __device__ void load_w(int k, int q) const {
    ptx::barrier_expect(full(q), g.at.stage);
    ptx::load_tile(base + q * g.at.stage, &maps.w[seg.index], k * 64, row0, full(q),
                   g.keep_rows ? ptx::evict_last : ptx::evict_first);
  }
  __device__ void load_a(int k, int q) const {
    ptx::load_tile(base + q * g.at.stage + g.rows * 128, &slot->a, k * 64, 0, full(q), ptx::evict_last);
  }
  __device__ void load_x(int k, int q) const {
    ptx::load_tile(base + q * g.at.stage + (g.rows + g.rank) * 128, &maps.x, k * 64, 0, full(q), ptx::evict_last);
  }
  __device__ void produce() const {
    const int ahead = g.at.stages < k_end - k_begin ? g.at.stages : k_end - k_begin;
    for (int i = 0; i < ahead; ++i) load_w(k_begin + i, i);  // depends on no kernel before
    if (g.rank > 0) {
      ptx::acquire_map(&slot->a);
      ptx::acquire_map(&slot->b_stream);
      for (int i = 0; i < ahead; ++i) load_a(k_begin + i, i);
      ptx::barrier_expect(b_ready(), g.rows * g.rank * 2);
      for (int i = 0; i < g.rows; i += 16)
        ptx::load_tile(base + g.at.b + i * g.rank * 2, &slot->b_stream, 0, row0 + i, b_ready(), ptx::evict_first);
    }
    ptx::wait_for_previous_kernel();
    for (int i = 0; i < ahead; ++i) load_x(k_begin + i, i);
    int q = 0;
    std::uint32_t phase = 0;
    for (int k = k_begin + ahead; k < k_end; ++k) {
      ptx::barrier_wait(empty(q), phase);
      load_w(k, q);
      if (g.rank > 0) load_a(k, q);
      load_x(k, q);
      if (++q == g.at.stages) q = 0, phase ^= 1;
    }
  }

  // ---- one warpgroup ------------------------------------------------------------------------------------------------
  using accumulators = float[Blocks][Tokens / 2];

  __device__ __forceinline__ void accumulate(accumulators& acc) const {
    int q = 0, before = -1;
    std::uint32_t phase = 0;
    for (int k = k_begin; k < k_end; ++k) {
      ptx::barrier_wait(full(q), phase);
      const std::uint32_t at = base + q * g.at.stage;
      const std::uint64_t w = tile_descriptor(at), x = tile_descriptor(at + (g.rows + g.rank) * 128);
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < 4; ++kk)
#pragma unroll
        for (int b = 0; b < Blocks; ++b)  // 64 rows of 128 bytes further is 512 units of 16 bytes
          wgmma<T, Tokens>::shared(acc[b], w + b * 512 + 2 * kk, x + 2 * kk, k != k_begin || kk != 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (before >= 0 && k - 1 + g.at.stages < k_end && threadIdx.x == 0) ptx::barrier_arrive(empty(before));
      before = q;
      if (++q == g.at.stages) q = 0, phase ^= 1;
    }
    wgmma_wait<0>();
  }
  // The rows behind those of W are Sᵀ: to shared memory as [token][rank], then one product more.
  __device__ __forceinline__ void expand(accumulators& acc) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const std::uint32_t pitch = g.rank * 2;
#pragma unroll
    for (int b = 0; b < Blocks; ++b) {
      const int r = b * 64 + warp * 16 - g.rows;
      if (r < 0 || r >= g.rank) continue;
#pragma unroll
      for (int j = 0; j < Tokens / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = j * 8 + (lane % 4) * 2 + (i & 1), col = r + lane / 4 + 8 * (i >> 1);
          ptx::store_shared(base + g.at.s + tile_offset(token, col, pitch),
                            static_cast<std::uint16_t>(pack<T>(acc[b][4 * j + i], 0.0F)));
        }
    }
    ptx::fence_async_shared();
    ptx::named_barrier(1, 128);
    ptx::barrier_wait(b_ready(), 0);
    for (int kk = 0; kk < g.rank / 16; ++kk) {
      wgmma_fence();
#pragma unroll
      for (int b = 0; b < Blocks; ++b)
        wgmma<T, Tokens>::shared(acc[b], tile_descriptor(base + g.at.b + b * 64 * pitch, pitch) + 2 * kk,
                                 tile_descriptor(base + g.at.s, pitch) + 2 * kk, true);
      wgmma_commit();
      wgmma_wait<0>();
    }
  }
  // Where the part of split `from` of a unit lies, in the block that finishes the unit: 512 bytes for eight tokens.
  __device__ __forceinline__ std::uint32_t inbox(int unit, int owner, int from) const {
    const int sender = from < owner ? from : from - 1;
    return base + g.at.inbox + (sender * owned() + unit - owner * owned()) * (Tokens / 8) * 512 +
           (threadIdx.x % 32) * 16;
  }
  __device__ __forceinline__ void exchange(accumulators& acc) const {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int b = 0; b < Blocks; ++b) {
      const int unit = b * 4 + warp, owner = unit / owned();
      if (unit >= units() || owner == split) continue;
      const std::uint32_t to = inbox(unit, owner, split);
#pragma unroll
      for (int j = 0; j < Tokens / 8; ++j)
        ptx::store_at(to + j * 512, received(), owner,
                      make_float4(acc[b][4 * j], acc[b][4 * j + 1], acc[b][4 * j + 2], acc[b][4 * j + 3]));
    }
    ptx::barrier_wait(received(), 0);
    // The sum of all splits, in their order, whoever finishes.
#pragma unroll
    for (int b = 0; b < Blocks; ++b) {
      const int unit = b * 4 + warp;
      if (unit >= units() || unit / owned() != split) continue;
#pragma unroll
      for (int j = 0; j < Tokens / 8; ++j) {
        float4 sum = make_float4(0, 0, 0, 0);
        for (int s = 0; s < g.splits; ++s) {
          float4 part = make_float4(acc[b][4 * j], acc[b][4 * j + 1], acc[b][4 * j + 2], acc[b][4 * j + 3]);
          if (s != split) part = ptx::load_shared_float4(inbox(unit, split, s) + j * 512);
          sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        }
        acc[b][4 * j] = sum.x, acc[b][4 * j + 1] = sum.y, acc[b][4 * j + 2] = sum.z, acc[b][4 * j + 3] = sum.w;
      }
    }
  }
  // Factor and summand of the two rows a thread holds of each unit, asked for before they are needed.
  struct row_post {
    float scale[Blocks][2], shift[Blocks][2];
  };
  __device__ __forceinline__ void load_post(row_post& p, const post_slot<T>& post) const {
#pragma unroll
    for (int b = 0; b < Blocks; ++b)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int unit = b * 4 + threadIdx.x / 32, row = row0 + unit * 16 + (threadIdx.x % 32) / 4 + 8 * h;
        const bool wanted = post.affine() && unit < units() && row < seg.n;
        p.scale[b][h] = wanted ? __ldg(post.scale + row) : 1.0F;
        p.shift[b][h] = wanted ? __ldg(post.shift + row) : 0.0F;
      }
  }
  // Code that runs once costs what its instructions cost to fetch: what is rarely wanted lies apart from what always runs.
  __device__ __forceinline__ void apply(accumulators& acc, const row_post& p, const post_slot<T>& post) const {
#pragma unroll
    for (int b = 0; b < Blocks; ++b)
#pragma unroll
      for (int e = 0; e < Tokens / 2; ++e)
        acc[b][e] = fmaf(acc[b][e], p.scale[b][(e >> 1) & 1], p.shift[b][(e >> 1) & 1]);
    if (!post.more()) return;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < Blocks; ++b)
#pragma unroll
      for (int e = 0; e < Tokens / 2; ++e)
        acc[b][e] = post.finish(acc[b][e], e / 4 * 8 + (lane % 4) * 2 + (e & 1),
                                row0 + (b * 4 + threadIdx.x / 32) * 16 + lane / 4 + 8 * ((e >> 1) & 1));
  }
  enum class layout { pairs, single, by_row };
  template <layout How> __device__ __forceinline__ void store(accumulators& acc) const {
    const int lane = threadIdx.x % 32, odd = (lane / 4) & 1;
#pragma unroll
    for (int b = 0; b < Blocks; ++b) {
      const int unit = b * 4 + threadIdx.x / 32;
      if (unit >= units() || unit / owned() != split) continue;
      const int row = row0 + unit * 16 + lane / 4, token = (lane % 4) * 2;
      // The lane of the next row has the same tokens: after a swap each holds two rows of one token.
      T* y = static_cast<T*>(seg.y) + (How == layout::by_row ? static_cast<long long>(row) * g.m + token
                                                             : static_cast<long long>(token + odd) * seg.n + row - odd);
#pragma unroll
      for (int j = 0; j < Tokens / 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float low = acc[b][4 * j + 2 * h], high = acc[b][4 * j + 2 * h + 1];
          if constexpr (How == layout::by_row) {
            if (row + 8 * h < seg.n) *reinterpret_cast<std::uint32_t*>(y + 8LL * h * g.m + 8 * j) = pack<T>(low, high);
          } else {
            const float got = __shfl_xor_sync(0xffffffffU, odd ? low : high, 4);
            const float first = odd ? got : low, second = odd ? high : got;
            T* to = y + 8LL * j * seg.n + 8 * h;
            if (token + odd + 8 * j >= g.m || row - odd + 8 * h >= seg.n) continue;
            if constexpr (How == layout::pairs) {
              *reinterpret_cast<std::uint32_t*>(to) = pack<T>(first, second);
            } else {
              to[0] = from_float<T>(first);
              if (row - odd + 8 * h + 1 < seg.n) to[1] = from_float<T>(second);
            }
          }
        }
    }
  }
  __device__ void consume() const {
    const post_slot<T> post{slot->scale, slot->shift, static_cast<const T*>(seg.residual), g.act, g.m, seg.n};
    row_post p;
    load_post(p, post);
    accumulators acc;
    accumulate(acc);
    if (g.rank > 0) expand(acc);
    if (g.splits > 1) exchange(acc);
    apply(acc, p, post);
    if (g.by_row)
      store<layout::by_row>(acc);
    else if (seg.n % 2 == 0)
      store<layout::pairs>(acc);
    else
      store<layout::single>(acc);
  }
};

template <class T, int Tokens, int Blocks>
__global__ void __launch_bounds__(160)
    stream_kernel(const __grid_constant__ stream_maps maps, const __grid_constant__ stream_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  int s = 0;
  while (s + 1 < g.segments && static_cast<int>(blockIdx.y) >= g.segment[s + 1].first_tile) ++s;
  const stream_segment& seg = g.segment[s];
  const int split = static_cast<int>(blockIdx.x), k_steps = (g.k + 63) / 64;
  stream_block<T, Tokens, Blocks> block{maps,
                                        g,
                                        (ptx::shared_address(raw) + 1023) & ~1023U,
                                        seg,
                                        seg.slot,
                                        (static_cast<int>(blockIdx.y) - seg.first_tile) * g.rows,
                                        split,
                                        k_steps * split / g.splits,
                                        k_steps * (split + 1) / g.splits};
  block.start();
  if (threadIdx.x == 128)
    block.produce();
  else if (threadIdx.x < 128)
    block.consume();
#endif
}

}  // namespace graft::cuda
