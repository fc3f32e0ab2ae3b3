// SPDX-License-Identifier: Apache-2.0
// kernel_count: how many kernels a plan takes on its target with given sizes; and folds, trains_folded: whether the
// adapter is folded into a copy of the weight. A backend calls these functions before it runs.
#pragma once
#include <graft/derive/cost.h>
#include <graft/derive/updated_weight.h>
#include <graft/plan/fuse.h>

namespace graft {

// Transfers the bound sizes of one graph to another graph of the same layer, by name.
[[gnu::cold]] constexpr size_values sizes_for(const graph& to, const graph& from, const size_values& s) {
  size_values t;
  for (int i = 0; i < to.sizes.count; ++i) {
    const size_entry& e = to.sizes.e[i];
    if (e.index < 0) continue;
    if (const int index = from.sizes.find_like(to.sizes, e); index >= 0) t.v[e.index] = s.v[index];
  }
  return t;
}
// Binds nominal numbers to the names that have none, for decisions about layer types with open sizes.
constexpr size_values with_nominals(const graph& g, size_values s) {
  for (int i = 0; i < g.sizes.count; ++i)
    if (const size_entry& e = g.sizes.e[i]; e.index >= 0 && s.v[e.index] == unknown) s.v[e.index] = e.assumed();
  return s;
}

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
  shape.nn = !p.weight_is_nt && (base_leaf(g, p.weight) >= 0 || updated_weight_at(g, p.weight).found);
  if (base_leaf(g, p.weight) >= 0) shape.stored = stored;
  for (const low_rank_branch& b : p.branches) {
    shape.stores_extra = shape.stores_extra || b.stores_shrink;
    shape.outputs_shrink = shape.outputs_shrink || (b.stores_shrink && is_output(g, b.s));
    shape.shrink_input = shape.shrink_input || !b.computes_shrink;
  }
  shape.stores_extra = shape.stores_extra || p.pre_epilogue >= 0;
  if (p.output_rotation >= 0) shape.output_rotation = rotation_width(size(g[p.result].b, 0), size(g[p.result].b, 3));
  return shape;
}
constexpr fused_wgrad_shape shape_of(const graph& g, const gemm_slots& host, const wgrad_sum& sum,
                                     const size_values& s) {
  const int left = static_cast<int>(g.sizes.value(g[sum.left].d[3], s)),
            right = static_cast<int>(g.sizes.value(g[sum.right].d[3], s));
  if (sum.by_column) return {left, 0, false};
  const id shrink = host.branches.empty() ? none_id : host.branches[0].s;
  return {left >= right ? left : right, left >= right ? right : left,
          shrink >= 0 && (sum.left == shrink || sum.right == shrink)};
}

// True where rowwise launch `norm` is fused into the kernel of the GEMM `before` and into those of all its readers.
constexpr bool fuses_norm(const gemm_problem& before, const graph& g, const plan& p, int norm, const size_values& s,
                          const quant_format& stored) {
  if (norm < 0 || !p.to.norm_is_fused) return false;
  sequence<gemm_problem> norm_readers;
  for (const gemm_slots& reader : p.products)
    if (reader.x == p.rowwise_launches[norm].result) norm_readers.push(shape_of(g, reader, s, before.type, stored));
  return p.to.norm_is_fused(before, norm_readers.begin(), norm_readers.size(), p.to);
}
// True for a look-up of whole rows in an unsharded table.
constexpr bool gathers_rows(const node& v) { return v.what == op::gather && !v.ta && !is_shard(v); }
// True where the norm that g begins with is fused into the graph `previous`, whose first output is the input of g.
constexpr bool fuses_input_norm(const graph& previous, const plan& its, const size_values& its_sizes, const graph& g,
                                const plan& p, const size_values& s, dtype type,
                                const quant_format& stored_previous = {}, const quant_format& stored = {}) {
  for (const gemm_slots& last : its.products)
    if (last.result == previous.out[0].at)
      return fuses_norm(shape_of(previous, last, its_sizes, type, stored_previous), g, p, p.input_norm, s, stored);
  if (!gathers_rows(previous[previous.out[0].at]) || !stored_previous.plain() || p.input_norm < 0) return false;
  for (const gemm_slots& reader : p.products) {  // a look-up must meet the conditions of a GEMM of its width
    if (reader.x != p.rowwise_launches[p.input_norm].result) continue;
    gemm_problem as_wide = shape_of(g, reader, s, type, stored);
    as_wide.n = static_cast<int>(g.sizes.value(g[reader.x].d[3], s));
    return fuses_norm(as_wide, g, p, p.input_norm, s, stored);
  }
  return false;
}

