// SPDX-License-Identifier: Apache-2.0
// The tensors, scalars and sizes of one adapted layer, by name, and how they become the leaves of a graph.
#pragma once
#include <graft/backend/call.h>
#include <graft/core/encodings.h>
#include <graft/core/nearest.h>
#include <graft/run/bind.h>
#include <graft/run/layer_graphs.h>

#include <string>

namespace graft {

// The leaves of one graph with the sizes that follow from them. Data-time leaves are still empty.
struct bound_leaves {
  size_values sizes;
  leaf_views leaf;
};

// What the numbers of the weight of a layer are stored as.
inline dtype weight_type(const graph& g, const leaf_views& leaves) {
  const id weight = g.find("weight");
  return weight < 0 ? dtype::bf16 : leaves[weight].type;
}

class layer_state {
 public:
  explicit layer_state(const layer_graphs& graphs) : graphs_(graphs) {}
  [[gnu::cold]] layer_state(const layer_state& o) : graphs_(o.graphs_) {
    for (const held* h : o.held_) held_.push(new held(*h));
  }
  layer_state& operator=(const layer_state&) = delete;
  ~layer_state() {
    for (const held* h : held_) delete h;
  }

  [[gnu::cold]] status give(const given_value& v) {
    if (v.tensor != nullptr) return set(v.name, *v.tensor);
    return v.scalar != nullptr ? set(v.name, *v.scalar) : size(v.name, v.size);
  }
  // A tensor the layer's owner keeps alive. The shape is checked now; nothing changes when it does not fit.
  [[gnu::cold]] status set(const char* name, const view& v) {
    const graph& g = graph_with(name);
    const id i = g.find(name);
    if (i < 0 || !is_stored(g[i].what)) return no_leaf("tensor", name);
    if (!is_sound(v)) return wrong_view("tensor ", name, v);
    if (v.data == nullptr || v.count() == 0) return fail("tensor '", name, "' has no data");
    for (int k = 0; k < v.rank; ++k)
      if (v.size[k] < 1) return fail("tensor '", name, "' has shape ", shape_of(v), ", expected sizes of at least 1");
    if (status fits = check_type(g, i, v); !fits) return fits;
    size_values others, all;
    if (status fits = solve(g, others, name); !fits) return fits;
    if (status fits = fit(g, i, v, others); !fits) return fits;  // so that the error is about this tensor
    if (status fits = solve(g, all, name, &v); !fits) return fits;
    held& h = of(name);
    h.tensor = v, h.has_tensor = true;
    return ok;
  }
  [[gnu::cold]] status set(const char* name, double value) {
    const graph& g = graph_with(name);
    const id i = g.find(name);
    if (i < 0 || g[i].what != op::scalar) return no_leaf("scalar", name);
    held& h = of(name);
    h.scalar = value, h.has_scalar = true;
    return ok;
  }
  [[gnu::cold]] status size(const char* name, long long value) {
    if (graphs_.literal.sizes.find(name) < 0) return no_size(name);
    if (value < 0) return fail("size '", name, "' is ", value, ", expected a number that is not negative");
    held& h = of(name);
    const long long before = std::exchange(h.size, value);
    size_values s;
    status fits = solve(graphs_.literal, s);
    if (!fits) h.size = before;
    return fits;
  }

  // Everything a graph needs that does not come with a call; an error names the first leaf that is missing.
  [[gnu::cold]] result<bound_leaves> bind(const graph& g) const {
    bound_leaves b;
    if (status solved = solve(g, b.sizes); !solved) return solved.failure();
    b.leaf = leaf_views(g.size);
    for (int k = 0; k < g.size; ++k) {
      const node& v = g.n[k];
      if (v.what != op::scalar && !is_stored(v.what)) continue;
      const held* const h = find(g.name(k).c_str());
      if (v.what == op::scalar) {
        if (h == nullptr || !h->has_scalar) return fail("scalar '", g.name(k), "' is not set");
        b.leaf[k] = view_of(&h->scalar, 1);
      } else {
        if (h == nullptr || !h->has_tensor)
          return fail("tensor '", g.name(k), "' is not set, expected ", expected_shape(g, k, b.sizes));
        b.leaf[k] = h->tensor;
      }
    }
    return b;
  }
  static constexpr bool comes_with_calls(const node& v) {
    return is_leaf(v.what) && (row(v.what).known == stage::data || v.what == op::kept);
  }
  // One tensor of a call: its type and what its shape says about the sizes.
  static status bind_leaf(const graph& g, id i, const view& v, size_values& s) {
    if (!is_sound(v)) return wrong_view("tensor ", g.name(i), v);
    if (v.data == nullptr && v.count() != 0) return fail("tensor '", g.name(i), "' has no data");
    if (status fits = check_type(g, i, v); !fits) return fits;
    return fit(g, i, v, s);
  }
  // Every value of a call with these sizes is one that memory can hold.
  [[gnu::cold]] static bool fits_memory(const graph& g, const size_values& s) {
    for (id i = 0; i < g.size; ++i)
      if (count(g, i, s) > largest_bytes / 8) return false;
    return true;
  }
  [[gnu::cold]] static status check_sizes(const graph& g, const size_values& s) {
    for (int i = 0; i < g.sizes.count; ++i) {
      if (g.sizes.value(entry_dim(i), s) != unknown) continue;
      text t;
      print(t, g.sizes, entry_dim(i));
      if (g.sizes.e[i].index >= 0) return fail("size '", t, "' follows from no tensor; give it by name");
      return fail("the size ", t, " does not exist for these tensors: a window is larger than what it slides over");
    }
    if (const requirement* r = first_violated(g, s)) return error{describe(g, *r, s)};
    return ok;
  }

