// SPDX-License-Identifier: Apache-2.0
// dropped: part of a graph read as one narrow product with dropout in it, as in the side branch of a layer in training:
//     shrink   S = drop(x) Aᵀ                       sum      dA = Tᵀ drop(x)
//     expand   dx = other + drop(T A),  or with the terms of several branches that have one input
// A target that has kernels of these forms runs each as one launch, and drop(x) is stored nowhere. S Bᵀ is a side branch of
// the layer's product, whose S is there already.
#pragma once
#include <graft/plan/token_sum.h>

namespace graft {

struct dropped_term {
  id product = none_id, dropout = none_id;
  id narrow = none_id;         // T: [tokens, rank]
  id factor = none_id;         // A, known before the data
  bool factor_by_rank = true;  // stored [rank, columns], else [columns, rank]
};
inline constexpr int most_dropped_terms = 3;  // those of Q, K and V

struct dropped_product {
  enum class form : unsigned char { none, shrink, sum, expand };
  form how = form::none;
  id result = none_id, wide = none_id;  // wide: x, or what is added to
  sequence<dropped_term> terms;         // one, or of an expand several
  sequence<id> inside;                  // every node of the launch

  constexpr bool found() const { return how != form::none; }
};

namespace detail {
struct dropped_reader {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;

  constexpr bool data(id i) const { return i >= 0 && when.of[i] == stage::data; }
  constexpr bool known(id i) const { return i >= 0 && when.of[i] != stage::data && one_matrix(g[i]); }
  constexpr bool drops(id i) const {
    return data(i) && g[i].what == op::dropout && readers[i] == 1 && when.by_token[i] && one_matrix(g[i]);
  }
  constexpr bool multiplies(id i) const { return data(i) && g[i].what == op::matmul && !g[i].sum && one_matrix(g[i]); }
  // A value that is only multiplied again, or summed over the tokens: of low rank.
  constexpr bool is_narrow(id i) const {
    int times = 0;
    for (id r = i + 1; r < g.size; ++r)
      if (multiplies(r))
        times += (g[r].a == i && (g[r].ta || known(g[r].b)) ? 1 : 0) + (g[r].b == i && g[r].ta ? 1 : 0);
    for (int k = 0; k < g.outs; ++k) times += g.out[k].at == i ? 1 : 0;
    return times == readers[i];
  }
  static constexpr dropped_product made(dropped_product::form how, id result, id wide, const dropped_term& term) {
    dropped_product d{how, result, wide, {}, {}};
    d.terms.push(term);
    const bool behind = how == dropped_product::form::expand;
    d.inside.push(behind ? term.product : term.dropout), d.inside.push(behind ? term.dropout : term.product);
    if (behind) d.inside.push(result);
    return d;
  }
  constexpr dropped_product at(id i) const {
    using form = dropped_product::form;
    const node& v = g[i];
    if (multiplies(i) && !v.ta && drops(v.a) && known(v.b) && is_narrow(i))
      return made(form::shrink, i, g[v.a].a, {i, v.a, none_id, v.b, v.tb});
    if (multiplies(i) && v.ta && !v.tb && drops(v.b) && data(v.a) && when.by_token[v.a] && one_matrix(g[v.a]))
      return made(form::sum, i, g[v.b].a, {i, v.b, v.a});
    for (int k = 0; v.what == op::add && data(i) && one_matrix(v) && k < 2; ++k) {
      const id term = v.operand(k), other = v.operand(1 - k), p = drops(term) ? g[term].a : none_id;
      if (!multiplies(p) || readers[p] != 1 || g[p].ta || !known(g[p].b) || !data(g[p].a)) continue;
      if (!data(other) || !same_shape(g[other], v)) continue;
      return made(form::expand, i, other, {p, term, g[p].a, g[p].b, !g[p].tb});
    }
    return {};
  }
};
}  // namespace detail

// All of a graph; `of`: for each node the one that it is part of, or -1.
[[gnu::cold]] constexpr sequence<dropped_product> dropped_products(const graph& g, const stages& when,
                                                                   const sequence<int>& readers, sequence<int>& of) {
  sequence<dropped_product> all;
  const detail::dropped_reader r{g, when, readers};
  for (id i = 0; i < g.size; ++i) {
    const dropped_product d = r.at(i);
    if (!d.found()) continue;
    bool free = true;
    for (const id n : d.inside) free = free && of[n] < 0;
    if (!free) continue;
    if (const int before = of[d.wide]; d.how == dropped_product::form::expand && before >= 0 && readers[d.wide] == 1 &&
                                       all[before].result == d.wide && all[before].how == d.how &&
                                       all[before].terms.size() < most_dropped_terms) {
      all[before].terms.push(d.terms[0]), all[before].result = i;
      for (const id n : d.inside) of[n] = before, all[before].inside.push(n);
      continue;
    }
    for (const id n : d.inside) of[n] = all.size();
    all.push(d);
  }
  return all;
}

}  // namespace graft
