// SPDX-License-Identifier: Apache-2.0
// Eight neighbours at once, by 16-byte accesses, of floats or of a 16-bit type: what passes over the tokens live from.
#pragma once
#include <graft/backend/cuda/tensor.cuh>

namespace graft::cuda {

inline bool by_sixteen_bytes(const cells<float>& c) { return reinterpret_cast<std::uintptr_t>(c.at) % 16 == 0; }

__host__ __device__ __forceinline__ void load_eight(float (&to)[8], const cells<float>& from, long long first) {
  if (from.type == dtype::f32) {
    const auto* p = reinterpret_cast<const float4*>(static_cast<const float*>(from.at) + first);
    const float4 v[2] = {p[0], p[1]};
    for (int k = 0; k < 8; ++k) to[k] = reinterpret_cast<const float*>(v)[k];
    return;
  }
  uint4 bits = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(from.at) + first);
  const narrow_elements<float> v{reinterpret_cast<unsigned short*>(&bits), from.type == dtype::bf16};
  for (int k = 0; k < 8; ++k) to[k] = v[k];
}
__host__ __device__ __forceinline__ void store_eight(const float (&x)[8], const cells<float>& to, long long first) {
  if (to.type == dtype::f32) {
    auto* p = reinterpret_cast<float4*>(static_cast<float*>(to.at) + first);
    p[0] = make_float4(x[0], x[1], x[2], x[3]), p[1] = make_float4(x[4], x[5], x[6], x[7]);
    return;
  }
  uint4 bits;
  const narrow_elements<float> v{reinterpret_cast<unsigned short*>(&bits), to.type == dtype::bf16};
  for (int k = 0; k < 8; ++k) v.put(k, x[k]);
  *reinterpret_cast<uint4*>(static_cast<unsigned short*>(to.at) + first) = bits;
}

}  // namespace graft::cuda
