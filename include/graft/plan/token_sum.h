// SPDX-License-Identifier: Apache-2.0
// token_sum: part of a graph read as one sum over the tokens,
//     D = factor · Zᵀ Q        the gradient of a factor of a side branch: Z [tokens, columns] and Q [tokens, rank] come
//                              with the data, or Z is the stored weight, and the factor was known before
//     d = Σ Z ⊙ Q              the gradient of a factor per column: both [tokens, columns]; beside it Z ⊙ that factor, where
//                              a data gradient reads it (DoRA)
// A backend that has kernels of these forms runs each as one launch.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/walk.h>

namespace graft {

namespace detail {
constexpr bool one_matrix(const node& v) { return v.d[0] == dim{1} && v.d[1] == dim{1}; }
}  // namespace detail

struct token_sum {
  bool found = false;
  id result = none_id, product = none_id;  // the product is the result, or the one node below it
  id left = none_id, right = none_id;      // D = leftᵀ right, or Σ left ⊙ right:
  bool by_column = false;
  id factor = none_id;                   // one number, if any
  id scaled = none_id, scale = none_id;  // left ⊙ a value for each column, known before: the launch stores it too
};

[[gnu::cold]] constexpr token_sum sum_at(const graph& g, const stages& when, const sequence<int>& readers, id i) {
  auto data = [&](id k) { return k >= 0 && when.of[k] == stage::data; };
  token_sum s;
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
  auto brought = [&](id k) { return data(k) || g[k].what == op::base; };
  if (v.what != op::matmul || !v.ta || v.tb || v.sum || !brought(v.a) || !brought(v.b)) return {};
  if (!detail::one_matrix(v) || !detail::one_matrix(g[v.a]) || !detail::one_matrix(g[v.b])) return {};
  s.left = v.a, s.right = v.b, s.found = true;
  return s;
}

// An operand that comes with the call, such as what forward kept of a branch.
constexpr bool is_brought_operand(const graph& g, id i) {
  return is_leaf(g[i].what) && row(g[i].what).known == stage::data;
}

// Does node n multiply an operand of a sum by column with a factor for each column? The other operand was there before.
[[gnu::cold]] constexpr bool take_scaled(const graph& g, const stages& when, id n, token_sum& s) {
  const node& v = g[n];
  if (!s.by_column || s.scaled >= 0 || v.what != op::mul || when.of[n] != stage::data) return false;
  for (int k = 0; k < 2; ++k) {
    const id x = v.operand(k), f = v.operand(1 - k);
    if ((x != s.left && x != s.right) || when.of[f] == stage::data || g[f].d[2] != dim{1}) continue;
    const id other = x == s.left ? s.right : s.left;
    if (!detail::one_matrix(g[f]) || g[f].d[3] != g[x].d[3] || !is_leaf(g[other].what)) continue;
    s.left = x, s.right = other, s.scaled = n, s.scale = f;
    return true;
  }
  return false;
}

// How often a value is read by such products, and which nodes they are. They take rows with padding behind them.
struct sum_readers {
  sequence<int> times;
  node_set product_of;

  explicit constexpr sum_readers(int nodes) : times(nodes, 0), product_of(nodes) {}
  constexpr void add(const token_sum& s) {
    if (s.by_column) return;
    ++times[s.left], ++times[s.right];
    product_of.add(s.product);
  }
};

}  // namespace graft
