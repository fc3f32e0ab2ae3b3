// SPDX-License-Identifier: Apache-2.0
// Multi-LoRA batch on one layer: the rows of a call have adapters of their own. Adjacent rows with one adapter run as
// one call of the layer, group after group, and the gradients of a group go to its adapter. The layer's own choice of
// adapters is restored at the end. Models run such rows in one launch instead: model/multi_lora_rows.h.
//     forward_rows(layer, x, y, {0, 0, 1, no_adapter});
//     backward_rows(layer, x, dy, dx, {0, 0, 1, no_adapter}, {{0, gradients}, {1, others}});
#pragma once
#include <graft/core/result.h>
#include <graft/run/named_tensors.h>

#include <map>
#include <vector>

namespace graft {

inline constexpr int no_adapter = -1;

namespace detail {

template <class Void> basic_view<Void> slice_rows(basic_view<Void> v, long long first, long long count) {
  using byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  if (v.data != nullptr) v.data = static_cast<byte*>(v.data) + first * v.stride(0) * bits_of(v.type) / 8;
  v.size[0] = count;
  return v;
}

// Calls run(adapter, first, count) for each group of rows, with the group's adapter active.
template <class Layer, class Run>
status for_each_group(Layer& layer, long long rows, const std::vector<int>& row_adapters, const Run& run) {
  if (static_cast<long long>(row_adapters.size()) != rows)
    return fail("adapters are named for ", static_cast<long long>(row_adapters.size()), " rows, and there are ", rows);
  for (const int a : row_adapters)
    if (a != no_adapter && !layer.has(a))
      return fail("there is no adapter ", a, "; name those that add() returned, or none");
  const std::vector<int> before = layer.active();
  const bool enabled = layer.enabled();
  status done = ok;
  for (std::size_t first = 0, end = 0; done && first < row_adapters.size(); first = end) {
    while (end < row_adapters.size() && row_adapters[end] == row_adapters[first]) ++end;
    const int adapter = row_adapters[first];
    if (adapter != no_adapter && layer.active() != std::vector<int>{adapter}) done = layer.activate({adapter});
    if (done) done = layer.enable(adapter != no_adapter);
    if (done) done = run(adapter, static_cast<long long>(first), static_cast<long long>(end - first));
  }
  status restore_status = layer.active() == before ? status(ok) : layer.activate(before);
  if (restore_status) restore_status = layer.enable(enabled);
  return done ? restore_status : done;
}

}  // namespace detail

template <class Layer>
status forward_rows(Layer& layer, const view& x, const mutable_view& y, const std::vector<int>& row_adapters) {
  if (x.rank < 1 || y.rank < 1 || y.size[0] != x.size[0])
    return fail("x is ", shape_of(x).c_str(), " and y ", shape_of(y).c_str(), ", expected the same number of rows");
  return detail::for_each_group(layer, x.size[0], row_adapters, [&](int, long long first, long long count) {
    return layer.forward(detail::slice_rows(x, first, count), detail::slice_rows(y, first, count));
  });
}

// `gradients` lists the requested gradients of each adapter. An adapter's first group overwrites their memory unless
// `add` is set, and its later groups add to it.
template <class Layer>
status backward_rows(Layer& layer, const view& x, const view& dy, const mutable_view& dx,
                     const std::vector<int>& row_adapters, std::map<int, std::vector<gradient>> gradients) {
  if (x.rank < 1 || dy.rank < 1 || dy.size[0] != x.size[0])
    return fail("x is ", shape_of(x).c_str(), " and dy ", shape_of(dy).c_str(), ", expected the same number of rows");
  return detail::for_each_group(layer, x.size[0], row_adapters, [&](int adapter, long long first, long long count) {
    std::vector<gradient>& requested = gradients[adapter];
    status s = layer.backward(detail::slice_rows(x, first, count), detail::slice_rows(dy, first, count),
                              detail::slice_rows(dx, first, count), requested);
    for (gradient& g : requested) g.add = true;  // for later groups of this adapter
    return s;
  });
}

}  // namespace graft
