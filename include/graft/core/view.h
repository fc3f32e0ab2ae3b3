// SPDX-License-Identifier: Apache-2.0
// A tensor somebody else owns: where it lies, how its elements are stored, its sizes, and how many elements apart
// neighbours along each axis are. Row-major unless said otherwise, the order of torch and safetensors, so a loaded
// tensor is used where it lies; a transposed one, or a part of a larger one, is a view too.
#pragma once
#include <graft/core/dtype.h>
#include <graft/core/text.h>

#include <type_traits>

namespace graft {

struct planes;  // what lies beside the codes of an encoded weight: core/encoding.h

template <class Void> struct basic_view {
  Void* data = nullptr;
  dtype type = dtype::f32;
  long long size[4] = {1, 1, 1, 1};
  int rank = 0;
  long long apart[4] = {0, 0, 0, 0};  // elements from one to the next along an axis; 0: as in row-major order
  const planes* beside = nullptr;     // of codes: how they are to be read; lives as long as they do

  constexpr long long count() const {
    long long n = 1;
    for (int i = 0; i < rank; ++i) n *= size[i];
    return n;
  }
  constexpr long long stride(int axis) const {
    if (apart[axis] != 0) return apart[axis];
    long long n = 1;
    for (int i = axis + 1; i < rank; ++i) n *= size[i];
    return n;
  }
  // Are the elements one after the other, in row-major order?
  [[gnu::noinline]] constexpr bool contiguous() const {
    long long n = 1;
    for (int i = rank - 1; i >= 0; n *= size[i--])
      if (size[i] > 1 && stride(i) != n) return false;
    return true;
  }
  // The last two axes change places; the elements stay where they are.
  constexpr basic_view transposed() const {
    basic_view t = *this;
    if (rank < 2) return t;
    for (int i = 0; i < rank; ++i) t.apart[i] = stride(i);
    for (long long(*of)[4] : {&t.size, &t.apart}) {
      const long long last = (*of)[rank - 1];
      (*of)[rank - 1] = (*of)[rank - 2];
      (*of)[rank - 2] = last;
    }
    return t;
  }
  // What may be written may be read: checks are written once, for views.
  template <class To>
  constexpr operator To() const requires(std::is_same_v<To, basic_view<const void>> && !std::is_const_v<Void>) {
    return {data, type, {size[0], size[1], size[2], size[3]}, rank, {apart[0], apart[1], apart[2], apart[3]}, beside};
  }
};
using view = basic_view<const void>;
using mutable_view = basic_view<void>;

// Indices are 64-bit integers, whichever of C++'s types that is.
template <class Element> inline constexpr bool is_index = false;
template <> inline constexpr bool is_index<long> = sizeof(long) == 8;
template <> inline constexpr bool is_index<long long> = true;

template <class Element> constexpr dtype dtype_of() {
  if constexpr (requires { storage<Element>::type; }) {
    return storage<Element>::type;
  } else {
    static_assert(is_index<Element>,
                  "graft: a view is of float, double, bf16 or f16, or of std::int64_t for indices: copy other numbers "
                  "into one of these");
    return dtype::i64;
  }
}
template <class Element, class... Sizes> constexpr view view_of(const Element* data, Sizes... sizes) {
  return {data, dtype_of<Element>(), {static_cast<long long>(sizes)...}, static_cast<int>(sizeof...(sizes))};
}
template <class Element, class... Sizes> constexpr mutable_view view_into(Element* data, Sizes... sizes) {
  return {data, dtype_of<Element>(), {static_cast<long long>(sizes)...}, static_cast<int>(sizeof...(sizes))};
}

[[gnu::cold]] constexpr text shape_of(const view& v) {
  text t;
  t << '[';
  for (int i = 0; i < v.rank; ++i) t << (i > 0 ? ", " : "") << v.size[i];
  t << ']';
  return t;
}

}  // namespace graft
