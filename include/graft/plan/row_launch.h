// SPDX-License-Identifier: Apache-2.0
// row_launch: nodes that stand between products and are one launch, because what is between them is read once:
//     a norm with its factors, normalize(x) ⊙ w        heads side by side, [rope(q) | rope(k) | v]
//     the gradient of a norm, with its factors and what is added to it, h + normalize'(x, t ⊙ w)
// The table of rotary positions is looked up on the way. Nothing inside is stored.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/walk.h>

namespace graft {

inline constexpr int most_joined_parts = 4;

struct joined_part {
  id value = none_id;
  bool turned = false;  // by the row's position
};
struct row_launch {
  id result = none_id;
  id norm = none_id, scale = none_id;       // a norm or its gradient, and a factor for each column
  id slope = none_id, added = none_id;      // of the gradient: t, and h
  sequence<joined_part> parts;              // or values side by side,
  id table = none_id, positions = none_id;  // with the angles of every position, and where the rows stand
  sequence<id> inside;                      // in the order in which they would be computed; the result is the last
  constexpr bool found() const { return inside.size() > 1; }
};

namespace detail {

struct row_reader {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;
  const node_set& free;  // nodes that no other launch computes
  row_launch out{};
  id turn = none_id;
  int turned = 0;

  constexpr bool data(id i) const { return i >= 0 && when.of[i] == stage::data; }
  constexpr bool inner(id i) const { return free[i] && readers[i] == 1; }

  [[gnu::cold]] constexpr bool scaled_norm(id i) {
    const node& v = g[i];
    if (v.what != op::mul) return false;
    const bool left = data(v.a) && g[v.a].what == op::normalize;
    const id norm = left ? v.a : v.b, scale = left ? v.b : v.a;
    if (!data(norm) || g[norm].what != op::normalize || !inner(norm) || data(scale)) return false;
    if (count_of_rows(scale) || g[scale].d[3] != g[norm].d[3]) return false;
    out.norm = norm, out.scale = scale;
    return out.inside.push(norm), out.inside.push(i), true;
  }
  [[gnu::cold]] constexpr bool norm_gradient(id i) {
    id at = i;
    if (g[i].what == op::add)
      for (int k = 0; k < 2 && at == i; ++k)
        if (const id o = g[i].operand(k), h = g[i].operand(1 - k); g[o].what == op::normalize_grad && inner(o))
          if (data(h) && same_shape(g[h], g[i])) at = o, out.added = h;
    const node& v = g[at];
    if (v.what != op::normalize_grad) return false;
    out.norm = at, out.slope = v.c;
    const node& t = g[v.c];
    if (t.what == op::mul && data(v.c) && inner(v.c)) {
      const bool left = data(t.a);
      const id value = left ? t.a : t.b, scale = left ? t.b : t.a;
      if (!data(scale) && !count_of_rows(scale) && g[scale].d[3] == t.d[3] && same_shape(g[value], t))
        out.slope = value, out.scale = scale, out.inside.push(v.c);
    }
    out.inside.push(at);
    if (at != i) out.inside.push(i);
    return true;
  }
  constexpr bool count_of_rows(id i) const {  // has it more than one row?
    return g[i].d[0] != dim{1} || g[i].d[1] != dim{1} || g[i].d[2] != dim{1};
  }
  [[gnu::cold]] constexpr void part(id i) {
    const node& v = g[i];
    const bool turns = data(i) && v.what == op::rope && !v.tb && inner(i) && free[v.b] && g[v.b].what == op::gather &&
                       !data(g[v.b].a) && (turn < 0 || turn == v.b);
    if (!turns) return out.parts.push({i, false});
    turn = v.b, ++turned;
    out.parts.push({v.a, true}), out.inside.push(i);
  }
  // Left to right, through concats that nothing else reads.
  [[gnu::cold]] constexpr void parts_of(id i, bool root) {
    const node& v = g[i];
    const bool joins = data(i) && v.what == op::concat && v.k[0] == dim{3} && (root || inner(i));
    if (!joins) return part(i);
    parts_of(v.a, false), parts_of(v.b, false);
    out.inside.push(i);
  }
  [[gnu::cold]] constexpr bool joined(id i) {
    const node& v = g[i];
    if (v.what != op::concat || v.k[0] != dim{3} || v.d[0] != dim{1} || v.d[1] != dim{1}) return false;
    parts_of(i, true);
    if (out.parts.size() > most_joined_parts || (turn >= 0 && readers[turn] != turned)) return false;
    for (const joined_part& p : out.parts)
      if (!data(p.value)) return false;
    if (turn < 0) return true;
    out.table = g[turn].a, out.positions = g[turn].b;
    sequence<id> with;
    with.push(turn);
    for (const id n : out.inside) with.push(n);
    out.inside = with;
    return true;
  }
};

}  // namespace detail

// The launch whose result is node i; not found where that is only the node itself.
[[gnu::cold]] constexpr row_launch row_launch_at(const graph& g, const stages& when, const sequence<int>& readers,
                                                 const node_set& free, id i) {
  detail::row_reader r{g, when, readers, free};
  if (r.scaled_norm(i) || r.norm_gradient(i) || r.joined(i)) {
    r.out.result = i;
    return static_cast<row_launch&&>(r.out);
  }
  return {};
}

}  // namespace graft
