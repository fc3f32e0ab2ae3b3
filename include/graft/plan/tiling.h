// SPDX-License-Identifier: Apache-2.0
// tiling: what a backend must know to run a graph a few tokens at a time. Which values exist once per token, which sum
// over tokens and so add up from tile to tile, and which earlier values the data-time work reads.
#pragma once
#include <graft/plan/buffers.h>

#include <initializer_list>

namespace graft {

// Ops that add into their value: they must find zeros, or the sum so far, there.
constexpr bool adds_up(const node& v) {
  return v.what == op::sum_to || v.what == op::scatter || v.what == op::rotate_grad || v.what == op::unpatch;
}

struct tiling {
  stages when{};
  buffers where{};
  node_set live{};
  node_set sums{};                          // one value for all tokens, computed from per-token values
  node_set read_by_tile{}, read_by_rest{};  // read by per-token work; by what follows from the sums
  node_set kept{};       // earlier values that either of them or the caller reads: these stay in memory
  node_set streamed{};   // base tensors that only products and look-ups read: they may stay as they are stored
  bool possible = true;  // tokens are the outermost axis everywhere, and every sum over them adds up
};

constexpr bool is_output(const graph& g, id i) {
  for (int k = 0; k < g.outs; ++k)
    if (g.out[k].at == i) return true;
  return false;
}
// The leaf behind a chain of reshapes, when it is a base tensor.
constexpr id base_leaf(const graph& g, id i) {
  while (g[i].what == op::reshape) i = g[i].a;
  return g[i].what == op::base ? i : none_id;
}

constexpr tiling tile(const graph& g) {
  tiling t;
  t.when = schedule(g);
  t.where = assign_buffers(g, t.when);
  t.live = reachable(g);
  const int tokens = g.sizes.find("tokens");
  for (int k = 0; k < g.size; ++k) {
    const node& v = g.n[k];
    if (!t.live.in[k] || t.when.of[k] != stage::data) continue;
    for (const id o : {v.a, v.b, v.c}) {
      if (o < 0) continue;
      (t.when.by_token[k] ? t.read_by_tile : t.read_by_rest).in[o] = true;
      if (!t.when.by_token[k] && t.when.by_token[o]) t.sums.in[k] = true;
    }
    if (t.when.by_token[k]) {
      int first = 0;
      while (first < 3 && v.d[first] == dim{1}) ++first;
      t.possible = t.possible && depends(g.sizes, v.d[first], tokens);
    } else if (t.sums.in[k]) {
      t.possible = t.possible && (v.what == op::matmul || adds_up(v));
    }
  }
  for (int k = 0; k < g.size; ++k) t.streamed.in[k] = base_leaf(g, static_cast<id>(k)) >= 0 && !t.read_by_rest.in[k];
  for (int k = 0; k < g.size; ++k) {
    const node& v = g.n[k];
    if (!t.live.in[k] || !t.when.by_token[k]) continue;
    const bool product = v.what == op::matmul && !v.ta && !v.sum, look_up = v.what == op::gather;
    if (v.a >= 0 && !look_up) t.streamed.in[v.a] = false;
    if (v.b >= 0 && !product) t.streamed.in[v.b] = false;
    if (v.c >= 0) t.streamed.in[v.c] = false;
  }
  for (int k = g.size - 1; k >= 0; --k)  // a reshaped tensor is the memory of its leaf
    if (g.n[k].what == op::reshape && base_leaf(g, static_cast<id>(k)) >= 0 && !t.streamed.in[k])
      t.streamed.in[g.n[k].a] = false;
  for (int k = g.size - 1; k >= 0; --k) {
    const id i = static_cast<id>(k);
    if (!t.live.in[k] || t.when.of[k] == stage::data) continue;
    t.kept.in[k] = t.kept.in[k] || t.read_by_tile[i] || t.read_by_rest[i] || is_output(g, i);
    if (t.kept.in[k] && g.n[k].what == op::reshape) t.kept.in[g.n[k].a] = true;  // the same memory
  }
  return t;
}

}  // namespace graft
