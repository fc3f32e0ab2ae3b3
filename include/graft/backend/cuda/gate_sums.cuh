// SPDX-License-Identifier: Apache-2.0
// The way back through a gate whose two layers have a factor per column, as DoRA's magnitudes: in one pass over the
// gradient t of silu(a) ⊙ b and the layers' sums z before their factors, a = z_a ⊙ p, b = z_b ⊙ q,
//     u = t ⊙ silu(a)                                   Σ u ⊙ z_b over the tokens       u ⊙ q
//     v = t ⊙ b ⊙ (σ(a) + silu(a) (1 - σ(a)))           Σ v ⊙ z_a                       v ⊙ p
// of which u and v themselves are stored nowhere. bf16, threads and sums as in column_dots.cuh: the same bits every time.
#pragma once
#include <graft/backend/cuda/column_dots.cuh>
#include <graft/backend/cuda/expression.cuh>

namespace graft::cuda {

struct gate_sum {
  cells<float> sum, scaled;  // over the tokens; the gradient times the factor
  const void *z, *factor;    // as the plan has them
};
struct gate_sums_args {
  const void *t, *z_a, *z_b;
  const float *p, *q;
  long long m;
  int columns;
  gate_sum of_b, of_a;
};

inline constexpr int gate_ahead = 2;

template <class T>
__global__ void __launch_bounds__(dots_width / 8 * dots_height) gate_sums(const __grid_constant__ gate_sums_args g) {
#if __CUDA_ARCH__ >= 900
  __shared__ alignas(16) float sums[dots_height][dots_width];
  __shared__ alignas(16) float total[2][dots_width];
  const int across = static_cast<int>(threadIdx.x) % (dots_width / 8),
            down = static_cast<int>(threadIdx.x) / (dots_width / 8);
  const int column = static_cast<int>(blockIdx.y) * dots_width + across * 8;
  const int part = static_cast<int>(blockIdx.x), parts = static_cast<int>(gridDim.x);
  const long long end = g.m * (part + 1) / parts;
  const bool inside = column < g.columns;
  float acc[2][8] = {}, p[8] = {}, q[8] = {};
#pragma unroll
  for (int e = 0; inside && e < 8; ++e) p[e] = g.p[column + e], q[e] = g.q[column + e];
  for (long long row0 = g.m * part / parts + down; inside && row0 < end; row0 += dots_height * gate_ahead) {
    uint4 t[gate_ahead], z_a[gate_ahead], z_b[gate_ahead];
#pragma unroll
    for (int i = 0; i < gate_ahead; ++i) {
      const long long row = row0 + i * dots_height, at = row * g.columns + column;
      t[i] = ptx::load_once(static_cast<const T*>(g.t) + at, row < end);
      z_a[i] = ptx::load_once(static_cast<const T*>(g.z_a) + at, row < end);
      z_b[i] = ptx::load_once(static_cast<const T*>(g.z_b) + at, row < end);
    }
#pragma unroll
    for (int i = 0; i < gate_ahead; ++i) {
      float up[8], from_a[8], from_b[8];
      widen_eight<dtype_of<T>>(up, t[i]), widen_eight<dtype_of<T>>(from_a, z_a[i]);
      widen_eight<dtype_of<T>>(from_b, z_b[i]);
      float to_b[8], to_a[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float a = from_a[e] * p[e], sigma = __fdividef(1, 1 + __expf(-a)), silu = a * sigma;
        const float u = up[e] * silu, v = up[e] * (from_b[e] * q[e]) * (sigma + silu * (1 - sigma));
        acc[0][e] = fmaf(u, from_b[e], acc[0][e]), acc[1][e] = fmaf(v, from_a[e], acc[1][e]);
        to_b[e] = u * q[e], to_a[e] = v * p[e];
      }
      const long long row = row0 + i * dots_height, at = row * g.columns + column;
      if (row >= end) continue;
      store_eight(to_b, g.of_b.scaled, at), store_eight(to_a, g.of_a.scaled, at);
    }
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
#pragma unroll
    for (int e = 0; e < 8; ++e) sums[down][across * 8 + e] = acc[k][e];
    __syncthreads();
    if (threadIdx.x < dots_width) {
      float sum = 0;
      for (int i = 0; i < dots_height; ++i) sum += sums[i][threadIdx.x];
      total[k][threadIdx.x] = sum;
    }
    __syncthreads();
  }
  ptx::cluster_sync();
  for (int e = 2 * dots_width * part / parts + static_cast<int>(threadIdx.x); e < 2 * dots_width * (part + 1) / parts;
       e += static_cast<int>(blockDim.x)) {
    const int k = e / dots_width, own = e % dots_width, c = static_cast<int>(blockIdx.y) * dots_width + own;
    float sum = 0;
    for (int other = 0; other < parts; ++other)
      sum += ptx::load_one_at(ptx::shared_address(&total[k][own]), static_cast<std::uint32_t>(other));
    if (c < g.columns) (k == 0 ? g.of_b : g.of_a).sum.put(c, sum);
  }
  ptx::cluster_sync();  // nobody leaves while others read its sums
#endif
}

// False where it is no such gate, or its tensors are not bf16: nothing was launched. `first`, `second`: u and v.
template <class T>
result<bool> sum_gates(cudaStream_t stream, const target& device, const expression& first, const expression& second,
                       const tensor<float>& out, const tensor<float>& other, const gate_sum& of_first,
                       const gate_sum& of_second) {
  unsigned size[4];
  for (int k = 0; k < 4; ++k) size[k] = static_cast<unsigned>(out.d[k]);
  const auto width = static_cast<unsigned>(out.d[3]);
  expression_eights<true> u{first, out.p, width, {}}, v{second, other.p, width, {}};
  if (device.capability < 90 || out.count() == 0 || out.p.type != dtype::bf16 || other.p.type != dtype::bf16)
    return false;
  if (!u.take(size) || !v.take(size) || !known_scaled_by_second::fits(u) || !known_scaled_by_first::fits(v))
    return false;
  const cells<float>* const o = v.e.operand;  // t, z_b, q, z_a, p
  auto stored = [](const cells<float>& c) { return c.type == dtype::bf16 && by_sixteen_bytes(c); };
  const bool same = of_first.z == o[1].at && of_first.factor == o[2].at && of_second.z == o[3].at &&
                    of_second.factor == o[4].at && u.e.operand[0].at == o[0].at && u.e.operand[1].at == o[3].at &&
                    u.e.operand[2].at == o[4].at;
  if (!same || !stored(of_first.scaled) || !stored(of_second.scaled)) return false;
  gate_sums_args g{o[0].at,
                   o[3].at,
                   o[1].at,
                   static_cast<const float*>(o[4].at),
                   static_cast<const float*>(o[2].at),
                   out.rows(),
                   static_cast<int>(width),
                   of_first,
                   of_second};
  const unsigned tiles = (width + dots_width - 1) / dots_width;
  const int parts = parts_for(tiles, (g.m + dots_height - 1) / dots_height, 4 * device.processors);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(parts), 1, 1};
  const cudaLaunchConfig_t how{
      dim3(static_cast<unsigned>(parts), tiles), dim3(dots_width / 8 * dots_height), 0, stream, &cluster, 1};
  void* arguments[] = {&g};
  const status s = launch(how, reinterpret_cast<const void*>(&gate_sums<T>), arguments, "gradients of a gate");
  if (!s) return s.failure();
  return true;
}

}  // namespace graft::cuda
