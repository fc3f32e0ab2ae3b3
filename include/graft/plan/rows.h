// SPDX-License-Identifier: Apache-2.0
// rows: which values of a call can be computed a few rows at a time. Along the axis that counts tokens an operation keeps
// rows apart, sums them, or mixes them (graph/axes.h). What keeps them apart runs piece by piece with what it reads;
// what sums them adds up from piece to piece; what mixes them needs all rows of its operand, so it waits until the round
// before has gone through all pieces. softmax(x xᵀ) x is one round, since x is there from the start.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/walk.h>
#include <graft/graph/axes.h>

namespace graft {

enum class reach : unsigned char {
  none,   // not computed from a call's data
  piece,  // a few rows of it follow from the same rows of its operands
  sum,    // one value for all rows, which adds up from piece to piece
  whole,  // needs all rows of an operand at once, or follows from sums
};

struct row_flow {
  sequence<reach> how;
  sequence<int> axis;   // the axis that counts tokens; -1: none
  sequence<int> round;  // wholes of a round are computed first, then its pieces and sums
  int rounds = 0;
};

namespace detail {
// The outermost axis of more than one entry, if it counts tokens: rows then lie one after the other in memory.
constexpr int token_axis(const graph& g, const node& v) {
  int axis = 0;
  while (axis < 3 && v.d[axis] == dim{1}) ++axis;
  return g.sizes.by_token(v.d[axis]) ? axis : -1;
}
// Is operand k of node i read by the piece? What an earlier round left whole can be, too.
[[gnu::noinline]] constexpr bool read_by_piece(const graph& g, const row_flow& f, id i, int k) {
  const id o = g[i].operand(k);
  if (o < 0 || f.axis[o] < 0 || (f.how[o] == reach::none && !is_leaf(g[o].what))) return false;
  const int after = axis_after(g, g[i], k, f.axis[o]);
  return f.how[i] == reach::piece ? after == f.axis[i] : f.how[i] == reach::sum && after == is_summed;
}
}  // namespace detail

[[gnu::cold]] constexpr row_flow flow_of_rows(const graph& g, const stages& when, const node_set& live) {
  row_flow f{sequence<reach>(g.size, reach::none), sequence<int>(g.size, -1), sequence<int>(g.size, 0)};
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    if (!live[i] || when.of[i] != stage::data) continue;
    if (is_leaf(v.what)) {
      f.axis[i] = detail::token_axis(g, v);
      continue;
    }
    int passes = -1, sums = 0,
        others = 0;  // the axis that some operand passes on; operands that are summed, or neither
    const int outermost = detail::token_axis(g, v);
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      if (o < 0 || when.of[o] != stage::data) continue;
      const int after = f.axis[o] < 0 ? mixes : axis_after(g, v, k, f.axis[o]);
      if (after >= 0 && after == outermost) passes = after;
      sums += after == is_summed ? 1 : 0, others += after != is_summed ? 1 : 0;
    }
    const bool adds = v.what == op::matmul || adds_up(v.what);
    f.how[i] = passes >= 0 && v.what != op::host ? reach::piece
               : sums > 0 && others == 0 && adds ? reach::sum
                                                 : reach::whole;
    f.axis[i] = outermost;
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      if (o < 0 || f.how[o] == reach::none) continue;
      const bool same_round =
          f.how[o] == reach::whole || (f.how[o] == reach::piece && detail::read_by_piece(g, f, i, k));
      const int after = f.round[o] + (same_round ? 0 : 1);
      if (after > f.round[i]) f.round[i] = after;
    }
    if (f.round[i] + 1 > f.rounds) f.rounds = f.round[i] + 1;
  }
  return f;
}

}  // namespace graft
