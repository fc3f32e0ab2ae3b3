// SPDX-License-Identifier: Apache-2.0
// From a caller's tensor to numbers and back: elements [from, from + n) in row-major order, whatever type they are stored
// in and however far apart.
#pragma once
#include <graft/backend/cpu/decode.h>

#include <algorithm>

namespace graft::cpu {

// f(position in storage, first element, elements) for every run of neighbours along the last axis.
template <class Void, class F> void each_run(const basic_view<Void>& v, long long from, long long n, F f) {
  if (v.contiguous()) return f(0LL, from, n);
  const long long last = v.size[v.rank - 1];
  for (long long at = from; at < from + n;) {
    const long long in_row = at % last, take = std::min(last - in_row, from + n - at);
    long long place = 0, rest = at / last;
    for (int k = v.rank - 2; k >= 0; --k) place += rest % v.size[k] * v.stride(k), rest /= v.size[k];
    if (v.stride(v.rank - 1) == 1)
      f(place + in_row - at, at, take);
    else
      for (long long e = 0; e < take; ++e) f(place + (in_row + e) * v.stride(v.rank - 1) - (at + e), at + e, 1LL);
    at += take;
  }
}
template <class Real> void read_numbers(const view& v, long long from, long long n, Real* to) {
  each_run(v, from, n, [&](long long shift, long long at, long long count) {
    decode(v.data, v.type, at + shift, count, to + (at - from));
  });
}
// The same of a tensor that may be codes.
template <class Real> void read(const view& v, long long from, long long n, Real* to) {
  if (v.beside != nullptr) return decode_elements(weight_of(v, v.size[0], v.size[1]), from, n, to);
  read_numbers(v, from, n, to);
}
template <class Real> void write(const Real* values, long long from, long long n, const mutable_view& v) {
  each_run(v, from, n, [&](long long shift, long long at, long long count) {
    encode(values + (at - from), count, v.data, v.type, at + shift);
  });
}

}  // namespace graft::cpu
