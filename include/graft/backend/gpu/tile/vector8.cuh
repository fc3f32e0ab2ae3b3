// SPDX-License-Identifier: Apache-2.0
// 16-byte vectorized loads and stores of eight neighboring elements (floats or a 16-bit type), for kernels that are
// bound by memory bandwidth. Addresses must be multiples of 16 bytes.
#pragma once
#include <graft/backend/gpu/tile/tensor.cuh>

namespace graft::gpu {

inline bool is_aligned16(const element_ptr<float>& c) { return reinterpret_cast<std::uintptr_t>(c.at) % 16 == 0; }

// Converts eight 16-bit elements, in memory order, to floats.
template <dtype Type> __host__ __device__ __forceinline__ void widen_vec8(float (&to)[8], const uint4& from) {
  const unsigned words[4] = {from.x, from.y, from.z, from.w};
  for (int k = 0; k < 8; ++k) {
    const auto bits = static_cast<unsigned short>(words[k / 2] >> k % 2 * 16);
    if constexpr (Type == dtype::bf16)
      to[k] = __bfloat162float(__nv_bfloat16_raw{bits});
    else
      to[k] = __half2float(__half_raw{bits});
  }
}
template <dtype Type> __host__ __device__ __forceinline__ uint4 narrow_vec8(const float (&x)[8]) {
  unsigned words[4];
  for (int k = 0; k < 4; ++k) {
    unsigned short low, high;
    if constexpr (Type == dtype::bf16) {
      const auto pair = static_cast<__nv_bfloat162_raw>(__floats2bfloat162_rn(x[2 * k], x[2 * k + 1]));
      low = pair.x, high = pair.y;
    } else {
      const auto pair = static_cast<__half2_raw>(__floats2half2_rn(x[2 * k], x[2 * k + 1]));
      low = pair.x, high = pair.y;
    }
    words[k] = low | static_cast<unsigned>(high) << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

__host__ __device__ __forceinline__ void load_vec8(float (&to)[8], const element_ptr<float>& from, long long first) {
  if (from.type == dtype::f32) {
    const auto* p = reinterpret_cast<const float4*>(static_cast<const float*>(from.at) + first);
    const float4 v[2] = {p[0], p[1]};
    for (int k = 0; k < 8; ++k) to[k] = reinterpret_cast<const float*>(v)[k];
    return;
  }
  const uint4 bits = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(from.at) + first);
  if (from.type == dtype::bf16)
    widen_vec8<dtype::bf16>(to, bits);
  else
    widen_vec8<dtype::f16>(to, bits);
}
// Two vectors whose loads are in flight together.
__host__ __device__ __forceinline__ void load_vec8_pair(float (&a)[8], float (&b)[8], const element_ptr<float>& from,
                                                        long long first, long long second) {
  if (from.type == dtype::f32) return load_vec8(a, from, first), load_vec8(b, from, second);
  const auto* const p = static_cast<const unsigned short*>(from.at);
  const uint4 x = *reinterpret_cast<const uint4*>(p + first), y = *reinterpret_cast<const uint4*>(p + second);
  if (from.type == dtype::bf16)
    widen_vec8<dtype::bf16>(a, x), widen_vec8<dtype::bf16>(b, y);
  else
    widen_vec8<dtype::f16>(a, x), widen_vec8<dtype::f16>(b, y);
}
__host__ __device__ __forceinline__ void store_vec8(const float (&x)[8], const element_ptr<float>& to,
                                                    long long first) {
  if (to.type == dtype::f32) {
    auto* p = reinterpret_cast<float4*>(static_cast<float*>(to.at) + first);
    p[0] = make_float4(x[0], x[1], x[2], x[3]), p[1] = make_float4(x[4], x[5], x[6], x[7]);
    return;
  }
  *reinterpret_cast<uint4*>(static_cast<unsigned short*>(to.at) + first) =
      to.type == dtype::bf16 ? narrow_vec8<dtype::bf16>(x) : narrow_vec8<dtype::f16>(x);
}

}  // namespace graft::gpu
