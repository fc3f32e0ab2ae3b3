// SPDX-License-Identifier: Apache-2.0
// How an expression is added up, by what is summed of it: what its kernels are chosen by when it runs, and, of a layer type
// whose sizes are known, which of them a program compiles.
#pragma once
#include <graft/graph/graph.h>

namespace graft::cuda {

// Of each row, up to 256 numbers of it or more; of each column of one matrix; over any axes, which takes the others as well.
enum class sum_form : unsigned char { narrow_rows, rows, columns, any };
inline constexpr int sum_forms = 4;
inline constexpr unsigned widest_narrow_row = 256;

// `size`: of what is added up; `to`: of the result, 1 along the axes that are summed.
constexpr sum_form form_of_sum(const unsigned (&size)[4], const unsigned (&to)[4]) {
  if (to[0] == size[0] && to[1] == size[1] && to[2] == size[2])
    return size[3] <= widest_narrow_row ? sum_form::narrow_rows : sum_form::rows;
  const bool columns = size[0] == 1 && size[1] == 1 && to[2] == 1 && to[3] == size[3];
  return columns ? sum_form::columns : sum_form::any;
}
// A bit for each form that node i, a sum, can have: any other may be refused by where its operands lie. `number` gives
// sizes, 0 where they are not known.
template <class Number> constexpr unsigned forms_of_sum(const graph& g, id i, Number number) {
  unsigned size[4] = {}, to[4] = {};
  for (int k = 0; k < 4; ++k) {
    size[k] = static_cast<unsigned>(number(g[g[i].a].d[k])), to[k] = static_cast<unsigned>(number(g[i].d[k]));
    if (size[k] == 0 || to[k] == 0) return (1U << sum_forms) - 1;
  }
  return 1U << static_cast<int>(form_of_sum(size, to)) | 1U << static_cast<int>(sum_form::any);
}

}  // namespace graft::cuda
