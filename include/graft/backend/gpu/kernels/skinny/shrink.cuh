// SPDX-License-Identifier: Apache-2.0
// Shrink U = x Aᵀ for up to 16 tokens per segment, sm_90a, as a launch before the quantized skinny GEMM that adds U Bᵀ
// (kernels/quantized/skinny_sm90.cuh). With more than eight tokens, warps that compute U inside that kernel would take
// registers from its other warps.
//
//   x [m, k]    A [rank, k], tiled    U [m, rank] floats
//
// Work split   A cluster of eight blocks computes 16 ranks of one layer; each of their 64 warps takes a share of k
//              (mma.sync), so that A is read once. Layers with the same x are one launch.
// Phases       A is requested before griddepcontrol.wait, x after it. Partial sums are added over the warps of a block
//              in order, sent to the first block through distributed shared memory, and added there in the order of the
//              blocks: deterministic.
#pragma once
#include <graft/backend/gpu/dispatch/skinny.h>
#include <graft/backend/gpu/kernels/quantized/shrink.cuh>
#include <graft/backend/gpu/tile/exchange.cuh>

namespace graft::gpu {

// U of a layer is [token][pitch] floats in device memory. The two layers of a gate share rows: their ranks are next to
// each other.
struct shrink_product {
  adapter_args adapter;
  float* shrink_out;
  int pitch, first_token;
};
struct shrink_args {
  const void* x;
  int m, k;
  int first[max_segments];  // first cluster of each layer
  shrink_product segment[max_segments];
};
// x of a layer's tokens, as quantized_detail::shrink() reads it.
template <class T> struct shrink_tokens {
  const shrink_args& g;
  const shrink_product& of;
  __device__ int k() const { return g.k; }
  __device__ int m() const {
    const int left = g.m - of.first_token;
    return left < max_quantized_tokens ? left : max_quantized_tokens;
  }
  __device__ const T* x() const { return static_cast<const T*>(g.x) + static_cast<long long>(of.first_token) * g.k; }
};
inline constexpr int shrink_blocks = 8, shrink_warps = 8, shrink_threads = shrink_warps * 32;

template <class T>
__global__ void __launch_bounds__(shrink_threads) shrink_kernel(const __grid_constant__ shrink_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int token_tiles = max_quantized_tokens / 8, sums_of_all = max_quantized_tokens * 16, at_once = 8;
  __shared__ alignas(16) float sums[shrink_warps][sums_of_all];
  __shared__ alignas(16) float4 partials[shrink_blocks][sums_of_all / 4];
  __shared__ alignas(8) std::uint64_t bar;
  ptx::launch_dependents();
  const cluster_mailbox all_partials{ptx::shared_address(&bar)};
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, row = thread % 32 / 4, quad = thread % 4;
  const int cluster = static_cast<int>(blockIdx.x) / shrink_blocks,
            block = static_cast<int>(blockIdx.x) % shrink_blocks;
  int s = 0;
#pragma unroll
  for (int other = 1; other < max_segments; ++other) s += cluster >= g.first[other] ? 1 : 0;
  const shrink_product& of = g.segment[s];
  const int rows = (cluster - g.first[s]) * 16;
  const int part = block * shrink_warps + warp, all = g.k / 32, begin = all * part / (shrink_blocks * shrink_warps),
            end = all * (part + 1) / (shrink_blocks * shrink_warps);
  if (thread == 0 && block == 0) {
    all_partials.init(), ptx::barrier_init_fence();
    all_partials.expect(sizeof partials);
  }
  ptx::cluster_arrive();
  for (int c = begin + at_once; c < end; ++c)  // the first at_once chunks are loaded to registers before the wait
    for (int h = 0; h < 2; ++h) ptx::prefetch(quantized_detail::a_at(of.adapter, rows + row + h * 8, c, quad));
  float sum[token_tiles][4] = {};
  quantized_detail::shrink<T, token_tiles, at_once>(sum, of.adapter, rows + row, row, quad, shrink_tokens<T>{g, of},
                                                    begin, end);
#pragma unroll
  for (int n = 0; n < token_tiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[warp][(n * 8 + quad * 2 + (e & 1)) * 16 + row + 8 * (e >> 1)] = sum[n][e];
  __syncthreads();
  ptx::cluster_wait();
  if (thread >= sums_of_all / 4) return;
  const auto add_up = [&](const void* from, int count) {
    float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float4 one = static_cast<const float4*>(from)[i * (sums_of_all / 4) + thread];
      add_to(v, one);
    }
    return v;
  };
  all_partials.send(ptx::shared_address(&partials[block][thread]), 0, add_up(sums, shrink_warps));
  ptx::wait_for_dependency();  // the preceding kernel may still read its own U from this memory
  if (block != 0) return;
  all_partials.wait();
  *reinterpret_cast<float4*>(of.shrink_out + thread / 4 * of.pitch + rows + thread % 4 * 4) =
      add_up(partials, shrink_blocks);
#endif
}

}  // namespace graft::gpu
