// SPDX-License-Identifier: Apache-2.0
// tile_args: arguments of the GEMM kernels without TMA (sm80_mma.cuh, simt.cuh), as plain pointers and sizes.
#pragma once
#include <graft/backend/gpu/tile/adapter_args.h>

namespace graft::gpu {

template <class T> struct epilogue_args;

struct tile_args {
  long long m;
  int n, k;
  const void* x;            // [m, k]
  const void* w;            // [n, k]; where nn: [k, n]
  void* y;                  // [m, n]
  const void* u = nullptr;  // the shrink result U = x Aᵀ, [m, rank]; null: no low-rank branch
  const void* residual = nullptr;
  void* before = nullptr;  // [m, n]: also store the sum before the epilogue; null: do not
  bool nn = false;
  activation act = activation::none;
  adapter_args adapter{};

  __device__ int rank() const { return u == nullptr ? 0 : adapter.rank; }
  template <class T> __device__ epilogue_args<T> epilogue() const {
    return {adapter.scale, adapter.shift, static_cast<const T*>(residual), act, m, n};
  }
};

}  // namespace graft::gpu
