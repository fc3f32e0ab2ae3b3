// SPDX-License-Identifier: Apache-2.0
// S = x Aᵀ of up to sixteen tokens, by a launch ahead of the product that adds S Bᵀ (stream_codes.cuh): with more than
// eight tokens warps that make it beside those that multiply would take registers from them.
//
// Sixteen of the rank are made by a cluster of eight thread blocks, each of which has an eighth of the inner axis, so that
// A is read once; A is asked for before the launch ahead has ended. Blocks send their sums to the first one, which adds
// them up in their order. Several layers with the same input are one launch.
#pragma once
#include <graft/backend/cuda/code_shrink.cuh>
#include <graft/backend/cuda/stream_choice.h>

namespace graft::cuda {

// S of a layer is [token][pitch] floats in device memory: of two layers whose products meet, one stands beside the other.
struct shrink_segment {
  adapter_slot slot;
  float* side;
  int pitch, first_token;
};
struct shrink_args {
  const void* x;
  int m, k;
  int first[max_segments];  // cluster of each layer
  shrink_segment segment[max_segments];
};
// The tokens of a layer.
template <class T> struct shrink_input {
  const shrink_args& g;
  const shrink_segment& of;
  __device__ int k() const { return g.k; }
  __device__ int m() const {
    const int left = g.m - of.first_token;
    return left < most_code_tokens ? left : most_code_tokens;
  }
  __device__ const T* x() const { return static_cast<const T*>(g.x) + static_cast<long long>(of.first_token) * g.k; }
};
inline constexpr int shrink_blocks = 8, shrink_warps = 8, shrink_threads = shrink_warps * 32;

template <class T>
__global__ void __launch_bounds__(shrink_threads) shrink_ahead_kernel(const __grid_constant__ shrink_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int eights = most_code_tokens / 8, sums_of_all = most_code_tokens * 16, at_once = 8;
  __shared__ alignas(16) float sums[shrink_warps][sums_of_all];
  __shared__ alignas(16) float4 parts[shrink_blocks][sums_of_all / 4];
  __shared__ alignas(8) std::uint64_t bar;
  ptx::let_next_kernel_start();
  const std::uint32_t all_parts = ptx::shared_address(&bar);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, row = thread % 32 / 4, quad = thread % 4;
  const int cluster = static_cast<int>(blockIdx.x) / shrink_blocks,
            block = static_cast<int>(blockIdx.x) % shrink_blocks;
  int s = 0;
#pragma unroll
  for (int other = 1; other < max_segments; ++other) s += cluster >= g.first[other] ? 1 : 0;
  const shrink_segment& of = g.segment[s];
  const int rows = (cluster - g.first[s]) * 16;
  const int part = block * shrink_warps + warp, all = g.k / 32, begin = all * part / (shrink_blocks * shrink_warps),
            end = all * (part + 1) / (shrink_blocks * shrink_warps);
  if (thread == 0 && block == 0) {
    ptx::barrier_init(all_parts, 1), ptx::barrier_init_fence();
    ptx::barrier_expect(all_parts, sizeof parts);
  }
  ptx::cluster_arrive();
  for (int c = begin + at_once; c < end; ++c)  // behind those that are in registers when x is there
    for (int h = 0; h < 2; ++h) ptx::bring(code_detail::a_at(of.slot, rows + row + h * 8, c, quad));
  float sum[eights][4] = {};
  code_detail::shrink<T, eights, at_once>(sum, of.slot, rows + row, row, quad, shrink_input<T>{g, of}, begin, end);
#pragma unroll
  for (int n = 0; n < eights; ++n)
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
      v.x += one.x, v.y += one.y, v.z += one.z, v.w += one.w;
    }
    return v;
  };
  ptx::store_at(ptx::shared_address(&parts[block][thread]), all_parts, 0, add_up(sums, shrink_warps));
  ptx::wait_for_previous_kernel();  // which may read S of its own there
  if (block != 0) return;
  ptx::barrier_wait(all_parts, 0);
  *reinterpret_cast<float4*>(of.side + thread / 4 * of.pitch + rows + thread % 4 * 4) = add_up(parts, shrink_blocks);
#endif
}

}  // namespace graft::cuda
