// SPDX-License-Identifier: Apache-2.0
// One call of a layer whose rows have adapters of their own. Rows that lie side by side and have the same adapter run as one
// call of the layer, group after group; gradients of a group go to its adapter. The layer is as before when it returns.
//     forward_rows(layer, x, y, {0, 0, 1, no_adapter});
//     backward_rows(layer, x, dy, dx, {0, 0, 1, no_adapter}, {{0, gradients}, {1, others}});
#pragma once
#include <graft/core/result.h>
#include <graft/run/given.h>

#include <map>
#include <vector>

namespace graft {

inline constexpr int no_adapter = -1;

namespace detail {

template <class Void> basic_view<Void> rows_of(basic_view<Void> v, long long first, long long count) {
  using byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  if (v.data != nullptr) v.data = static_cast<byte*>(v.data) + first * v.stride(0) * bits_of(v.type) / 8;
  v.size[0] = count;
  return v;
}

// `run(adapter, first, count)` for each group, with the layer as the group wants it.
template <class Layer, class Run>
status each_group(Layer& layer, long long rows, const std::vector<int>& of_rows, const Run& run) {
  if (static_cast<long long>(of_rows.size()) != rows)
    return fail("adapters are named for ", static_cast<long long>(of_rows.size()), " rows, and there are ", rows);
  for (const int a : of_rows)
    if (a != no_adapter && !layer.has(a))
      return fail("there is no adapter ", a, "; name those that add() gave, or none");
  const std::vector<int> before = layer.active();
  const bool enabled = layer.enabled();
  status done = ok;
  for (std::size_t first = 0, end = 0; done && first < of_rows.size(); first = end) {
    while (end < of_rows.size() && of_rows[end] == of_rows[first]) ++end;
    const int adapter = of_rows[first];
    if (adapter != no_adapter && layer.active() != std::vector<int>{adapter}) done = layer.activate({adapter});
    if (done) done = layer.enable(adapter != no_adapter);
    if (done) done = run(adapter, static_cast<long long>(first), static_cast<long long>(end - first));
  }
  status back = layer.active() == before ? status(ok) : layer.activate(before);
  if (back) back = layer.enable(enabled);
  return done ? back : done;
}

}  // namespace detail

template <class Layer>
status forward_rows(Layer& layer, const view& x, const mutable_view& y, const std::vector<int>& of_rows) {
  if (x.rank < 1 || y.rank < 1 || y.size[0] != x.size[0])
    return fail("x is ", shape_of(x).c_str(), " and y ", shape_of(y).c_str(), ", expected the same number of rows");
  return detail::each_group(layer, x.size[0], of_rows, [&](int, long long first, long long count) {
    return layer.forward(detail::rows_of(x, first, count), detail::rows_of(y, first, count));
  });
}

// `gradients`: those wanted of each adapter. What its memory holds is written over unless it is to be added to.
template <class Layer>
status backward_rows(Layer& layer, const view& x, const view& dy, const mutable_view& dx,
                     const std::vector<int>& of_rows, std::map<int, std::vector<gradient>> gradients) {
  if (x.rank < 1 || dy.rank < 1 || dy.size[0] != x.size[0])
    return fail("x is ", shape_of(x).c_str(), " and dy ", shape_of(dy).c_str(), ", expected the same number of rows");
  return detail::each_group(layer, x.size[0], of_rows, [&](int adapter, long long first, long long count) {
    std::vector<gradient>& wanted = gradients[adapter];
    status s = layer.backward(detail::rows_of(x, first, count), detail::rows_of(dy, first, count),
                              detail::rows_of(dx, first, count), wanted);
    for (gradient& g : wanted) g.add = true;  // a later group of the same adapter
    return s;
  });
}

}  // namespace graft
