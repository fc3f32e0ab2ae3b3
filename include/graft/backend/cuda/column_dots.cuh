// SPDX-License-Identifier: Apache-2.0
// d = Σ a ⊙ b over the tokens, a number for each column: the gradient of a factor per column; and, where it is wanted,
// a ⊙ a factor per column. One pass over both.
//
// A thread block takes a part of the tokens for 128 columns, a thread 8 neighbouring columns of every 16th token. The
// parts of a cluster are added in their order, each block a share of the columns: the same bits every time.
#pragma once
#include <graft/backend/cuda/choose.h>
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/backend/cuda/tensor.cuh>

namespace graft::cuda {

struct dots_args {
  cells<float> a, b;
  long long m;
  int columns;
  bool adds;  // to what is there
  cells<float> to;
  cells<float> scaled{}, factor{};  // where a ⊙ factor goes, if anywhere
};

inline constexpr int dots_width = 128, dots_height = 16, dots_ahead = 4;

template <class T>
__global__ void __launch_bounds__(dots_width / 8 * dots_height) column_dots(const __grid_constant__ dots_args g) {
#if __CUDA_ARCH__ >= 900
  __shared__ alignas(16) float sums[dots_height][dots_width];
  __shared__ alignas(16) float total[dots_width];
  const int across = static_cast<int>(threadIdx.x) % (dots_width / 8),
            down = static_cast<int>(threadIdx.x) / (dots_width / 8);
  const int column = static_cast<int>(blockIdx.y) * dots_width + across * 8;
  const int part = static_cast<int>(blockIdx.x), parts = static_cast<int>(gridDim.x);
  const long long end = g.m * (part + 1) / parts;
  float acc[8] = {}, factor[8] = {};
  if (g.scaled.at != nullptr && column < g.columns) g.factor.load(factor, column, 1);
  for (long long t = g.m * part / parts + down; column < g.columns && t < end; t += dots_height * dots_ahead) {
    uint4 a[dots_ahead], b[dots_ahead];
#pragma unroll
    for (int i = 0; i < dots_ahead; ++i) {
      const long long row = t + i * dots_height, at = row * g.columns + column;
      a[i] = ptx::load_once(static_cast<const T*>(g.a.at) + at, row < end);
      b[i] = ptx::load_once(static_cast<const T*>(g.b.at) + at, row < end);
    }
#pragma unroll
    for (int i = 0; i < dots_ahead; ++i) {
      const T *x = reinterpret_cast<const T*>(&a[i]), *y = reinterpret_cast<const T*>(&b[i]);
#pragma unroll
      for (int e = 0; e < 8; ++e) acc[e] = fmaf(to_float(x[e]), to_float(y[e]), acc[e]);
      const long long row = t + i * dots_height;
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
  for (int e = 0; e < 8; ++e) sums[down][across * 8 + e] = acc[e];
  __syncthreads();
  if (threadIdx.x < dots_width) {
    float sum = 0;
    for (int i = 0; i < dots_height; ++i) sum += sums[i][threadIdx.x];
    total[threadIdx.x] = sum;
  }
  ptx::cluster_sync();
  const int quads = dots_width / 4;
  for (int e = quads * part / parts + static_cast<int>(threadIdx.x); e < quads * (part + 1) / parts;
       e += static_cast<int>(blockDim.x)) {
    float4 sum = make_float4(0, 0, 0, 0);
    for (int p = 0; p < parts; ++p) {
      const float4 v = ptx::load_at(ptx::shared_address(total) + 16 * e, static_cast<std::uint32_t>(p));
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    const float v[4] = {sum.x, sum.y, sum.z, sum.w};
    for (int i = 0; i < 4; ++i)
      if (const int c = static_cast<int>(blockIdx.y) * dots_width + 4 * e + i; c < g.columns)
        g.to.put(c, g.adds ? g.to[c] + v[i] : v[i]);
  }
  ptx::cluster_sync();  // nobody leaves while others read its sums
#endif
}
// For other devices, types and sizes: a team of threads per column.
struct dots_by_column {
  dots_args g;
  template <class Team> __host__ __device__ void operator()(long long c, Team t) const {
    float part = 0;
    for (long long r = t.rank; r < g.m; r += t.size) {
      const long long at = r * g.columns + c;
      part += g.a[at] * g.b[at];
      if (g.scaled.at != nullptr && t.owns()) g.scaled.put(at, g.a[at] * g.factor[c]);
    }
    const float sum = t.sum(part);
    if (t.leads()) g.to.put(c, g.adds ? g.to[c] + sum : sum);
  }
};

template <class T> status dot_columns(cudaStream_t stream, const target& device, const dots_args& g) {
  auto addressed = [](const cells<float>& c) {
    return c.type == dtype_of<T> && reinterpret_cast<std::uintptr_t>(c.at) % 16 == 0;
  };
  if constexpr (sizeof(T) == 2)
    if (addressed(g.a) && addressed(g.b) && (g.scaled.at == nullptr || addressed(g.scaled)) && g.columns % 8 == 0 &&
        device.capability >= 90) {
      const unsigned tiles = static_cast<unsigned>((g.columns + dots_width - 1) / dots_width);
      const int parts = parts_for(tiles, (g.m + dots_height - 1) / dots_height, 2 * device.processors);
      cudaLaunchAttribute cluster;
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {static_cast<unsigned>(parts), 1, 1};
      const cudaLaunchConfig_t how{
          dim3(static_cast<unsigned>(parts), tiles), dim3(dots_width / 8 * dots_height), 0, stream, &cluster, 1};
      dots_args args = g;
      void* arguments[] = {&args};
      return launch(how, reinterpret_cast<const void*>(&column_dots<T>), arguments, "column sums");
    }
  return on_stream{stream}.columns(g.columns, dots_by_column{g}, "column sums");
}

}  // namespace graft::cuda
