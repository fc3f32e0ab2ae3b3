// SPDX-License-Identifier: Apache-2.0
// view: a tensor in memory that the caller owns: pointer, dtype, up to four sizes, and strides in elements. Without
// strides it is row-major, as in torch and safetensors, so that loaded tensors are used without a copy. Transposed
// tensors and slices of larger ones are views too.
#pragma once
#include <graft/core/dtype.h>
#include <graft/core/text.h>

#include <type_traits>

namespace graft {

struct quant_state;  // scales of a quantized weight: core/quant_format.h

template <class Void> struct basic_view {
  Void* data = nullptr;
  dtype type = dtype::f32;
  long long size[4] = {1, 1, 1, 1};
  int rank = 0;
  long long strides[4] = {0, 0, 0, 0};  // in elements; 0: row-major
  const quant_state* quant = nullptr;   // state of quantized weights, which must outlive the view

  constexpr long long count() const {
    long long n = 1;
    for (int i = 0; i < rank; ++i) n *= size[i];
    return n;
  }
  constexpr long long stride(int axis) const {
    if (strides[axis] != 0) return strides[axis];
    long long n = 1;
    for (int i = axis + 1; i < rank; ++i) n *= size[i];
    return n;
  }
  // Returns true if the elements are dense in row-major order.
  [[gnu::noinline]] constexpr bool contiguous() const {
    long long n = 1;
    for (int i = rank - 1; i >= 0; n *= size[i--])
      if (size[i] > 1 && stride(i) != n) return false;
    return true;
  }
  // Swaps the last two axes without moving elements.
  constexpr basic_view transposed() const {
    basic_view t = *this;
    if (rank < 2) return t;
    for (int i = 0; i < rank; ++i) t.strides[i] = stride(i);
    for (long long(*of)[4] : {&t.size, &t.strides}) {
      const long long last = (*of)[rank - 1];
      (*of)[rank - 1] = (*of)[rank - 2];
      (*of)[rank - 2] = last;
    }
    return t;
  }
  // A mutable view converts to a view, so that checks are written for views only.
  template <class To>
  constexpr operator To() const requires(std::is_same_v<To, basic_view<const void>> && !std::is_const_v<Void>) {
    return {data, type, {size[0], size[1], size[2], size[3]}, rank, {strides[0], strides[1], strides[2], strides[3]},
            quant};
  }
};
using view = basic_view<const void>;
using mutable_view = basic_view<void>;

// Indices are 64-bit integers: long, long long, or both, depending on the platform.
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