// The kernels of the input rotations of a launch.
constexpr int rotation_kernels(const graph& g, const plan& p, const launch& l, const size_values& s, dtype type) {
  sequence<id> rotations;
  int n = 0;
  for (int k = l.product; k <= l.product + l.grouped; ++k) {
    const gemm_slots& of = p.products[k];
    if (of.input_rotation < 0) continue;
    rotations.push(of.input_rotation);
    n += (of.gate >= 0 ? 1 : 0) + (!p.to.node_kernels ? 1 : p.to.node_kernels(g, of.input_rotation, s, type, p.to));
  }
  const bool at_once = n > 0 && p.to.rotations_share_kernel &&
                       p.to.rotations_share_kernel(g, rotations.begin(), rotations.size(), s, type, p.to);
  return at_once ? 1 : n;
}
// The call inputs that are copied with padding before launch `of`, the first one whose wgrads read them.
[[gnu::cold]] constexpr sequence<id> padded_operands(const graph& g, const plan& p, const launch& of,
                                                     const size_values& s, dtype type) {
  sequence<id> found;
  if (!p.to.operand_is_padded || (of.sum < 0 && of.fused_wgrads[0] < 0 && of.fused_wgrads[1] < 0)) return found;
  node_set seen(g.size);
  for (const launch& l : p.launches) {
    for (const int sum : {l.sum, l.fused_wgrads[0], l.fused_wgrads[1]}) {
      if (sum < 0 || p.sums[sum].by_column) continue;
      for (const id i : {p.sums[sum].left, p.sums[sum].right}) {
        if (seen[i] || !is_call_input(g, i) || !p.to.operand_is_padded(g.sizes.value(g[i].d[3], s), type, p.to))
          continue;
        seen.add(i);
        if (&l == &of) found.push(i);
      }
    }
    if (&l == &of) break;
  }
  return found;
}
namespace detail {
constexpr int launch_kernel_count(const graph& g, const plan& p, const launch& l, const size_values& s, dtype type,
                                  const quant_format& stored) {
  if (l.product >= 0) {
    sequence<gemm_problem> all;
    for (int k = 0; k <= l.grouped; ++k) all.push(shape_of(g, p.products[l.product + k], s, type, stored));
    int n = l.norm >= 0 && !fuses_norm(all[0], g, p, l.norm, s, stored) ? 1 : 0;
    for (int k = 0; k < 2; ++k)
      if (l.fused_wgrads[k] >= 0)
        all[0].fused_wgrads[k] = shape_of(g, p.products[l.product], p.sums[l.fused_wgrads[k]], s);
    for (int k = 0; k < all.size(); ++k)
      if (all[k].output_rotation != 0 && (!p.to.rotation_is_fused || !p.to.rotation_is_fused(all[k], p.to)))
        n += !p.to.node_kernels ? 1 : p.to.node_kernels(g, p.products[l.product + k].result, s, type, p.to);
    const int rotations = rotation_kernels(g, p, l, s, type);  // with rotations the products read different inputs
    const bool gates = l.gated >= 0 && rotations == 0 && p.to.gated_kernels,
               can_join = l.grouped > 0 && p.to.grouped_kernels &&
                          (rotations == 0 || stored.plain());  // quantized grouped GEMMs need one input
    int joint = gates ? p.to.gated_kernels(all.begin(), p.to) : 0;
    n += rotations + (l.gated >= 0 && joint == 0 ? 1 : 0);
    if (joint == 0 && can_join) joint = p.to.grouped_kernels(all.begin(), all.size(), p.to);
    if (joint > 0) return n + joint;
    for (const gemm_problem& one : all) n += !p.to.gemm_kernels ? 1 : p.to.gemm_kernels(one, p.to);
    return n;
  }
  if (l.dropout_gemms >= 0) return count(g, p.dropout_gemms[l.dropout_gemms].result, s) == 0 ? 0 : 1;
  if (l.chains >= 0) {
    const matrix_chain& c = p.chains[l.chains];
    if (fuses_chain(g, c, s, type, p.to)) return count(g, c.result, s) == 0 ? 0 : c.sums() ? 2 : 1;
    int n = 0;
    for (const id i : c.inside()) n += !p.to.node_kernels ? 1 : p.to.node_kernels(g, i, s, type, p.to);
    return n;
  }
  if (l.stack >= 0 && fuses_stack(g, p.stacks[l.stack], s, p.to)) return count(g, l.anchor, s) == 0 ? 0 : 1;
  if (l.stack >= 0) {
    int n = 0;
    for (const id i : p.stacks[l.stack].inside) n += !p.to.node_kernels ? 1 : p.to.node_kernels(g, i, s, type, p.to);
    return n;
  }
  if (l.sum >= 0) return count(g, p.sums[l.sum].result, s) == 0 ? 0 : 1;
  if (l.what != launch_kind::attention && l.rows >= 0)
    return count(g, p.rowwise_launches[l.rows].result, s) == 0 ? 0 : 1;
  int n = !p.to.node_kernels ? 1 : p.to.node_kernels(g, l.anchor, s, type, p.to);
  if (l.rows >= 0 && !p.to.fuses_heads(g, l.anchor, s, type, p.to)) ++n;
  if (l.gate_wgrads[0] >= 0 && (!p.to.gate_wgrad_is_fused || !p.to.gate_wgrad_is_fused(g, l.anchor, s, type, p.to)))
    n += 2;
  return n;
}
}  // namespace detail
constexpr int kernel_count(const graph& g, const plan& p, const launch& l, const size_values& s, dtype type,
                           const quant_format& stored) {
  int n = detail::launch_kernel_count(g, p, l, s, type, stored);
  for (const id i : padded_operands(g, p, l, s, type)) n += count(g, i, s) == 0 ? 0 : 1;
  return n;
}
constexpr int kernel_count(const graph& g, const plan& p, const size_values& s, dtype type,
                           const quant_format& stored = {}) {
  int n = 0;
  for (const launch& l : p.launches) n += kernel_count(g, p, l, s, type, stored);
  return n;
}

