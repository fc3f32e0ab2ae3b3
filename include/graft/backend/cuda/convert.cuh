// SPDX-License-Identifier: Apache-2.0
// Between the element types on the device, rounding to nearest even; the 16-bit types by way of float, as on the CPU.
// Another type is a `case` in each of the two switches and a pair of overloads.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <graft/backend/cuda/each.cuh>
#include <graft/core/dtype.h>

namespace graft::cuda {

__host__ __device__ inline float as_number(float v) { return v; }
__host__ __device__ inline double as_number(double v) { return v; }
__host__ __device__ inline float as_number(__nv_bfloat16 v) { return __bfloat162float(v); }
__host__ __device__ inline float as_number(__half v) { return __half2float(v); }

template <class Number> __host__ __device__ void put_number(float* to, Number v) { *to = static_cast<float>(v); }
template <class Number> __host__ __device__ void put_number(double* to, Number v) { *to = static_cast<double>(v); }
template <class Number> __host__ __device__ void put_number(__nv_bfloat16* to, Number v) {
  *to = __float2bfloat16_rn(static_cast<float>(v));
}
template <class Number> __host__ __device__ void put_number(__half* to, Number v) {
  *to = __float2half_rn(static_cast<float>(v));
}

template <class From, class To> struct converted {
  const From* from;
  To* to;
  __host__ __device__ void operator()(long long i) const { put_number(to + i, as_number(from[i])); }
};

inline error no_conversion(dtype from, dtype to) {
  return fail("the device converts between f32, f64, bf16 and f16, not from ", name_of(from), " to ", name_of(to));
}
template <class From>
status convert_from(cudaStream_t stream, const void* data, dtype from, void* to, dtype to_type, long long n) {
  const auto* const p = static_cast<const From*>(data);
  const char* const name = "convert";
  switch (to_type) {
    case dtype::f32: return each(stream, n, converted<From, float>{p, static_cast<float*>(to)}, name);
    case dtype::f64: return each(stream, n, converted<From, double>{p, static_cast<double*>(to)}, name);
    case dtype::bf16: return each(stream, n, converted<From, __nv_bfloat16>{p, static_cast<__nv_bfloat16*>(to)}, name);
    case dtype::f16: return each(stream, n, converted<From, __half>{p, static_cast<__half*>(to)}, name);
    case dtype::i64:
    case dtype::nf4:
    case dtype::int8: break;
  }
  return no_conversion(from, to_type);
}
inline status convert(cudaStream_t stream, const void* from, dtype from_type, void* to, dtype to_type, long long n) {
  switch (from_type) {
    case dtype::f32: return convert_from<float>(stream, from, from_type, to, to_type, n);
    case dtype::f64: return convert_from<double>(stream, from, from_type, to, to_type, n);
    case dtype::bf16: return convert_from<__nv_bfloat16>(stream, from, from_type, to, to_type, n);
    case dtype::f16: return convert_from<__half>(stream, from, from_type, to, to_type, n);
    case dtype::i64:
    case dtype::nf4:
    case dtype::int8: break;
  }
  return no_conversion(from_type, to_type);
}

}  // namespace graft::cuda
