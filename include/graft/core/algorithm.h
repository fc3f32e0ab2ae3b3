// SPDX-License-Identifier: Apache-2.0
// Minimum, maximum, clamp, linear search and insertion sort as constexpr functions.
// They replace <algorithm>, because nvcc parses that header three times in every file that has a layer.
#pragma once

namespace graft {

template <class T> constexpr T min_of(T a, T b) { return b < a ? b : a; }
template <class T> constexpr T max_of(T a, T b) { return a < b ? b : a; }
template <class T> constexpr T between(T v, T least, T most) { return v < least ? least : most < v ? most : v; }
template <class T> constexpr bool is_one_of(const T* first, const T* end, T v) {
  for (; first != end; ++first)
    if (*first == v) return true;
  return false;
}
template <class T> constexpr void insertion_sort(T* first, T* end) {
  for (T* i = first; i != end; ++i)
    for (T* k = i; k != first && *k < *(k - 1); --k) {
      const T before = *(k - 1);
      *(k - 1) = *k, *k = before;
    }
}

}  // namespace graft
