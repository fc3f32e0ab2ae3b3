// SPDX-License-Identifier: Apache-2.0
// layer_state: the tensors, scalars and sizes of one adapted layer by name, and how they become the leaves of a graph.
#pragma once
#include <graft/backend/call.h>
#include <graft/core/name_suggestion.h>
#include <graft/core/quant_formats.h>
#include <graft/run/bind.h>
#include <graft/run/layer_graphs.h>

#include <bit>
#include <cstdint>
#include <string>

namespace graft {

// The leaves of one graph with the sizes that follow from them. Leaves that calls bring are empty.
struct bound_leaves {
  size_values sizes;
  leaf_views leaf;
};

// Gives the element type in which the weight of a layer is stored.
inline dtype weight_type(const graph& g, const leaf_views& leaves) {
  const id weight = g.find("weight");
  return weight < 0 ? dtype::bf16 : leaves[weight].type;
}

class layer_state {
 public:
  explicit layer_state(const layer_graphs& graphs) : graphs_(graphs) {}
  [[gnu::cold]] layer_state(const layer_state& o) : graphs_(o.graphs_) {
    for (const stored_value* h : o.stored_) stored_.push(new stored_value(*h));
  }
  layer_state& operator=(const layer_state&) = delete;
  ~layer_state() {
    for (const stored_value* h : stored_) delete h;
  }

  [[gnu::cold]] status set_value(const named_value& v) {
    if (v.tensor != nullptr) return set(v.name, *v.tensor);
    if (v.scalar != nullptr) return set(v.name, *v.scalar);
    if (status s = size(v.name, v.size); !s) return s;
    if (v.is_fixed) of(v.name).size_is_fixed = true;
    return ok;
  }
  // Sets a tensor, which the caller keeps alive. Its shape is checked here, and an error changes nothing.
  [[gnu::cold]] status set(const char* name, const view& v) {
    const graph& g = graph_with(name);
    const id i = g.find(name);
    if (i < 0 || !is_stored(g[i].what)) return unknown_leaf("tensor", name);
    if (!is_valid(v)) return invalid_view("tensor ", name, v);
    if (v.data == nullptr || v.count() == 0) return fail("tensor '", name, "' has no data");
    for (int k = 0; k < v.rank; ++k)
      if (v.size[k] < 1) return fail("tensor '", name, "' has shape ", shape_of(v), ", expected sizes of at least 1");
    if (status fits = check_type(g, i, v); !fits) return fits;
    size_values others, all;
    if (status fits = solve(g, others, name); !fits) return fits;
    if (status fits = solve_sizes(g, i, v, others); !fits) return fits;  // so that the error is about this tensor
    if (status fits = solve(g, all, name, &v); !fits) return fits;
    stored_value& h = of(name);
    h.tensor = v, h.has_tensor = true;
    return ok;
  }
  [[gnu::cold]] status set(const char* name, double value) {
    const graph& g = graph_with(name);
    const id i = g.find(name);
    if (i < 0 || g[i].what != op::scalar) return unknown_leaf("scalar", name);
    // A value from 2^128 on is infinite as a float. Its exponent is tested, so that -ffinite-math-only changes nothing.
    if (((std::bit_cast<std::uint64_t>(value) >> 52U) & 0x7ffU) >= 1023U + 128U)
      return fail("scalar '", name, "' is not finite as a float; the largest is 3.4e38");
    stored_value& h = of(name);
    h.scalar = value, h.has_scalar = true;
    return ok;
  }
  [[gnu::cold]] status size(const char* name, long long value) {
    if (graphs_.literal.sizes.find(name) < 0) return unknown_size(name);
    if (value < 0) return fail("size '", name, "' is ", value, ", expected a number that is not negative");
    stored_value& h = of(name);
    if (h.size_is_fixed && h.size != value)
      return fail("size '", name, "' is ", h.size, " by the layer's type and cannot become ", value,
                  "; state graft::dyn in the type for a size that is set");
    const long long before = std::exchange(h.size, value);
    size_values s;
    status fits = solve(graphs_.literal, s);
    if (!fits) h.size = before;
    return fits;
  }

