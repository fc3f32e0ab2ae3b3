// SPDX-License-Identifier: Apache-2.0
// small_stacks: products and sums of small square matrices, single ones or stacks of the same number, that do not grow with
// the tokens: what lies between the gradient of a rotation and that of its parameters (OFT, BOFT, HRA),
//     dV = unskew(((I - Q)ᵀ …) …)                     one matrix of each stack at a time
//     dT = upper(T⁻ᵀ (ÛᵀG) T⁻ᵀ)                        rank x rank
// A target that has a kernel for it takes a matrix of every stack through all of them in one launch, and stores what others
// read.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/walk.h>
#include <graft/plan/target.h>

namespace graft {

inline constexpr int most_stack_steps = 16, most_stack_operands = 8, most_stack_places = 12;

struct small_stack {
  sequence<id> inside, operands;   // in the order in which they are computed; what they read, but for single numbers
  sequence<int> place, placed_at;  // of each of them: the matrices at hand, a place for one that nobody reads any more
  int places = 0;
};

namespace detail {
struct stack_finder {
  const graph& g;
  const stages& when;
  const node_set& free;  // what no other launch computes

  constexpr bool square(id i) const {
    const node& v = g[i];
    return v.d[2] == v.d[3] && v.d[2] != dim{1};
  }
  constexpr bool reads(const node& like, id o) const { return same_shape(g[o], like) || is_scalar(g[o]); }
  constexpr bool joins(id i) const {
    const node& v = g[i];
    if (!free[i] || when.by_token[i]) return false;
    if (v.what == op::unskew) return square(v.a);
    if (!square(i)) return false;
    if (v.what == op::matmul) return !v.sum && same_shape(g[v.a], v) && same_shape(g[v.b], v);
    if (v.what == op::transpose || v.what == op::upper) return true;
    return (v.what == op::add || v.what == op::sub || v.what == op::mul) && reads(v, v.a) && reads(v, v.b);
  }
  // Nothing outside of it follows from it and is followed by it: it can be one launch.
  [[gnu::cold]] constexpr bool closed(const node_set& in) const {
    node_set after(g.size);
    for (id i = 0; i < g.size; ++i)
      for (int k = 0; k < 3; ++k)
        if (const id o = g[i].operand(k); o >= 0) {
          if (in[i] && !in[o] && after[o]) return false;
          if ((in[o] || after[o]) && !in[i]) after.add(i);
        }
    return true;
  }
  // All operands are at hand from the beginning; what a node makes takes a place that is free then.
  [[gnu::cold]] constexpr void place(small_stack& s) const {
    sequence<int> last(g.size, -1);  // the step that reads it last
    node_set known(g.size);
    for (int k = 0; k < s.inside.size(); ++k)
      for (int n = 0; n < 3; ++n)
        if (const id o = g[s.inside[k]].operand(n); o >= 0) last[o] = k;
    for (const id i : s.inside) known.add(i);
    sequence<int> busy;  // by place: until that step
    for (const id i : s.inside)
      for (int n = 0; n < 3; ++n)
        if (const id o = g[i].operand(n); o >= 0 && !known[o] && !is_scalar(g[o]))
          known.add(o), s.operands.push(o), s.placed_at.push(busy.size()), busy.push(last[o]);
    for (int k = 0; k < s.inside.size(); ++k) {
      int at = 0;
      while (at < busy.size() && busy[at] >= k) ++at;
      if (at == busy.size()) busy.push(k);
      s.place.push(at), busy[at] = last[s.inside[k]];
    }
    s.places = busy.size();
  }
  [[gnu::cold]] constexpr bool fits(const small_stack& s, const node_set& in) const {
    int products = 0;
    for (const id i : s.inside) products += g[i].what == op::matmul ? 1 : 0;
    return products > 1 && s.inside.size() <= most_stack_steps && s.operands.size() <= most_stack_operands &&
           s.places <= most_stack_places && closed(in);
  }
};
}  // namespace detail

// All of a graph; `of`: for each node the one that it is part of, or -1.
[[gnu::cold]] constexpr sequence<small_stack> small_stacks(const graph& g, const stages& when, const node_set& free,
                                                           sequence<int>& of) {
  sequence<small_stack> all;
  const detail::stack_finder f{g, when, free};
  sequence<id> root(g.size, none_id);  // nodes with the same one hang together
  for (id i = 0; i < g.size; ++i) {
    if (!f.joins(i)) continue;
    root[i] = i;
    for (int k = 0; k < 3; ++k)
      if (const id o = g[i].operand(k); o >= 0 && root[o] >= 0 && root[o] != root[i]) {
        const id from = root[i], to = root[o];
        for (id& r : root) r = r == from ? to : r;
      }
  }
  for (id first = 0; first < g.size; ++first) {
    if (root[first] < 0) continue;
    small_stack s;
    node_set in(g.size);
    for (id i = first; i < g.size; ++i)
      if (root[i] == root[first]) s.inside.push(i), in.add(i);
    const id mine = root[first];
    for (id& r : root) r = r == mine ? none_id : r;
    f.place(s);
    if (!f.fits(s, in)) continue;
    for (const id i : s.inside) of[i] = all.size();
    all.push(static_cast<small_stack&&>(s));
  }
  return all;
}

// Does the kernel take these? Else each node is one of its own.
constexpr bool takes_stack(const graph& g, const small_stack& s, const size_values& sizes, const target& to) {
  for (const id i : s.inside)
    if (g[i].what == op::matmul) return g.sizes.value(g[i].d[3], sizes) <= to.largest_stack_side;
  return false;
}

}  // namespace graft
