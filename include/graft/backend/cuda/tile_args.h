// SPDX-License-Identifier: Apache-2.0
// What the kernels without tensor maps are given: plain pointers and sizes, one record for all of them.
#pragma once
#include <graft/backend/cuda/slot.h>

namespace graft::cuda {

template <class T> struct post_slot;

struct tile_args {
  long long m;
  int n, k;
  const void* x;            // [m, k]
  const void* w;            // [n, k], or [k, n]: across
  void* y;                  // [m, n]
  const void* s = nullptr;  // [m, rank]; null: no side branch
  const void* residual = nullptr;
  void* before = nullptr;  // [m, n]: the sum before post; null: nobody reads it
  bool across = false;
  activation act = activation::none;
  adapter_slot slot{};

  __device__ int rank() const { return s == nullptr ? 0 : slot.rank; }
  template <class T> __device__ post_slot<T> post() const {
    return {slot.scale, slot.shift, static_cast<const T*>(residual), act, m, n};
  }
};

}  // namespace graft::cuda