  // Gathers the leaves of a graph that do not come with calls; an error names the first one that is missing.
  [[gnu::cold]] result<bound_leaves> bind(const graph& g) const {
    bound_leaves b;
    if (status solved = solve(g, b.sizes); !solved) return solved.failure();
    b.leaf = leaf_views(g.size);
    for (int k = 0; k < g.size; ++k) {
      const node& v = g.n[k];
      if (v.what != op::scalar && !is_stored(v.what)) continue;
      const stored_value* const h = find(g.name(k).c_str());
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
  static constexpr bool is_call_input(const node& v) {
    return is_leaf(v.what) && (traits_of(v.what).known_at == stage::call || v.what == op::saved);
  }
  // Checks the type of one tensor of a call, and solves sizes from its shape.
  static status bind_leaf(const graph& g, id i, const view& v, size_values& s) {
    if (!is_valid(v)) return invalid_view("tensor ", g.name(i), v);
    if (v.data == nullptr && v.count() != 0) return fail("tensor '", g.name(i), "' has no data");
    if (status fits = check_type(g, i, v); !fits) return fits;
    return solve_sizes(g, i, v, s);
  }
  // Returns true if each value of a call with these sizes is small enough for any memory.
  [[gnu::cold]] static bool fits_memory(const graph& g, const size_values& s) {
    for (id i = 0; i < g.size; ++i)
      if (element_count(g, i, s) > max_tensor_bytes / 8) return false;
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

  // Copies the tensors and sizes of the base from another adapter of the layer.
  [[gnu::cold]] status copy_base(const layer_state& other) { return copy_values(other, true, ""); }
  // Copies the values of an adapter that are not the base's, with `path` in front of their names.
  [[gnu::cold]] status copy_adapter(const layer_state& other, const std::string& path) {
    return copy_values(other, false, path);
  }
  // Names the layer's tensor that overlaps this memory; null: none does. A view that is not valid spans no memory that
  // could be compared; the call that it is given to refuses it.
  const char* tensor_in(const mutable_view& v) const {
    if (v.data == nullptr || !is_valid(v)) return nullptr;
    const footprint written = footprint_of(v);
    for (const stored_value* h : stored_)
      if (h->has_tensor && overlap(written, footprint_of(h->tensor))) return h->name.c_str();
    return nullptr;
  }
  bool reads(const mutable_view& v) const { return tensor_in(v) != nullptr; }
  const layer_graphs& graphs() const { return graphs_; }
  void set_formula(const layer_formula& f) { graphs_.from = f; }

 private:
  // The values that were set under one name, which a tensor and a size may share.
  struct stored_value {
    std::string name;
    view tensor{};
    double scalar = 0;
    long long size = unknown;
    bool has_tensor = false, has_scalar = false, size_is_fixed = false;
  };
  const stored_value* find(const char* name) const {
    for (const stored_value* h : stored_)
      if (same_text(h->name.c_str(), name)) return h;
    return nullptr;
  }
  [[gnu::cold]] stored_value& of(const char* name) {
    if (const stored_value* const existing = find(name)) return const_cast<stored_value&>(*existing);
    stored_.push(new stored_value{name});
    return *stored_.back();
  }
  [[gnu::cold]] status copy_values(const layer_state& other, bool of_base, const std::string& path) {
    const graph& base = other.graphs_.base_forward;
    for (const stored_value* one : other.stored_) {
      const stored_value& h = *one;
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
  // Returns true if a leaf is a tensor of the layer, which calls do not bring.
  static constexpr bool is_stored(op o) {
    const source from = traits_of(o).from;
    return (from == source::tensor || from == source::integers) && traits_of(o).known_at != stage::call &&
           o != op::saved;
  }
  [[gnu::cold]] static status check_type(const graph& g, id i, const view& v) {
    const bool integers = traits_of(g[i].what).from == source::integers;
    if (integers ? v.type == dtype::i64 : is_floating(v.type)) return ok;
    if (g[i].what == op::base && !integers && v.type != dtype::i64) return check_quantized(g.name(i), v);
    return fail("tensor '", g.name(i), "' is stored as ", name_of(v.type), ", expected ",
                integers ? "i64" : "f32, f64, bf16 or f16");
  }
  // Solves the sizes of a graph from the values that are set, with the tensor `with`, or none, under name `instead`.
  [[gnu::cold]] status solve(const graph& g, size_values& s, const char* instead = "",
                             const view* with = nullptr) const {
    for (const stored_value* h : stored_)
      if (const int index = h->size == unknown ? -1 : g.sizes.find(h->name.c_str()); index >= 0) s.v[index] = h->size;
    for (int pass = 0; pass < 2; ++pass)  // a second pass sees the names that the first one found
      for (int k = 0; k < g.size; ++k) {
        if (!is_stored(g[k].what)) continue;
        const text name = g.name(k);
        const stored_value* const h = find(name.c_str());
        const view* const tensor = same_text(name.c_str(), instead) ? with
                                   : h != nullptr && h->has_tensor  ? &h->tensor
                                                                    : nullptr;
        if (tensor == nullptr) continue;
        if (status fits = solve_sizes(g, k, *tensor, s); !fits) return fits;
      }
    if (const requirement* r = first_violated(g, s)) return error{describe(g, *r, s)};
    return ok;
  }
  const graph& graph_with(const char* name) const {
    for (const graph* g : {&graphs_.literal, &graphs_.merge})
      if (g->find(name) >= 0) return *g;
    return graphs_.base_forward;  // only the base graph reads a tensor that the adapter replaces
  }
  [[gnu::cold]] error unknown_leaf(const char* what, const char* name) const {
    const bool tensor = same_text(what, "tensor");
    text all;
    name_suggester meant(name);
    for (int k = 0; k < graphs_.literal.size; ++k) {
      const node& v = graphs_.literal.n[k];
      if (!is_stored(v.what) && v.what != op::scalar) continue;
      const text existing = graphs_.literal.name(k);
      if (is_stored(v.what) == tensor) {
        meant.offer(existing.c_str());
        all << (all.empty() ? "" : ", ") << existing;
      } else if (same_text(existing.c_str(), name)) {
        return tensor ? fail("'", name, "' is a scalar of this layer, not a tensor; set it to a number")
                      : fail("'", name, "' is a tensor of this layer, not a scalar; set it to a view");
      }
    }
    const text hint = meant.hint();
    if (all.empty()) all << "none";
    return fail("this layer has no ", what, " '", name, "'", hint, hint.empty() ? "; it has " : " it has ", all);
  }
  [[gnu::cold]] error unknown_size(const char* name) const {
    const size_table& z = graphs_.literal.sizes;
    name_suggester meant(name);
    for (int i = 0; i < z.count; ++i)
      if (z.e[i].index >= 0) meant.offer(z.paths.full(z.e[i].path, z.e[i].name).c_str());
    return fail("this layer has no size '", name, "'", meant.hint());
  }

  layer_graphs graphs_;
  sequence<stored_value*> stored_;  // allocated one by one, because plans hold the addresses of scalars
};

}  // namespace graft
