// SPDX-License-Identifier: Apache-2.0
// row_flow: which values of a call can be computed in chunks of rows. Along the token axis an operation keeps rows
// apart, sums them, or combines them (graph/axes.h). The first kind runs chunk by chunk together with its operands, the
// second accumulates over chunks, and the third needs all rows of its operand, so it waits for the end of the round
// that computes them. softmax(x xᵀ) x is one round, because x exists from the start.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/traversal.h>
#include <graft/graph/axes.h>

namespace graft {

enum class row_dependence : unsigned char {
  none,   // does not depend on the call's data
  chunk,  // a chunk of its rows depends on those rows of its operands only
  sum,    // one value for all rows, accumulated over chunks
  whole,  // needs all rows of an operand at once, or depends on sums
};

struct row_flow {
  sequence<row_dependence> dependence_of;
  sequence<int> axis;   // the token axis; -1: none
  sequence<int> round;  // a round computes its whole values first, then its chunks and sums
  int rounds = 0;
};

namespace detail {
// The outermost axis of size above 1 if it counts tokens, so that a chunk of rows is contiguous in memory; else -1.
constexpr int token_axis(const graph& g, const node& v) {
  int axis = 0;
  while (axis < 3 && v.d[axis] == dim{1}) ++axis;
  return g.sizes.has_token_rows(v.d[axis]) ? axis : -1;
}
// Returns true if node i reads operand k in chunks, which is also possible for values that an earlier round stored.
[[gnu::noinline]] constexpr bool read_by_chunk(const graph& g, const row_flow& f, id i, int k) {
  const id o = g[i].operand(k);
  if (o < 0 || f.axis[o] < 0 || (f.dependence_of[o] == row_dependence::none && !is_leaf(g[o].what))) return false;
  const int after = axis_after(g, g[i], k, f.axis[o]);
  return f.dependence_of[i] == row_dependence::chunk
             ? after == f.axis[i]
             : f.dependence_of[i] == row_dependence::sum && after == summed_axis;
}
}  // namespace detail

[[gnu::cold]] constexpr row_flow find_row_flow(const graph& g, const stages& when, const node_set& live) {
  row_flow f{sequence<row_dependence>(g.size, row_dependence::none), sequence<int>(g.size, -1),
             sequence<int>(g.size, 0)};
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    if (!live[i] || when.of[i] != stage::call) continue;
    if (is_leaf(v.what)) {
      f.axis[i] = detail::token_axis(g, v);
      continue;
    }
    int passes = -1, sums = 0, others = 0;  // the axis that an operand maps to; operands that are summed; all others
    const int outermost = detail::token_axis(g, v);
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      if (o < 0 || when.of[o] != stage::call) continue;
      const int after = f.axis[o] < 0 ? mixed_axis : axis_after(g, v, k, f.axis[o]);
      if (after >= 0 && after == outermost) passes = after;
      sums += after == summed_axis ? 1 : 0, others += after != summed_axis ? 1 : 0;
    }
    const bool adds = v.what == op::matmul || accumulates_result(v.what);
    f.dependence_of[i] = passes >= 0 && v.what != op::host ? row_dependence::chunk
                         : sums > 0 && others == 0 && adds ? row_dependence::sum
                                                           : row_dependence::whole;
    f.axis[i] = outermost;
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      if (o < 0 || f.dependence_of[o] == row_dependence::none) continue;
      const bool same_round = f.dependence_of[o] == row_dependence::whole ||
                              (f.dependence_of[o] == row_dependence::chunk && detail::read_by_chunk(g, f, i, k));
      const int after = f.round[o] + (same_round ? 0 : 1);
      if (after > f.round[i]) f.round[i] = after;
    }
    if (f.round[i] + 1 > f.rounds) f.rounds = f.round[i] + 1;
  }
  return f;
}

}  // namespace graft
