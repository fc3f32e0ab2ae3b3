// SPDX-License-Identifier: Apache-2.0
// The flops and bytes of a layer type whose sizes are all static, as constants to compare at compile time:
//     static_assert(forward_cost<q_proj>(512).flops < 1.02 * forward_cost<bare>(512).flops);
#pragma once
#include <graft/plan/facts.h>

namespace graft {

template <class Layer> constexpr bool static_sizes_known() {
  for (const named_size& n : Layer::sizes)
    if (n.value == dyn) return false;
  const size_table& z = derived_of<Layer>::literal.sizes;
  const size_values s = static_sizes<Layer>(derived_of<Layer>::literal);
  for (int i = 0; i < z.count; ++i)
    if (z.e[i].index >= 0 && s.v[z.e[i].index] == unknown && !z.e[i].tokens) return false;
  return true;
}
template <class Layer> constexpr size_values sizes_at(const graph& g, long long tokens) {
  size_values s = static_sizes<Layer>(g);
  g.sizes.set_tokens(s, tokens);
  return s;
}
template <class Layer> constexpr cost cost_for(const graph& g, long long tokens) {
  using numbers = detail::element_traits<typename Layer::element>;
  return cost_of(g, sizes_at<Layer>(g, tokens), numbers::format, numbers::stored);
}
template <class Layer> constexpr cost branch_cost(long long tokens) {
  return cost_for<Layer>(derived_of<Layer>::forward, tokens);
}
template <class Layer> constexpr cost folded_cost(long long tokens) {
  return cost_for<Layer>(derived_of<Layer>::folded, tokens);
}
// The cost of the form that runs: with the low-rank branch, or folded.
template <class Layer, const target& To = cpu_target> constexpr cost forward_cost(long long tokens) {
  return plan_of<Layer, To>::folded ? folded_cost<Layer>(tokens) : branch_cost<Layer>(tokens);
}
template <class Layer> constexpr cost backward_cost(long long tokens) {
  return cost_for<Layer>(derived_of<Layer>::backward, tokens);
}

}  // namespace graft
