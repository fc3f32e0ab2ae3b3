// SPDX-License-Identifier: Apache-2.0
// A tensor somebody else owns: where it lies, how its elements are stored, and its row-major sizes. The same row-major
// order as torch and safetensors, so a loaded tensor is used where it lies.
#pragma once
#include <graft/core/dtype.h>
#include <graft/core/text.h>

namespace graft {

template <class Void> struct basic_view {
  Void* data = nullptr;
  dtype type = dtype::f32;
  long long size[4] = {1, 1, 1, 1};
  int rank = 0;

  constexpr long long count() const {
    long long n = 1;
    for (int i = 0; i < rank; ++i) n *= size[i];
    return n;
  }
};
using view = basic_view<const void>;
using mutable_view = basic_view<void>;

template <class Element> constexpr dtype dtype_of() {
  if constexpr (requires { storage<Element>::type; })
    return storage<Element>::type;
  else
    return dtype::i64;
}
template <class Element, class... Sizes> constexpr view view_of(const Element* data, Sizes... sizes) {
  return {data, dtype_of<Element>(), {static_cast<long long>(sizes)...}, static_cast<int>(sizeof...(sizes))};
}
template <class Element, class... Sizes> constexpr mutable_view view_into(Element* data, Sizes... sizes) {
  return {data, dtype_of<Element>(), {static_cast<long long>(sizes)...}, static_cast<int>(sizeof...(sizes))};
}

template <class Void> constexpr text shape_of(const basic_view<Void>& v) {
  text t;
  t << '[';
  for (int i = 0; i < v.rank; ++i) t << (i > 0 ? ", " : "") << v.size[i];
  t << ']';
  return t;
}

}  // namespace graft
