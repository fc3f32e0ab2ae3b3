// SPDX-License-Identifier: Apache-2.0
// The smaller and the larger of two numbers, a number between two others, one among few, and few of them in order.
// <algorithm> has these and four thousand lines beside them, which nvcc reads three times in every file with a layer.
#pragma once

namespace graft {

template <class T> constexpr T smaller_of(T a, T b) { return b < a ? b : a; }
template <class T> constexpr T larger_of(T a, T b) { return a < b ? b : a; }
template <class T> constexpr T between(T v, T least, T most) { return v < least ? least : most < v ? most : v; }
template <class T> constexpr bool is_among(const T* first, const T* end, T v) {
  for (; first != end; ++first)
    if (*first == v) return true;
  return false;
}
// By insertion.
template <class T> constexpr void put_in_order(T* first, T* end) {
  for (T* i = first; i != end; ++i)
    for (T* k = i; k != first && *k < *(k - 1); --k) {
      const T before = *(k - 1);
      *(k - 1) = *k, *k = before;
    }
}

}  // namespace graft
