// SPDX-License-Identifier: Apache-2.0
// wgrad_launch: a reduction over the tokens that runs as one launch, the gradient of a weight or factor:
//     D = factor · Zᵀ Q        of a low-rank factor: Z [tokens, columns] and Q [tokens, rank] are values of the call,
//                              or Z is the stored weight; factor is one number
//     d = Σ Z ⊙ Q              of a factor per column: Z and Q are [tokens, columns]. The launch can also store
//                              Z ⊙ that factor for a dgrad that reads it (DoRA)
#pragma once
#include <graft/core/dtype.h>
#include <graft/derive/stage.h>
#include <graft/derive/traversal.h>
#include <graft/plan/launch/slot.h>
#include <graft/plan/target_function.h>

#include <initializer_list>

namespace graft {

namespace detail {
constexpr bool one_matrix(const node& v) { return v.d[0] == dim{1} && v.d[1] == dim{1}; }
}  // namespace detail

struct wgrad_launch {
  struct capabilities {
    bool has_kernel = false;        // there is a wgrad kernel
    bool fuses_into_dgrad = false;  // wgrads run in the launch of a dgrad (gemm.h)
    // Returns true if an operand with this many columns is copied with padding before the launch.
    target_function<bool(long long columns, dtype, const target&)> operand_is_padded{};
  };
  struct work {
    sequence<int> host;  // by wgrad: the product whose launch it runs in; -1: none
  };

  bool found = false;
  id result = none_id, product = none_id;  // the product is the result or its operand
  id left = none_id, right = none_id;      // Z and Q: D = leftᵀ right, or by_column d = Σ left ⊙ right
  bool by_column = false;
  id factor = none_id;                   // one number, or none
  id scaled = none_id, scale = none_id;  // left ⊙ scale, which the launch stores too; scale is precomputed

  constexpr id anchor() const { return product; }
  constexpr const char* name(const graph&) const { return "GEMM"; }
  template <class Facts> constexpr int kernels(const Facts& in) const {
    return element_count(in.g, result, in.s) == 0 ? 0 : 1;
  }
  template <class F> constexpr void each_wgrad(int index, F f) const { f(index); }
  // Adds the nodes of a wgrad to a launch that runs it.
  template <class Planner> constexpr void add_nodes(Planner& by) const {
    by.add(product, launch_slot::reduce);
    if (result != product) by.add(result, launch_slot::epilogue);
    if (scaled >= 0) by.add(scaled, launch_slot::prologue);
  }
  template <class Planner> static constexpr void match(Planner& by);
  template <class Planner> static constexpr void add(Planner& by, int index, id i);
};

[[gnu::cold]] constexpr wgrad_launch wgrad_at(const graph& g, const stages& when, const sequence<int>& readers, id i) {
  auto data = [&](id k) { return k >= 0 && when.of[k] == stage::call; };
  wgrad_launch s;
  s.result = s.product = i;
  if (g[i].what == op::sum_to && data(g[i].a)) {
    const node &v = g[i], &m = g[v.a];
    const bool over_tokens = detail::one_matrix(m) && v.d[2] == dim{1} && v.d[3] == m.d[3] && v.d[3] != dim{1};
    if (!over_tokens || m.what != op::mul || readers[v.a] != 1 || !data(m.a) || !data(m.b)) return {};
    if (!same_shape(g[m.a], m) || !same_shape(g[m.b], m)) return {};
    s.product = v.a, s.left = m.a, s.right = m.b, s.by_column = s.found = true;
    return s;
  }
  if (const node& v = g[i]; v.what == op::mul && data(v.a) != data(v.b)) {
    s.product = data(v.a) ? v.a : v.b, s.factor = data(v.a) ? v.b : v.a;
    if (!is_scalar(g[s.factor]) || readers[s.product] != 1) return {};
  }
  const node& v = g[s.product];
  auto is_available = [&](id k) { return data(k) || g[k].what == op::base; };
  if (v.what != op::matmul || !v.ta || v.tb || v.sum || !is_available(v.a) || !is_available(v.b)) return {};
  if (!detail::one_matrix(v) || !detail::one_matrix(g[v.a]) || !detail::one_matrix(g[v.b])) return {};
  s.left = v.a, s.right = v.b, s.found = true;
  return s;
}

// Returns true for tensors that the caller binds to a call, such as values that forward saved.
constexpr bool is_call_input(const graph& g, id i) {
  return is_leaf(g[i].what) && traits_of(g[i].what).known_at == stage::call;
}

// Adds node n to a column wgrad if it multiplies one operand with a factor per column and the other operand is a leaf.
[[gnu::cold]] constexpr bool absorb_scaled_operand(const graph& g, const stages& when, id n, wgrad_launch& s) {
  const node& v = g[n];
  if (!s.by_column || s.scaled >= 0 || v.what != op::mul || when.of[n] != stage::call) return false;
  for (int k = 0; k < 2; ++k) {
    const id x = v.operand(k), f = v.operand(1 - k);
    if ((x != s.left && x != s.right) || when.of[f] == stage::call || g[f].d[2] != dim{1}) continue;
    const id other = x == s.left ? s.right : s.left;
    if (!detail::one_matrix(g[f]) || g[f].d[3] != g[x].d[3] || !is_leaf(g[other].what)) continue;
    s.left = x, s.right = other, s.scaled = n, s.scale = f;
    return true;
  }
  return false;
}

// How often wgrads D read a value, and which nodes their products are. Their kernels read rows with padding, so that a
// GEMM can store its shrink result with padded rows for them.
struct wgrad_readers {
  sequence<int> times;
  node_set product_of;

  explicit constexpr wgrad_readers(int nodes) : times(nodes, 0), product_of(nodes) {}
  constexpr void add(const wgrad_launch& s) {
    if (s.by_column) return;
    ++times[s.left], ++times[s.right];
    product_of.add(s.product);
  }
};

template <class Planner> [[gnu::cold]] constexpr void wgrad_launch::match(Planner& by) {
  auto& all = by.p.template all<wgrad_launch>();
  for (id i = by.g.size - 1; by.template can<wgrad_launch>().has_kernel && i >= 0; --i) {
    if (!by.is_free(i)) continue;
    const wgrad_launch s = wgrad_at(by.g, by.p.when, by.readers, i);
    if (!s.found) continue;
    for (const id n : {s.result, s.product}) by.template claim<wgrad_launch>(n, all.size());
    all.push(s);
  }
  by.template work<wgrad_launch>().host = sequence<int>(all.size(), -1);
}
template <class Planner> [[gnu::cold]] constexpr void wgrad_launch::add(Planner& by, int index, id i) {
  const wgrad_launch s = by.p.template all<wgrad_launch>()[index];
  if ((s.result != i && s.scaled != i) || by.template work<wgrad_launch>().host[index] >= 0) return;
  if (!by.computed(s.product)) return;
  by.template open<wgrad_launch>(index);
  s.add_nodes(by);
}

}  // namespace graft
