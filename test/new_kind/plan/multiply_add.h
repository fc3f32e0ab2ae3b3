// SPDX-License-Identifier: Apache-2.0
// multiply_add: x ⊙ y + z of values of one shape as one launch, a kind that only this test has.
#pragma once
#include <graft/plan/launch/single_nodes.h>

namespace graft {

struct multiply_add {
  struct capabilities {
    bool has_kernel = false;
  };
  struct work {};

  id result = none_id, x = none_id, y = none_id, z = none_id, product = none_id;

  constexpr id anchor() const { return result; }
  constexpr const char* name(const graph&) const { return "multiply-add"; }
  template <class Facts> constexpr int kernels(const Facts& in) const {
    return element_count(in.g, result, in.s) == 0 ? 0 : 1;
  }

  template <class Planner> static constexpr void match(Planner& by) {
    const graph& g = by.g;
    auto& all = by.p.template all<multiply_add>();
    for (id i = 0; by.template can<multiply_add>().has_kernel && i < g.size; ++i) {
      if (g[i].what != op::add || !by.is_free(i)) continue;
      for (int k = 0; k < 2 && by.is_free(i); ++k) {
        const id m = g[i].operand(k), z = g[i].operand(1 - k);
        if (g[m].what != op::mul || by.readers[m] != 1 || !by.is_free(m) || !same_shape(g[z], g[i])) continue;
        if (!same_shape(g[g[m].a], g[i]) || !same_shape(g[g[m].b], g[i])) continue;
        for (const id n : {m, i}) by.template claim<multiply_add>(n, all.size());
        all.push({i, g[m].a, g[m].b, z, m});
      }
    }
  }
  template <class Planner> static constexpr void add(Planner& by, int index, id i) {
    const multiply_add a = by.p.template all<multiply_add>()[index];
    sequence<id> nodes;
    nodes.push(a.product), nodes.push(a.result);
    if (a.result != i || !by.template computed<multiply_add>(nodes, index)) return;
    by.template open<multiply_add>(index);
    for (const id n : nodes) by.add(n, launch_slot::standalone);
  }
};

}  // namespace graft
