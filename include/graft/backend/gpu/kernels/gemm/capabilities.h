// SPDX-License-Identifier: Apache-2.0
// What a GPU can do of a gemm_launch, and how many kernels it takes: decided by the functions that choose the kernels
// at run time. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/gemm.h>
#include <graft/backend/gpu/dispatch/quantized.h>
#include <graft/backend/gpu/kernels/gemm/adapter_args.h>
#include <graft/backend/gpu/kernels/rotation/capabilities.h>
#include <graft/core/sequence.h>

namespace graft::gpu {

constexpr int gemm_kernels(const gemm_problem& p, const target& t) {
  gemm_problem padded = p;
  padded.rank = padded_rank(p.rank);
  if (!p.stored.plain()) {
    const bool may_be_skinny = !p.nn && !p.stores_extra && !p.shrink_input;
    const quantized_choice quantized =
        may_be_skinny ? choose_quantized(p.stored, p.type, p.m, p.k, padded.rank, t) : quantized_choice{};
    if (quantized.groups > 0) return launch_count_of(quantized, padded.rank);
    gemm_problem plain = p;
    plain.stored = {};
    return 1 + gemm_kernels(plain, t);  // dequantize, then the GEMM
  }
  int sums = 0;
  for (fused_wgrad_shape& s : padded.fused_wgrads) {
    s.rank = padded_rank(s.rank);
    if (s.columns > 0) ++sums;
  }
  if (takes_skinny_nn(padded, t)) return 1 + sums;
  const gemm_choice c = choose(padded, t);
  for (unsigned k = 0; k < 2; ++k) sums -= (c.fused_wgrads >> k & 1) != 0 ? 1 : 0;
  return c.launches + sums + ((p.outputs_shrink || p.shrink_input) && padded.rank != p.rank ? 1 : 0);
}
// Why a product takes several kernels. The shrink x A' of its low-rank branch is inside the product only under the
// conditions that choose() asks for; a quantized weight may be dequantized first.
[[gnu::cold]] constexpr text why_several(const gemm_problem& p, const target& t) {
  text why;
  const int rank = padded_rank(p.rank);
  if (!p.stored.plain()) {
    const bool reads_codes = choose_quantized(p.stored, p.type, p.m, p.k, rank, t).groups > 0;
    why << "with " << p.m << " tokens "
        << (reads_codes ? "the shrink x A' runs ahead of the product with a quantized weight"
                        : "the quantized weight is dequantized ahead of the product");
  } else if (p.rank > 0 && !is_16_bit(p.type)) {
    why << "the shrink x A' is inside the product only where the layer stores bf16 or f16, and this one stores "
        << name_of(p.type);
  } else if (p.rank > 0 && !is_hopper(t)) {
    why << "only compute capability 9.0 has kernels with the shrink x A' inside the product, and " << t.name
        << " has another";
  } else if (p.rank > 0 && (p.k % 8 != 0 || p.n % 8 != 0)) {
    why << "the shrink x A' is inside the product only where inputs and outputs are multiples of 8, and these are "
        << p.k << " and " << p.n;
  } else if (p.rank > 0) {
    why << "with " << p.m << " tokens, " << p.k << " inputs, " << p.n << " outputs and rank " << p.rank
        << " no kernel has the shrink x A' inside the product";
  }
  return why;
}
// Pads the ranks of a group as binding does; returns true if gate and up use separate columns of the common rank.
constexpr bool pad_to_common_rank(sequence<gemm_problem>& to, const gemm_problem* all, int count, bool gated) {
  sequence<int> own;
  for (int i = 0; i < count; ++i) to.push(all[i]), own.push(padded_rank(all[i].rank));
  const common_rank joint = grouped_rank(own.begin(), count, gated);
  for (int i = 0; i < count; ++i) to[i].rank = joint.rank > own[i] ? joint.rank : own[i];
  return joint.separate;
}
constexpr int grouped_quantized_kernels(const gemm_problem* all, int count, bool gated, const target& t) {
  sequence<gemm_problem> padded;
  int all_ranks = 0;
  for (int i = 0; i < count; ++i)
    padded.push(all[i]), padded[i].rank = padded_rank(all[i].rank), all_ranks += padded[i].rank;
  const quantized_choice c = choose_quantized_grouped(padded.begin(), count, gated, t);
  return c.groups == 1 ? launch_count_of(c, all_ranks) : 0;
}
constexpr int grouped_kernels(const gemm_problem* all, int count, const target& t) {
  if (!all[0].stored.plain()) return grouped_quantized_kernels(all, count, false, t);
  sequence<gemm_problem> padded;
  pad_to_common_rank(padded, all, count, false);
  return choose_grouped(padded.begin(), count, t).rows > 0 ? 1 : 0;
}
constexpr int gated_kernels(const gemm_problem* all, const target& t) {
  if (!all[0].stored.plain()) return grouped_quantized_kernels(all, 2, true, t);
  sequence<gemm_problem> padded;
  const bool separate = pad_to_common_rank(padded, all, 2, true);
  return choose_gated(padded.begin(), separate, t).rows > 0 ? 1 : 0;
}
constexpr bool norm_is_fused(const gemm_problem& before, const gemm_problem* norm_readers, int count, const target& t) {
  const auto fits = [&](gemm_problem p) {
    p.rank = padded_rank(p.rank);
    return p.stored.plain() ? can_fuse_norm(p, t) : quantized_can_fuse_norm(p, t);
  };
  bool all = can_norm_columns(before.n) && fits(before);
  for (int i = 0; i < count; ++i) all = all && fits(norm_readers[i]);
  return all;
}
constexpr bool rotation_is_fused(const gemm_problem& p, const target& t) {
  return p.stored.plain() && rotation_inside_gemm(p, t);
}
// `resident_pairs` is the number of clusters of two blocks of the tiled GEMM that are resident at once.
constexpr gemm_launch::capabilities gemm_capabilities(int resident_pairs) {
  gemm_launch::capabilities can;
  can.max_branch_rank = 64, can.max_grouped_gemms = max_segments, can.resident_pairs = resident_pairs;
  can.reads_nn_weight = can.fuses_gates = can.fuses_norms = true;
  can.fuses_input_rotation = can.fuses_output_rotation = true;
  can.kernels = &gemm_kernels, can.why_several = &why_several;
  can.grouped_kernels = &grouped_kernels, can.gated_kernels = &gated_kernels;
  can.norm_is_fused = &norm_is_fused, can.rotation_is_fused = &rotation_is_fused;
  can.rotations_share_kernel = &rotations_share_kernel;
  return can;
}

}  // namespace graft::gpu
