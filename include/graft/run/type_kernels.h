// SPDX-License-Identifier: Apache-2.0
// Which kernels a layer type can want on the GPU, from its graphs and sizes alone: what a program that names it compiles.
#pragma once
#include <graft/backend/cuda/code_choice.h>
#include <graft/backend/cuda/kernels_for.h>
#include <graft/backend/cuda/launch_set.h>
#include <graft/backend/cuda/targets.h>
#include <graft/plan/facts.h>
#include <graft/run/static_sizes.h>
#include <graft/run/type_operations.h>

namespace graft::cuda {

// What a layer of a type can launch, and so compiles: its operations, and the products that its sizes can want.
template <class Layer> struct type_kernels {
  using graphs = derived_of<Layer>;
  using plain = derived<typename Layer::kind, none, Layer::has_bias>;
  using operations = type_operations<Layer>;

  static constexpr int number(const graph& g, dim d) {
    const long long v = g.sizes.value(d, static_sizes<Layer>(g));
    return v > 0 ? static_cast<int>(v) : 0;
  }
  static constexpr kernel_list list_for(const graph& g) {
    const plan p = fuse(g, sm_90);
    kernel_list l;
    for (const product_slots& s : p.products) {
      int rank = 0;
      for (const side_branch& b : s.sides) {
        if (number(g, b.rank) == 0) return every_kernel();  // known only from the tensors
        rank += number(g, b.rank);
      }
      const dim n = g[s.weight].d[s.weight_by_row ? 2 : 3], k = g[s.weight].d[s.weight_by_row ? 3 : 2];
      const bool across = !s.weight_by_row && base_leaf(g, s.weight) >= 0;
      if (s.turned >= 0) l.add_turn(s.pre >= 0);
      if (!s.weight_by_row) l.add_across();
      if (grown_at(g, s.weight).found) l.add_mma();  // it may read a factor that lies across
      l = l | kernels_for(number(g, n), number(g, k), padded_rank(rank), s.pre >= 0, across);
      const bool as_it_lies = g[unshaped(g, s.weight)].what == op::frozen || grown_at(g, s.weight).found;
      if (!s.weight_by_row && as_it_lies)
        l = l | kernels_for(number(g, n), number(g, k), padded_rank(rank), s.pre >= 0, true);
    }
    for (const token_sum& s : p.sums) {
      const int left = number(g, g[s.left].d[3]), right = number(g, g[s.right].d[3]),
                least = left < right ? left : right;
      for (const int rank : {16, 32, 64})
        if (least == 0 || padded_rank(least) == rank || (rank == 64 && least > 64)) l.add_sum(rank);
      if (least == 0 || least > 64) l.add_sum(wide_rank);
    }
    return l;
  }
  static constexpr launch_set launches_for(const graph& g) {
    target without_pre = sm_90;  // of an adapter with room for others
    without_pre.takes_pre = false;
    const plan p = fuse(g, sm_90);
    const auto size = [&](dim d) { return number(g, d); };
    launch_set s = launches_of(g, p, size) | launches_before(g, p.when, size);
    if (!graft::detail::real_of<typename Layer::element>::how.plain()) s |= launches::codes;
    for (const product_slots& of : p.products)
      if (of.pre >= 0) return s | launches_of(g, fuse(g, without_pre), size);
    return s;
  }
  // The graph that a forward call runs, and where a size that is not known decides that, both.
  static constexpr launch_set forward_launches() {
    const bool folded = plan_of<Layer, sm_90>::folded;
    bool known = true;
    for (id i = 0; i < graphs::forward.size; ++i)
      for (int k = 0; graphs::forward[i].what == op::param && k < 4; ++k)
        known = known && number(graphs::forward, graphs::forward[i].d[k]) > 0;
    const launch_set own = launches_for(folded ? graphs::folded : graphs::forward);
    return known ? own : own | launches_for(folded ? graphs::forward : graphs::folded);
  }
  static constexpr code_form codes = form_of(graft::detail::real_of<typename Layer::element>::how, 64 * code_steps);
  static constexpr kernel_list products = list_for(plan_of<Layer, sm_90>::folded ? graphs::folded : graphs::forward);
  static constexpr kernel_list base_products = list_for(plain::forward);
  static constexpr kernel_list backward_products = list_for(graphs::backward) | list_for(plain::backward);
  static constexpr launch_set launches = forward_launches();
  static constexpr launch_set base_launches = launches_for(plain::forward);
  static constexpr launch_set backward_launches = launches_for(graphs::backward) | launches_for(plain::backward);
};

}  // namespace graft::cuda
