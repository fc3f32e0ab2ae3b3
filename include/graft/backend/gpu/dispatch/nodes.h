// SPDX-License-Identifier: Apache-2.0
// What a GPU can do of single nodes, and how many kernels they take. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/attention.h>
#include <graft/backend/gpu/dispatch/kernel_selection.h>

namespace graft::gpu {

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
  if (element_count(g, i, s) == 0) return 0;
  if (is_attention(v.what) && t.granularity == target::work::by_products)
    if (const attention_choice c = choice_of(g, i, attention_size_of(g, i, s, type), t); c.path != attention_path::node)
      return c.launches;
  auto size = [&](id of, int axis) { return g.sizes.value(g[of].d[axis], s); };
  if (v.what == op::attention_grad || v.what == op::cached_attention || v.what == op::scatter || v.what == op::route)
    return 2;
  if (v.what == op::rotate_grad) return size(v.c, 0) > 1 ? 2 : 1;
  return v.what == op::matmul && splits_of_product(g, i, s) > 1 ? 2 : 1;
}
// A product of large matrices that is neither a GEMM over rows nor a wgrad runs in float on the CUDA cores, at 12
// Tflop/s where tensor cores reach 790.
constexpr nodes_launch::capabilities node_capabilities() { return {.kernels = &node_kernels, .flop_factor = 64}; }
template <> struct kernels_of_launch<nodes_launch> {
  static constexpr void add(kernel_selection& to, const type_plan& in, const nodes_launch& l) {
    to.nodes = to.nodes | op_bit(in.g[l.first].what);
  }
};

}  // namespace graft::gpu
