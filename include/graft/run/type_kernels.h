// SPDX-License-Identifier: Apache-2.0
// The GPU kernels that a layer type needs, from its graphs and sizes alone: each selection is a fold over the launches
// of the plans of the type (backend/gpu/dispatch/kernels_of_plan.h), and a program compiles only those of its types.
#pragma once
#include <graft/backend/gpu/dispatch/kernels_of_plan.h>
#include <graft/derive/saved_tensors.h>
#include <graft/plan/facts.h>

namespace graft::gpu {

template <class Layer> struct type_kernels {
  using graphs = derived_of<Layer>;
  using plain = derived<typename Layer::kind, none, Layer::has_bias>;
  static constexpr quant_format stored = graft::detail::element_traits<typename Layer::element>::format;

  // The kernels of one graph's plan.
  static constexpr kernel_selection of(const graph& g) {
    const size_values known = static_sizes<Layer>(g);
    const launch_plan p = fuse(g, sm_90);
    kernel_selection all = kernels_of_plan({g, p, known, stored});
    for (const gemm_slots& s : p.products) {
      if (s.prologue < 0) continue;
      target without_prologue = sm_90;  // a layer that may get further adapters: its GEMM has a branch instead
      without_prologue.can<gemm_launch>().fuses_prologue = false;
      const launch_plan other = fuse(g, without_prologue);
      const kernel_selection more = kernels_of_plan({g, other, known, stored});
      all.launches |= more.launches, all.nodes = all.nodes | more.nodes;
      break;
    }
    return all;
  }
  // The kernels of a backward graph: of its plan, and of its plans where one gradient, or all but dx, are asked for.
  static constexpr kernel_selection of_gradients(const graph& g) {
    kernel_selection all = of(g);
    for (int k = 0; k <= g.outs && g.outs > 1; ++k) {
      sequence<bool> wanted;
      for (int n = 0; n < g.outs; ++n) wanted.push(k < g.outs ? n == k : !g.out[n].of_input);
      const builder some = requested_outputs(g, wanted);
      all = all | of(some);
    }
    return all;
  }

  // The kernels of the graph that forward runs, folded or not (of both where a size that the type leaves open decides),
  // and those of eager mode, merging and unmerging.
  static constexpr kernel_selection forward = [] {
    const bool folded = plan_of<Layer, sm_90>::folded;
    bool known = true;
    for (id i = 0; i < graphs::forward.size; ++i)
      for (int k = 0; graphs::forward[i].what == op::param && k < 4; ++k)
        known = known && graphs::forward.sizes.value(graphs::forward[i].d[k], static_sizes<Layer>(graphs::forward)) > 0;
    kernel_selection all = of(folded ? graphs::folded : graphs::forward);
    if (!known) all = all | of(folded ? graphs::forward : graphs::folded);
    if (folded) all = all | kernels_by_nodes(graphs::forward);  // a device of other rates may decide otherwise
    for (const graph& g :
         {graphs::literal, graphs::merge, graphs::unmerge_weight, graphs::unmerge_bias, plain::forward})
      all = all | kernels_by_nodes(g);
    return all;
  }();
  // The kernels of the layer without its adapter.
  static constexpr kernel_selection base = of(plain::forward);
  static constexpr kernel_selection backward = of_gradients(graphs::backward) | of(plain::backward) |
                                               kernels_by_nodes(graphs::literal_backward) |
                                               kernel_selection{.nodes = forward.nodes};
  // The kernels of training: forward that saves what backward reads (a value that is saved cannot stay inside the
  // launch that computes it), and backward that reads it.
  static constexpr kernel_selection training = [] {
    kernel_selection all{.nodes = backward.nodes};
    if (graphs::backward.bad.what != formula_error::none) return all;
    const saved_pair pair = select_saved_tensors(graphs::forward, graphs::backward);
    for (const graph& g : {graph(pair.forward), graph(pair.backward)}) all = all | kernels_by_nodes(g);
    return all | of(pair.forward) | of_gradients(pair.backward);
  }();
};

}  // namespace graft::gpu
