// SPDX-License-Identifier: Apache-2.0
// Where an axis of an operand is found in the result: the column `axes` of the op table (graph/op.h), applied to one
// node. An axis that has a position in the result can be computed in chunks, one that is mixed needs the whole operand
// at once, and one that is summed is accumulated over chunks.
#pragma once
#include <graft/graph/graph.h>

namespace graft {

// What a sorted row takes from the operand of a dispatch: the row of its token of [tokens, n], the row of its expert of
// [experts, 1, n], or the element of both of [tokens, experts]. `row`: of a combine that leaves each row where it is.
enum class routed_by : unsigned char { token, expert, both, row };

inline constexpr int mixed_axis = -1, summed_axis = -2;

constexpr bool by_expert(const node& v) { return v.k[0] == dim{static_cast<int>(routed_by::expert)}; }

// Returns the axis of the result that corresponds to `axis` of operand `which`, or mixes, or summed_axis.
constexpr int axis_after(const graph& g, const node& v, int which, int axis) {
  const bool reduced = v.d[axis] == dim{1} && g[v.operand(which)].d[axis] != dim{1};
  switch (traits_of(v.what).axes) {
    case axis_flow::none: return mixed_axis;
    case axis_flow::elementwise: return axis;
    case axis_flow::mix_last: return axis < 3 ? axis : mixed_axis;
    case axis_flow::mix_last_of_first: return which == 0 && axis < 3 ? axis : mixed_axis;
    case axis_flow::mix_last_of_two: return which != 1 && axis < 3 ? axis : mixed_axis;
    case axis_flow::mix_matrix: return axis < 2 ? axis : mixed_axis;
    case axis_flow::product: {
      if (axis < 2) return v.sum ? summed_axis : axis;
      const bool transposed = which == 0 ? v.ta : v.tb;
      const bool inner = (which == 0) == ((axis == 3) != transposed);
      return inner ? summed_axis : which == 0 ? 2 : 3;
    }
    case axis_flow::transpose: return axis < 2 ? axis : 5 - axis;
    case axis_flow::permute:
      for (int i = 0; i < 4; ++i)
        if (v.k[i].v == axis) return i;
      return mixed_axis;
    case axis_flow::reshape: {  // the outermost axis stays outermost, possibly with a multiple of its size
      const node& a = g[v.a];
      int from = 0, to = 0;
      while (from < 3 && a.d[from] == dim{1}) ++from;
      while (to < 3 && v.d[to] == dim{1}) ++to;
      return axis == from ? to : mixed_axis;
    }
    case axis_flow::mix_axis: return v.k[0].v == axis ? mixed_axis : axis;
    case axis_flow::row_to_matrix: return axis == 2 ? 1 : mixed_axis;
    case axis_flow::matrix_to_row: return axis == 1 ? 2 : mixed_axis;
    case axis_flow::gather: return which == 1 && axis == 3 ? 2 : mixed_axis;
    case axis_flow::row_labels: return which == 1 ? (axis == 3 ? 2 : mixed_axis) : axis < 3 ? axis : mixed_axis;
    case axis_flow::im2col: return axis == 0 ? 1 : mixed_axis;
    case axis_flow::col2im: return axis == 1 ? 0 : mixed_axis;
    case axis_flow::reduce: return reduced ? summed_axis : axis;
    case axis_flow::scatter_add: return axis == (which == 0 ? 2 : 3) ? summed_axis : mixed_axis;
    case axis_flow::sum_into_blocks: return which < 2 && axis < 3 ? summed_axis : mixed_axis;
    case axis_flow::scatter_values: return which == 0 && axis == 2 ? summed_axis : mixed_axis;
    case axis_flow::routed:
    case axis_flow::
        routed_sum: {  // tokens, and the rows that they send to experts, are one axis: each token has k rows
      const bool of_experts =
          v.what == op::grouped_matmul ? which == 1 : v.what == op::dispatch && which == 0 && by_expert(v);
      if (axis != 2 || of_experts) return mixed_axis;
      return v.what == op::grouped_wgrad || (v.what == op::combine && by_expert(v)) ? summed_axis : axis;
    }
    case axis_flow::all: return mixed_axis;
  }
  return mixed_axis;
}

}  // namespace graft
