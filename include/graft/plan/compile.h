// SPDX-License-Identifier: Apache-2.0
// compile<Layer, Options…>: the layer's facts, checked. Where something is wrong it is a diagnostic instead, whose one
// static_assert is the one error of the program.
//     using q = compile<q_proj, fullgraph>;
//     static_assert(q::kernels == 1 && q::mergeable);
#pragma once
#include <graft/plan/layer_cost.h>
#include <graft/plan/verdict.h>

namespace graft {

namespace detail {
template <class Layer, class... Options> struct judged {
  using verdict = decltype(detail::verdict<Layer, Options...>());
};
}  // namespace detail
template <class Layer, class... Options> using compile = typename detail::judged<Layer, Options...>::verdict::type;

template <class Layer> inline constexpr bool mergeable = compile<Layer>::mergeable;
template <class Layer> inline constexpr bool unmergeable = compile<Layer>::unmergeable;

}  // namespace graft
