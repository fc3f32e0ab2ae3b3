// SPDX-License-Identifier: Apache-2.0
// Reads and writes elements [from, from + n), in row-major order, of a caller's tensor of any type and strides.
#pragma once
#include <graft/backend/cpu/runtime/convert.h>

#include <algorithm>

namespace graft::cpu {

// Calls f(shift, first, count) for every contiguous run: element e of the run is stored at index e + shift.
template <class Void, class F> void for_each_contiguous(const basic_view<Void>& v, long long from, long long n, F f) {
  if (v.contiguous()) return f(0LL, from, n);
  const long long last = v.size[v.rank - 1];
  for (long long at = from; at < from + n;) {
    const long long in_row = at % last, take = std::min(last - in_row, from + n - at);
    long long offset = 0, rest = at / last;
    for (int k = v.rank - 2; k >= 0; --k) offset += rest % v.size[k] * v.stride(k), rest /= v.size[k];
    if (v.stride(v.rank - 1) == 1)
      f(offset + in_row - at, at, take);
    else
      for (long long e = 0; e < take; ++e) f(offset + (in_row + e) * v.stride(v.rank - 1) - (at + e), at + e, 1LL);
    at += take;
  }
}
template <class Real> void read_floats(const view& v, long long from, long long n, Real* to) {
  for_each_contiguous(v, from, n, [&](long long shift, long long at, long long count) {
    convert(v.data, v.type, at + shift, count, to + (at - from));
  });
}
// Reads elements of a tensor that may be quantized.
template <class Real> void read(const view& v, long long from, long long n, Real* to) {
  if (v.quant != nullptr) return dequantize_elements(weight_of(v), from, n, to);
  read_floats(v, from, n, to);
}
template <class Real> void write(const Real* values, long long from, long long n, const mutable_view& v) {
  for_each_contiguous(v, from, n, [&](long long shift, long long at, long long count) {
    convert_to(values + (at - from), count, v.data, v.type, at + shift);
  });
}

}  // namespace graft::cpu
