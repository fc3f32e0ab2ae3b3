// SPDX-License-Identifier: Apache-2.0
// canonical: renumbers a graph in an order that follows from its contents alone: nodes in depth-first order from the
// outputs, left operand first; sizes and paths by first use; requirements by their node. C++ leaves the evaluation
// order of operands open, so without this pass compilers would number one formula differently. Nodes that no output
// needs are dropped, except for inputs, which are the signature of a graph.
#pragma once
#include <graft/graph/builder.h>

namespace graft {

namespace detail {

// Copies entries of the size and path tables to another graph at their first use.
struct table_copier {
  const graph& from;
  builder& to;
  sequence<int> size_at, path_at;  // index of an entry in `to`, plus 1; 0: not copied

  constexpr table_copier(const graph& f, builder& t)
      : from(f), to(t), size_at(f.sizes.count, 0), path_at(f.paths().count, 0) {}

  [[gnu::cold, gnu::noinline]] constexpr int path(int p) {
    if (p <= 0) return 0;
    if (path_at[p] == 0) {
      const path_entry& e = from.paths().e[p];
      const int above = path(e.above);
      path_at[p] = to.word(above, e.word, e.length) + 1;
    }
    return path_at[p] - 1;
  }
  [[gnu::cold, gnu::noinline]] constexpr dim size(dim d) {
    if (d.is_static()) return d;
    int& at = size_at[d.entry()];
    if (at == 0) {
      size_entry e = from.sizes.e[d.entry()];
      e.a = size(e.a), e.b = size(e.b), e.c = size(e.c), e.d = size(e.d), e.path = path(e.path);
      at = to.entry(e).entry() + 1;
    }
    return entry_dim(at - 1);
  }
  // The node for the new graph; place[i] is the new id of node i.
  [[gnu::cold, gnu::noinline]] constexpr node moved(node v, const id* new_id) {
    if (v.a >= 0) v.a = new_id[v.a];
    if (v.b >= 0) v.b = new_id[v.b];
    if (v.c >= 0) v.c = new_id[v.c];
    for (int i = 0; i < 4; ++i) {
      if (v.d[i].v < 0) v.d[i] = size(v.d[i]);
      if (v.k[i].v < 0) v.k[i] = size(v.k[i]);
    }
    if (v.path > 0) v.path = path(v.path);
    return v;
  }
};

constexpr bool comes_before(const text& a, const text& b) {
  int i = 0;
  while (a.s[i] != '\0' && a.s[i] == b.s[i]) ++i;
  return a.s[i] < b.s[i];
}

}  // namespace detail

[[gnu::cold]] constexpr builder canonical(const graph& from) {
  builder g;
  detail::table_copier tables(from, g);
  g.reserve(from.size);
  sequence<id> new_id(from.size, none_id), stack(from.size);
  id *const to = new_id.data(), *const open = stack.data();
  auto visit = [&](id root) {
    int depth = 0;
    open[depth++] = root;
    while (depth > 0) {
      const id i = open[depth - 1];
      const node& v = from.n[i];
      if (v.a >= 0 && to[v.a] < 0) {
        open[depth++] = v.a;
      } else if (v.b >= 0 && to[v.b] < 0) {
        open[depth++] = v.b;
      } else if (v.c >= 0 && to[v.c] < 0) {
        open[depth++] = v.c;
      } else {
        --depth;
        if (to[i] < 0) to[i] = g.append(tables.moved(v, to));
      }
    }
  };
  for (int k = 0; k < from.outs; ++k) visit(from.out[k].at);
  for (;;) {  // inputs that nothing reads are added in the order of their names
    id next = none_id;
    for (id i = 0; i < from.size; ++i)
      if (from[i].what == op::input && to[i] < 0)
        if (next < 0 || detail::comes_before(from.name(i), from.name(next))) next = i;
    if (next < 0) break;
    visit(next);
  }
  for (int k = 0; k < from.outs; ++k) {
    const output& o = from.out[k];
    g.add_output(to[o.at], o.name, tables.path(o.path), o.of_input);
  }
  // Requirements are sorted by node, those without a node first; of equal ones the first is copied.
  sequence<requirement> sorted;
  auto before = [&](const requirement& p, const requirement& q) {
    if (p.at != q.at) return p.at < q.at;
    if (p.what != q.what) return p.what < q.what;
    if (const int lhs = from.sizes.order(p.lhs, q.lhs); lhs != 0) return lhs < 0;
    if (const int rhs = from.sizes.order(p.rhs, q.rhs); rhs != 0) return rhs < 0;
    return p.line < q.line;
  };
  for (int i = 0; i < from.needs; ++i) {
    requirement r = from.need[i];
    r.at = r.at >= 0 ? to[r.at] : none_id;
    sorted.push(r);
    for (int k = i; k > 0 && before(sorted[k], sorted[k - 1]); --k) {
      const requirement t = sorted[k];
      sorted[k] = sorted[k - 1], sorted[k - 1] = t;
    }
  }
  for (const requirement& r : sorted) {
    const dim lhs = tables.size(r.lhs), rhs = tables.size(r.rhs);
    bool noted = false;
    for (const requirement& q : g.need) noted = noted || (q.what == r.what && q.lhs == lhs && q.rhs == rhs);
    if (!noted) g.need.push({r.what, lhs, rhs, r.at, r.line});
  }
  g.bad = from.bad;
  if (g.bad.at >= 0) g.bad.at = to[from.bad.at];
  return g;
}

}  // namespace graft
