// SPDX-License-Identifier: Apache-2.0
// The GPUs that a plan can be asked for: compile<q_proj, fullgraph, on<sm_90>>. What a product takes there is asked of the
// same function that chooses its kernels when it runs. Knows nothing of CUDA.
#pragma once
#include <graft/backend/cuda/attention_choice.h>
#include <graft/backend/cuda/code_choice.h>
#include <graft/backend/cuda/slot.h>
#include <graft/core/sequence.h>
#include <graft/plan/fuse_products.h>

namespace graft {

namespace cuda {
constexpr int product_kernels(const product_shape& p, const target& t) {
  product_shape padded = p;
  padded.rank = padded_rank(p.rank);
  if (!p.stored.plain()) {
    const bool streams = !p.across && !p.keeps && !p.given_side;
    const code_choice few = streams ? choose_codes(p.stored, p.type, p.m, p.k, padded.rank, t) : code_choice{};
    if (few.groups > 0) return launches_of(few, padded.rank);
    product_shape plain = p;
    plain.stored = {};
    return 1 + product_kernels(plain, t);  // its numbers first
  }
  int sums = 0;
  for (beside_shape& s : padded.beside) {
    s.rank = padded_rank(s.rank);
    if (s.columns > 0) ++sums;
  }
  if (streams_across(padded, t)) return 1 + sums;
  const linear_choice c = choose(padded, t);
  for (unsigned k = 0; k < 2; ++k) sums -= (c.beside >> k & 1) != 0 ? 1 : 0;
  return c.launches + sums + ((p.gives_side || p.given_side) && padded.rank != p.rank ? 1 : 0);
}
// As they are bound: true where their adapters stand apart.
constexpr bool give_joint_rank(sequence<product_shape>& to, const product_shape* all, int count, bool gated) {
  sequence<int> own;
  for (int i = 0; i < count; ++i) to.push(all[i]), own.push(padded_rank(all[i].rank));
  const joint_rank joint = rank_together(own.begin(), count, gated);
  for (int i = 0; i < count; ++i) to[i].rank = joint.rank > own[i] ? joint.rank : own[i];
  return joint.apart;
}
constexpr int run_codes_together(const product_shape* all, int count, bool gated, const target& t) {
  sequence<product_shape> padded;
  int all_ranks = 0;
  for (int i = 0; i < count; ++i)
    padded.push(all[i]), padded[i].rank = padded_rank(all[i].rank), all_ranks += padded[i].rank;
  const code_choice c = choose_codes_together(padded.begin(), count, gated, t);
  return c.groups == 1 ? launches_of(c, all_ranks) : 0;
}
constexpr int run_together(const product_shape* all, int count, const target& t) {
  if (!all[0].stored.plain()) return run_codes_together(all, count, false, t);
  sequence<product_shape> padded;
  give_joint_rank(padded, all, count, false);
  return choose_together(padded.begin(), count, t).rows > 0 ? 1 : 0;
}
constexpr int run_gated(const product_shape* all, const target& t) {
  if (!all[0].stored.plain()) return run_codes_together(all, 2, true, t);
  sequence<product_shape> padded;
  const bool apart = give_joint_rank(padded, all, 2, true);
  return choose_gated(padded.begin(), apart, t).rows > 0 ? 1 : 0;
}
constexpr bool run_normed(const product_shape& before, const product_shape* behind, int count, const target& t) {
  const auto stands = [&](product_shape p) {
    p.rank = padded_rank(p.rank);
    return p.stored.plain() ? stands_by_norm(p, t) : codes_stand_by_norm(p, t);
  };
  bool all = takes_norm_of(before.n) && stands(before);
  for (int i = 0; i < count; ++i) all = all && stands(behind[i]);
  return all;
}
constexpr bool run_turning(const product_shape& p, const target& t) { return p.stored.plain() && turns_inside(p, t); }
// Several rotation factors that stay within 32 columns are composed to one first.
constexpr bool composes_factors(long long factors, long long block, long long columns) {
  return factors > 1 && factors <= 5 && 32 % (block << (factors - 1)) == 0 && columns % 32 == 0;
}
// Rotations of a few rows are one kernel (rotate_few.cuh): of one factor each or composed, in blocks that do not cross 32
// columns.
inline constexpr int few_turned_rows = 64;
constexpr bool run_turned(const graph& g, const id* turns, int count, const size_values& s, dtype type,
                          const target& t) {
  auto size = [&](id of, int axis) { return g.sizes.value(g[of].d[axis], s); };
  bool all = t.capability >= 80 && is_16_bit(type) && count <= max_segments;
  for (int k = 0; k < count; ++k) {
    const long long rows = size(turns[k], 2), columns = size(turns[k], 3), factors = size(g[turns[k]].b, 0),
                    block = size(g[turns[k]].b, 3);
    all = all && rows > 0 && rows <= few_turned_rows && columns % 32 == 0 && block > 0 && 32 % block == 0 &&
          (factors == 1 || composes_factors(factors, block, columns));
  }
  return all;
}
// Few results with very many terms (a sum over the tokens of small products, as in LoKr; a weight times a narrow matrix, as
// in DoRA) are made in parts, which a second kernel adds up in order.
constexpr int parts_of_terms(long long rows, long long cols, long long results, long long terms) {
  const long long tiles = (rows + 63) / 64 * ((cols + 63) / 64) * results, steps = terms / 16;
  if (tiles <= 8) return steps < 2048 ? 1 : steps >= 4096 ? 128 : static_cast<int>(steps / 32);
  int parts = 1;
  while (parts < 8 && 2 * parts * tiles <= 264 && steps >= 128 * parts) parts *= 2;
  return parts;
}
constexpr int parts_of_product(const graph& g, id i, const size_values& s) {
  const node& v = g[i];
  auto size = [&](id of, int axis) { return g.sizes.value(g[of].d[axis], s); };
  long long terms = size(v.a, v.ta ? 2 : 3);
  for (int axis = 0; v.sum && axis < 2; ++axis)
    terms *= size(v.a, axis) > size(v.b, axis) ? size(v.a, axis) : size(v.b, axis);
  return parts_of_terms(size(i, 2), size(i, 3), size(i, 0) * size(i, 1), terms);
}
// One for every operation, but that the gradient of several rotation factors and a product in parts take two steps, as
// the gradients of attention and of look-ups do; and that keys and values are written to a cache before it is read.
// Attention may have kernels for whole models. Factors of a rotation are composed when they change.
constexpr int node_kernels(const graph& g, id i, const size_values& s, dtype type, const target& t) {
  const node& v = g[i];
  if (count(g, i, s) == 0) return 0;
  if (is_attention(v.what) && t.gathers == target::work::by_products)
    if (const attention_choice c = choice_of(g, i, attention_size_of(g, i, s, type), t); c.how != attention_way::node)
      return c.launches;
  auto size = [&](id of, int axis) { return g.sizes.value(g[of].d[axis], s); };
  if (v.what == op::attention_grad || v.what == op::cached_attention || v.what == op::scatter) return 2;
  if (v.what == op::rotate_grad) return size(v.c, 0) > 1 ? 2 : 1;
  return v.what == op::matmul && parts_of_product(g, i, s) > 1 ? 2 : 1;
}
constexpr bool takes_heads(const graph& g, id i, const size_values& s, dtype type, const target& t) {
  const attention_choice c = choice_of(g, i, attention_size_of(g, i, s, type), t);
  return c.how == attention_way::decode && !c.mma;
}
// The copy engine takes rows of whole sixteens of bytes. What forward kept of a branch of rank 4 has none.
constexpr bool run_padded(long long columns, dtype type, const target& t) {
  return is_16_bit(type) && is_hopper(t) && columns % 8 != 0 && columns <= wide_rank;
}
// gate_sums.cuh: where rows are pieces of 16 bytes.
constexpr bool run_summed(const graph& g, id i, const size_values& s, dtype type, const target& t) {
  return t.capability >= 90 && type == dtype::bf16 && g.sizes.value(g[i].d[3], s) % 8 == 0;
}
// A device with this compute capability, multiprocessors, and pairs of gemm blocks that run at the same time. Products do
// 5.7e12 flops on a multiprocessor of an H200 when all are busy; a kernel that is started while the one ahead ends costs 1.2
// microseconds beside its work.
constexpr target device_target(const char* name, int capability, int processors, int resident_pairs,
                               double bytes_per_second = 0) {
  target t;
  t.name = name, t.gathers = target::work::by_products, t.gather_products = &gather_products;
  t.capability = capability, t.processors = processors, t.resident_pairs = resident_pairs;
  t.bytes_per_second = bytes_per_second;
  t.flops_per_second = (capability >= 90 ? 5.7e12 : 2.2e12) * processors;
  t.kernel_seconds = capability >= 90 ? 1.2e-6 : 2.5e-6;
  t.largest_branch_rank = 64;
  t.weight_either_way = t.sums_tokens = t.sums_beside = t.joins_elements = t.joins_rows = t.takes_dropout = true;
  if (capability >= 90) t.largest_chained_side = 64;
  t.largest_stack_side = 64;
  t.joins_products = max_segments, t.joins_gates = t.carries_norms = t.turns_inputs = t.turns_results = true;
  t.product_kernels = &product_kernels, t.run_together = &run_together, t.node_kernels = &node_kernels;
  t.run_gated = &run_gated, t.run_normed = &run_normed, t.run_summed = &run_summed, t.takes_heads = &takes_heads;
  t.run_turned = &run_turned, t.run_turning = &run_turning, t.run_padded = &run_padded;
  return t;
}
}  // namespace cuda

inline constexpr target sm_80 = cuda::device_target("sm_80", 80, 108, 54);          // A100
inline constexpr target sm_90 = cuda::device_target("sm_90", 90, 132, 66, 4.3e12);  // H200; an H100 SXM but for memory

}  // namespace graft
