// SPDX-License-Identifier: Apache-2.0
// simplify: rebuilds the nodes that the outputs need, applying what makes them cheaper without changing the value:
//     s (x Bᵀ) = x (s B)ᵀ                  a parameter-time scalar moves onto the parameter-time operand
//     ||W + s B A||²_row = ||W||²_row + 2 s <W Aᵀ, B>_row + s² <B (A Aᵀ), B>_row       DoRA's norm without V
// so that the largest part, ||W||², is computed once per load and the rest from rank-r products.
#pragma once
#include <graft/derive/walk.h>
#include <graft/graph/rules_algebra.h>

namespace graft {

// (a + b)' = a' + b',  (s a)' = s a',  (A B)' = B' A':  one step of moving a transposition inwards.
constexpr id pushed_transpose(builder& g, id i) {
  if (!g.is(i, op::transpose)) return i;
  const node v = g.n[g.n[i].a];
  auto t = [&](id a) { return make::transpose(g, a); };
  if (v.what == op::add) return make::add(g, t(v.a), t(v.b));
  if (v.what == op::sub) return make::sub(g, t(v.a), t(v.b));
  if (v.what == op::mul && is_scalar(g.n[v.a])) return make::mul(g, v.a, t(v.b));
  if (v.what == op::matmul && !v.sum) return make::matmul(g, v.b, v.a, !v.tb, !v.ta, v.line);
  return i;
}

// <p, q> row by row, expanded bilinearly; a product B A is moved to the side where its inner size is smaller.
constexpr id row_inner(builder& g, id p, id q, int budget = 12) {
  p = pushed_transpose(g, p);
  q = pushed_transpose(g, q);
  const node v = g.n[p];
  if (budget > 0) switch (v.what) {
      case op::add:
      case op::sub: {
        const id left = row_inner(g, v.a, q, budget - 1), right = row_inner(g, v.b, q, budget - 1);
        return v.what == op::add ? make::add(g, left, right) : make::sub(g, left, right);
      }
      case op::mul:
        if (is_scalar(g.n[v.a])) return make::mul(g, v.a, row_inner(g, v.b, q, budget - 1));
        if (is_scalar(g.n[v.b])) return make::mul(g, v.b, row_inner(g, v.a, q, budget - 1));
        break;
      case op::matmul:
        if (!v.ta && !contains(g, p, op::base) && nominal_count(g, v.a) < nominal_count(g, p)) {
          // <B A, q> = <B, q Aᵀ>, and q Aᵀ is expanded in turn
          const node r = g.n[q];
          auto times_A = [&](id m) { return make::matmul(g, m, v.b, false, !v.tb); };
          if (r.what == op::add || r.what == op::sub) {
            const id left = row_inner(g, p, r.a, budget - 1), right = row_inner(g, p, r.b, budget - 1);
            return r.what == op::add ? make::add(g, left, right) : make::sub(g, left, right);
          }
          if (r.what == op::mul && is_scalar(g.n[r.a])) return make::mul(g, r.a, row_inner(g, p, r.b, budget - 1));
          if (r.what == op::matmul && !r.ta && nominal_count(g, r.a) < nominal_count(g, q)) {
            const id gram = make::matmul(g, r.b, v.b, r.tb, !v.tb);  // A Aᵀ, r x r
            return make::row_dot(g, v.a, make::matmul(g, r.a, gram));
          }
          return make::row_dot(g, v.a, times_A(q));
        }
        break;
      default: break;
    }
  const node r = g.n[q];
  const bool splits =
      r.what == op::add || r.what == op::sub || (r.what == op::mul && is_scalar(g.n[r.a])) ||
      (r.what == op::matmul && !r.ta && !contains(g, q, op::base) && nominal_count(g, r.a) < nominal_count(g, q));
  if (budget > 0 && splits) return row_inner(g, q, p, budget - 1);
  return make::row_dot(g, p, q);
}

// The rule of simplify for one node whose operands are already in g.
constexpr id rebuild(builder& g, const node& v, const node_set& data) {
  switch (v.what) {
    case op::row_dot:
      if (v.a == v.b && contains(g, v.a, op::base) && !is_leaf(g.n[v.a].what)) return row_inner(g, v.a, v.b);
      break;
    case op::mul: {
      const bool first = is_scalar(g.n[v.a]);
      const id s = first ? v.a : v.b, m = first ? v.b : v.a;
      if (is_scalar(g.n[s]) && g.is(m, op::matmul) && !data[s]) {
        const node p = g.n[m];
        if (data[p.a] && !data[p.b] && !contains(g, p.b, op::base))
          return make::matmul(g, p.a, make::mul(g, s, p.b), p.ta, p.tb, p.line, p.sum);
      }
      break;
    }
    default: break;
  }
  return g.emit(v);
}

// Copies the nodes that the outputs need into a new graph, each through `rule`.
template <class Rule> constexpr builder rewrite(const builder& from, Rule rule) {
  builder g{};
  g.sizes = from.sizes;
  g.bad = from.bad;
  const node_set live = reachable(from);
  id to[max_nodes]{};
  node_set data{};
  for (int i = 0; i < from.size; ++i) {
    if (!live.in[i]) continue;
    node v = from.n[i];
    if (v.a >= 0) v.a = to[v.a];
    if (v.b >= 0) v.b = to[v.b];
    if (v.c >= 0) v.c = to[v.c];
    const int before = g.size;
    to[i] = rule(g, v, data);
    if (v.orthogonal) g.n[to[i]].orthogonal = true;
    for (int k = before; k < g.size; ++k) {
      const node& made = g.n[k];
      data.in[k] = made.what == op::input || made.what == op::ids || data[made.a] || data[made.b] || data[made.c];
    }
  }
  for (int i = 0; i < from.outs; ++i) g.give(to[from.out[i].at], from.out[i].name);
  for (int i = 0; i < from.needs; ++i) {
    g.need[i] = from.need[i];
    g.need[i].at = live[from.need[i].at] ? to[from.need[i].at] : none_id;
  }
  g.needs = from.needs;
  if (g.bad.at >= 0) g.bad.at = live[from.bad.at] ? to[from.bad.at] : none_id;
  return g;
}

constexpr builder compact(const builder& from) {
  return rewrite(from, [](builder& g, const node& v, const node_set&) { return g.emit(v); });
}
constexpr builder simplify(const builder& from) { return compact(rewrite(from, rebuild)); }

// Once the gradient is taken, or where none will be, only values count:  const(a) = a,  a - a = 0,  a + (b - a) = b.
constexpr id value_rule(builder& g, const node& v, const node_set&) {
  switch (v.what) {
    case op::detach: return v.a;
    case op::sub: return v.a == v.b ? g.zero_like(v.a) : make::sub(g, v.a, v.b, v.line);
    case op::add:
      if (g.is(v.b, op::sub) && g.n[v.b].b == v.a) return g.n[v.b].a;
      return make::add(g, v.a, v.b, v.line);
    case op::mul: return make::mul(g, v.a, v.b, v.line);
    case op::div: return make::div(g, v.a, v.b, v.line);
    case op::matmul: return make::matmul(g, v.a, v.b, v.ta, v.tb, v.line, v.sum);
    case op::transpose: return make::transpose(g, v.a, v.line);
    case op::reshape: return make::reshape(g, v.a, v.d[0], v.d[1], v.d[2], v.d[3], v.line);
    default: return g.emit(v);
  }
}
constexpr builder values_only(const builder& from) { return rewrite(from, value_rule); }

}  // namespace graft
