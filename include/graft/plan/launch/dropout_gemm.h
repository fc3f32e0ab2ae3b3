// SPDX-License-Identifier: Apache-2.0
// Dropout on a low-rank branch in training: narrow GEMMs that drop elements of x while they load it, so that drop(x) is
// never stored. With U = drop(x) Aᵀ, the shrink result, and T = dy B, both [tokens, rank], the forms are
//     shrink   U = drop(x) Aᵀ                       sum      dA = Tᵀ drop(x)
//     expand   dx = other + drop(T A)
// A target with kernels of these forms runs each as one launch. The base layer's GEMM then computes
//     forward  y = x Wᵀ + U Bᵀ with U from shrink   backward  dy W, and T, which it stores for the others
// and dB = dyᵀ U is a fused wgrad of the launch of dy W, as without dropout (plan/launch/gemm.h).
#pragma once
#include <graft/plan/launch/gemm_slots.h>

namespace graft {

struct dropout_gemm {
  struct capabilities {
    bool has_kernel = false;  // narrow GEMMs apply dropout
  };
  struct work {};
  static constexpr bool by_nodes = true;

  enum class form : unsigned char { none, shrink, sum, expand };
  form form_kind = form::none;
  id result = none_id, wide = none_id;  // wide: x, or `other` of an expand
  id product = none_id, dropout = none_id;
  id narrow = none_id;            // T, [tokens, rank]
  id factor = none_id;            // A, which is precomputed
  bool factor_rank_major = true;  // A is stored [rank, columns], else [columns, rank]
  sequence<id> inside{};          // every node of the launch

  constexpr bool found() const { return form_kind != form::none; }

  constexpr id anchor() const { return product; }
  constexpr const char* name(const graph&) const { return "GEMM"; }
  template <class Facts> constexpr int kernels(const Facts& in) const {
    return element_count(in.g, result, in.s) == 0 ? 0 : 1;
  }
  template <class Planner> static constexpr void match(Planner& by);
  template <class Planner> static constexpr void add(Planner& by, int index, id i);
};

namespace detail {
struct dropout_matcher {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;

