// SPDX-License-Identifier: Apache-2.0
// element_ptr: elements of a storage type chosen at run time (Real itself, bf16 or f16), read and written as Real.
//
// One kernel serves all storage types. The type is uniform over a launch, so the branch on it never diverges; loops
// that depend on loads in flight take the branch once for several elements (load) or once for the whole loop
// (as_stored). Stores round to nearest even.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <graft/core/dtype.h>

namespace graft::gpu {

template <class T> constexpr dtype dtype_of = dtype::f32;
template <> inline constexpr dtype dtype_of<double> = dtype::f64;
template <> inline constexpr dtype dtype_of<__nv_bfloat16> = dtype::bf16;
template <> inline constexpr dtype dtype_of<__half> = dtype::f16;

template <class Real> struct float_elements {
  Real* p;
  __host__ __device__ Real operator[](long long i) const { return p[i]; }
  __host__ __device__ void put(long long i, Real v) const { p[i] = v; }
};
// bf16 and f16 share the load; each conversion is one instruction.
template <class Real> struct half_elements {
  unsigned short* p;
  bool is_bf16;  // bf16, else f16
  __host__ __device__ Real operator[](long long i) const {
    const unsigned short bits = p[i];
    return static_cast<Real>(is_bf16 ? __bfloat162float(__nv_bfloat16_raw{bits}) : __half2float(__half_raw{bits}));
  }
  __host__ __device__ void put(long long i, Real v) const {
    const auto f = static_cast<float>(v);
    p[i] = is_bf16 ? static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(f)).x
                   : static_cast<__half_raw>(__float2half_rn(f)).x;
  }
};

template <class Real> struct element_ptr {
  void* at = nullptr;
  dtype type = dtype_of<Real>;

  element_ptr() = default;
  __host__ __device__ element_ptr(void* p, dtype t) : at(p), type(t) {}
  __host__ __device__ element_ptr(Real* p) : at(p) {}

  // Element types that a kernel can read; tensors of other types are refused before a launch.
  static constexpr bool is_supported(dtype t) { return t == dtype_of<Real> || t == dtype::bf16 || t == dtype::f16; }

  // Calls f once with a view of the stored type, so that a loop inside f has no branch on the type.
  template <class F> __host__ __device__ void as_stored(const F& f) const {
    if (type == dtype_of<Real>)
      f(float_elements<Real>{static_cast<Real*>(at)});
    else
      f(half_elements<Real>{static_cast<unsigned short*>(at), type == dtype::bf16});
  }
  // Loads the N elements first, first + step, … with one branch on the type, so that the loads are in flight together.
  template <int N> __host__ __device__ void load(Real (&to)[N], long long first, long long step) const {
    as_stored([&](const auto& e) {
      for (int k = 0; k < N; ++k) to[k] = e[first + k * step];
    });
  }
  __host__ __device__ Real operator[](long long i) const {
    Real v[1];
    load(v, i, 1);
    return v[0];
  }
  __host__ __device__ void put(long long i, Real v) const {
    as_stored([&](const auto& e) { e.put(i, v); });
  }
  __host__ __device__ void add(long long i, Real v) const { put(i, (*this)[i] + v); }
  __host__ __device__ element_ptr operator+(long long n) const {
    return {static_cast<char*>(at) + n * (type == dtype_of<Real> ? sizeof(Real) : 2), type};
  }
};

// Calls f(c, values) for every column c of this thread of the team, with the elements of N rows in that column. Loads
// of four columns are in flight together.
template <class Real, int N, class Team, class F>
__host__ __device__ void for_each_column(const element_ptr<Real> (&rows)[N], long long n, const Team& t, const F& f) {
  constexpr int in_flight = 4;
  long long c = t.rank;
  for (; c + (in_flight - 1) * t.size < n; c += in_flight * t.size) {
    Real v[N][in_flight];
    for (int r = 0; r < N; ++r) rows[r].load(v[r], c, t.size);
    for (int k = 0; k < in_flight; ++k) {
      Real here[N];
      for (int r = 0; r < N; ++r) here[r] = v[r][k];
      f(c + k * t.size, here);
    }
  }
  for (; c < n; c += t.size) {
    Real here[N];
    for (int r = 0; r < N; ++r) here[r] = rows[r][c];
    f(c, here);
  }
}

}  // namespace graft::gpu
