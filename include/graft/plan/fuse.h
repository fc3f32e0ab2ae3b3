// SPDX-License-Identifier: Apache-2.0
// fuse: the data-time nodes of a graph become few kernels. A product with the base weight, a look-up in it or a
// normalisation anchors a kernel, and everything that lives per token is placed around it, in one of the four slots of
//     y = post ⊙ (pre(x) · decode(W)ᵀ + side(x)) + bias
// Sums over tokens (gradients) are kernels of their own; what follows from them alone is small work at the end.
#pragma once
#include <graft/derive/apply.h>
#include <graft/derive/stage.h>

namespace graft {

enum class slot : unsigned char { none, pre, product, side, post, reduce, small };
enum class family : unsigned char { gemm, lookup, rowwise, pointwise, reduce, small, host };

constexpr const char* name_of(slot s) {
  constexpr const char* names[] = {"", "pre", "product", "side", "post", "reduce", "small"};
  return names[static_cast<int>(s)];
}
constexpr const char* name_of(family f) {
  constexpr const char* names[] = {"gemm", "lookup", "rowwise", "pointwise", "reduce", "small", "host"};
  return names[static_cast<int>(f)];
}

inline constexpr int max_kernels = 32;

struct plan {
  stages when{};
  slot place[max_nodes]{};
  short kernel_of[max_nodes]{};  // -1: not a data-time node
  family what[max_kernels]{};
  id anchor[max_kernels]{};
  int kernels = 0;
  int breaks = 0;  // nodes that no kernel can hold
  id first_break = none_id;
};

constexpr bool is_anchor(const graph& g, const stages& when, id i) {
  const node& v = g[i];
  if (!when.by_token[i]) return false;
  if (v.what == op::normalize || v.what == op::normalize_grad) return true;
  if (v.what == op::gather) return contains(g, v.a, op::base);
  if (v.what != op::matmul || when.of[v.b] == stage::data) return false;
  return 4 * nominal_count(g, v.b) > base_count(g, v.b) && base_count(g, v.b) > 0;
}
constexpr family family_of(const node& v) {
  if (v.what == op::matmul) return family::gemm;
  return v.what == op::gather ? family::lookup : family::rowwise;
}
constexpr bool free_of_work(const node& v) { return row(v.what).kind == op_class::layout || is_pointwise(v.what); }

constexpr plan fuse(const graph& g) {
  plan p;
  p.when = schedule(g);
  const node_set live = reachable(g);
  const stages& when = p.when;
  auto begin = [&](family f, id at) {
    if (p.kernels == max_kernels) return static_cast<short>(max_kernels - 1);
    p.what[p.kernels] = f;
    p.anchor[p.kernels] = at;
    return static_cast<short>(p.kernels++);
  };
  auto member = [&](id i) { return i >= 0 && live.in[i] && when.of[i] == stage::data && !is_leaf(g[i].what); };
  for (short& k : p.kernel_of) k = -1;

  for (int k = 0; k < g.size; ++k) {  // what is anchored, or follows from something that is
    const id i = static_cast<id>(k);
    const node& v = g.n[k];
    if (live.in[k] && v.what == op::host) {
      ++p.breaks;
      if (p.first_break < 0) p.first_break = i;
    }
    if (!member(i)) continue;
    short from = -1;
    bool per_token = false;
    for (int o = 0; o < 3; ++o)
      if (const id a = v.operand(o); a >= 0) {
        if (p.kernel_of[a] > from) from = p.kernel_of[a];
        per_token = per_token || when.by_token[a];
      }
    if (v.what == op::host) {
      p.kernel_of[k] = begin(family::host, i);
    } else if (when.by_token[k]) {
      if (is_anchor(g, when, i))
        p.kernel_of[k] = begin(family_of(v), i), p.place[k] = slot::product;
      else if (from >= 0)
        p.kernel_of[k] = from, p.place[k] = slot::post;
    } else if (per_token) {
      p.kernel_of[k] = begin(family::reduce, i), p.place[k] = slot::reduce;
    } else {
      const bool joins = from >= 0 && free_of_work(v);
      p.kernel_of[k] = joins ? from : begin(family::small, i);
      p.place[k] = joins ? slot::post : slot::small;
    }
  }
  for (int k = g.size - 1; k >= 0; --k) {  // what only leads there belongs to its first reader
    const id i = static_cast<id>(k);
    if (!member(i) || p.kernel_of[k] >= 0) continue;
    for (int r = k + 1; r < g.size; ++r) {
      const node& v = g.n[r];
      if (!member(static_cast<id>(r)) || p.kernel_of[r] < 0 || (v.a != i && v.b != i && v.c != i)) continue;
      if (p.kernel_of[k] >= 0 && p.kernel_of[k] <= p.kernel_of[r]) continue;
      p.kernel_of[k] = p.kernel_of[r];
      p.place[k] =
          p.place[r] == slot::product || p.place[r] == slot::pre || p.place[r] == slot::reduce ? slot::pre : slot::side;
    }
    if (p.kernel_of[k] < 0) p.kernel_of[k] = begin(family::pointwise, i), p.place[k] = slot::post;
  }
  return p;
}

}  // namespace graft
