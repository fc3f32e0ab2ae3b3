// SPDX-License-Identifier: Apache-2.0
// SwiGLU backward fused with two column-wise wgrads, sm_90, bf16: the gate silu(a) ⊙ b of two layers with a factor per
// column each (DoRA's magnitudes), a = z_a ⊙ p and b = z_b ⊙ q, with t the gradient of the gate. One pass computes
//
//     u = t ⊙ silu(a)                            Σ u ⊙ z_b over the tokens    u ⊙ q
//     v = t ⊙ b ⊙ (σ(a) + silu(a) (1 - σ(a)))    Σ v ⊙ z_a                    v ⊙ p
//
// t, z_a, z_b [tokens, columns]; p, q [columns]. u and v are not stored. Work split and reduction are those of
// column_scale.cuh: bitwise deterministic.
//
// Measured: H200, training step of a four-layer Llama-3-8B shape with DoRA r16: 26.6 ms, 1.07 of the step with LoRA
// (docs/performance.md).
#pragma once
#include <graft/backend/gpu/kernels/elementwise/expression.cuh>
#include <graft/backend/gpu/kernels/wgrad/column_scale.cuh>

namespace graft::gpu {

struct gate_wgrad {
  element_ptr<float> sum, scaled;  // Σ over tokens; gradient ⊙ factor
  const void *z, *factor;          // the plan's tensors, to recognize the operands of the expression
};
struct gate_wgrad_args {
  const void *t, *z_a, *z_b;
  const float *p, *q;
  long long m;
  int columns;
  gate_wgrad of_b, of_a;
};

inline constexpr int gate_wgrad_prefetch = 2;

template <class T>
__global__ void __launch_bounds__(column_wgrad_width / 8 * column_wgrad_height)
    gate_wgrad_kernel(const __grid_constant__ gate_wgrad_args g) {
#if __CUDA_ARCH__ >= 900
  __shared__ alignas(16) float sums[column_wgrad_height][column_wgrad_width];
  __shared__ alignas(16) float total[2][column_wgrad_width];
  const int column_vector = static_cast<int>(threadIdx.x) % (column_wgrad_width / 8),
            down = static_cast<int>(threadIdx.x) / (column_wgrad_width / 8);
  const int column = static_cast<int>(blockIdx.y) * column_wgrad_width + column_vector * 8;
  const int split = static_cast<int>(blockIdx.x), splits = static_cast<int>(gridDim.x);
  const long long end = g.m * (split + 1) / splits;
  const bool inside = column < g.columns;
  float acc[2][8] = {}, p[8] = {}, q[8] = {};
#pragma unroll
  for (int e = 0; inside && e < 8; ++e) p[e] = g.p[column + e], q[e] = g.q[column + e];
  for (long long row0 = g.m * split / splits + down; inside && row0 < end;
       row0 += column_wgrad_height * gate_wgrad_prefetch) {
    uint4 t[gate_wgrad_prefetch], z_a[gate_wgrad_prefetch], z_b[gate_wgrad_prefetch];
#pragma unroll
    for (int i = 0; i < gate_wgrad_prefetch; ++i) {
      const long long row = row0 + i * column_wgrad_height, at = row * g.columns + column;
      t[i] = ptx::load_streaming(static_cast<const T*>(g.t) + at, row < end);
      z_a[i] = ptx::load_streaming(static_cast<const T*>(g.z_a) + at, row < end);
      z_b[i] = ptx::load_streaming(static_cast<const T*>(g.z_b) + at, row < end);
    }
#pragma unroll
    for (int i = 0; i < gate_wgrad_prefetch; ++i) {
      float up[8], from_a[8], from_b[8];
      widen_vec8<dtype_of<T>>(up, t[i]), widen_vec8<dtype_of<T>>(from_a, z_a[i]);
      widen_vec8<dtype_of<T>>(from_b, z_b[i]);
      float to_b[8], to_a[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float a = from_a[e] * p[e], sigma = __fdividef(1, 1 + __expf(-a)), silu = a * sigma;
        const float u = up[e] * silu, v = up[e] * (from_b[e] * q[e]) * (sigma + silu * (1 - sigma));
        acc[0][e] = fmaf(u, from_b[e], acc[0][e]), acc[1][e] = fmaf(v, from_a[e], acc[1][e]);
        to_b[e] = u * q[e], to_a[e] = v * p[e];
      }
      const long long row = row0 + i * column_wgrad_height, at = row * g.columns + column;
      if (row >= end) continue;
      store_vec8(to_b, g.of_b.scaled, at), store_vec8(to_a, g.of_a.scaled, at);
    }
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
#pragma unroll
    for (int e = 0; e < 8; ++e) sums[down][column_vector * 8 + e] = acc[k][e];
    __syncthreads();
    if (threadIdx.x < column_wgrad_width) {
      float sum = 0;
      for (int i = 0; i < column_wgrad_height; ++i) sum += sums[i][threadIdx.x];
      total[k][threadIdx.x] = sum;
    }
    __syncthreads();
  }
  ptx::cluster_sync();
  for (int e = 2 * column_wgrad_width * split / splits + static_cast<int>(threadIdx.x);
       e < 2 * column_wgrad_width * (split + 1) / splits; e += static_cast<int>(blockDim.x)) {
    const int k = e / column_wgrad_width, own = e % column_wgrad_width,
              c = static_cast<int>(blockIdx.y) * column_wgrad_width + own;
    float sum = 0;
    for (int other = 0; other < splits; ++other)
      sum += ptx::load_dsmem(ptx::shared_address(&total[k][own]), static_cast<std::uint32_t>(other));
    if (c < g.columns) (k == 0 ? g.of_b : g.of_a).sum.put(c, sum);
  }
  ptx::cluster_sync();  // a block must not exit while others read its sums
#endif
}

// `first` and `second` are the expressions of u and v. Returns false without a launch if they are not this gate or if
// the tensors are not bf16.
template <class T>
result<bool> run_gate_wgrads(cudaStream_t stream, const target& device, const expression& first,
                             const expression& second, const tensor<float>& out, const tensor<float>& other,
                             const gate_wgrad& of_first, const gate_wgrad& of_second) {
  unsigned size[4];
  for (int k = 0; k < 4; ++k) size[k] = static_cast<unsigned>(out.d[k]);
  const auto width = static_cast<unsigned>(out.d[3]);
  expression_vec8<true> u{first, out.p, width, {}}, v{second, other.p, width, {}};
  if (device.capability < 90 || out.count() == 0 || out.p.type != dtype::bf16 || other.p.type != dtype::bf16)
    return false;
  if (!u.take(size) || !v.take(size) || !fixed_scaled_swiglu_grad_up::fits(u) ||
      !fixed_scaled_swiglu_grad_gate::fits(v))
    return false;
  const element_ptr<float>* const o = v.e.operand;  // t, z_b, q, z_a, p
  auto stored = [](const element_ptr<float>& c) { return c.type == dtype::bf16 && is_aligned16(c); };
  const bool same = of_first.z == o[1].at && of_first.factor == o[2].at && of_second.z == o[3].at &&
                    of_second.factor == o[4].at && u.e.operand[0].at == o[0].at && u.e.operand[1].at == o[3].at &&
                    u.e.operand[2].at == o[4].at;
  if (!same || !stored(of_first.scaled) || !stored(of_second.scaled)) return false;
  gate_wgrad_args g{o[0].at,
                    o[3].at,
                    o[1].at,
                    static_cast<const float*>(o[4].at),
                    static_cast<const float*>(o[2].at),
                    out.rows(),
                    static_cast<int>(width),
                    of_first,
                    of_second};
  const unsigned tiles = (width + column_wgrad_width - 1) / column_wgrad_width;
  const int splits = splits_for(tiles, (g.m + column_wgrad_height - 1) / column_wgrad_height, 4 * device.sm_count);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
  const cudaLaunchConfig_t config{dim3(static_cast<unsigned>(splits), tiles),
                                  dim3(column_wgrad_width / 8 * column_wgrad_height),
                                  0,
                                  stream,
                                  &cluster,
                                  1};
  void* arguments[] = {&g};
  const status s = launch(config, reinterpret_cast<const void*>(&gate_wgrad_kernel<T>), arguments, "SwiGLU wgrad");
  if (!s) return s.failure();
  return true;
}

}  // namespace graft::gpu
