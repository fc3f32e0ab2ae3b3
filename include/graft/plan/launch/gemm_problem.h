// SPDX-License-Identifier: Apache-2.0
// gemm_problem: one GEMM with its slots and sizes, for which a backend chooses a kernel.
#pragma once
#include <graft/core/quant_format.h>
#include <graft/derive/low_rank_update.h>
#include <graft/plan/launch/gemm_slots.h>

namespace graft {

// A wgrad Zᵀ Q, or Σ Z ⊙ Q per column, that runs in the launch of a GEMM on SMs that its tiles leave idle.
struct fused_wgrad_shape {
  int columns = 0, rank = 0;      // columns of Z and of Q; columns 0: no wgrad; rank 0: a sum per column
  bool waits_for_shrink = false;  // Q is the shrink result of the GEMM
  friend constexpr bool operator==(const fused_wgrad_shape&, const fused_wgrad_shape&) = default;
};

// One GEMM with its slots and sizes. U = x Aᵀ is the shrink result.
struct gemm_problem {
  dtype type = dtype::bf16;
  long long m = 0;
  int n = 0, k = 0;
  int rank = 0;                      // total rank of the low-rank branches; 0: none
  bool aligned = true;               // all pointers are multiples of 16 bytes
  bool plain = true;                 // neither activation nor residual
  bool epilogue_steps = false;       // there is a factor or a summand per output column
  bool prologue = false;             // there is a factor per column of x
  bool nn = false;                   // W is stored [in, out] and read in that layout
  bool stores_shrink = false;        // U is stored besides y
  bool stores_pre_epilogue = false;  // the accumulators before the epilogue are stored besides y
  bool outputs_shrink = false;       // U is an output of the graph, without padding
  bool shrink_input = false;         // U comes from an earlier launch, without padding
  long long output_rotation = 0;     // columns that the rotation of y mixes; 0: there is none
  fused_wgrad_shape fused_wgrads[2]{};
  quant_format stored{};  // format of a quantized weight

  constexpr bool stores_extra() const { return stores_shrink || stores_pre_epilogue; }
};

constexpr gemm_problem shape_of(const graph& g, const gemm_slots& p, const size_values& s, dtype type,
                                const quant_format& stored = {}) {
  auto size = [&](id i, int axis) { return g.sizes.value(g[i].d[axis], s); };
  gemm_problem shape;
  shape.type = type;
  shape.m = size(p.result, 2);
  shape.n = static_cast<int>(size(p.weight, p.weight_is_nt ? 2 : 3));
  shape.k = static_cast<int>(size(p.weight, p.weight_is_nt ? 3 : 2));
  shape.rank = static_cast<int>(branch_rank(g, p, s));
  shape.plain = p.act == op::detach && p.residual < 0;
  shape.epilogue_steps = !p.epilogue_steps.empty();
  shape.prologue = p.prologue >= 0;
  shape.nn = !p.weight_is_nt && (base_leaf(g, p.weight) >= 0 || low_rank_update_at(g, p.weight).found);
  if (base_leaf(g, p.weight) >= 0) shape.stored = stored;
  for (const low_rank_branch& b : p.branches) {
    shape.stores_shrink = shape.stores_shrink || b.stores_shrink;
    shape.outputs_shrink = shape.outputs_shrink || (b.stores_shrink && is_output(g, b.s));
    shape.shrink_input = shape.shrink_input || !b.computes_shrink;
  }
  shape.stores_pre_epilogue = p.pre_epilogue >= 0;
  if (p.output_rotation >= 0) shape.output_rotation = rotation_width(size(g[p.result].b, 0), size(g[p.result].b, 3));
  return shape;
}
constexpr fused_wgrad_shape shape_of(const graph& g, const gemm_slots& host, const wgrad_launch& sum,
                                     const size_values& s) {
  const int left = static_cast<int>(g.sizes.value(g[sum.left].d[3], s)),
            right = static_cast<int>(g.sizes.value(g[sum.right].d[3], s));
  if (sum.by_column) return {left, 0, false};
  const id shrink = host.branches.empty() ? none_id : host.branches[0].s;
  return {left >= right ? left : right, left >= right ? right : left,
          shrink >= 0 && (sum.left == shrink || sum.right == shrink)};
}

}  // namespace graft
