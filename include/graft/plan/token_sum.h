// SPDX-License-Identifier: Apache-2.0
// token_sum: part of a graph read as one product over the tokens, the gradient of a factor of a side branch:
//     D = factor · Zᵀ Q        Z [tokens, columns] and Q [tokens, rank] come with the data, the factor was known before
// A backend that has a kernel of this form runs it as one launch.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/walk.h>

#include <initializer_list>

namespace graft {

namespace detail {
constexpr bool one_matrix(const node& v) { return v.d[0] == dim{1} && v.d[1] == dim{1}; }
}  // namespace detail

struct token_sum {
  bool found = false;
  id result = none_id, product = none_id;  // the product is the result, or the one node below it
  id left = none_id, right = none_id;      // D = leftᵀ right
  id factor = none_id;                     // one number, if any
};

[[gnu::cold]] constexpr token_sum sum_at(const graph& g, const stages& when, const sequence<int>& readers, id i) {
  auto data = [&](id k) { return k >= 0 && when.of[k] == stage::data; };
  token_sum s;
  s.result = s.product = i;
  if (const node& v = g[i]; v.what == op::mul && data(v.a) != data(v.b)) {
    s.product = data(v.a) ? v.a : v.b, s.factor = data(v.a) ? v.b : v.a;
    if (!is_scalar(g[s.factor]) || readers[s.product] != 1) return {};
  }
  const node& v = g[s.product];
  if (v.what != op::matmul || !v.ta || v.tb || v.sum || !data(v.a) || !data(v.b)) return {};
  if (!detail::one_matrix(v) || !detail::one_matrix(g[v.a]) || !detail::one_matrix(g[v.b])) return {};
  if (!g.sizes.by_token(g[v.a].d[2])) return {};
  s.left = v.a, s.right = v.b, s.found = true;
  return s;
}

// How often a value is read by such products, and the first of them.
struct sum_readers {
  sequence<int> times;
  sequence<id> first;

  explicit constexpr sum_readers(int nodes) : times(nodes, 0), first(nodes, none_id) {}
  constexpr void add(const token_sum& s) {
    for (const id i : {s.left, s.right}) {
      ++times[i];
      if (first[i] < 0 || s.product < first[i]) first[i] = s.product;
    }
  }
};

}  // namespace graft
