// SPDX-License-Identifier: Apache-2.0
// attention_launch: attention over a KV cache together with the launch that concatenates heads and applies RoPE, where
// only attention reads its result. A target's kernel may read q, k and v separately and apply RoPE itself.
#pragma once
#include <graft/plan/launch/rowwise.h>
#include <graft/plan/launch/single_nodes.h>

namespace graft {

struct attention_launch {
  struct capabilities {
    // Returns true if the attention kernel concatenates heads and applies RoPE itself; null: heads are not taken in.
    target_function<bool(const graph&, id, const size_values&, dtype, const target&)> fuses_heads{};
  };
  struct work {};

  id node = none_id;
  int heads = -1;  // index of its rowwise_launch; -1: none

  constexpr id anchor() const { return node; }
  constexpr const char* name(const graph& g) const { return launch_name_of(g[node]); }
  template <class Facts> constexpr int kernels(const Facts& in) const {
    const bool separate =
        heads >= 0 && !in.p.to.template can<attention_launch>().fuses_heads(in.g, node, in.s, in.type, in.p.to);
    return nodes_launch::kernels_of(in, node) + (separate ? 1 : 0);
  }

  template <class Planner> [[gnu::cold]] static constexpr void match(Planner& by) {
    const graph& g = by.g;
    auto& all = by.p.template all<attention_launch>();
    const auto& rows = by.p.template all<rowwise_launch>();
    const bool takes_heads = static_cast<bool>(by.template can<attention_launch>().fuses_heads);
    for (id i = 0; i < g.size; ++i) {
      if (traits_of(g[i].what).kind != op_class::attention || !by.is_free(i)) continue;
      int heads = takes_heads && g[i].what == op::cached_attention ? by.template claimed<rowwise_launch>(g[i].a) : -1;
      if (heads >= 0 && (rows[heads].result != g[i].a || by.readers[g[i].a] != 1)) heads = -1;
      if (heads >= 0) by.template work<rowwise_launch>().host[heads] = i;
      by.template claim<attention_launch>(i, all.size());
      all.push({i, heads});
    }
  }
  template <class Planner> [[gnu::cold]] static constexpr void add(Planner& by, int index, id) {
    const attention_launch a = by.p.template all<attention_launch>()[index];
    sequence<id> before;
    if (a.heads >= 0) before = by.p.template all<rowwise_launch>()[a.heads].inside;
    if (a.heads >= 0 ? !by.template computed<rowwise_launch>(before, a.heads) : !by.computed(a.node)) return;
    by.template open<attention_launch>(index);
    for (const id n : before) by.add(n, launch_slot::prologue);
    by.add(a.node, launch_slot::standalone);
  }
};

}  // namespace graft
