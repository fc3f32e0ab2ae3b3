// SPDX-License-Identifier: Apache-2.0
// What a GPU can do of a gemm_launch, how many kernels it takes, and which of them a layer type compiles: decided by
// the functions that choose the kernels at run time. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/gemm.h>
#include <graft/backend/gpu/dispatch/kernel_selection.h>
#include <graft/backend/gpu/dispatch/quantized.h>
#include <graft/backend/gpu/kernels/gemm/branch_sources.h>
#include <graft/backend/gpu/kernels/rotation/capabilities.h>
#include <graft/backend/gpu/kernels/rowwise/capabilities.h>
#include <graft/backend/gpu/tile/adapter_args.h>
#include <graft/core/sequence.h>
#include <graft/derive/low_rank_update.h>

namespace graft::gpu {

constexpr int gemm_kernels(const gemm_problem& p, const target& t) {
  gemm_problem padded = p;
  padded.rank = padded_rank(p.rank);
  if (!p.stored.plain()) {
    const bool may_be_skinny = !p.nn && !p.stores_extra() && !p.shrink_input;
    const quantized_choice quantized =
        may_be_skinny ? choose_quantized(p.stored, p.type, p.m, p.k, padded.rank, t) : quantized_choice{};
    if (quantized.groups > 0) return launch_count_of(quantized, padded.rank);
    gemm_problem plain = p;
    plain.stored = {};
    return 1 + gemm_kernels(plain, t);  // dequantize, then the GEMM
  }
  for (fused_wgrad_shape& s : padded.fused_wgrads) s.rank = padded_rank(s.rank);
  const gemm_choice c = choose(padded, t);
  wgrad_problem separate[2];  // wgrads that are not fused
  int sums = 0;
  bool share = true;
  for (unsigned k = 0; k < 2; ++k) {
    const fused_wgrad_shape& s = p.fused_wgrads[k];
    if (s.columns == 0 || (c.fused_wgrads >> k & 1) != 0) continue;
    share = share && s.rank > 0;
    separate[sums++] = {p.type, p.m, s.columns, s.rank};
  }
  if (share && sums == 2 && choose_wgrads(separate, 2, t, every_gemm_kernel()).rank > 0) sums = 1;
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
constexpr bool rotation_is_fused(const gemm_problem& p, const target& t) {
  return p.stored.plain() && rotation_inside_gemm(p, t);
}
// `resident_pairs` is the number of clusters of two blocks of the tiled GEMM that are resident at once.
constexpr gemm_launch::capabilities gemm_capabilities(int resident_pairs) {
  gemm_launch::capabilities can;
  can.max_branch_rank = 64, can.max_grouped_gemms = max_segments, can.resident_pairs = resident_pairs;
  can.reads_nn_weight = can.fuses_gates = true;
  can.fuses_input_rotation = can.fuses_output_rotation = true;
  can.kernels = &gemm_kernels, can.why_several = &why_several;
  can.grouped_kernels = &grouped_kernels, can.gated_kernels = &gated_kernels;
  can.rotation_is_fused = &rotation_is_fused;
  can.rotations_share_kernel = &rotations_share_kernel;
  return can;
}

// ---- What a layer type compiles: kernels that dispatch chooses for its sizes on devices of compute capability 9.0, of
// 114 and of 132 SMs (H100 PCIe and SXM, H200). Other devices choose among the same kernels.

constexpr target hopper_device(int sm_count) {
  target t{.capability = 90, .sm_count = sm_count};
  t.can<gemm_launch>().resident_pairs = sm_count / 2;
  return t;
}
inline constexpr target hopper_devices[] = {hopper_device(114), hopper_device(132)};

// The GEMM kernels that dispatch chooses for a product with any number of tokens. The sizes n and k are 0 if the type
// does not state them; the rank is padded.
constexpr gemm_kernel_mask gemm_kernels_for(const gemm_problem& p) {
  const int n = p.n, k = p.k, rank = p.rank;
  gemm_kernel_mask l;
  if (k % 8 != 0) return l;  // only kernels without tensor cores read such rows
  const bool known = n > 0 && k > 0;
  const int first = p.nn ? first_nn : 0;
  const auto add_tiles = [&](int variant) {
    l.add_gemm(128, variant);
    if (n == 0 || n > 128) l.add_gemm(256, variant);
  };
  add_tiles(first + (p.prologue ? with_prologue : rank <= 64 && !p.shrink_input ? rank_index(rank) : 0));
  const bool sums = p.fused_wgrads[0].columns > 0 || p.fused_wgrads[1].columns > 0;
  if (p.nn && sums && !p.shrink_input && (rank > 0 || p.prologue) && rank <= 64) l.add_fused_wgrad(rank);
  if (p.nn && rank > 0) {  // if the CTAs that share the shrink are not all resident
    add_tiles(first);
    if (rank <= max_skinny_tokens && !p.shrink_input) l.add_skinny(padded_tokens(rank), fallback_shape, 0);
  }
  if (p.nn && !p.prologue && !p.shrink_input && !p.stores_pre_epilogue && rank <= max_skinny_rank && n % 8 == 0)
    for (int shape = 0; shape < skinny_nn_shape_count; ++shape) {
      bool best = !known;
      for (const target& on : hopper_devices)
        best = best || choose_skinny_nn(n, k, rank, on.sm_count, ~0U).rows == skinny_nn_shapes[shape].rows;
      if (best) l.add_skinny_nn(shape, rank);
    }
  if (n > 0 && n <= max_skinny_tokens && rank == 0 && !p.prologue && !p.nn)
    l.add_skinny(padded_tokens(n), fallback_shape, 0);
  // mma.sync kernels serve outputs that are no multiple of 8, and layers whose weight has another type, which is first
  // copied to an NT matrix of the layer's type.
  if (n <= 0 || n % 8 != 0 || (p.nn && p.prologue)) l.add_mma();
  l.add_gemm(128, 0);  // if CTAs that share the shrink are not all resident, and for a separate shrink launch
  const bool bare = rank == 0 && !p.prologue && !p.nn;
  const int split = bare ? n : rank;  // outputs of the split-K GEMM: 65 to 256
  if ((bare && n == 0) || (split > wide_tile_rank / 2 && split <= 2 * wide_tile_rank)) l.add_split_k();
  if (rank > max_skinny_rank || p.nn || p.shrink_input) return l;
  for (const int tokens : {8, 16, 64}) {
    if (p.stores_pre_epilogue) break;
    if (p.prologue || n % 2 != 0) l.add_skinny(tokens, fallback_shape, rank);
    for (int shape = 0; shape < fallback_shape && !p.prologue && n % 2 == 0; ++shape) {
      if (skinny_shapes[shape].rows + rank > 256) continue;
      bool best = !known;
      for (const target& on : hopper_devices)
        best = best || choose_skinny(&n, 1, tokens, k, rank, on.sm_count).rows == skinny_shapes[shape].rows;
      if (best) l.add_skinny(tokens, shape, rank);
    }
  }
  // A separate shrink launch needs a skinny GEMM for the shrink and a GEMM without a low-rank branch after it.
  if (!known && rank > 0) l.add_skinny(padded_tokens(rank), fallback_shape, 0), l.add_gemm(256, 0);
  for (int rows = 1; rows <= 40 && known && rank > 0; ++rows)  // rows of tiles; choices repeat above
    for (const target& on : hopper_devices)
      if (const gemm_choice c = choose({dtype::bf16, 256LL * rows, n, k, rank}, on);
          c.path == gemm_path::gemm_after_shrink)
        l.add_skinny(padded_tokens(rank), fallback_shape, 0), l.add_gemm(c.tile_n, 0);
  return l;
}

// Returns true if the shrink result U = x Aᵀ of this GEMM, which the launch stores for others, is an output of the
// graph.
constexpr bool outputs_shrink(const graph& g, const gemm_slots& s) {
  for (int k = 0; k < g.outs; ++k)
    if (shrink_output_of(s) >= 0 && unshaped(g, g.out[k].at) == shrink_output_of(s)) return true;
  return false;
}

template <> struct kernels_of_launch<gemm_launch> {
  static constexpr void add(kernel_selection& to, const type_plan& in, const gemm_launch& l) {
    const bool sums = l.fused_wgrads[0] >= 0 || l.fused_wgrads[1] >= 0;
    l.each_product([&](int k) { add_product(to, in, in.p.products[k], sums); });
    if (l.gated >= 0) to.nodes = to.nodes | op_bit(in.g[l.gated].what);
  }

 private:
  // `sums`: wgrads may run in the launch.
  static constexpr void add_product(kernel_selection& to, const type_plan& in, const gemm_slots& s, bool sums) {
    const graph& g = in.g;
    const low_rank_update update = low_rank_update_at(g, s.weight);
    if (!packs_plainly(g, s)) to.launches |= launches::repeated_branches;
    if (s.output_rotation >= 0) to.launches |= launches::fused_rotation;
    if (outputs_shrink(g, s) || shrink_input_of(s) >= 0) to.launches |= launches::pad;
    if (update.found && !update.adds) to.launches |= launches::precomputed_expression;
    for (const id i : {s.input_rotation, s.output_rotation >= 0 ? s.result : none_id})
      if (i >= 0) to.nodes = to.nodes | op_bit(g[i].what);

    int rank = 0;
    bool known = true;
    for (const low_rank_branch& b : s.branches) rank += in.size(b.rank), known = known && in.size(b.rank) > 0;
    const int n = in.size(g[s.weight].d[s.weight_is_nt ? 2 : 3]), k = in.size(g[s.weight].d[s.weight_is_nt ? 3 : 2]);
    const bool base = base_leaf(g, s.weight) >= 0, prologue = s.prologue >= 0;
    if (!in.stored.plain() && base && s.weight_is_nt) to.quantized = to.quantized | quantized(in, s, n, k, known);
    if (!known) {  // the rank is known only from the tensors
      to.gemms = every_gemm_kernel();
      return;
    }
    if (s.output_rotation >= 0) to.gemms.add_fused_rotation(prologue);
    gemm_problem p{.n = n, .k = k, .rank = padded_rank(rank)};
    p.prologue = prologue, p.plain = s.act == op::detach && s.residual < 0;
    p.epilogue_steps = !s.epilogue_steps.empty(), p.shrink_input = shrink_input_of(s) >= 0;
    p.stores_shrink = shrink_output_of(s) >= 0, p.stores_pre_epilogue = s.pre_epilogue >= 0;
    if (sums) p.fused_wgrads[0].columns = 1;
    const bool nn = !s.weight_is_nt, as_stored = g[unshaped(g, s.weight)].what == op::frozen || update.found;
    if (!nn || !base) to.gemms = to.gemms | gemm_kernels_for(p);
    // The update of a weight may read a transposed factor, for which only products with NN layout have a tiled GEMM.
    if (update.found && (!nn || prologue)) to.gemms.add_mma();
    p.nn = nn;
    if (nn && (base || as_stored)) to.gemms = to.gemms | gemm_kernels_for(p);
  }
  // The kernels that read a quantized weight. Whole units are 16 rows of 4096 columns (kernels/quantized/launch.cuh).
  static constexpr quantized_mask quantized(const type_plan& in, const gemm_slots& s, int n, int k, bool known) {
    if (shrink_output_of(s) >= 0 || shrink_input_of(s) >= 0 || s.pre_epilogue >= 0) return {};
    const int columns = 64 * quant_warps * quant_steps;
    return {quant_layout_of(in.stored, k > 0 ? k : 64 * quant_steps), !known || !s.branches.empty(), s.branches.empty(),
            (k == 0 || k == columns) && n % unit_rows == 0 && s.prologue < 0};
  }
};

}  // namespace graft::gpu
