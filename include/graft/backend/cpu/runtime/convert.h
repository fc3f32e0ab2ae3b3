// SPDX-License-Identifier: Apache-2.0
// Conversion between stored types and Real, and of rows of a weight in any quantization format.
#pragma once
#include <graft/backend/cpu/quantized/dequantize.h>
#include <graft/backend/cpu/runtime/packets.h>
#include <graft/backend/cpu/runtime/tensor.h>
#include <graft/core/f16.h>

#include <algorithm>
#include <type_traits>

namespace graft::cpu {

namespace detail {

template <class Real, class Stored> Real as_number(Stored v) {
  if constexpr (requires { widen(v); })
    return static_cast<Real>(widen(v));
  else
    return static_cast<Real>(v);
}
// Converts n numbers with a stride. Loops of constant length are vectorized; bf16 and f16 have explicit packets,
// because GEMMs convert weights in every call. The attribute hot prevents a file that only binds tensors from compiling
// a slow copy, which may be the one that is linked.
template <class Real, class Stored>
[[gnu::noinline, gnu::hot]] void convert_run(const Stored* from, long long element_stride, long long n, Real* to) {
  constexpr int chunk = 32;
  long long i = 0;
  if (element_stride == 1)
    for (; i + chunk <= n; i += chunk) {
      if constexpr (requires { widen(*from); } && std::is_same_v<Real, float>)
        for (long long k = 0; k < chunk; k += packet_width<float>)
          Eigen::internal::pstoreu(to + i + k, load(from + i + k));
      else
        for (int k = 0; k < chunk; ++k) to[i + k] = as_number<Real>(from[i + k]);
    }
  for (; i < n; ++i) to[i] = as_number<Real>(from[i * element_stride]);
}
// Calls f(typed pointer), except for indices and quantized types.
template <class F> void with_type(const void* data, dtype type, F f) {
  switch (type) {
    case dtype::f32: return f(static_cast<const float*>(data));
    case dtype::f64: return f(static_cast<const double*>(data));
    case dtype::bf16: return f(static_cast<const bf16*>(data));
    case dtype::f16: return f(static_cast<const f16*>(data));
    case dtype::i64:
    case dtype::nf4:
    case dtype::fp4:
    case dtype::int8:
    case dtype::u2:
    case dtype::u3:
    case dtype::u4:
    case dtype::u8:
    case dtype::f4_e2m1:
    case dtype::f8_e4m3:
    case dtype::f8_e5m2:
    case dtype::f8_e8m0:
    case dtype::ggml: return;
  }
}

}  // namespace detail

// Dequantizes elements [first, first + n) of a quantized weight; doubles are converted from chunks of floats.
template <class Real> void dequantize_elements(const weight_view& w, long long first, long long n, Real* to) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    dequantize(w, first, n, to);
  } else {
    constexpr long long chunk = 256;
    float floats[chunk];
    for (long long at = 0; at < n; at += chunk) {
      const long long take = std::min(chunk, n - at);
      dequantize(w, first + at, take, floats);
      std::copy_n(floats, take, to + at);
    }
  }
}
// Converts rows [row, row + rows) of a weight to row-major order. Contiguous columns are read in memory order.
template <class Real> void convert(const weight_view& w, long long row, long long rows, Real* to) {
  if (w.quant != nullptr) return dequantize_elements(w, row * w.cols, rows * w.cols, to);
  detail::with_type(w.data, w.format.type, [&](const auto* p) {
    p += row * w.row_stride;
    if (w.row_stride != 1 || w.col_stride == 1)
      for (long long r = 0; r < rows; ++r)
        detail::convert_run(p + r * w.row_stride, w.col_stride, w.cols, to + r * w.cols);
    else
      for (long long c = 0; c < w.cols; ++c)
        for (long long r = 0; r < rows; ++r) to[r * w.cols + c] = detail::as_number<Real>(p[c * w.col_stride + r]);
  });
}
// Converts one row of a weight.
template <class Real, weights Of> void convert_row(const weight_view& w, long long row, Real* to) {
  if constexpr (Of == weights::any)
    convert(w, row, 1, to);
  else
    detail::convert_run(static_cast<const Real*>(w.data) + row * w.row_stride, w.col_stride, w.cols, to);
}
// Converts elements [from, from + n) of contiguous data.
template <class Real> void convert(const void* data, dtype type, long long from, long long n, Real* to) {
  detail::with_type(data, type, [&](const auto* p) { detail::convert_run(p + from, 1, n, to); });
}
// Converts a whole tensor to row-major order.
template <class Real> void convert(const view& v, Real* to) {
  if (v.quant != nullptr) return dequantize_elements(weight_of(v), 0, v.count(), to);
  if (v.contiguous()) return convert(v.data, v.type, 0, v.count(), to);
  long long n[4], element_stride[4];
  for (int k = 0; k < 4; ++k) {
    const int axis = k - (4 - v.rank);
    n[k] = axis < 0 ? 1 : v.size[axis], element_stride[k] = axis < 0 ? 0 : v.stride(axis);
  }
  for (long long i = 0; i < n[0]; ++i)
    for (long long j = 0; j < n[1]; ++j, to += n[2] * n[3]) {
      const long long bytes = (i * element_stride[0] + j * element_stride[1]) * bits_of(v.type) / 8;
      const void* matrix = static_cast<const char*>(v.data) + bytes;
      convert(weight_view{{v.type}, n[2], n[3], element_stride[2], element_stride[3], matrix}, 0, n[2], to);
    }
}

// Stores n numbers as elements [at, at + n) of contiguous data.
template <class Real> void convert_to(const Real* from, long long n, void* data, dtype type, long long at) {
  switch (type) {
    case dtype::f32:
      std::transform(from, from + n, static_cast<float*>(data) + at, [](Real v) { return static_cast<float>(v); });
      return;
    case dtype::f64:
      std::transform(from, from + n, static_cast<double*>(data) + at, [](Real v) { return static_cast<double>(v); });
      return;
    case dtype::bf16:
      std::transform(from, from + n, static_cast<bf16*>(data) + at,
                     [](Real v) { return narrow(static_cast<float>(v)); });
      return;
    case dtype::f16:
      std::transform(from, from + n, static_cast<f16*>(data) + at,
                     [](Real v) { return narrow_to_f16(static_cast<float>(v)); });
      return;
    case dtype::i64:
    case dtype::nf4:
    case dtype::fp4:
    case dtype::int8:
    case dtype::u2:
    case dtype::u3:
    case dtype::u4:
    case dtype::u8:
    case dtype::f4_e2m1:
    case dtype::f8_e4m3:
    case dtype::f8_e5m2:
    case dtype::f8_e8m0:
    case dtype::ggml: return;  // refused before any call
  }
}

}  // namespace graft::cpu
