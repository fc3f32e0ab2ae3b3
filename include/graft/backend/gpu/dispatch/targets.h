// SPDX-License-Identifier: Apache-2.0
// GPU targets for the planner, as in compile<q_proj, fullgraph, on<sm_90>>. How many kernels a launch takes is decided
// by the same dispatch functions that choose the kernels at run time. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/attention.h>
#include <graft/backend/gpu/dispatch/quantized.h>
#include <graft/backend/gpu/kernels/gemm/adapter_args.h>
#include <graft/core/sequence.h>
#include <graft/plan/fuse_gemms.h>

namespace graft {

namespace gpu {
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
// Are several butterfly factors (BOFT) composed to one rotation first? They must stay within 32 columns.
constexpr bool composes_factors(long long factors, long long block, long long columns) {
  return factors > 1 && factors <= 5 && 32 % (block << (factors - 1)) == 0 && columns % 32 == 0;
}
// Do the input rotations of a launch run as one kernel (kernels/rotation/skinny.cuh)? Up to 64 rows, one factor each or
// composed, blocks that divide 32 columns.
inline constexpr int max_skinny_rotation_rows = 64;
constexpr bool rotations_share_kernel(const graph& g, const id* rotations, int count, const size_values& s, dtype type,
                                      const target& t) {
  auto size = [&](id of, int axis) { return g.sizes.value(g[of].d[axis], s); };
  bool all = t.capability >= 80 && is_16_bit(type) && count <= max_segments;
  for (int k = 0; k < count; ++k) {
    const long long rows = size(rotations[k], 2), columns = size(rotations[k], 3), factors = size(g[rotations[k]].b, 0),
                    block = size(g[rotations[k]].b, 3);
    all = all && rows > 0 && rows <= max_skinny_rotation_rows && columns % 32 == 0 && block > 0 && 32 % block == 0 &&
          (factors == 1 || composes_factors(factors, block, columns));
  }
  return all;
}
// Split-K of a batched GEMM with few results and very many terms (LoKr's gradients over the tokens, a weight times a
// narrow matrix in DoRA): a second kernel adds the partial sums in order.
constexpr int splits_of_terms(long long rows, long long cols, long long results, long long terms) {
  const long long tiles = (rows + 63) / 64 * ((cols + 63) / 64) * results, steps = terms / 16;
  if (tiles <= 8) return steps < 2048 ? 1 : steps >= 4096 ? 128 : static_cast<int>(steps / 32);
  int splits = 1;
  while (splits < 8 && 2 * splits * tiles <= 264 && steps >= 128 * splits) splits *= 2;
  return splits;
}
constexpr int splits_of_product(const graph& g, id i, const size_values& s) {
  const node& v = g[i];
  auto size = [&](id of, int axis) { return g.sizes.value(g[of].d[axis], s); };
  long long terms = size(v.a, v.ta ? 2 : 3);
  for (int axis = 0; v.sum && axis < 2; ++axis)
    terms *= size(v.a, axis) > size(v.b, axis) ? size(v.a, axis) : size(v.b, axis);
  return splits_of_terms(size(i, 2), size(i, 3), size(i, 0) * size(i, 1), terms);
}
// The kernels that node i launches: one, but two for the gradient of several rotation factors, a split-K matmul, and
// the gradients of attention and of look-ups; cached attention writes keys and values first. Fused attention has counts
// of its own.
constexpr int node_kernels(const graph& g, id i, const size_values& s, dtype type, const target& t) {
  const node& v = g[i];
  if (count(g, i, s) == 0) return 0;
  if (is_attention(v.what) && t.granularity == target::work::by_products)
    if (const attention_choice c = choice_of(g, i, attention_size_of(g, i, s, type), t); c.path != attention_path::node)
      return c.launches;
  auto size = [&](id of, int axis) { return g.sizes.value(g[of].d[axis], s); };
  if (v.what == op::attention_grad || v.what == op::cached_attention || v.what == op::scatter) return 2;
  if (v.what == op::rotate_grad) return size(v.c, 0) > 1 ? 2 : 1;
  return v.what == op::matmul && splits_of_product(g, i, s) > 1 ? 2 : 1;
}
// Does decode attention read q, k and v separately and apply RoPE itself?
constexpr bool fuses_heads(const graph& g, id i, const size_values& s, dtype type, const target& t) {
  const attention_choice c = choice_of(g, i, attention_size_of(g, i, s, type), t);
  return c.path == attention_path::decode && !c.mma;
}
// TMA needs row pitches that are multiples of 16 bytes; the saved shrink result of a branch of rank 4, for example, is
// padded.
constexpr bool operand_is_padded(long long columns, dtype type, const target& t) {
  return is_16_bit(type) && is_hopper(t) && columns % 8 != 0 && columns <= wide_tile_rank;
}
// Are the column-wise wgrads of a SwiGLU gate fused into its backward (kernels/wgrad/swiglu_column_scale.cuh)? Rows
// must consist of 16-byte vectors.
constexpr bool gate_wgrad_is_fused(const graph& g, id i, const size_values& s, dtype type, const target& t) {
  return t.capability >= 90 && type == dtype::bf16 && g.sizes.value(g[i].d[3], s) % 8 == 0;
}
// Experts have no kernels on the GPU yet.
constexpr bool has_kernel(op what) {
  return what != op::route && what != op::dispatch && what != op::combine && what != op::grouped_matmul &&
         what != op::grouped_wgrad;
}
// The target of a device with this compute capability, number of multiprocessors and number of resident pairs of GEMM
// blocks. GEMMs reach 5.7e12 flop/s per multiprocessor of an H200 when all are busy; a launch with programmatic
// dependent launch costs 1.2 µs in addition to its work.
constexpr target device_target(const char* name, int capability, int sm_count, int resident_pairs,
                               double bytes_per_second = 0) {
  target t;
  t.name = name, t.granularity = target::work::by_products, t.fuse_gemms = &fuse_gemms;
  t.capability = capability, t.sm_count = sm_count, t.resident_pairs = resident_pairs;
  t.bytes_per_second = bytes_per_second;
  t.flops_per_second = (capability >= 90 ? 5.7e12 : 2.2e12) * sm_count;
  t.launch_overhead_seconds = capability >= 90 ? 1.2e-6 : 2.5e-6;
  t.max_branch_rank = 64;
  t.reads_nn_weight = t.has_wgrad = t.wgrad_fusion = t.fuses_elementwise = t.fuses_rowwise = t.fuses_dropout = true;
  if (capability >= 90) t.max_chain_size = 64;
  t.max_stack_size = 64;
  t.max_grouped_gemms = max_segments,
  t.fuses_gates = t.fuses_norms = t.fuses_input_rotation = t.fuses_output_rotation = true;
  t.runs = &has_kernel;
  t.gemm_kernels = &gemm_kernels, t.grouped_kernels = &grouped_kernels, t.node_kernels = &node_kernels;
  t.why_several = &why_several;
  t.gated_kernels = &gated_kernels, t.norm_is_fused = &norm_is_fused, t.gate_wgrad_is_fused = &gate_wgrad_is_fused,
  t.fuses_heads = &fuses_heads;
  t.rotations_share_kernel = &rotations_share_kernel, t.rotation_is_fused = &rotation_is_fused,
  t.operand_is_padded = &operand_is_padded;
  return t;
}
}  // namespace gpu

inline constexpr target sm_80 = gpu::device_target("sm_80", 80, 108, 54);          // A100
inline constexpr target sm_90 = gpu::device_target("sm_90", 90, 132, 66, 4.3e12);  // H200; H100 SXM has slower memory

}  // namespace graft
