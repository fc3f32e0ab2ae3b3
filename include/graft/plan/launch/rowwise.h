// SPDX-License-Identifier: Apache-2.0
// rowwise_launch: row-wise ops between GEMMs that run as one launch, without storing the values between them:
//     a norm with its gain, normalize(x) ⊙ w        concatenated heads with RoPE, [rope(q) | rope(k) | v]
//     the gradient of a norm with its gain and the residual's gradient, h + normalize'(x, t ⊙ w)
// The launch of concatenated heads also looks up the cosines and sines of each row's position.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/traversal.h>
#include <graft/plan/launch/slot.h>

namespace graft {

inline constexpr int max_concat_parts = 4;

struct concat_part {
  id value = none_id;
  bool has_rope = false;  // RoPE by the row's position is applied
};
struct rowwise_launch {
  struct capabilities {
    bool fused = false;  // norms with gain, and concatenated heads, are one launch
  };
  struct work {
    sequence<id> host;  // by launch: the node in whose launch it runs; none: its own
  };

  id result = none_id;
  id norm = none_id, scale = none_id;            // a norm or its gradient, and w
  id grad_output = none_id, residual = none_id;  // operands of a gradient: t and h
  sequence<concat_part> parts;                   // values that are concatenated along the columns
  id table = none_id, positions = none_id;       // cosines and sines by position, and the positions of the rows
  sequence<id> inside;                           // nodes in order of computation; the result is the last one
  constexpr bool found() const { return inside.size() > 1; }

  constexpr id anchor() const { return norm >= 0 ? norm : result; }
  constexpr const char* name(const graph&) const { return norm >= 0 ? "rowwise" : "elementwise"; }
  template <class Facts> constexpr int kernels(const Facts& in) const {
    return element_count(in.g, result, in.s) == 0 ? 0 : 1;
  }
  template <class Planner> static constexpr void match(Planner& by);
  template <class Planner> static constexpr void add(Planner& by, int index, id i);
};

namespace detail {

struct rowwise_matcher {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;
  const node_set& free;  // nodes that no other launch computes
  rowwise_launch out{};
  id angles = none_id;
  int has_rope = 0;

  constexpr bool data(id i) const { return i >= 0 && when.of[i] == stage::call; }
  constexpr bool has_one_reader(id i) const { return free[i] && readers[i] == 1; }

  [[gnu::cold]] constexpr bool scaled_norm(id i) {
    const node& v = g[i];
    if (v.what != op::mul) return false;
    const bool left = data(v.a) && g[v.a].what == op::normalize;
    const id norm = left ? v.a : v.b, scale = left ? v.b : v.a;
    if (!data(norm) || g[norm].what != op::normalize || !has_one_reader(norm) || data(scale)) return false;
    if (has_several_rows(scale) || g[scale].d[3] != g[norm].d[3]) return false;
    out.norm = norm, out.scale = scale;
    return out.inside.push(norm), out.inside.push(i), true;
  }
  [[gnu::cold]] constexpr bool norm_gradient(id i) {
    id at = i;
    if (g[i].what == op::add)
      for (int k = 0; k < 2 && at == i; ++k)
        if (const id o = g[i].operand(k), h = g[i].operand(1 - k); g[o].what == op::normalize_grad && has_one_reader(o))
          if (data(h) && same_shape(g[h], g[i])) at = o, out.residual = h;
    const node& v = g[at];
    if (v.what != op::normalize_grad) return false;
    out.norm = at, out.grad_output = v.c;
    const node& t = g[v.c];
    if (t.what == op::mul && data(v.c) && has_one_reader(v.c)) {
      const bool left = data(t.a);
      const id value = left ? t.a : t.b, scale = left ? t.b : t.a;
      if (!data(scale) && !has_several_rows(scale) && g[scale].d[3] == t.d[3] && same_shape(g[value], t))
        out.grad_output = value, out.scale = scale, out.inside.push(v.c);
    }
    out.inside.push(at);
    if (at != i) out.inside.push(i);
    return true;
  }
  constexpr bool has_several_rows(id i) const {
    return g[i].d[0] != dim{1} || g[i].d[1] != dim{1} || g[i].d[2] != dim{1};
  }
  [[gnu::cold]] constexpr void part(id i) {
    const node& v = g[i];
    const bool applies_rope = data(i) && v.what == op::rope && !v.tb && has_one_reader(i) && free[v.b] &&
                              g[v.b].what == op::gather && !data(g[v.b].a) && (angles < 0 || angles == v.b);
    if (!applies_rope) return out.parts.push({i, false});
    angles = v.b, ++has_rope;
    out.parts.push({v.a, true}), out.inside.push(i);
  }
  // Collects the operands of nested concats from left to right; a nested concat must have no other reader.
  [[gnu::cold]] constexpr void concat_parts_of(id i, bool root) {
    const node& v = g[i];
    const bool can_join = data(i) && v.what == op::concat && v.k[0] == dim{3} && (root || has_one_reader(i));
    if (!can_join) return part(i);
    concat_parts_of(v.a, false), concat_parts_of(v.b, false);
    out.inside.push(i);
  }
  [[gnu::cold]] constexpr bool is_concat(id i) {
    const node& v = g[i];
    if (v.what != op::concat || v.k[0] != dim{3} || v.d[0] != dim{1} || v.d[1] != dim{1}) return false;
    concat_parts_of(i, true);
    if (out.parts.size() > max_concat_parts || (angles >= 0 && readers[angles] != has_rope)) return false;
    for (const concat_part& p : out.parts)
      if (!data(p.value)) return false;
    if (angles < 0) return true;
    out.table = g[angles].a, out.positions = g[angles].b;
    sequence<id> with;
    with.push(angles);
    for (const id n : out.inside) with.push(n);
    out.inside = with;
    return true;
  }
};

}  // namespace detail

// The rowwise launch whose result is node i; found() is false where it would contain only that node.
[[gnu::cold]] constexpr rowwise_launch rowwise_launch_at(const graph& g, const stages& when,
                                                         const sequence<int>& readers, const node_set& free, id i) {
  detail::rowwise_matcher r{g, when, readers, free};
  if (r.scaled_norm(i) || r.norm_gradient(i) || r.is_concat(i)) {
    r.out.result = i;
    return static_cast<rowwise_launch&&>(r.out);
  }
  return {};
}

template <class Planner> [[gnu::cold]] constexpr void rowwise_launch::match(Planner& by) {
  node_set free = by.free_nodes();
  auto& all = by.p.template all<rowwise_launch>();
  for (id i = by.g.size - 1; by.template can<rowwise_launch>().fused && i >= 0; --i) {
    if (!free[i]) continue;
    rowwise_launch r = rowwise_launch_at(by.g, by.p.when, by.readers, free, i);
    if (!r.found()) continue;
    for (const id n : r.inside) by.template claim<rowwise_launch>(n, all.size()), free.in[n] = false;
    all.push(static_cast<rowwise_launch&&>(r));
  }
  by.template work<rowwise_launch>().host = sequence<id>(all.size(), none_id);
}
template <class Planner> [[gnu::cold]] constexpr void rowwise_launch::add(Planner& by, int index, id i) {
  const rowwise_launch& r = by.p.template all<rowwise_launch>()[index];
  if (r.result != i || by.template work<rowwise_launch>().host[index] >= 0) return;
  if (!by.template computed<rowwise_launch>(r.inside, index)) return;
  by.template open<rowwise_launch>(index);
  for (const id n : r.inside)
    by.add(n, n == r.anchor() ? launch_slot::standalone : r.norm >= 0 ? launch_slot::epilogue : launch_slot::prologue);
}

}  // namespace graft