// Whether inference folds the adapter into a copy of the weight, given the plans of both forms for a target whose
// launches are GEMMs: because the low-rank branch does not fit into the one GEMM.
[[gnu::cold]] constexpr bool folds(const graph& branch, const plan& branched, const plan& folded,
                                   const size_values& s) {
  auto one_product = [](const plan& p) { return p.products.size() == 1 && p.launches.size() == 1; };
  if (!one_product(folded)) return false;
  // A rotation of x (OFT, BOFT) is a pass over x in every call; folded, it is one pass over W per parameter change.
  for (const launch& l : branched.launches)
    if (branch[l.anchor].what == op::rotate || (l.product >= 0 && branched.products[l.product].input_rotation >= 0))
      return true;
  // A branch that is not inside the one GEMM takes further launches in every call (LoKr).
  const bool inside = branched.products.size() == 1 && branched.products[0].residual < 0;
  return !inside || branch_rank(branch, branched.products[0], with_nominals(branch, s)) > branched.to.max_branch_rank;
}
// The same on any target, because it is cheaper than the low-rank branch or the only form that the target can fuse.
// `stored` is the element type of the weight.
[[gnu::cold]] constexpr bool folds(const target& to, const graph& branch, const graph& folded, const size_values& s,
                                   dtype stored = dtype::bf16) {
  const size_values of_branch = with_nominals(branch, s),
                    of_folded = with_nominals(folded, sizes_for(folded, branch, of_branch));
  if (to.granularity == target::work::by_nodes) return false;
  if (to.granularity == target::work::by_rows) {
    const long long plain = call_flops(folded, of_folded), tokens = folded.sizes.tokens(of_folded);
    const long long elements = tokens > 0 ? plain / tokens / 2 : 0;
    const bool widens = bits_of(stored) < bits_of(dtype::f32);
    // A butterfly (BOFT) passes over x once per factor, which costs several times its arithmetic: two factors of 8 on
    // 1024 x 1024 are 3 % of the flops and took 1.19 to 1.25 of the layer's time.
    for (id i = 0; !widens && elements >= large_weight && i < branch.size; ++i)
      if (branch[i].what == op::rotate && branch.sizes.value(branch[branch[i].b].d[0], of_branch) > 1) return true;
    return worth_folding(call_flops(branch, of_branch), plain, widens, elements);
  }
  return folds(branch, fuse(branch, to), fuse(folded, to), s);
}
// The flops of a call in units of tensor core flops. A product of large matrices that is neither a GEMM over rows nor a
// wgrad runs in float on the CUDA cores, at 12 Tflop/s where tensor cores reach 790, and counts 64 times.
[[gnu::cold]] constexpr long long tensor_core_flops(const graph& g, const plan& p, const size_values& s) {
  constexpr long long slower = 64, narrow = 64;
  long long flops = call_flops(g, s);
  for (const launch& l : p.launches) {
    const node& v = g[l.anchor];
    if (l.product >= 0 || l.sum >= 0 || l.count != 1 || v.what != op::matmul) continue;
    if (g.sizes.value(v.d[2], s) <= narrow || g.sizes.value(v.d[3], s) <= narrow) continue;
    flops = plus(flops, times(slower - 1, flops_of(g, l.anchor, s)));
  }
  return flops;
}
// Whether training folds the adapter into a copy of the weight that one GEMM recomputes after each step
// (derive/folded_training.h). It does so if this takes fewer flops, the branch would be a launch of its own, and a call
// has at least as many rows as the layer has inputs, so that the copy is no larger than y. The last two conditions do
// not apply where the usual form computes such a weight in any case (RandLoRA).
struct training_graphs {  // with saved tensors as outputs of forward and inputs of backward
  graph forward, backward;
};
[[gnu::cold]] constexpr bool trains_folded(const target& to, const training_graphs& usual,
                                           const training_graphs& in_weight, size_values s) {
  if (to.granularity != target::work::by_products) return false;
  const plan branched = fuse(usual.forward, to), plain = fuse(in_weight.forward, to);
  if (branched.products.size() != 1 || plain.products.size() != 1 || plain.launches.size() != 1) return false;
  const id weight = plain.products[0].weight;
  if (!updated_weight_at(in_weight.forward, weight).found) return false;
  const bool computed = branched.launches.size() == 1 && base_leaf(usual.forward, branched.products[0].weight) < 0;
  if (!computed && branch_rank(usual.forward, branched.products[0], s) <= to.max_branch_rank) return false;
  const size_values mine = sizes_for(in_weight.forward, usual.forward, s);
  if (!computed &&
      in_weight.forward.sizes.tokens(mine) < in_weight.forward.sizes.value(in_weight.forward[weight].d[3], mine))
    return false;
  auto flops = [&](const training_graphs& t, const plan& forward) {
    return plus(tensor_core_flops(t.forward, forward, sizes_for(t.forward, usual.forward, s)),
                tensor_core_flops(t.backward, fuse(t.backward, to), sizes_for(t.backward, usual.forward, s)));
  };
  return flops(in_weight, plain) < flops(usual, branched);
}

}  // namespace graft