  constexpr bool data(id i) const { return i >= 0 && when.of[i] == stage::call; }
  constexpr bool is_precomputed(id i) const { return i >= 0 && when.of[i] != stage::call && one_matrix(g[i]); }
  constexpr bool drops(id i) const {
    return data(i) && g[i].what == op::dropout && readers[i] == 1 && when.has_token_rows[i] && one_matrix(g[i]);
  }
  constexpr bool multiplies(id i) const { return data(i) && g[i].what == op::matmul && !g[i].sum && one_matrix(g[i]); }
  // Returns true for a low-rank value: its readers are products with a precomputed matrix, sums over the tokens, or
  // outputs.
  constexpr bool is_narrow(id i) const {
    int times = 0;
    for (id r = i + 1; r < g.size; ++r)
      if (multiplies(r))
        times += (g[r].a == i && (g[r].ta || is_precomputed(g[r].b)) ? 1 : 0) + (g[r].b == i && g[r].ta ? 1 : 0);
    for (int k = 0; k < g.outs; ++k) times += g.out[k].at == i ? 1 : 0;
    return times == readers[i];
  }
  static constexpr dropout_gemm with_nodes(dropout_gemm d) {
    const bool is_expand = d.form_kind == dropout_gemm::form::expand;
    d.inside.push(is_expand ? d.product : d.dropout), d.inside.push(is_expand ? d.dropout : d.product);
    if (is_expand) d.inside.push(d.result);
    return d;
  }
  constexpr dropout_gemm at(id i) const {
    using form = dropout_gemm::form;
    const node& v = g[i];
    if (multiplies(i) && !v.ta && drops(v.a) && is_precomputed(v.b) && is_narrow(i))
      return with_nodes({form::shrink, i, g[v.a].a, i, v.a, none_id, v.b, v.tb});
    if (multiplies(i) && v.ta && !v.tb && drops(v.b) && data(v.a) && when.has_token_rows[v.a] && one_matrix(g[v.a]))
      return with_nodes({form::sum, i, g[v.b].a, i, v.b, v.a});
    for (int k = 0; v.what == op::add && data(i) && one_matrix(v) && k < 2; ++k) {
      const id term = v.operand(k), other = v.operand(1 - k), p = drops(term) ? g[term].a : none_id;
      if (!multiplies(p) || readers[p] != 1 || g[p].ta || !is_precomputed(g[p].b) || !data(g[p].a)) continue;
      if (!data(other) || !same_shape(g[other], v)) continue;
      return with_nodes({form::expand, i, other, p, term, g[p].a, g[p].b, !g[p].tb});
    }
    return {};
  }
};
}  // namespace detail

// Finds all dropout GEMMs of a graph; of[i] becomes the index of the one that contains node i.
[[gnu::cold]] constexpr sequence<dropout_gemm> find_dropout_gemms(const graph& g, const stages& when,
                                                                  const sequence<int>& readers, sequence<int>& of) {
  sequence<dropout_gemm> all;
  const detail::dropout_matcher r{g, when, readers};
  for (id i = 0; i < g.size; ++i) {
    const dropout_gemm d = r.at(i);
    if (!d.found()) continue;
    bool free = true;
    for (const id n : d.inside) free = free && of[n] < 0;
    if (!free) continue;
    for (const id n : d.inside) of[n] = all.size();
    all.push(d);
  }
  return all;
}

// The shrink results U of dropout GEMMs, of which base GEMMs may add U Bᵀ.
[[gnu::cold]] constexpr node_set dropout_shrinks(const graph& g, const sequence<dropout_gemm>& dropout_gemms) {
  node_set shrinks(g.size);
  for (const dropout_gemm& d : dropout_gemms)
    if (d.form_kind == dropout_gemm::form::shrink) shrinks.add(d.result);
  return shrinks;
}

namespace detail {
constexpr bool is_bare(const gemm_slots& p) {
  return p.branches.empty() && p.epilogue_steps.empty() && p.act == op::detach && p.prologue < 0 &&
         p.input_rotation < 0 && p.output_rotation < 0 && p.pre_epilogue < 0;
}
}  // namespace detail

// Moves each product T = dy B into the GEMM dy W that reads the same dy, where it becomes a branch that stores its
// shrink result and expands nothing.
[[gnu::cold]] constexpr sequence<gemm_slots> with_dropout_shrinks(const graph& g, const sequence<int>& readers,
                                                                  const sequence<dropout_gemm>& dropout_gemms,
                                                                  sequence<gemm_slots> products) {
  sequence<int> narrow(g.size, 0);  // how many dropout GEMMs read a value as T
  for (const dropout_gemm& d : dropout_gemms)
    if (d.narrow >= 0) ++narrow[d.narrow];
  node_set gone(products.size());
  for (int k = 0; k < products.size(); ++k) {
    const gemm_slots& t = products[k];
    if (narrow[t.result] == 0 || narrow[t.result] != readers[t.result] || !detail::is_bare(t) || t.residual >= 0)
      continue;
    for (gemm_slots& host : products) {
      if (host.x != t.x || !detail::is_bare(host) || host.weight_is_nt || base_leaf(g, host.weight) < 0) continue;
      if (dependencies(g, host.result)[t.result]) continue;  // it depends on T itself
      low_rank_branch branch;
      branch.a = t.weight, branch.a_rank_major = t.weight_is_nt, branch.s = t.result, branch.rank = g[t.result].d[3];
      branch.stores_shrink = true, branch.expands = false;
      host.branches.push(branch);
      for (const id i : t.inside) host.inside.push(i);
      gone.add(k);
      break;
    }
  }
  sequence<gemm_slots> left;
  for (int k = 0; k < products.size(); ++k)
    if (!gone[k]) left.push(products[k]);
  return left;
}

// The nodes of a dropout GEMM get an extra reader, which keeps other launches from taking them.
template <class Planner> [[gnu::cold]] constexpr void dropout_gemm::match(Planner& by) {
  if (!by.template can<dropout_gemm>().has_kernel) return;
  sequence<int> of(by.g.size, -1);
  by.p.template all<dropout_gemm>() = find_dropout_gemms(by.g, by.p.when, by.readers, of);
  for (id i = 0; i < by.g.size; ++i)
    if (of[i] >= 0) by.template claim<dropout_gemm>(i, of[i]), ++by.readers[i];
}
template <class Planner> [[gnu::cold]] constexpr void dropout_gemm::add(Planner& by, int index, id i) {
  const dropout_gemm& d = by.p.template all<dropout_gemm>()[index];
  if (d.result != i || !by.template computed<dropout_gemm>(d.inside, index)) return;
  by.template open<dropout_gemm>(index);
  for (const id n : d.inside)
    by.add(n, by.g[n].what == op::matmul    ? (d.form_kind == form::sum ? launch_slot::reduce : launch_slot::mainloop)
              : d.form_kind == form::expand ? launch_slot::epilogue
                                            : launch_slot::prologue);
}

}  // namespace graft
