// SPDX-License-Identifier: Apache-2.0
// simplify: rebuilds the nodes that the outputs need, with rules that make them cheaper without changing their value:
//     s (x Bᵀ) = (s x) Bᵀ = x (s B)ᵀ       a parameter-stage scalar moves onto the parameter-stage operand,
//     (s x)ᵀ y = s (xᵀ y)                  or out of the product
//     ||W + s B A||²_row = ||W||²_row + 2 s <W Aᵀ, B>_row + s² <B (A Aᵀ), B>_row       DoRA's norm, W + s B A not built
//     x P + x Q = x (P + Q)                one product instead of two, where both matrices do not depend on the data,
//                                          or are smaller than the products
// The largest term of that norm, ||W||², is then computed once per load, and the rest from rank-r products.
#pragma once
#include <graft/derive/traversal.h>
#include <graft/graph/canonical.h>
#include <graft/graph/rules.h>

namespace graft {

// Moves a transposition one step inwards:  (a + b)' = a' + b',  (s a)' = s a',  (A B)' = B' A'.
constexpr id pushed_transpose(builder& g, id i) {
  if (!g.is(i, op::transpose)) return i;
  const node v = g.n[g.n[i].a];
  auto t = [&](id a) { return make_node::transpose(g, a); };
  if (v.what == op::add) return make_node::add(g, t(v.a), t(v.b));
  if (v.what == op::sub) return make_node::sub(g, t(v.a), t(v.b));
  if (v.what == op::mul && is_scalar(g.n[v.a])) return make_node::mul(g, v.a, t(v.b));
  if (v.what == op::matmul && !v.sum) return make_node::matmul(g, v.b, v.a, !v.tb, !v.ta, v.line);
  return i;
}

// Expands the inner products <p, q> of rows bilinearly. The factor A of a product B A multiplies the other operand
// where B is smaller than B A.
[[gnu::cold]] constexpr id row_inner(builder& g, id p, id q, int budget = 12) {
  p = pushed_transpose(g, p);
  q = pushed_transpose(g, q);
  const node v = g.n[p];
  if (budget > 0) switch (v.what) {
      case op::add:
      case op::sub: {
        const id left = row_inner(g, v.a, q, budget - 1), right = row_inner(g, v.b, q, budget - 1);
        return v.what == op::add ? make_node::add(g, left, right) : make_node::sub(g, left, right);
      }
      case op::mul:
        if (is_scalar(g.n[v.a])) return make_node::mul(g, v.a, row_inner(g, v.b, q, budget - 1));
        if (is_scalar(g.n[v.b])) return make_node::mul(g, v.b, row_inner(g, v.a, q, budget - 1));
        break;
      case op::matmul:
        if (!v.ta && nominal_count(g, v.a) < nominal_count(g, p) && !g.n[p].from_base) {
          // <B A, q> = <B, q Aᵀ>, and q Aᵀ is expanded in turn
          const node r = g.n[q];
          auto times_A = [&](id m) { return make_node::matmul(g, m, v.b, false, !v.tb); };
          if (r.what == op::add || r.what == op::sub) {
            const id left = row_inner(g, p, r.a, budget - 1), right = row_inner(g, p, r.b, budget - 1);
            return r.what == op::add ? make_node::add(g, left, right) : make_node::sub(g, left, right);
          }
          if (r.what == op::mul && is_scalar(g.n[r.a])) return make_node::mul(g, r.a, row_inner(g, p, r.b, budget - 1));
          if (r.what == op::matmul && !r.ta && nominal_count(g, r.a) < nominal_count(g, q)) {
            const id gram = make_node::matmul(g, r.b, v.b, r.tb, !v.tb);  // A Aᵀ, r x r
            return make_node::row_dot(g, v.a, make_node::matmul(g, r.a, gram));
          }
          return make_node::row_dot(g, v.a, times_A(q));
        }
        break;
      default: break;
    }
  const node r = g.n[q];
  const bool splits =
      r.what == op::add || r.what == op::sub || (r.what == op::mul && is_scalar(g.n[r.a])) ||
      (r.what == op::matmul && !r.ta && nominal_count(g, r.a) < nominal_count(g, q) && !g.n[q].from_base);
  if (budget > 0 && splits) return row_inner(g, q, p, budget - 1);
  return make_node::row_dot(g, p, q);
}

// Returns true if x P and x Q are better added as x (P + Q).
[[gnu::cold]] constexpr bool can_add_matrices(const builder& g, id first, const node& v, const sequence<bool>& data) {
  const node& u = g.n[first];
  if (u.what != op::matmul || u.a != v.a || u.ta != v.ta || u.sum || v.sum) return false;
  const bool known = data[u.a] && !data[u.b] && !data[v.b] && u.tb == v.tb && same_shape(g.n[u.b], g.n[v.b]);
  return known || (data[u.b] && data[v.b] && nominal_count(g, u.b) < nominal_count(g, first));
}
// Adds the product x Q to `sum`, or subtracts it, within a term x P of `sum`; none_id where there is no such term.
constexpr id add_product(builder& g, op sum_op, id sum, const node& product, const sequence<bool>& data) {
  const node u = g.n[sum];
  if (can_add_matrices(g, sum, product, data)) {
    const bool same = u.tb == product.tb;
    auto as_read = [&](const node& m) { return m.tb && !same ? make_node::transpose(g, m.b) : m.b; };
    const id left = as_read(u), right = as_read(product);
    const id both = make_node::pointwise(g, sum_op, left, right, product.line);
    return make_node::matmul(g, u.a, both, u.ta, same && u.tb, product.line);
  }
  if (u.what != op::add) return none_id;
  if (const id right = add_product(g, sum_op, u.b, product, data); right >= 0)
    return make_node::add(g, u.a, right, u.line);
  if (const id left = add_product(g, sum_op, u.a, product, data); left >= 0)
    return make_node::add(g, left, u.b, u.line);
  return none_id;
}

// Moves the scalar s out of a product's operand k = s · rest, where rest depends on the data and s does not.
[[gnu::cold]] constexpr id move_scalar(builder& g, const node& v, int k, const sequence<bool>& data) {
  const id scaled = v.operand(k), other = v.operand(1 - k);
  if (!g.is(scaled, op::mul) || !data[scaled]) return none_id;
  const node m = g.n[scaled];
  const id s = is_scalar(g.n[m.a]) ? m.a : m.b, rest = is_scalar(g.n[m.a]) ? m.b : m.a;
  if (!is_scalar(g.n[s]) || data[s]) return none_id;
  const bool takes_it = !data[other] && !g.n[other].from_base;
  const id with = takes_it ? make_node::mul(g, s, other) : other;
  const id product = make_node::matmul(g, k == 0 ? rest : with, k == 0 ? with : rest, v.ta, v.tb, v.line, v.sum);
  return takes_it ? product : make_node::mul(g, product, s);
}

// The rule of simplify() for one node whose operands are already in g. `data` marks nodes that depend on a call's data.
[[gnu::cold]] constexpr id rebuild(builder& g, const node& v, const sequence<bool>& data) {
  switch (v.what) {
    case op::row_dot:
      if (v.a == v.b && g.n[v.a].from_base && !is_leaf(g.n[v.a].what)) return row_inner(g, v.a, v.b);
      break;
    case op::add:
    case op::sub: {
      const node p = g.n[v.b];
      if (p.what != op::matmul) break;
      if (const id folded = add_product(g, v.what, v.a, p, data); folded >= 0) return folded;
      break;
    }
    case op::mul: {
      const bool first = is_scalar(g.n[v.a]);
      const id s = first ? v.a : v.b, m = first ? v.b : v.a;
      if (is_scalar(g.n[s]) && g.is(m, op::matmul) && !data[s]) {
        const node p = g.n[m];
        if (data[p.a] && !data[p.b] && !g.n[p.b].from_base)
          return make_node::matmul(g, p.a, make_node::mul(g, s, p.b), p.ta, p.tb, p.line, p.sum);
      }
      break;
    }
    case op::matmul:
      for (int k = 0; k < 2; ++k)
        if (const id simpler = move_scalar(g, v, k, data); simpler >= 0) return simpler;
      break;
    default: break;
  }
  return g.emit(v);
}

// Copies the nodes that the outputs need into a new graph, each through `rule`. The result is not in canonical order,
// which an intermediate graph does not need.
template <class Rule> [[gnu::cold]] constexpr builder rewrite(const builder& from, Rule rule) {
  builder g;
  g.size_list = from.size_list, g.path_list = from.path_list, g.names = from.names;
  g.bad = from.bad;
  const node_set live = reachable(from);
  sequence<id> moved_to(from.n.size(), none_id);
  sequence<bool> data;
  g.reserve(from.n.size()), data.reserve(from.n.size());
  id* const to = moved_to.data();
  const node* const nodes = from.n.data();
  for (id i = 0, end = from.n.size(); i < end; ++i) {
    if (!live.in[i]) continue;
    node v = nodes[i];
    if (v.a >= 0) v.a = to[v.a];
    if (v.b >= 0) v.b = to[v.b];
    if (v.c >= 0) v.c = to[v.c];
    to[i] = rule(g, v, data);
    if (v.orthogonal) g.n[to[i]].orthogonal = true;
    const node* const made = g.n.data();
    for (id k = data.size(), size = g.n.size(); k < size; ++k) {
      const node& m = made[k];
      data.push((m.a < 0 && traits_of(m.what).known_at == stage::call) || (m.a >= 0 && data[m.a]) ||
                (m.b >= 0 && data[m.b]) || (m.c >= 0 && data[m.c]));
    }
  }
  for (const output& o : from.out) g.add_output(to[o.at], o.name, o.path, o.of_input);
  for (requirement r : from.need) {
    r.at = r.at >= 0 ? to[r.at] : none_id;
    g.need.push(r);
  }
  if (g.bad.at >= 0) g.bad.at = to[from.bad.at];
  return g;
}

constexpr builder simplify(const builder& from) { return canonical(rewrite(from, rebuild)); }

// Simplifies norms only. Other products of parameters are not multiplied out: their factors multiply the rows.
[[gnu::cold]] constexpr id rebuild_norm(builder& g, const node& v, const sequence<bool>& data) {
  return v.what == op::row_dot ? rebuild(g, v, data) : g.emit(v);
}
constexpr builder simplify_norms(const builder& from) { return canonical(rewrite(from, rebuild_norm)); }

// For graphs that are not differentiated any further only values count:  detach(a) = a,  a - a = 0,  a + (b - a) = b.
constexpr id value_rule(builder& g, const node& v, const sequence<bool>&) {
  switch (v.what) {
    case op::detach: return v.a;
    case op::sub: return v.a == v.b ? g.zero_like(v.a) : make_node::sub(g, v.a, v.b, v.line);
    case op::add:
      if (g.is(v.b, op::sub) && g.n[v.b].b == v.a) return g.n[v.b].a;
      return make_node::add(g, v.a, v.b, v.line);
    case op::mul: return make_node::mul(g, v.a, v.b, v.line);
    case op::div: return make_node::div(g, v.a, v.b, v.line);
    case op::matmul: return make_node::matmul(g, v.a, v.b, v.ta, v.tb, v.line, v.sum);
    case op::transpose: return make_node::transpose(g, v.a, v.line);
    case op::reshape: return make_node::reshape(g, v.a, v.d[0], v.d[1], v.d[2], v.d[3], v.line);
    default: return g.emit(v);
  }
}
constexpr builder values_only(const builder& from) { return canonical(rewrite(from, value_rule)); }

}  // namespace graft
