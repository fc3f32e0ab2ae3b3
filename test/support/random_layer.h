// SPDX-License-Identifier: Apache-2.0
// Any layer filled with random numbers: the leaves of its graphs list its tensors and their sizes, so that no test that
// uses this names an adapter.
#pragma once
#include <graft/core/bf16.h>
#include <graft/core/f16.h>
#include <graft/model/method_table.h>
#include <graft/run/bind.h>
#include <graft/run/cpu_layer.h>
#include <graft/run/synthetic_index.h>

#include <random>

namespace test {

using namespace graft;
using sizes = std::map<std::string, long long>;

inline const sizes& usual_sizes() {
  static const sizes s{{"out", 24},
                       {"in", 32},
                       {"tokens", 7},
                       {"r", 4},
                       {"b", 8},
                       {"m", 2},
                       {"a", 4},
                       {"c", 8},
                       {"terms", 5},
                       {"topk", 2},
                       {"num_vectors", 6},
                       {"mini_r", 4},
                       {"trained_tokens", 3},
                       {"vector_length", 8},
                       {"vocab", 13},
                       {"dim", 24},
                       {"channels", 3},
                       {"kernel_h", 3},
                       {"kernel_w", 3},
                       {"stride", 2},
                       {"padding", 1},
                       {"height", 5},
                       {"width", 6},
                       {"n", 32},
                       {"gralora_k", 2},
                       {"hybrid_r", 3},
                       {"half_group", 4},
                       {"block_size", 8},
                       {"num_bases", 6},
                       {"num_cayley_neumann_terms", 5},
                       {"num_indices", 60},
                       {"n_frequency", 9},
                       {"taps", 4},
                       {"theta_d_length", 11},
                       {"subspace_ranks", 5},
                       {"directions", 9},
                       {"u", 6},
                       {"glora_numbers", 1},
                       {"glora_bias_numbers", 1},
                       {"frozen_rank", 10},
                       {"trainable_rank", 14},
                       {"experts", 3}};
  return s;
}
// Sizes that are no multiple of a vector, a tile or a thread count, where the formula allows it.
inline const sizes& ragged_sizes() {
  static const sizes s{{"out", 70},
                       {"in", 45},
                       {"tokens", 1},
                       {"r", 5},
                       {"b", 5},
                       {"m", 1},
                       {"a", 7},
                       {"c", 9},
                       {"terms", 3},
                       {"topk", 3},
                       {"num_vectors", 7},
                       {"mini_r", 7},
                       {"trained_tokens", 5},
                       {"vector_length", 5},
                       {"vocab", 11},
                       {"dim", 17},
                       {"channels", 2},
                       {"kernel_h", 1},
                       {"kernel_w", 1},
                       {"stride", 1},
                       {"padding", 0},
                       {"height", 3},
                       {"width", 7},
                       {"n", 33},
                       {"gralora_k", 5},
                       {"hybrid_r", 2},
                       {"half_group", 7},
                       {"block_size", 5},
                       {"num_bases", 9},
                       {"num_cayley_neumann_terms", 3},
                       {"num_indices", 71},
                       {"n_frequency", 13},
                       {"taps", 36},
                       {"theta_d_length", 17},
                       {"subspace_ranks", 7},
                       {"directions", 13},
                       {"u", 19},
                       {"glora_numbers", 70},
                       {"glora_bias_numbers", 70},
                       {"frozen_rank", 11},
                       {"trainable_rank", 7},
                       {"experts", 5}};
  return s;
}

inline size_values values_of(const graph& g, const sizes& s) {
  size_values v;
  for (const auto& [name, n] : s)
    if (const int at = g.sizes.find(name.c_str()); at >= 0) v.v[at] = n;
  return v;
}

// Appends n numbers within 1 of the middle. It is not inline, so that it is compiled with the optimised instances: some
// layers have millions of numbers.
void append_random(std::vector<float>& to, std::size_t n, double middle, std::mt19937& engine);
void append_random(std::vector<double>& to, std::size_t n, double middle, std::mt19937& engine);

template <class Real> struct random_layer {
  layer_graphs graphs;
  sizes shape;
  std::map<std::string, std::vector<Real>> data;
  std::map<std::string, view> views;
  std::map<std::string, double> scalars{
      {"scaling", 0.7}, {"eps", 1e-5}, {"coft_limit", 0.2}, {"cayley_neumann_eps", 0.9}};
  std::vector<std::int64_t> ids;
  std::map<std::string, std::vector<std::int64_t>> indices;

  random_layer(const layer_graphs& g, const sizes& s, unsigned seed = 1) : graphs(g), shape(s) {
    std::mt19937 engine(seed);
    for (const graph* b : {&g.literal_backward, &g.merge, &g.literal, &g.base_forward}) fill(*b, engine);
  }
  void fill(const graph& g, std::mt19937& engine) {
    const size_values s = values_of(g, shape);
    for (int k = 0; k < g.size; ++k) {
      const node& v = g.n[k];
      const source from = traits_of(v.what).from;
      if (!is_leaf(v.what) || (from != source::tensor && from != source::integers)) continue;
      const std::string name = g.name(k).c_str();
      if (views.contains(name)) continue;
      const auto n = static_cast<std::size_t>(element_count(g, static_cast<id>(k), s));
      const axis_range a = listed_axes(v);
      view w{nullptr, storage<Real>::type, {1, 1, 1, 1}, a.last - a.first};
      for (int d = a.first; d < a.last; ++d) w.size[d - a.first] = g.sizes.value(v.d[d], s);
      if (v.what == op::ids) {
        std::uniform_int_distribution<std::int64_t> row(0, shape.at("vocab") - 1);
        for (std::size_t i = 0; i < n; ++i) ids.push_back(row(engine));
        w.data = ids.data();
        w.type = dtype::i64;
      } else if (v.what == op::index) {
        indices[name] = synthetic_index(g, k, s);
        w.data = indices[name].data();
        w.type = dtype::i64;
      } else {
        auto& to = data[name];
        // Away from zero, because an inverse formula may divide by it.
        append_random(to, n, v.d[3] == dim{1} ? 1.5 : 0, engine);
        w.data = to.data();
      }
      views[name] = w;
    }
  }
  template <class Executor> status bind(Executor& e, int adapter = 0) const {
    for (const auto& [name, n] : shape)
      if (graphs.literal.sizes.find(name.c_str()) >= 0 && name != "tokens" && name != "height" && name != "width")
        if (status s = e.size(name.c_str(), n, adapter); !s) return s;
    for (const auto& [name, v] : scalars)
      if (graphs.literal.find(name.c_str()) >= 0)
        if (status s = e.set(name.c_str(), v, adapter); !s) return s;
    for (const auto& [name, v] : views)
      if (name != "x" && name != "dy")
        if (status s = e.set(name.c_str(), v, adapter); !s) return s;
    return ok;
  }
  view x() const { return views.at("x"); }
  view dy() const { return views.at("dy"); }
  std::vector<Real> buffer_for(const char* output, const graph& g) const {
    size_values s = values_of(g, shape);
    return std::vector<Real>(static_cast<std::size_t>(element_count(g, g.result(output), s)),
                             std::numeric_limits<Real>::quiet_NaN());
  }
  std::vector<std::string> parameters() const {
    std::vector<std::string> names;
    for (int k = 0; k < graphs.backward.outs; ++k)
      if (!graphs.backward.out[k].of_input) names.emplace_back(graphs.backward.output_name(k).c_str());
    return names;
  }
};
template <class Real> mutable_view into(std::vector<Real>& v) { return view_into(v.data(), v.size()); }

template <class A, class B> double difference(const std::vector<A>& a, const std::vector<B>& b) {
  double most = 0, scale = 1e-30;
  if (a.size() != b.size()) return INFINITY;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    most = d <= most ? most : std::isnan(d) ? INFINITY : d;
    scale = std::max(scale, std::abs(static_cast<double>(b[i])));
  }
  return most / scale;
}

// The graphs of a method on a kind of layer; exists() is false where the method has no such form. Compiled once, in
// instance_graphs.cpp.
layer_graphs graphs_for(const char* kind, const char* method, bool bias);

// Every method on every kind of layer where it exists, with and without a bias.
struct layer_variant {
  std::string kind, what;
  bool bias;
  layer_graphs graphs;
  std::string name;
};
const std::vector<layer_variant>& every_layer_variant();

}  // namespace test