  // The tensors and sizes of the base, from another adapter of the same layer.
  [[gnu::cold]] status take_base(const layer_state& other) { return take(other, true, ""); }
  // Everything of an adapter that is not the base's, under a path.
  [[gnu::cold]] status take_all(const layer_state& other, const std::string& path) { return take(other, false, path); }
  // Does one of the layer's tensors lie in this memory?
  bool reads(const mutable_view& v) const {
    if (v.data == nullptr) return false;
    const footprint written = footprint_of(v);
    for (const held* h : held_)
      if (h->has_tensor && overlap(written, footprint_of(h->tensor))) return true;
    return false;
  }
  const layer_graphs& graphs() const { return graphs_; }
  void know_formula(const layer_formula& f) { graphs_.from = f; }

 private:
  // What was given under one name: a size may be called like a tensor.
  struct held {
    std::string name;
    view tensor{};
    double scalar = 0;
    long long size = unknown;
    bool has_tensor = false, has_scalar = false;
  };
  const held* find(const char* name) const {
    for (const held* h : held_)
      if (same_text(h->name.c_str(), name)) return h;
    return nullptr;
  }
  [[gnu::cold]] held& of(const char* name) {
    if (const held* const known = find(name)) return const_cast<held&>(*known);
    held_.push(new held{name});
    return *held_.back();
  }
  [[gnu::cold]] status take(const layer_state& other, bool of_base, const std::string& path) {
    const graph& base = other.graphs_.base_forward;
    for (const held* one : other.held_) {
      const held& h = *one;
      const std::string mine = path + h.name;
      if ((base.find(h.name.c_str()) >= 0) == of_base) {
        if (h.has_tensor)
          if (status s = set(mine.c_str(), h.tensor); !s) return s;
        if (h.has_scalar)
          if (status s = set(mine.c_str(), h.scalar); !s) return s;
      }
      if (h.size != unknown && (base.sizes.find(h.name.c_str()) >= 0) == of_base)
        if (status s = size(mine.c_str(), h.size); !s) return s;
    }
    return ok;
  }
  // A tensor that the layer's owner keeps, in contrast to what comes with a call.
  static constexpr bool is_stored(op o) {
    const source from = row(o).from;
    return (from == source::tensor || from == source::integers) && row(o).known != stage::data && o != op::kept;
  }
  [[gnu::cold]] static status check_type(const graph& g, id i, const view& v) {
    const bool integers = row(g[i].what).from == source::integers;
    if (integers ? v.type == dtype::i64 : computes_in(v.type)) return ok;
    if (g[i].what == op::base && !integers && v.type != dtype::i64) return check_codes(g.name(i), v);
    return fail("tensor '", g.name(i), "' is stored as ", name_of(v.type), ", expected ",
                integers ? "i64" : "f32, f64, bf16 or f16");
  }
  // The sizes of a graph from what is held, with another tensor or none under one name.
  [[gnu::cold]] status solve(const graph& g, size_values& s, const char* instead = "",
                             const view* with = nullptr) const {
    for (const held* h : held_)
      if (const int index = h->size == unknown ? -1 : g.sizes.find(h->name.c_str()); index >= 0) s.v[index] = h->size;
    for (int pass = 0; pass < 2; ++pass)  // a second pass sees the names that the first one found
      for (int k = 0; k < g.size; ++k) {
        if (!is_stored(g[k].what)) continue;
        const text name = g.name(k);
        const held* const h = find(name.c_str());
        const view* const tensor = same_text(name.c_str(), instead) ? with
                                   : h != nullptr && h->has_tensor  ? &h->tensor
                                                                    : nullptr;
        if (tensor == nullptr) continue;
        if (status fits = fit(g, k, *tensor, s); !fits) return fits;
      }
    if (const requirement* r = first_violated(g, s)) return error{describe(g, *r, s)};
    return ok;
  }
  const graph& graph_with(const char* name) const {
    for (const graph* g : {&graphs_.literal, &graphs_.merge})
      if (g->find(name) >= 0) return *g;
    return graphs_.base_forward;  // a base tensor that the adapter replaces
  }
  [[gnu::cold]] error no_leaf(const char* what, const char* name) const {
    text all;
    nearest meant(name);
    for (int k = 0; k < graphs_.literal.size; ++k) {
      const node& v = graphs_.literal.n[k];
      if (!is_stored(v.what) && v.what != op::scalar) continue;
      const text known = graphs_.literal.name(k);
      if (is_stored(v.what) == same_text(what, "tensor")) meant.offer(known.c_str());
      all << (all.empty() ? "" : ", ") << known;
    }
    const text hint = meant.hint();
    return fail("this layer has no ", what, " '", name, "'", hint, hint.empty() ? "; it has " : " it has ", all);
  }
  [[gnu::cold]] error no_size(const char* name) const {
    const size_table& z = graphs_.literal.sizes;
    nearest meant(name);
    for (int i = 0; i < z.count; ++i)
      if (z.e[i].index >= 0) meant.offer(z.paths.full(z.e[i].path, z.e[i].name).c_str());
    return fail("this layer has no size '", name, "'", meant.hint());
  }

  layer_graphs graphs_;
  sequence<held*> held_;  // few; each stays where it is: plans are bound to where a scalar lies
};

}  // namespace graft
