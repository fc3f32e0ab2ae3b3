// SPDX-License-Identifier: Apache-2.0
// Elements in one of the storage types, read and written as Real: a node is one kernel whatever the types around it. They
// are stored as Real itself or as a 16-bit type; which is asked for at run time, the same for all threads. Loops that
// live from loads in flight ask once for several elements (load), or once for all of them (as_stored). Rounds to nearest
// even.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <graft/core/dtype.h>

namespace graft::cuda {

template <class T> constexpr dtype dtype_of = dtype::f32;
template <> inline constexpr dtype dtype_of<double> = dtype::f64;
template <> inline constexpr dtype dtype_of<__nv_bfloat16> = dtype::bf16;
template <> inline constexpr dtype dtype_of<__half> = dtype::f16;

template <class Real> struct wide_elements {
  Real* p;
  __host__ __device__ Real operator[](long long i) const { return p[i]; }
  __host__ __device__ void put(long long i, Real v) const { p[i] = v; }
};
// Both 16-bit types by the same load: the conversions are an instruction each.
template <class Real> struct narrow_elements {
  unsigned short* p;
  bool brain;  // bf16, else f16
  __host__ __device__ Real operator[](long long i) const {
    const unsigned short bits = p[i];
    return static_cast<Real>(brain ? __bfloat162float(__nv_bfloat16_raw{bits}) : __half2float(__half_raw{bits}));
  }
  __host__ __device__ void put(long long i, Real v) const {
    const auto f = static_cast<float>(v);
    p[i] = brain ? static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(f)).x
                 : static_cast<__half_raw>(__float2half_rn(f)).x;
  }
};

template <class Real> struct cells {
  void* at = nullptr;
  dtype type = dtype_of<Real>;

  cells() = default;
  __host__ __device__ cells(void* p, dtype t) : at(p), type(t) {}
  __host__ __device__ cells(Real* p) : at(p) {}

  // What a kernel can read; everything else is refused before a launch.
  static constexpr bool can_be(dtype t) { return t == dtype_of<Real> || t == dtype::bf16 || t == dtype::f16; }

  // Calls f with the elements as they are stored.
  template <class F> __host__ __device__ void as_stored(const F& f) const {
    if (type == dtype_of<Real>)
      f(wide_elements<Real>{static_cast<Real*>(at)});
    else
      f(narrow_elements<Real>{static_cast<unsigned short*>(at), type == dtype::bf16});
  }
  // The N elements first, first + step, … at once.
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
  __host__ __device__ cells operator+(long long n) const {
    return {static_cast<char*>(at) + n * (type == dtype_of<Real> ? sizeof(Real) : 2), type};
  }
};

// Calls f(c, values) for the columns of a team's thread, with the numbers of N rows there: four columns are asked for at
// once, so that their loads are in flight together.
template <class Real, int N, class Team, class F>
__host__ __device__ void walk(const cells<Real> (&rows)[N], long long n, const Team& t, const F& f) {
  constexpr int ahead = 4;
  long long c = t.rank;
  for (; c + (ahead - 1) * t.size < n; c += ahead * t.size) {
    Real v[N][ahead];
    for (int r = 0; r < N; ++r) rows[r].load(v[r], c, t.size);
    for (int k = 0; k < ahead; ++k) {
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

}  // namespace graft::cuda
