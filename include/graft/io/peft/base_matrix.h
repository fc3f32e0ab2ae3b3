// SPDX-License-Identifier: Apache-2.0
// The base weight as an svd::matrix, for methods that initialize or derive factors from its decomposition.
#pragma once
#include <graft/backend/cpu/runtime/storage.h>
#include <graft/io/peft/layer_source.h>
#include <graft/io/svd/matrix.h>

namespace graft::io::peft {

// `what` names, in an error, the factors that are derived from the weight.
inline result<svd::matrix> base_matrix(const peft_layer_state& s, const char* what) {
  const view& w = s.base.weight;
  const long long out = s.base.out, in = s.base.in;
  if (w.data == nullptr || !is_floating(w.type) || w.rank != 2 || w.size[0] != out || w.size[1] != in)
    return fail_in(s.file.file, what,
                   " follow from the base weight: give it to read_peft_layer as base_layer::weight, [", out, ", ", in,
                   "]");
  svd::matrix a(static_cast<std::size_t>(out), static_cast<std::size_t>(in));
  std::vector<double> row(static_cast<std::size_t>(in));
  for (std::size_t i = 0; i < a.rows; ++i) {
    cpu::read(w, static_cast<long long>(i) * in, in, row.data());
    for (std::size_t j = 0; j < a.cols; ++j) a(i, j) = row[j];
  }
  return a;
}

}  // namespace graft::io::peft
