// SPDX-License-Identifier: Apache-2.0
// The GPU kernels that a layer type needs, from its graphs and sizes alone: a program compiles only those of its types.
#pragma once
#include <graft/backend/gpu/dispatch/gemms_of_layer.h>
#include <graft/backend/gpu/dispatch/optional_launches.h>
#include <graft/backend/gpu/dispatch/quantized.h>
#include <graft/backend/gpu/dispatch/targets.h>
#include <graft/plan/facts.h>
#include <graft/run/layer_type_ops.h>

namespace graft::gpu {

// The operations of a layer type, and the GEMM kernels and other launches that dispatch may choose for its sizes.
template <class Layer> struct type_kernels {
  using graphs = derived_of<Layer>;
  using plain = derived<typename Layer::kind, none, Layer::has_bias>;
  using operations = layer_type_ops<Layer>;

  // A size that the type fixes, or 0 where only the tensors have it.
  static constexpr int size_or_zero(const graph& g, dim d) {
    const long long v = g.sizes.value(d, static_sizes<Layer>(g));
    return v > 0 ? static_cast<int>(v) : 0;
  }
  static constexpr gemm_kernel_mask gemm_kernels_for(const graph& g) {
    const plan p = fuse(g, sm_90);
    gemm_kernel_mask l;
    for (const gemm_slots& s : p.products) {
      int rank = 0;
      for (const low_rank_branch& b : s.branches) {
        if (size_or_zero(g, b.rank) == 0) return every_gemm_kernel();  // known only from the tensors
        rank += size_or_zero(g, b.rank);
      }
      const dim n = g[s.weight].d[s.weight_is_nt ? 2 : 3], k = g[s.weight].d[s.weight_is_nt ? 3 : 2];
      const bool nn = !s.weight_is_nt && base_leaf(g, s.weight) >= 0;
      if (s.output_rotation >= 0) l.add_fused_rotation(s.prologue >= 0);
      if (!s.weight_is_nt) l.add_skinny_nn();
      if (updated_weight_at(g, s.weight).found) l.add_mma();  // the update may read a transposed factor
      l = l | gemm_kernels_for_layer(size_or_zero(g, n), size_or_zero(g, k), padded_rank(rank), s.prologue >= 0, nn);
      const bool reads_as_stored = g[unshaped(g, s.weight)].what == op::frozen || updated_weight_at(g, s.weight).found;
      if (!s.weight_is_nt && reads_as_stored)
        l = l |
            gemm_kernels_for_layer(size_or_zero(g, n), size_or_zero(g, k), padded_rank(rank), s.prologue >= 0, true);
    }
    for (const wgrad_sum& s : p.all<wgrad_sum>()) {
      const int left = size_or_zero(g, g[s.left].d[3]), right = size_or_zero(g, g[s.right].d[3]),
                least = left < right ? left : right;
      for (const int rank : {16, 32, 64})
        if (least == 0 || padded_rank(least) == rank || (rank == 64 && least > 64)) l.add_wgrad(rank);
      if (least == 0 || least > 64) l.add_wgrad(wide_tile_rank);
    }
    return l;
  }
  static constexpr launch_mask launches_for(const graph& g) {
    target without_prologue = sm_90;  // for a layer with further adapters, whose GEMM has a branch and no prologue
    without_prologue.can<gemm_launch>().fuses_prologue = false;
    const plan p = fuse(g, sm_90);
    const auto size = [&](dim d) { return size_or_zero(g, d); };
    launch_mask s = launches_of(g, p, size) | bind_launches(g, p.when, size);
    if (!graft::detail::element_traits<typename Layer::element>::format.plain()) s |= launches::quantized;
    for (const gemm_slots& of : p.products)
      if (of.prologue >= 0) return s | launches_of(g, fuse(g, without_prologue), size);
    return s;
  }
  // Launches of the graph that forward runs, folded or not, and of both where a size that the type leaves open decides.
  static constexpr launch_mask forward_launches() {
    const bool folded = plan_of<Layer, sm_90>::folded;
    bool known = true;
    for (id i = 0; i < graphs::forward.size; ++i)
      for (int k = 0; graphs::forward[i].what == op::param && k < 4; ++k)
        known = known && size_or_zero(graphs::forward, graphs::forward[i].d[k]) > 0;
    const launch_mask own = launches_for(folded ? graphs::folded : graphs::forward);
    return known ? own : own | launches_for(folded ? graphs::forward : graphs::folded);
  }
  static constexpr quant_layout quantized =
      quant_layout_of(graft::detail::element_traits<typename Layer::element>::format, 64 * quant_steps);
  static constexpr gemm_kernel_mask products =
      gemm_kernels_for(plan_of<Layer, sm_90>::folded ? graphs::folded : graphs::forward);
  static constexpr gemm_kernel_mask base_products = gemm_kernels_for(plain::forward);
  static constexpr gemm_kernel_mask backward_products =
      gemm_kernels_for(graphs::backward) | gemm_kernels_for(plain::backward);
  static constexpr launch_mask launches = forward_launches();
  static constexpr launch_mask base_launches = launches_for(plain::forward);
  static constexpr launch_mask backward_launches = launches_for(graphs::backward) | launches_for(plain::backward);
};

}  // namespace graft::gpu
