// SPDX-License-Identifier: Apache-2.0
// Random tensors for a layer type, found in the leaves of its graph, and the number of copies to cycle through so that
// no call finds its weights in a cache.
#pragma once
#include <graft/bench/options.h>
#include <graft/derive/layers.h>
#include <graft/plan/layer_cost.h>
#include <graft/run/bind.h>
#include <graft/run/synthetic_index.h>

namespace graft::bench_detail {

// A splitmix64 generator, fast enough to fill large weights.
class synthetic_values {
 public:
  explicit synthetic_values(unsigned long long seed) : state_(seed * 0x9e3779b97f4a7c15ULL) {}
  float operator()() {  // from -1/2 to 1/2
    unsigned long long z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
    return static_cast<float>(z >> 40U) * 0x1p-24F - 0.5F;
  }

 private:
  unsigned long long state_;
};

template <class Layer> size_values bench_sizes(const graph& g, long long tokens, const bench_options& o) {
  size_values s = sizes_at<Layer>(g, tokens);
  for (const auto& [name, n] : o.sizes)
    if (const int at = g.sizes.find(name); at >= 0) s.v[at] = n;
  return s;
}
// Calls give(name, shape) for every tensor, with data if it is an index, and scalar(name) for every scalar.
template <class Layer, class Give, class Scalar>
status set_synthetic_tensors(const bench_options& o, const Give& give, const Scalar& scalar) {
  const graph& g = derived_of<Layer>::literal;
  const size_values s = bench_sizes<Layer>(g, 1, o);
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    if (v.what == op::scalar)
      if (status done = scalar(g.name(i).c_str()); !done) return done;
    if (v.what != op::base && v.what != op::frozen && v.what != op::param && v.what != op::index) continue;
    const axis_range a = listed_axes(v);
    view shape{nullptr, dtype::f32, {1, 1, 1, 1}, a.last - a.first};
    for (int d = a.first; d < a.last; ++d) shape.size[d - a.first] = g.sizes.value(v.d[d], s);
    for (int d = 0; d < shape.rank; ++d)
      if (shape.size[d] < 1)
        return fail("tensor '", g.name(i), "' has a size that the type leaves open; state it in bench_options::sizes");
    std::vector<std::int64_t> indices;
    if (v.what == op::index) indices = synthetic_index(g, i, s), shape.data = indices.data(), shape.type = dtype::i64;
    if (status done = give(g.name(i).c_str(), shape); !done) return done;
  }
  return ok;
}
// Returns the shape of a call's x, or of its ids if the layer looks them up.
template <class Layer> view shape_of_input(long long tokens, const bench_options& o) {
  const graph& g = derived_of<Layer>::literal;
  const size_values s = bench_sizes<Layer>(g, tokens, o);
  const id x = g.find("x");
  const axis_range a = listed_axes(g[x]);
  view shape{nullptr, g[x].what == op::ids ? dtype::i64 : dtype::f32, {1, 1, 1, 1}, a.last - a.first};
  for (int d = a.first; d < a.last; ++d) shape.size[d - a.first] = g.sizes.value(g[x].d[d], s);
  return shape;
}
template <class Layer> long long outputs_of(long long tokens, const bench_options& o) {
  const graph& g = derived_of<Layer>::literal;
  return element_count(g, g.result("y"), bench_sizes<Layer>(g, tokens, o));
}
template <class Layer> long long parameters_and_weights(const bench_options& o) {
  long long n = 0;
  static_cast<void>(set_synthetic_tensors<Layer>(
      o, [&](const char*, const view& shape) { return n += shape.count(), status(ok); },
      [](const char*) { return status(ok); }));
  return n;
}
template <class Layer, const target& To> cost cost_at(long long tokens, const bench_options& o) {
  const graph& g = plan_of<Layer, To>::folded ? derived_of<Layer>::folded : derived_of<Layer>::forward;
  constexpr dtype stored = storage<typename Layer::element>::type;
  return cost_of(g, bench_sizes<Layer>(g, tokens, o), {stored}, stored);
}
// The cost of an eager call, in which every operation of the formula is a launch that writes its result to memory. A
// CPU computes all operations in every call; a GPU caches those that do not depend on the call's data.
struct eager_work {
  cost does;
  double launches = 0;
};
template <class Layer> eager_work eager_work_at(long long tokens, const bench_options& o, bool all_in_every_call) {
  const graph& g = derived_of<Layer>::literal;
  const size_values s = bench_sizes<Layer>(g, tokens, o);
  const stages when = schedule(g);
  const node_set live = reachable(g);
  constexpr long long bits = bits_of(storage<typename Layer::element>::type);
  eager_work w;
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    const bool each_call = all_in_every_call || when.of[i] == stage::call;
    if (!live[i] || is_leaf(v.what) || v.what == op::reshape || !each_call) continue;
    w.launches += 1;
    w.does.flops += flops_of(g, i, s);
    w.does.bytes += element_count(g, i, s) * bits / 8;
    for (int k = 0; k < 3; ++k)
      if (v.operand(k) >= 0)
        w.does.bytes +=
            element_count(g, traits_of(v.what).axes == axis_flow::gather && k == 0 ? i : v.operand(k), s) * bits / 8;
  }
  return w;
}
// A layer without its adapter.
template <class Layer> struct bare_layer : Layer { using adapter = none; };

// Returns the number of copies, from 2 to 64, whose weights exceed `cache` bytes.
inline int copies_exceeding(long long cache, long long weight_bytes) {
  const long long n = weight_bytes > 0 ? cache / weight_bytes + 1 : 1;
  return static_cast<int>(n < 2 ? 2 : n > 64 ? 64 : n);
}

}  // namespace graft::bench_detail
