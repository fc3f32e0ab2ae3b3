// SPDX-License-Identifier: Apache-2.0
// buffers: where the data-time values of a graph live. A value whose only reader is elementwise is overwritten in
// place; a product that is only added to something is accumulated straight into it; the rest share slots by lifetime.
// What is left is the workspace, known before the first call.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/walk.h>

#include <initializer_list>

namespace graft {

struct buffers {
  short slot[max_nodes]{};       // workspace slot of a per-token value; -1: none
  id into[max_nodes]{};          // a product that is accumulated into this later node; -1: computed on its own
  id inplace[max_nodes]{};       // the operand whose storage the node takes over; -1: own storage
  id same_as[max_nodes]{};       // a reshaped leaf is that leaf; -1: not so
  short writes_to[max_nodes]{};  // output whose memory holds the value; -1: none
  int slots = 0;
};

struct use_counts {
  int of[max_nodes]{};
  id reader[max_nodes]{};  // the last reader
};
constexpr use_counts count_uses(const graph& g, const node_set& live) {
  use_counts u;
  for (int i = 0; i < g.size; ++i)
    for (int k = 0; live.in[i] && k < 3; ++k)
      if (const id o = g.n[i].operand(k); o >= 0) ++u.of[o], u.reader[o] = static_cast<id>(i);
  for (int i = 0; i < g.outs; ++i) u.of[g.out[i].at] += 2;  // an output is never overwritten
  return u;
}

constexpr buffers assign_buffers(const graph& g, const stages& when) {
  buffers b;
  for (int i = 0; i < max_nodes; ++i) {
    b.slot[i] = b.writes_to[i] = -1;
    b.into[i] = b.inplace[i] = b.same_as[i] = none_id;
  }
  const node_set live = reachable(g);
  const use_counts uses = count_uses(g, live);
  auto per_token = [&](id i) { return i >= 0 && live.in[i] && when.by_token[i]; };
  auto own = [&](id i) { return per_token(i) && !is_leaf(g[i].what) && b.same_as[i] < 0; };

  // Products that can be accumulated into the sum that reads them.
  for (int i = 0; i < g.size; ++i) {
    const node& v = g.n[i];
    if (!per_token(static_cast<id>(i)) || (v.what != op::add && v.what != op::sub)) continue;
    auto deferrable = [&](id m) {
      return own(m) && g[m].what == op::matmul && !g[m].sum && uses.of[m] == 1 && same_shape(g[m], v);
    };
    auto target = [&](id o) { return per_token(o) && same_shape(g[o], v); };
    if (deferrable(v.b) && target(v.a))
      b.into[v.b] = static_cast<id>(i);
    else if (v.what == op::add && deferrable(v.a) && target(v.b))
      b.into[v.a] = static_cast<id>(i);
  }
  // Storage taken over from an operand.
  for (int i = 0; i < g.size; ++i) {
    const node& v = g.n[i];
    if (!per_token(static_cast<id>(i)) || is_leaf(v.what)) continue;
    if (v.what == op::reshape && (is_leaf(g[v.a].what) || b.same_as[v.a] >= 0)) {
      b.same_as[i] = b.same_as[v.a] >= 0 ? b.same_as[v.a] : v.a;
      continue;
    }
    if (!is_pointwise(v.what) && v.what != op::reshape) continue;
    for (const id o : {v.a, v.b}) {
      const bool fits = own(o) && uses.of[o] == 1 && b.into[o] < 0 && (v.what == op::reshape || same_shape(g[o], v));
      if (fits && b.inplace[i] < 0) b.inplace[i] = o;
    }
  }
  // Outputs claim the chain of nodes whose storage they take over.
  for (int k = 0; k < g.outs; ++k)
    for (id i = g.out[k].at; own(i) && b.writes_to[i] < 0; i = b.inplace[i]) {
      b.writes_to[i] = static_cast<short>(k);
      if (b.inplace[i] < 0) break;
    }
  // Slots by lifetime: a slot is free again after the last reader of everything it held.
  int last[max_nodes]{};
  for (int i = 0; i < g.size; ++i) {
    if (!live.in[i]) continue;
    const id at = b.into[i] >= 0 ? b.into[i] : static_cast<id>(i);  // when the node is really computed
    for (int k = 0; k < 3; ++k)
      for (id o = g.n[i].operand(k); o >= 0; o = b.inplace[o])
        if (last[o] < at) last[o] = at;
  }
  int busy_until[max_nodes]{};
  for (int i = 0; i < g.size; ++i) {
    if (!own(static_cast<id>(i)) || b.into[i] >= 0 || b.writes_to[i] >= 0) continue;
    if (b.inplace[i] >= 0) {
      b.slot[i] = b.slot[b.inplace[i]];
      if (b.slot[i] >= 0 && busy_until[b.slot[i]] < last[i]) busy_until[b.slot[i]] = last[i];
      continue;
    }
    int s = 0;
    while (s < b.slots && busy_until[s] >= i) ++s;
    if (s == b.slots) ++b.slots;
    b.slot[i] = static_cast<short>(s);
    busy_until[s] = last[i] > i ? last[i] : i;
  }
  return b;
}

}  // namespace graft
