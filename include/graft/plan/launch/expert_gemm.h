// SPDX-License-Identifier: Apache-2.0
// expert_gemm: a linear layer of the experts of a mixture with its low-rank branch, as one grouped GEMM:
//     y = x W(expert)ᵀ + U B(expert)ᵀ      U = x A(expert)ᵀ, from an earlier launch
// It is a sum of two products of the same sorted rows that nothing else reads. dx = dy W + dU A is another.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/traversal.h>
#include <graft/plan/launch/single_nodes.h>

#include <initializer_list>

namespace graft {

struct expert_gemm {
  struct capabilities {
    bool adds_branch = false;  // the kernel of grouped products adds a second product to the first
  };
  struct work {};

  id base = none_id, branch = none_id, result = none_id;

  constexpr id anchor() const { return result; }
  constexpr const char* name(const graph&) const { return "grouped GEMM"; }
  template <class Facts> constexpr int kernels(const Facts& in) const {
    return element_count(in.g, result, in.s) == 0 ? 0 : 1;
  }

  template <class Planner> [[gnu::cold]] static constexpr void match(Planner& by) {
    if (!by.template can<expert_gemm>().adds_branch) return;
    auto& all = by.p.template all<expert_gemm>();
    for (id i = 0; i < by.g.size; ++i) {
      const node& v = by.g[i];
      if (v.what != op::add || !by.is_free(i) || !is_product(by, v.a) || !is_product(by, v.b)) continue;
      const node &a = by.g[v.a], &b = by.g[v.b];
      if (a.c != b.c || !same_shape(a, v) || !same_shape(b, v)) continue;
      const bool first_is_branch = reads_product(by.g, v.a) && !reads_product(by.g, v.b);
      const expert_gemm made{first_is_branch ? v.b : v.a, first_is_branch ? v.a : v.b, i};
      for (const id n : {made.base, made.branch, made.result}) by.template claim<expert_gemm>(n, all.size());
      all.push(made);
    }
  }
  template <class Planner> [[gnu::cold]] static constexpr void add(Planner& by, int index, id) {
    const expert_gemm one = by.p.template all<expert_gemm>()[index];
    sequence<id> nodes;
    for (const id n : {one.base, one.branch, one.result}) nodes.push(n);
    if (!by.template computed<expert_gemm>(nodes, index)) return;
    by.template open<expert_gemm>(index);
    by.add(one.base, launch_slot::mainloop), by.add(one.branch, launch_slot::branch),
        by.add(one.result, launch_slot::epilogue);
  }

 private:
  template <class Planner> static constexpr bool is_product(const Planner& by, id i) {
    return by.g[i].what == op::grouped_matmul && by.is_free(i) && by.readers[i] == 1;
  }
  // Returns true if the rows of product i are a product of the experts too, as U is.
  static constexpr bool reads_product(const graph& g, id i) {
    return g[unshaped(g, g[i].a)].what == op::grouped_matmul;
  }
};

}  // namespace graft
