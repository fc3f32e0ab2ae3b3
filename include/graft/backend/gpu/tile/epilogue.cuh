// SPDX-License-Identifier: Apache-2.0
// GEMM epilogue on float accumulators, y = act(scale ⊙ v + shift) + residual, one element or fragment at a time.
//
// `scale` and `shift` hold one float per output column (adapter factors and bias). The file also has the conversions
// between float and the 16-bit types, and the multiplication by prologue factors, which the mainloops share.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <graft/backend/gpu/tile/adapter_args.h>

#include <cstdint>

namespace graft::gpu {

__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(float v) { return v; }
template <class T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ __nv_bfloat16 from_float(float v) { return __float2bfloat16_rn(v); }
template <> __device__ __forceinline__ __half from_float(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ float from_float(float v) { return v; }

// Rounds two floats to T and packs them into one register, `low` in the lower half.
template <class T> __device__ __forceinline__ std::uint32_t pack(float low, float high);
template <> __device__ __forceinline__ std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&v);
}
template <> __device__ __forceinline__ std::uint32_t pack<__half>(float low, float high) {
  const __half2 v = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&v);
}

template <class T> __device__ __forceinline__ float2 unpack(std::uint32_t v);
template <> __device__ __forceinline__ float2 unpack<__nv_bfloat16>(std::uint32_t v) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&v));
}
template <> __device__ __forceinline__ float2 unpack<__half>(std::uint32_t v) {
  return __half22float2(*reinterpret_cast<const __half2*>(&v));
}

// The prologue's multiplication: two packed elements times two packed factors, rounded to T.
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
// Four values per branch on the activation, for instruction-level parallelism.
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
// For tiles of accumulators. Not inlined, because kernels that alternate fetch their code again for every launch, and a
// GEMM with all activations inlined is more than twice as long. A call per single element takes too long.
inline __device__ __noinline__ float4 activate_vec4(activation what, float4 v) { return activate(what, v); }

// Epilogue operands of one output tensor y [tokens, columns]. `scale` and `shift` are padded to row_padding
// (adapter_args.h), so that every column of a tile may be read.
template <class T> struct epilogue_args {
  const float* scale;
  const float* shift;
  const T* residual;  // [tokens, columns] or null
  activation act;
  long long tokens;
  int columns;

  __device__ __forceinline__ bool has_act_or_residual() const { return residual != nullptr || act != activation::none; }
  // Activation and residual. Not inlined, to keep the code of callers that finish many elements short.
  __device__ __noinline__ float finish(float v, long long token, int column) const {
    if (act != activation::none) v = activate(act, v);
    if (residual != nullptr && token < tokens && column < columns) v += to_float(residual[token * columns + column]);
    return v;
  }
  __device__ __forceinline__ float operator()(float v, long long token, int column) const {
    if (scale != nullptr) v *= __ldg(scale + column);
    if (shift != nullptr) v += __ldg(shift + column);
    return has_act_or_residual() ? finish(v, token, column) : v;
  }
};

}  // namespace graft::gpu
