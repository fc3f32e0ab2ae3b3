// SPDX-License-Identifier: Apache-2.0
// Multi-LoRA epilogue per row, on every device and type, for products that no multi-LoRA kernel takes in one launch.
//
//   y[row] = act(scale ⊙ (y[row] + U Bᵀ) + shift) + residual[row]     U = x[row] Aᵀ, with the record of the row
//
// It runs after the bare product y = x Wᵀ, one CTA per row: its warps compute U, one element of the rank each, then its
// threads the outputs. scale_rows_by_record computes x ⊙ prologue before the product, on every device.
#pragma once
#include <graft/backend/gpu/kernels/multi_lora/adapter_record.h>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

struct multi_lora_epilogue_args {
  multi_lora_batch batch;
  const void* x;  // [m, k]
  void* y;        // [m, n]: the bare product on entry, the result on exit
  const void* residual;
  activation act;
  long long m;
  int n, k;
};

inline constexpr int multi_lora_epilogue_threads = 256;

template <class T>
__global__ void __launch_bounds__(multi_lora_epilogue_threads) multi_lora_epilogue_kernel(multi_lora_epilogue_args g) {
  __shared__ float shrunk[max_multi_lora_rank];
  const long long row = blockIdx.x;
  const adapter_record r = g.batch.records[g.batch.of_row[row]];
  const int rank = static_cast<int>(r.rank), warp = static_cast<int>(threadIdx.x / 32), lane = threadIdx.x % 32;
  const T* const x = static_cast<const T*>(g.x) + row * g.k;
  for (int i = warp; i < rank; i += multi_lora_epilogue_threads / 32) {
    const T* const a = static_cast<const T*>(r.a) + static_cast<long long>(i) * g.k;
    float sum = 0;
    for (int c = lane; c < g.k; c += 32) sum = fmaf(to_float(x[c]), to_float(a[c]), sum);
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, o);
    if (lane == 0) shrunk[i] = to_float(from_float<T>(sum));
  }
  __syncthreads();
  const epilogue_args<T> epilogue{r.scale, r.shift, static_cast<const T*>(g.residual), g.act, g.m, g.n};
  T* const y = static_cast<T*>(g.y) + row * g.n;
  for (int c = static_cast<int>(threadIdx.x); c < g.n; c += multi_lora_epilogue_threads) {
    const T* const b = static_cast<const T*>(r.b) + static_cast<long long>(c) * rank;
    float v = to_float(y[c]);
    for (int i = 0; i < rank; ++i) v = fmaf(shrunk[i], to_float(b[i]), v);
    y[c] = from_float<T>(epilogue(v, row, c));
  }
}

// Element i of x ⊙ prologue, with the prologue of the row's record.
template <class T> struct scale_rows_by_record {
  multi_lora_batch batch;
  const T* x;
  T* to;
  int k;

  __device__ void operator()(long long i) const {
    const T* const prologue = static_cast<const T*>(batch.records[batch.of_row[i / k]].prologue);
    to[i] = prologue == nullptr ? x[i] : from_float<T>(to_float(x[i]) * to_float(prologue[i % k]));
  }
};

}  // namespace graft::gpu
