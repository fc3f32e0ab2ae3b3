// SPDX-License-Identifier: Apache-2.0
// Column-wise wgrad, sm_90: d = Σ a ⊙ b over the tokens, the gradient of a factor per column (DoRA's magnitude, IA3),
// and optionally a ⊙ factor in the same pass.
//
//   a, b [m, columns]    d [columns]    factor [columns]
//
// Work split   A cluster takes 128 columns; its blocks divide the tokens. A thread has 8 neighboring columns of every
//              16th token.
// Reduction    Over the threads of a block, then through distributed shared memory over the blocks of the cluster in
//              their order, each block for a share of the columns: bitwise deterministic.
// Measured     H200, training a DoRA layer, 4096 x 4096, 4096 tokens: 405 µs, 1.15 of the bare pair of products
//              (docs/performance.md).
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/dispatch/gemm.h>
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/tile/epilogue.cuh>
#include <graft/backend/gpu/tile/tensor.cuh>

namespace graft::gpu {

struct column_wgrad_args {
  element_ptr<float> a, b;
  long long m;
  int columns;
  bool adds;  // add to `to` instead of overwriting it
  element_ptr<float> to;
  element_ptr<float> scaled{}, factor{};  // optional second result: scaled = a ⊙ factor
};

inline constexpr int column_wgrad_width = 128, column_wgrad_height = 16, column_wgrad_prefetch = 4;

template <class T>
__global__ void __launch_bounds__(column_wgrad_width / 8 * column_wgrad_height)
    column_wgrad_kernel(const __grid_constant__ column_wgrad_args g) {
#if __CUDA_ARCH__ >= 900
  __shared__ alignas(16) float sums[column_wgrad_height][column_wgrad_width];
  __shared__ alignas(16) float total[column_wgrad_width];
  const int column_vector = static_cast<int>(threadIdx.x) % (column_wgrad_width / 8),
            down = static_cast<int>(threadIdx.x) / (column_wgrad_width / 8);
  const int column = static_cast<int>(blockIdx.y) * column_wgrad_width + column_vector * 8;
  const int part = static_cast<int>(blockIdx.x), splits = static_cast<int>(gridDim.x);
  const long long end = g.m * (part + 1) / splits;
  float acc[8] = {}, factor[8] = {};
  if (g.scaled.at != nullptr && column < g.columns) g.factor.load(factor, column, 1);
  for (long long t = g.m * part / splits + down; column < g.columns && t < end;
       t += column_wgrad_height * column_wgrad_prefetch) {
    uint4 a[column_wgrad_prefetch], b[column_wgrad_prefetch];
#pragma unroll
    for (int i = 0; i < column_wgrad_prefetch; ++i) {
      const long long row = t + i * column_wgrad_height, at = row * g.columns + column;
      a[i] = ptx::load_streaming(static_cast<const T*>(g.a.at) + at, row < end);
      b[i] = ptx::load_streaming(static_cast<const T*>(g.b.at) + at, row < end);
    }
#pragma unroll
    for (int i = 0; i < column_wgrad_prefetch; ++i) {
      const T *x = reinterpret_cast<const T*>(&a[i]), *y = reinterpret_cast<const T*>(&b[i]);
#pragma unroll
      for (int e = 0; e < 8; ++e) acc[e] = fmaf(to_float(x[e]), to_float(y[e]), acc[e]);
      const long long row = t + i * column_wgrad_height;
      if (g.scaled.at == nullptr || row >= end) continue;
      std::uint32_t v[4];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        v[e] = pack<T>(to_float(x[2 * e]) * factor[2 * e], to_float(x[2 * e + 1]) * factor[2 * e + 1]);
      *reinterpret_cast<uint4*>(static_cast<T*>(g.scaled.at) + row * g.columns + column) =
          make_uint4(v[0], v[1], v[2], v[3]);
    }
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) sums[down][column_vector * 8 + e] = acc[e];
  __syncthreads();
  if (threadIdx.x < column_wgrad_width) {
    float sum = 0;
    for (int i = 0; i < column_wgrad_height; ++i) sum += sums[i][threadIdx.x];
    total[threadIdx.x] = sum;
  }
  ptx::cluster_sync();
  const int quads = column_wgrad_width / 4;
  for (int e = quads * part / splits + static_cast<int>(threadIdx.x); e < quads * (part + 1) / splits;
       e += static_cast<int>(blockDim.x)) {
    float4 sum = make_float4(0, 0, 0, 0);
    for (int p = 0; p < splits; ++p) {
      const float4 v = ptx::load_dsmem4(ptx::shared_address(total) + 16 * e, static_cast<std::uint32_t>(p));
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    const float v[4] = {sum.x, sum.y, sum.z, sum.w};
    for (int i = 0; i < 4; ++i)
      if (const int c = static_cast<int>(blockIdx.y) * column_wgrad_width + 4 * e + i; c < g.columns)
        g.to.put(c, g.adds ? g.to[c] + v[i] : v[i]);
  }
  ptx::cluster_sync();  // a block must not exit while others read its sums
#endif
}
// Fallback for other devices, types and sizes: a team of threads per column.
struct column_wgrad_by_column {
  column_wgrad_args g;
  template <class Team> __host__ __device__ void operator()(long long c, Team t) const {
    float part = 0;
    for (long long r = t.rank; r < g.m; r += t.size) {
      const long long at = r * g.columns + c;
      part += g.a[at] * g.b[at];
      if (g.scaled.at != nullptr && t.owns()) g.scaled.put(at, g.a[at] * g.factor[c]);
    }
    const float sum = t.sum(part);
    if (t.is_leader()) g.to.put(c, g.adds ? g.to[c] + sum : sum);
  }
};

template <class T> status run_column_wgrad(cudaStream_t stream, const target& device, const column_wgrad_args& g) {
  auto addressed = [](const element_ptr<float>& c) {
    return c.type == dtype_of<T> && reinterpret_cast<std::uintptr_t>(c.at) % 16 == 0;
  };
  if constexpr (sizeof(T) == 2)
    if (addressed(g.a) && addressed(g.b) && (g.scaled.at == nullptr || addressed(g.scaled)) && g.columns % 8 == 0 &&
        device.capability >= 90) {
      const unsigned tiles = static_cast<unsigned>((g.columns + column_wgrad_width - 1) / column_wgrad_width);
      const int splits = splits_for(tiles, (g.m + column_wgrad_height - 1) / column_wgrad_height, 2 * device.sm_count);
      cudaLaunchAttribute cluster;
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
      const cudaLaunchConfig_t config{dim3(static_cast<unsigned>(splits), tiles),
                                      dim3(column_wgrad_width / 8 * column_wgrad_height),
                                      0,
                                      stream,
                                      &cluster,
                                      1};
      column_wgrad_args args = g;
      void* arguments[] = {&args};
      return launch(config, reinterpret_cast<const void*>(&column_wgrad_kernel<T>), arguments, "column-wise wgrad");
    }
  return on_stream{stream}.columns(g.columns, column_wgrad_by_column{g}, "column-wise wgrad");
}

}  // namespace graft::gpu
