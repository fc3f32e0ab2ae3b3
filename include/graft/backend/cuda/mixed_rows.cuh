// SPDX-License-Identifier: Apache-2.0
// Batches that mix adapters where no kernel does it in one launch: float, large products, other devices. The bare product
// is followed by a launch that gives each row its own side branch, factor and summand, a thread block for a row. And x ⊙
// pre for the rows whose record has a factor of the input, which is a launch ahead of the product on every device.
#pragma once
#include <graft/backend/cuda/mixed_record.h>
#include <graft/backend/cuda/post.cuh>

namespace graft::cuda {

struct mixed_finish_args {
  mixed_batch batch;
  const void* x;  // [m, k]
  void* y;        // [m, n]: the bare product, and then the result
  const void* residual;
  activation act;
  long long m;
  int n, k;
};

inline constexpr int mixed_finish_threads = 256;

template <class T> __global__ void __launch_bounds__(mixed_finish_threads) mixed_finish_kernel(mixed_finish_args g) {
  __shared__ float side[max_mixed_rank];
  const long long row = blockIdx.x;
  const mixed_record r = g.batch.records[g.batch.of_row[row]];
  const int rank = static_cast<int>(r.rank), warp = static_cast<int>(threadIdx.x / 32), lane = threadIdx.x % 32;
  const T* const x = static_cast<const T*>(g.x) + row * g.k;
  for (int i = warp; i < rank; i += mixed_finish_threads / 32) {
    const T* const a = static_cast<const T*>(r.a) + static_cast<long long>(i) * g.k;
    float sum = 0;
    for (int c = lane; c < g.k; c += 32) sum = fmaf(to_float(x[c]), to_float(a[c]), sum);
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, o);
    if (lane == 0) side[i] = to_float(from_float<T>(sum));
  }
  __syncthreads();
  const post_slot<T> post{r.scale, r.shift, static_cast<const T*>(g.residual), g.act, g.m, g.n};
  T* const y = static_cast<T*>(g.y) + row * g.n;
  for (int c = static_cast<int>(threadIdx.x); c < g.n; c += mixed_finish_threads) {
    const T* const b = static_cast<const T*>(r.b) + static_cast<long long>(c) * rank;
    float v = to_float(y[c]);
    for (int i = 0; i < rank; ++i) v = fmaf(side[i], to_float(b[i]), v);
    y[c] = from_float<T>(post(v, row, c));
  }
}

// Element i of x ⊙ pre.
template <class T> struct scale_mixed_rows {
  mixed_batch batch;
  const T* x;
  T* to;
  int k;

  __device__ void operator()(long long i) const {
    const T* const pre = static_cast<const T*>(batch.records[batch.of_row[i / k]].pre);
    to[i] = pre == nullptr ? x[i] : from_float<T>(to_float(x[i]) * to_float(pre[i % k]));
  }
};

}  // namespace graft::cuda
