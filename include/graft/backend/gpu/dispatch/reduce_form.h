// SPDX-License-Identifier: Apache-2.0
// The reduction forms of expressions (rows, columns, any axes). At run time the form selects the kernel; for a layer
// type with known sizes it also selects which kernels a program compiles.
#pragma once
#include <graft/graph/graph.h>

namespace graft::gpu {

// narrow_rows: sum of each row of up to 256 elements; rows: of longer rows; columns: of each column of one matrix; any:
// over any axes, which also handles the other forms.
enum class reduce_form : unsigned char { narrow_rows, rows, columns, any };
inline constexpr int reduce_form_count = 4;
inline constexpr unsigned max_narrow_row = 256;

// `size` is the shape of the summed value, `to` the shape of the result, which is 1 along summed axes.
constexpr reduce_form reduce_form_of(const unsigned (&size)[4], const unsigned (&to)[4]) {
  if (to[0] == size[0] && to[1] == size[1] && to[2] == size[2])
    return size[3] <= max_narrow_row ? reduce_form::narrow_rows : reduce_form::rows;
  const bool columns = size[0] == 1 && size[1] == 1 && to[2] == 1 && to[3] == size[3];
  return columns ? reduce_form::columns : reduce_form::any;
}
// A bit for each form that node i, a sum, may need: the special form, and `any` in case the alignment of an operand
// rules the special form out. `number` maps a dimension to its size, or 0 if it is unknown.
template <class Number> constexpr unsigned reduce_forms_of(const graph& g, id i, Number number) {
  unsigned size[4] = {}, to[4] = {};
  for (int k = 0; k < 4; ++k) {
    size[k] = static_cast<unsigned>(number(g[g[i].a].d[k])), to[k] = static_cast<unsigned>(number(g[i].d[k]));
    if (size[k] == 0 || to[k] == 0) return (1U << reduce_form_count) - 1;
  }
  return 1U << static_cast<int>(reduce_form_of(size, to)) | 1U << static_cast<int>(reduce_form::any);
}

}  // namespace graft::gpu
