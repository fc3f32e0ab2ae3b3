// SPDX-License-Identifier: Apache-2.0
// The way in and out of storage: stored numbers as Real and back, and panels of rows of a weight in its encoding.
#pragma once
#include <graft/backend/cpu/codes.h>
#include <graft/backend/cpu/packets.h>
#include <graft/backend/cpu/tensor.h>
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
// n numbers, `apart` from each other. Loops of a constant length become vector instructions; those of bf16 are written out,
// since weights are decoded in every product. Said to be hot: a file that only binds tensors would else compile it as
// something that runs once, and its copy may be the one that is linked.
template <class Real, class Stored>
[[gnu::noinline, gnu::hot]] void decode_run(const Stored* from, long long apart, long long n, Real* to) {
  constexpr int some = 32;
  long long i = 0;
  if (apart == 1)
    for (; i + some <= n; i += some) {
      if constexpr (std::is_same_v<Stored, bf16> && std::is_same_v<Real, float>)
        for (long long k = 0; k < some; k += packet_width<float>)
          Eigen::internal::pstoreu(to + i + k, load(from + i + k));
      else
        for (int k = 0; k < some; ++k) to[i + k] = as_number<Real>(from[i + k]);
    }
  for (; i < n; ++i) to[i] = as_number<Real>(from[i * apart]);
}
// f(typed pointer); nothing is called for indices and codes, which are no numbers.
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
    case dtype::u8:
    case dtype::f8_e4m3:
    case dtype::f8_e5m2:
    case dtype::f8_e8m0:
    case dtype::ggml: return;
  }
}

}  // namespace detail

// Elements [first, first + n) of codes. Doubles are made of floats, a few at a time.
template <class Real> void decode_elements(const weight_view& w, long long first, long long n, Real* to) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    decode_codes(w, first, n, to);
  } else {
    constexpr long long some = 256;
    float few[some];
    for (long long at = 0; at < n; at += some) {
      const long long take = std::min(some, n - at);
      decode_codes(w, first + at, take, few);
      std::copy_n(few, take, to + at);
    }
  }
}
// Rows [row, row + rows) of a weight, one after the other. Columns that are contiguous are read in their order.
template <class Real> void decode(const weight_view& w, long long row, long long rows, Real* to) {
  if (w.beside != nullptr) return decode_elements(w, row * w.cols, rows * w.cols, to);
  detail::with_type(w.codes, w.how.codes, [&](const auto* p) {
    p += row * w.row_stride;
    if (w.row_stride != 1 || w.col_stride == 1)
      for (long long r = 0; r < rows; ++r)
        detail::decode_run(p + r * w.row_stride, w.col_stride, w.cols, to + r * w.cols);
    else
      for (long long c = 0; c < w.cols; ++c)
        for (long long r = 0; r < rows; ++r) to[r * w.cols + c] = detail::as_number<Real>(p[c * w.col_stride + r]);
  });
}
// One row of it.
template <class Real, weights Of> void decode_row(const weight_view& w, long long row, Real* to) {
  if constexpr (Of == weights::any)
    decode(w, row, 1, to);
  else
    detail::decode_run(static_cast<const Real*>(w.codes) + row * w.row_stride, w.col_stride, w.cols, to);
}
// Elements [from, from + n) of stored data.
template <class Real> void decode(const void* data, dtype type, long long from, long long n, Real* to) {
  detail::with_type(data, type, [&](const auto* p) { detail::decode_run(p + from, 1, n, to); });
}
// A whole tensor, in row-major order.
template <class Real> void decode(const view& v, Real* to) {
  if (v.beside != nullptr) return decode_elements(weight_of(v, v.size[0], v.size[1]), 0, v.count(), to);
  if (v.contiguous()) return decode(v.data, v.type, 0, v.count(), to);
  long long n[4], apart[4];
  for (int k = 0; k < 4; ++k) {
    const int axis = k - (4 - v.rank);
    n[k] = axis < 0 ? 1 : v.size[axis], apart[k] = axis < 0 ? 0 : v.stride(axis);
  }
  for (long long i = 0; i < n[0]; ++i)
    for (long long j = 0; j < n[1]; ++j, to += n[2] * n[3]) {
      const long long bytes = (i * apart[0] + j * apart[1]) * bits_of(v.type) / 8;
      const void* matrix = static_cast<const char*>(v.data) + bytes;
      decode(weight_view{{v.type}, n[2], n[3], apart[2], apart[3], matrix}, 0, n[2], to);
    }
}

template <class Real> void encode(const Real* from, long long n, void* data, dtype type, long long at) {
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
    case dtype::u8:
    case dtype::f8_e4m3:
    case dtype::f8_e5m2:
    case dtype::f8_e8m0:
    case dtype::ggml: return;  // refused before any call gets here
  }
}

}  // namespace graft::cpu
