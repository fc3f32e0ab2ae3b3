// SPDX-License-Identifier: Apache-2.0
// Stacks of small square matrices through several products and elementwise steps in one launch
// (plan/launch/matrix_stack.h): the small algebra between the gradient of a rotation and that of its parameters (OFT,
// BOFT, HRA), in float.
//
//   step k:  slot[to] = a b (operands may be transposed), aᵀ, upper(a), a ± b, a ⊙ b; unskew(a) goes to memory only
//
// Work split   A CTA takes matrix i of every stack; in a product a thread computes 2 x 2 results.
// Phases       All operands are loaded into slots of shared memory (padded row pitch). Each step reads and writes
//              slots; results that other launches read are also stored. A block barrier separates the steps.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/kernels/elementwise/layout.cuh>
#include <graft/backend/gpu/runtime/device.h>
#include <graft/backend/gpu/tile/elements.cuh>
#include <graft/plan/launch/matrix_stack.h>

namespace graft::gpu {

struct stack_step {
  op what;
  bool ta, tb;
  signed char to, a, b;       // slots; -1 for a or b: the scalar `number`
  element_ptr<float> number;  // one scalar for all matrices
  element_ptr<float> store;   // null: no other launch reads the result
};
struct stack_args {
  int edge, steps, operands, slots;
  long long matrices;
  element_ptr<float> operand[max_stack_operands];
  signed char at[max_stack_operands];
  stack_step step[max_stack_steps];
};

namespace stacked {
inline constexpr int pitch_of(int edge) { return edge + 1; }  // neither rows nor columns conflict
inline constexpr int bytes_of(const stack_args& g) { return g.slots * g.edge * pitch_of(g.edge) * 4; }

// to = a b. A thread computes 2 x 2 results, so that each multiply-add needs one load from shared memory.
__device__ inline void multiply(float* to, const float* a, const float* b, const stack_step& s, int n) {
  const int pitch = pitch_of(n), half = (n + 1) / 2;
  const int a_row = s.ta ? 1 : pitch, a_step = s.ta ? pitch : 1, b_col = s.tb ? pitch : 1, b_step = s.tb ? 1 : pitch;
  for (int e = static_cast<int>(threadIdx.x); e < half * half; e += static_cast<int>(blockDim.x)) {
    const int r = e / half, c = e % half, r2 = r + half < n ? r + half : r, c2 = c + half < n ? c + half : c;
    float sum[4] = {};
#pragma unroll 8
    for (int k = 0; k < n; ++k) {
      const float x = a[r * a_row + k * a_step], x2 = a[r2 * a_row + k * a_step];
      const float y = b[k * b_step + c * b_col], y2 = b[k * b_step + c2 * b_col];
      sum[0] += x * y, sum[1] += x * y2, sum[2] += x2 * y, sum[3] += x2 * y2;
    }
    to[r * pitch + c] = sum[0], to[r * pitch + c2] = sum[1];
    to[r2 * pitch + c] = sum[2], to[r2 * pitch + c2] = sum[3];
  }
}
// Loads all operands into their slots; eight loads of a thread are in flight together.
template <class SlotOf> __device__ inline void load(const stack_args& g, long long matrix, const SlotOf& slot) {
  constexpr int at_once = 8;
  const int n = g.edge, area = n * n, all = g.operands * area, threads = static_cast<int>(blockDim.x);
  for (int e0 = static_cast<int>(threadIdx.x); e0 < all; e0 += at_once * threads) {
    float v[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i)
      if (const int e = e0 + i * threads; e < all) v[i] = (g.operand[e / area] + matrix * area)[e % area];
#pragma unroll
    for (int i = 0; i < at_once; ++i)
      if (const int e = e0 + i * threads; e < all) slot(g.at[e / area])[e % area / n * pitch_of(n) + e % n] = v[i];
  }
}
template <class F> __device__ inline void each_entry(int n, const F& f) {
  for (int e = static_cast<int>(threadIdx.x); e < n * n; e += static_cast<int>(blockDim.x)) f(e / n, e % n, e);
}
}  // namespace stacked

template <class Real> __global__ void stack_kernel(const __grid_constant__ stack_args g) {
  extern __shared__ float slots[];
  pdl_begin();
  const int n = g.edge, pitch = stacked::pitch_of(n), area = n * n;
  const long long matrix = blockIdx.x;
  auto slot = [&](int k) { return slots + k * n * pitch; };
  stacked::load(g, matrix, slot);
  for (int k = 0; k < g.steps; ++k) {
    __syncthreads();
    const stack_step& s = g.step[k];
    float* const to = slot(s.to);
    const float *const a = slot(s.a < 0 ? 0 : s.a), *const b = slot(s.b < 0 ? 0 : s.b);
    if (s.what == op::matmul) {
      stacked::multiply(to, a, b, s, n);
    } else if (s.what == op::transpose) {
      stacked::each_entry(n, [&](int r, int c, int) { to[r * pitch + c] = a[c * pitch + r]; });
    } else if (s.what == op::strict_upper) {
      stacked::each_entry(n, [&](int r, int c, int) { to[r * pitch + c] = r < c ? a[r * pitch + c] : 0; });
    } else if (s.what == op::unskew) {
      const element_ptr<float> out = s.store + matrix * (area - n) / 2;
      stacked::each_entry(n, [&](int r, int c, int) {
        if (r < c) out.put(packed_offset(r, c, n), a[r * pitch + c] - a[c * pitch + r]);
      });
      continue;
    } else {
      const float number = s.a < 0 || s.b < 0 ? s.number[0] : 0;
      stacked::each_entry(n, [&](int r, int c, int) {
        const float u = s.a < 0 ? number : a[r * pitch + c], v = s.b < 0 ? number : b[r * pitch + c];
        to[r * pitch + c] = s.what == op::add ? u + v : s.what == op::sub ? u - v : u * v;
      });
    }
    if (s.store.at == nullptr) continue;
    __syncthreads();
    const element_ptr<float> out = s.store + matrix * area;
    stacked::each_entry(n, [&](int r, int c, int e) { out.put(e, to[r * pitch + c]); });
  }
}

template <class Real> status run_stack(cudaStream_t stream, const stack_args& g) {
  if (g.matrices == 0) return ok;
  const int bytes = stacked::bytes_of(g), half = (g.edge + 1) / 2;
  const auto* const kernel = reinterpret_cast<const void*>(&stack_kernel<Real>);
  if (bytes > 48 * 1024)
    if (status s = check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                         "shared memory of stacks");
        !s)
      return s;
  const int threads = (half * half + 31) / 32 * 32;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config{dim3(static_cast<unsigned>(g.matrices)),
                                  dim3(static_cast<unsigned>(threads < 64    ? 64
                                                             : threads > 256 ? 256
                                                                             : threads)),
                                  static_cast<std::size_t>(bytes),
                                  stream,
                                  &early,
                                  device_has_pdl() ? 1U : 0U};
  void* arguments[] = {const_cast<stack_args*>(&g)};
  return launch(config, kernel, arguments, "matrix stack");
}

}  // namespace graft::gpu
