// SPDX-License-Identifier: Apache-2.0
// Random values for every tensor of a layer, found in the leaves of its graph, without code for any adapter.
//     random_tensors<q_proj> numbers({{"tokens", 16}});
//     graft::cpu::layer<q_proj> q;
//     numbers.bind(q);
//     q.forward(numbers.x(), whole(y));
#pragma once
#include <graft/cpu.h>
#include <graft/run/bind.h>
#include <graft/run/synthetic_index.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

template <class Layer> class random_tensors {
 public:
  using real = typename graft::storage<typename Layer::element>::compute;
  struct tensor {
    std::vector<real> data;
    graft::view shape;
    bool trained = false;
    operator graft::view() const {
      graft::view v = shape;
      v.data = data.data();
      return v;
    }
  };

  // `sizes` are those that the type leaves open, among them always the number of tokens.
  explicit random_tensors(graft::size_map sizes) : sizes_(std::move(sizes)) {
    add_leaves(graft::derived_of<Layer>::literal);
    add_leaves(graft::base_of<Layer>::literal);  // LN tuning replaces its base tensors: only this graph has them
  }

  std::map<std::string, tensor> tensors;
  std::map<std::string, double> scalars;
  tensor input;  // empty where the layer takes ids

  graft::status bind(graft::cpu::executor<real>& layer) const {
    for (const auto& [name, value] : scalars)
      if (graft::status s = layer.set(name.c_str(), value); !s) return s;
    for (const auto& [name, t] : tensors)
      if (graft::status s = layer.set(name.c_str(), t); !s) return s;
    for (const auto& [name, at] : indices_)
      if (graft::status s = layer.set(name.c_str(), graft::view_of(at.data(), 2, at.size() / 2)); !s) return s;
    return graft::ok;
  }
  graft::view x() const { return ids_.empty() ? graft::view(input) : graft::view_of(ids_.data(), ids_.size()); }
  std::size_t outputs() const {
    const graft::graph& g = graft::derived_of<Layer>::literal;
    return static_cast<std::size_t>(graft::element_count(g, g.result("y"), sizes_in(g)));
  }
  // Returns the sizes as numbered by a graph of this layer.
  graft::size_values sizes_in(const graft::graph& g) const {
    graft::size_values s = graft::static_sizes<Layer>(g);
    for (const auto& [name, size] : sizes_)
      if (const int at = g.sizes.find(name.c_str()); at >= 0) s.v[at] = size;
    return s;
  }

 private:
  void add_leaves(const graft::graph& g) {
    using graft::op;
    for (int i = 0; i < g.size; ++i) {
      const graft::node& leaf = g.n[i];
      if (leaf.what == op::scalar) scalars[leaf.name] = 0.5;
      if (leaf.what == op::input) input = random(g, leaf, 0);
      if (leaf.what == op::ids && ids_.empty())
        for (const real v : random(g, leaf, 0).data) ids_.push_back(static_cast<std::int64_t>(std::abs(v) * 70));
      if (leaf.what == op::index) indices_[leaf.name] = graft::synthetic_index(g, i, sizes_in(g));
      // Vectors are factors, so their values are near 1; the values of matrices are small and of either sign.
      const bool vector = leaf.d[2] == graft::dim{1} || leaf.d[3] == graft::dim{1};
      if (leaf.what == op::base || leaf.what == op::frozen || leaf.what == op::param)
        tensors.try_emplace(leaf.name, random(g, leaf, vector ? 1 : 0));
    }
  }
  tensor random(const graft::graph& g, const graft::node& leaf, double center) {
    tensor t{{}, {nullptr, graft::dtype_of<real>()}, leaf.what == graft::op::param};
    const graft::axis_range listed = graft::listed_axes(leaf);
    for (int axis = listed.first; axis < listed.last; ++axis)
      t.shape.size[t.shape.rank++] = g.sizes.value(leaf.d[axis], sizes_in(g));
    t.data.resize(static_cast<std::size_t>(t.shape.count()));
    for (real& v : t.data) v = static_cast<real>(center + small_(engine_));
    return t;
  }

  graft::size_map sizes_;
  std::vector<std::int64_t> ids_;
  std::map<std::string, std::vector<std::int64_t>> indices_;  // rows, then columns, of every index
  std::mt19937 engine_{1};
  std::uniform_real_distribution<double> small_{-0.1, 0.1};
};

template <class Real> graft::mutable_view whole(std::vector<Real>& v) { return graft::view_into(v.data(), v.size()); }

// Returns max |a - b| / max |b|, or infinity if a difference is NaN.
template <class Real> double relative_error(const std::vector<Real>& a, const std::vector<Real>& b) {
  double error = 0, largest = 0;
  if (a.size() != b.size()) return INFINITY;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= error)) error = std::isnan(difference) ? INFINITY : difference;
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return largest > 0 ? error / largest : error;
}
