// SPDX-License-Identifier: Apache-2.0
// Where an axis of an operand goes: the column `axes` of the op table, read for one node. What keeps its place may be
// computed a piece at a time; what mixes needs all of the operand; what is summed adds up from piece to piece.
#pragma once
#include <graft/graph/graph.h>

namespace graft {

inline constexpr int mixes = -1, is_summed = -2;

// Axis of the result that is `axis` of operand `which`, or mixes, or is_summed.
constexpr int axis_after(const graph& g, const node& v, int which, int axis) {
  const bool sum_away = v.d[axis] == dim{1} && g[v.operand(which)].d[axis] != dim{1};
  switch (row(v.what).axes) {
    case flow::none: return mixes;
    case flow::each: return axis;
    case flow::last: return axis < 3 ? axis : mixes;
    case flow::first: return which == 0 && axis < 3 ? axis : mixes;
    case flow::outer: return which != 1 && axis < 3 ? axis : mixes;
    case flow::matrix: return axis < 2 ? axis : mixes;
    case flow::product: {
      if (axis < 2) return v.sum ? is_summed : axis;
      const bool transposed = which == 0 ? v.ta : v.tb;
      const bool inner = (which == 0) == ((axis == 3) != transposed);
      return inner ? is_summed : which == 0 ? 2 : 3;
    }
    case flow::swap: return axis < 2 ? axis : 5 - axis;
    case flow::reorder:
      for (int i = 0; i < 4; ++i)
        if (v.k[i].v == axis) return i;
      return mixes;
    case flow::regroup: {  // what is outermost before and after, with the same size or a multiple of it
      const node& a = g[v.a];
      int from = 0, to = 0;
      while (from < 3 && a.d[from] == dim{1}) ++from;
      while (to < 3 && v.d[to] == dim{1}) ++to;
      return axis == from ? to : mixes;
    }
    case flow::along: return v.k[0].v == axis ? mixes : axis;
    case flow::spread: return axis == 2 ? 1 : mixes;
    case flow::collect: return axis == 1 ? 2 : mixes;
    case flow::look_up: return which == 1 && axis == 3 ? 2 : mixes;
    case flow::labelled: return which == 1 ? (axis == 3 ? 2 : mixes) : axis < 3 ? axis : mixes;
    case flow::unfold: return axis == 0 ? 1 : mixes;
    case flow::refold: return axis == 1 ? 0 : mixes;
    case flow::reduce: return sum_away ? is_summed : axis;
    case flow::add_rows: return axis == (which == 0 ? 2 : 3) ? is_summed : mixes;
    case flow::add_blocks: return which < 2 && axis < 3 ? is_summed : mixes;
    case flow::add_places: return which == 0 && axis == 2 ? is_summed : mixes;
    case flow::all: return mixes;
  }
  return mixes;
}

}  // namespace graft
