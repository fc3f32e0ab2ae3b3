// SPDX-License-Identifier: Apache-2.0
// The post slot: what happens to an accumulator on its way out, act(scale * v + shift) + residual. And, with the
// conversions both need, the pre slot: what happens to x on its way in.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <graft/backend/cuda/slot.h>

#include <cstdint>

namespace graft::cuda {

__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(float v) { return v; }
template <class T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ __nv_bfloat16 from_float(float v) { return __float2bfloat16_rn(v); }
template <> __device__ __forceinline__ __half from_float(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ float from_float(float v) { return v; }

// Two neighbouring elements in one register.
template <class T> __device__ __forceinline__ std::uint32_t pack(float low, float high);
template <> __device__ __forceinline__ std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&v);
}
template <> __device__ __forceinline__ std::uint32_t pack<__half>(float low, float high) {
  const __half2 v = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&v);
}

// And back.
template <class T> __device__ __forceinline__ float2 unpack(std::uint32_t v);
template <> __device__ __forceinline__ float2 unpack<__nv_bfloat16>(std::uint32_t v) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&v));
}
template <> __device__ __forceinline__ float2 unpack<__half>(std::uint32_t v) {
  return __half22float2(*reinterpret_cast<const __half2*>(&v));
}

// Two neighbouring elements with a factor each, rounded to their type: the pre slot.
template <class T> __device__ __forceinline__ std::uint32_t times(std::uint32_t a, std::uint32_t b);
template <> __device__ __forceinline__ std::uint32_t times<__nv_bfloat16>(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 v =
      __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&v);
}
template <> __device__ __forceinline__ std::uint32_t times<__half>(std::uint32_t a, std::uint32_t b) {
  const __half2 v = __hmul2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&v);
}

__device__ __forceinline__ float activate(activation what, float v) {
  switch (what) {
    case activation::none: return v;
    case activation::relu: return fmaxf(v, 0.0F);
    case activation::silu: return __fdividef(v, 1 + __expf(-v));
    case activation::gelu: return 0.5F * v * (1 + erff(0.7071067812F * v));
    case activation::gelu_tanh:  // 1 + tanh(u) = 2 / (1 + exp(-2 u))
      return __fdividef(v, 1 + __expf(-1.5957691216F * (v + 0.044715F * v * v * v)));
  }
  return v;
}
// One jump for four numbers, which do not wait for each other.
template <activation Act> __device__ __forceinline__ float4 activate(const float4& v) {
  return make_float4(activate(Act, v.x), activate(Act, v.y), activate(Act, v.z), activate(Act, v.w));
}
__device__ __forceinline__ float4 activate(activation what, const float4& v) {
  switch (what) {
    case activation::none: return v;
    case activation::relu: return activate<activation::relu>(v);
    case activation::silu: return activate<activation::silu>(v);
    case activation::gelu: return activate<activation::gelu>(v);
    case activation::gelu_tanh: return activate<activation::gelu_tanh>(v);
  }
  return v;
}
// The same for a tile of accumulators. Not inlined: kernels that run in turns fetch their code anew, and with every
// activation in its place the code of a gemm was more than twice as long; one call for each took too long.
inline __device__ __noinline__ float4 activate_four(activation what, float4 v) { return activate(what, v); }

// Rows are tokens, columns outputs. The vectors are padded, so that every column of a tile may be read.
template <class T> struct post_slot {
  const float* scale;
  const float* shift;
  const T* residual;  // [tokens, columns] or null
  activation act;
  long long tokens;
  int columns;

  __device__ __forceinline__ bool more() const { return residual != nullptr || act != activation::none; }
  // What follows the affine part. Not inlined: it is called for many elements.
  __device__ __noinline__ float finish(float v, long long token, int column) const {
    if (act != activation::none) v = activate(act, v);
    if (residual != nullptr && token < tokens && column < columns) v += to_float(residual[token * columns + column]);
    return v;
  }
  __device__ __forceinline__ float operator()(float v, long long token, int column) const {
    if (scale != nullptr) v *= __ldg(scale + column);
    if (shift != nullptr) v += __ldg(shift + column);
    return more() ? finish(v, token, column) : v;
  }
};

}  // namespace graft::cuda
