// SPDX-License-Identifier: Apache-2.0
// dropped: part of a graph read as one narrow product with dropout in it, as in the side branch of a layer in training:
//     shrink   S = drop(x) Aᵀ                       sum      dA = Tᵀ drop(x)
//     expand   dx = other + drop(T A)
// A target that has kernels of these forms runs each as one launch, and drop(x) is stored nowhere. S Bᵀ is a side branch of
// the layer's product, whose S is there already.
#pragma once
#include <graft/plan/token_sum.h>

namespace graft {

struct dropped_product {
  enum class form : unsigned char { none, shrink, sum, expand };
  form how = form::none;
  id result = none_id, product = none_id;
  id dropout = none_id;
  id wide = none_id, narrow = none_id;  // x, or what is added to; T, S: [tokens, rank]
  id factor = none_id;                  // A or B, known before the data
  bool factor_by_rank = true;           // stored [rank, columns], else [columns, rank]

  constexpr bool found() const { return how != form::none; }
  constexpr sequence<id> inside() const {
    sequence<id> all;
    if (how != form::expand) all.push(dropout);
    all.push(product);
    if (how == form::expand) all.push(dropout);
    if (result != product) all.push(result);
    return all;
  }
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
  constexpr dropped_product at(id i) const {
    using form = dropped_product::form;
    const node& v = g[i];
    if (multiplies(i) && !v.ta && drops(v.a) && known(v.b) && is_narrow(i))
      return {form::shrink, i, i, v.a, g[v.a].a, none_id, v.b, v.tb};
    if (multiplies(i) && v.ta && !v.tb && drops(v.b) && data(v.a) && when.by_token[v.a] && one_matrix(g[v.a]))
      return {form::sum, i, i, v.b, g[v.b].a, v.a, none_id};
    for (int k = 0; v.what == op::add && data(i) && one_matrix(v) && k < 2; ++k) {
      const id term = v.operand(k), other = v.operand(1 - k), p = drops(term) ? g[term].a : none_id;
      if (!multiplies(p) || readers[p] != 1 || g[p].ta || !known(g[p].b) || !data(g[p].a)) continue;
      if (!data(other) || !same_shape(g[other], v)) continue;
      return {form::expand, i, p, term, other, g[p].a, g[p].b, !g[p].tb};
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
    for (const id n : d.inside()) free = free && of[n] < 0;
    if (!free) continue;
    for (const id n : d.inside()) of[n] = all.size();
    all.push(d);
  }
  return all;
}

}  // namespace graft
