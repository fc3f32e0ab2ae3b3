// SPDX-License-Identifier: Apache-2.0
// What makes a type an adapter: a name and one formula,
//     static constexpr const char* name;
//     static constexpr ex weight(scope p, ex W);      W' from the base weight and the adapter's own tensors
// and, where the method touches the bias, one more:
//     static constexpr ex bias(scope p, ex b);        b' from the base bias, which is zero where the layer has none
// A size that depends on the layer's (LoKr's factors) is given by
//     static constexpr long long size(const char* name, long long out, long long in);     -1: no opinion
#pragma once
#include <graft/graph/formula.h>

namespace graft {

template <class A>
concept adapter_formula = requires(scope p, ex W) {
  {A::weight(p, W)};
  {A::name};
};

template <class A> constexpr ex adapted_bias(scope p, ex b) {
  if constexpr (requires { A::bias(p, b); })
    return A::bias(p, b);
  else
    return b;
}
template <class A> constexpr long long adapter_size(const char* name, long long out, long long in) {
  if constexpr (requires { A::size(name, out, in); })
    return A::size(name, out, in);
  else
    return unknown;
}

}  // namespace graft
