// SPDX-License-Identifier: Apache-2.0
// merge evaluates W', unmerge solves W' = f(W) for W: it walks from the root to the occurrence of W that carries the
// whole matrix and inverts each step. Where the other operand of a step depends on W too (DoRA's norm), its value at
// the time of the merge is needed: such small tensors are outputs "saved" of merge and inputs of unmerge.
#pragma once
#include <graft/derive/simplify.h>

namespace graft {

struct unmerging {
  builder g;
  bool possible = true;
  // Nodes of the merge graph whose values the unmerge graph needs: its leaf "saved" number i reads the i-th.
  sequence<id> saved_from;
};

[[gnu::cold]] constexpr unmerging unmerge(const builder& merge, const char* base, const char* out) {
  unmerging u{merge, true, {}};
  builder& g = u.g;
  id at = merge.result(out);
  const id w = merge.find(base);
  const node_set has_w =
      dependents(merge, [&](const node& v) { return v.what == op::base && same_text(v.name, base); });
  if (w < 0 || merge.n[w].what != op::base || !has_w[at]) {
    u.possible = false;
    return u;
  }
  const node shape = merge.n[at];
  id rhs = g.leaf(op::input, "merged", 0, merge.n[w].rank, shape.d[0], shape.d[1], shape.d[2], shape.d[3]);
  auto other = [&](id i) {
    if (!has_w[i]) return i;
    node v = g.shaped(op::saved, i, none_id);
    v.name = "saved", v.k[0] = {u.saved_from.size()};
    u.saved_from.push(i);
    return g.emit(v);
  };
  while (at != w && u.possible) {
    const node v = merge.n[at];
    const bool left = v.b < 0 || (has_w[v.a] && (!has_w[v.b] || same_shape(merge.n[v.a], v)));
    const id next = left ? v.a : v.b;
    switch (v.what) {
      case op::add: rhs = make_node::sub(g, rhs, other(left ? v.b : v.a)); break;
      case op::sub: rhs = left ? make_node::add(g, rhs, other(v.b)) : make_node::sub(g, other(v.a), rhs); break;
      case op::mul: rhs = make_node::div(g, rhs, other(left ? v.b : v.a)); break;
      case op::div: left ? void(rhs = make_node::mul(g, rhs, other(v.b))) : void(u.possible = false); break;
      case op::transpose: rhs = make_node::transpose(g, rhs); break;
      case op::reshape: rhs = make_node::reshape_like(g, rhs, v.a); break;
      case op::matmul: {
        if (!left || v.ta) {
          u.possible = false;
          break;
        }
        const id m = other(v.b);
        rhs = merge.n[v.b].orthogonal ? make_node::matmul(g, rhs, m, false, !v.tb)
                                      : make_node::matmul(g, rhs, make_node::inverse(g, m), false, v.tb);
        break;
      }
      case op::rotate:
        rhs = merge.n[v.b].orthogonal ? make_node::rotate(g, rhs, v.b, !v.tb)
                                      : make_node::rotate(g, rhs, make_node::inverse(g, v.b), v.tb);
        break;
      default: u.possible = false; break;
    }
    at = next;
  }
  g.out.clear();
  g.add_output(rhs, base);
  u.g = canonical(u.g);
  return u;
}

}  // namespace graft
