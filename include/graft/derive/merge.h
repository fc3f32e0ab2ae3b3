// SPDX-License-Identifier: Apache-2.0
// merge evaluates W'. unmerge solves W' = f(W) for W: it walks from the root to the occurrence of W that carries the
// whole matrix and undoes each step. Where a step's other operand depends on W too (DoRA's norm), its value at the time
// of the merge is needed: such values are outputs "kept" of the merge and inputs of the unmerge, one small tensor each.
#pragma once
#include <graft/derive/simplify.h>

namespace graft {

struct unmerge_facts {
  bool possible = true;
  int kept = 0;       // values of the merge graph that the unmerge needs
  id kept_from[4]{};  // where they are in the merge graph
};
struct unmerging {
  builder g;
  unmerge_facts facts{};
};

inline constexpr const char* kept_names[4] = {"kept0", "kept1", "kept2", "kept3"};

constexpr unmerging unmerge(const builder& merge, const char* base, const char* out) {
  unmerging u{merge};
  builder& g = u.g;
  id at = merge.result(out);
  const id w = merge.find(base);
  if (w < 0 || merge.n[w].what != op::base || !contains(merge, at, op::base)) {
    u.facts.possible = false;
    return u;
  }
  const node_set has_w =
      dependents(merge, [&](const node& v) { return v.what == op::base && same_text(v.name, base); });
  if (!has_w[at]) {
    u.facts.possible = false;
    return u;
  }
  const node shape = merge.n[at];
  id rhs = g.leaf(op::input, "merged", merge.n[w].rank, shape.d[0], shape.d[1], shape.d[2], shape.d[3]);
  auto other = [&](id i) {
    if (!has_w[i] || u.facts.kept == 4) return i;
    u.facts.kept_from[u.facts.kept] = i;
    const node v = merge.n[i];
    return g.leaf(op::kept, kept_names[u.facts.kept++], 4, v.d[0], v.d[1], v.d[2], v.d[3]);
  };
  while (at != w && u.facts.possible) {
    const node v = merge.n[at];
    const bool left = v.b < 0 || (has_w[v.a] && (!has_w[v.b] || same_shape(merge.n[v.a], v)));
    const id next = left ? v.a : v.b;
    switch (v.what) {
      case op::add: rhs = make::sub(g, rhs, other(left ? v.b : v.a)); break;
      case op::sub: rhs = left ? make::add(g, rhs, other(v.b)) : make::sub(g, other(v.a), rhs); break;
      case op::mul: rhs = make::div(g, rhs, other(left ? v.b : v.a)); break;
      case op::div: left ? void(rhs = make::mul(g, rhs, other(v.b))) : void(u.facts.possible = false); break;
      case op::transpose: rhs = make::transpose(g, rhs); break;
      case op::reshape: rhs = make::reshape_like(g, rhs, v.a); break;
      case op::matmul: {
        if (!left || v.ta) {
          u.facts.possible = false;
          break;
        }
        const id m = other(v.b);
        rhs = merge.n[v.b].orthogonal ? make::matmul(g, rhs, m, false, !v.tb)
                                      : make::matmul(g, rhs, make::inverse(g, m), false, v.tb);
        break;
      }
      case op::rotate:
        rhs = merge.n[v.b].orthogonal ? make::rotate(g, rhs, v.b, !v.tb)
                                      : make::rotate(g, rhs, make::inverse(g, v.b), v.tb);
        break;
      default: u.facts.possible = false; break;
    }
    at = next;
  }
  g.outs = 0;
  g.give(rhs, base);
  u.g = compact(u.g);
  return u;
}

}  // namespace graft
