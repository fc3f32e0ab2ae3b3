// SPDX-License-Identifier: Apache-2.0
// buffers: where the values of launches by rows live. A value whose only reader is elementwise is overwritten in place; a
// product that is only added to something is accumulated straight into it, and two that are added up are computed there;
// the rest share cells of a workspace by lifetime. A value that another launch reads is stored for all rows. What is
// needed is known before the first call.
#pragma once
#include <graft/plan/plan.h>

#include <initializer_list>

namespace graft {

struct buffers {
  sequence<int> cell;       // of the workspace, for a piece of a value; -1: none
  sequence<id> into;        // a product that is accumulated into this later node; -1: computed on its own
  sequence<id> along;       // a product computed with this later sum, whose product alone reads it; -1: not so
  sequence<id> inplace;     // the operand whose storage the node takes over; -1: own storage
  sequence<id> same_as;     // a reshaped leaf, or a reshaped value of another launch, is that value; -1: not so
  sequence<int> writes_to;  // output whose memory holds the value; -1: none
  node_set stored;          // for all rows, because another launch reads it
  int cells = 0;
};

namespace detail {

struct buffer_planner {
  const graph& g;
  const plan& p;
  sequence<int> readers;
  buffers b;

  [[gnu::cold]] constexpr buffer_planner(const graph& of, const plan& by)
      : g(of),
        p(by),
        readers(count_readers(of, by.live)),
        b{sequence<int>(of.size, -1),
          sequence<id>(of.size, none_id),
          sequence<id>(of.size, none_id),
          sequence<id>(of.size, none_id),
          sequence<id>(of.size, none_id),
          sequence<int>(of.size, -1),
          node_set(of.size)} {}

  constexpr bool piece(id i) const { return i >= 0 && p.live[i] && p.rows.how[i] == reach::piece; }
  constexpr bool own(id i) const { return piece(i) && b.same_as[i] < 0; }
  // Read once, by a piece of the same launch: its storage may be somebody else's.
  constexpr bool passing(id i) const { return own(i) && readers[i] == 1 && !is_output(g, i) && !b.stored[i]; }

  [[gnu::cold]] constexpr void find_stored() {
    for (id i = 0; i < g.size; ++i) {
      if (!p.live[i] || p.when.of[i] != stage::data) continue;
      // A reshaped value is one memory under two names.
      if (g[i].what == op::reshape) {
        const id from = b.same_as[g[i].a] >= 0 ? b.same_as[g[i].a] : g[i].a;
        if (is_leaf(g[from].what) || (piece(i) && b.stored[from])) b.same_as[i] = from;
      }
      if (!piece(i)) continue;
      if (b.same_as[i] < 0 && crosses_launches(g, p, i)) b.stored.add(i);
    }
  }
  // A product of rows with one matrix, of which a backend may compute two at a time.
  constexpr bool of_rows(id m) const { return !g[m].ta && g[g[m].b].d[0] == dim{1} && g[g[m].b].d[1] == dim{1}; }
  // Products that can be accumulated into the sum that reads them; where it is a sum of two of rows, both.
  [[gnu::cold]] constexpr void find_accumulated() {
    for (id i = 0; i < g.size; ++i) {
      const node& v = g[i];
      if (!own(i) || (v.what != op::add && v.what != op::sub)) continue;
      auto deferrable = [&](id m) {
        return passing(m) && g[m].what == op::matmul && !g[m].sum && same_shape(g[m], v) &&
               p.launch_of[m] == p.launch_of[i];
      };
      auto takes = [&](id o) { return o >= 0 && g.sizes.by_token(g[o].d[p.rows.axis[i]]) && same_shape(g[o], v); };
      if (deferrable(v.a) && deferrable(v.b) && of_rows(v.a) && of_rows(v.b)) {
        b.into[v.a] = b.into[v.b] = i;
        for (const id o : {g[v.a].a, g[v.b].a})
          if (passing(o) && g[o].what == op::matmul && !g[o].sum && of_rows(o) && p.launch_of[o] == p.launch_of[i])
            b.along[o] = i;
      } else if (deferrable(v.b) && takes(v.a))
        b.into[v.b] = i;
      else if (v.what == op::add && deferrable(v.a) && takes(v.b))
        b.into[v.a] = i;
    }
  }
  [[gnu::cold]] constexpr void find_inplace() {
    for (id i = 0; i < g.size; ++i) {
      const node& v = g[i];
      if (!own(i) || b.stored[i] || (!is_pointwise(v.what) && v.what != op::reshape)) continue;
      for (const id o : {v.a, v.b}) {
        const bool fits = o >= 0 && passing(o) && b.into[o] < 0 && p.launch_of[o] == p.launch_of[i] &&
                          (v.what == op::reshape || same_shape(g[o], v));
        if (fits && b.inplace[i] < 0) b.inplace[i] = o;
      }
    }
  }
  // Outputs claim the chain of nodes whose storage they take over.
  [[gnu::cold]] constexpr void find_outputs() {
    for (int k = 0; k < g.outs; ++k)
      for (id i = g.out[k].at; own(i) && !b.stored[i] && b.writes_to[i] < 0; i = b.inplace[i]) {
        b.writes_to[i] = k;
        if (b.inplace[i] < 0) break;
      }
  }
  // Cells by lifetime: one is free again after the last reader of everything it held.
  [[gnu::cold]] constexpr void assign_cells() {
    sequence<id> last(g.size, none_id);
    for (id i = 0; i < g.size; ++i) {
      if (!p.live[i]) continue;
      const id at = b.into[i] >= 0 ? b.into[i] : b.along[i] >= 0 ? b.along[i] : i;  // when the node is really computed
      for (int k = 0; k < 3; ++k)
        for (id o = g[i].operand(k); o >= 0; o = b.inplace[o])
          if (last[o] < at) last[o] = at;
    }
    sequence<id> busy_until;
    for (id i = 0; i < g.size; ++i) {
      if (!own(i) || b.stored[i] || b.into[i] >= 0 || b.writes_to[i] >= 0) continue;
      const id until = last[i] > i ? last[i] : i;
      if (b.inplace[i] >= 0) {
        b.cell[i] = b.cell[b.inplace[i]];
        if (b.cell[i] >= 0 && busy_until[b.cell[i]] < until) busy_until[b.cell[i]] = until;
        continue;
      }
      int c = 0;
      while (c < busy_until.size() && busy_until[c] >= i) ++c;
      if (c == busy_until.size()) busy_until.push(none_id);
      b.cell[i] = c;
      busy_until[c] = until;
    }
    b.cells = busy_until.size();
  }
};

}  // namespace detail

[[gnu::cold]] constexpr buffers assign_buffers(const graph& g, const plan& p) {
  detail::buffer_planner m(g, p);
  m.find_stored();
  m.find_accumulated();
  m.find_inplace();
  m.find_outputs();
  m.assign_cells();
  return static_cast<buffers&&>(m.b);
}

}  // namespace graft
