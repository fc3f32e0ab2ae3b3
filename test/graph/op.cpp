// SPDX-License-Identifier: Apache-2.0
#include <graft/graph/op.h>

#include "../support/static_check.h"

using namespace graft;

namespace {

constexpr int ops = static_cast<int>(op::host) + 1;

constexpr bool all_have_a_row() {
  for (int i = 0; i < ops; ++i)
    if (same_text(traits_of(static_cast<op>(i)).name, "?")) return false;
  return true;
}
constexpr bool names_are_distinct() {
  for (int i = 0; i < ops; ++i)
    for (int j = 0; j < i; ++j)
      if (same_text(traits_of(static_cast<op>(i)).name, traits_of(static_cast<op>(j)).name)) return false;
  return true;
}
constexpr bool infixes_are_distinct() {
  for (int i = 0; i < ops; ++i)
    for (int j = 0; j < i; ++j) {
      const char* s = traits_of(static_cast<op>(i)).infix;
      if (*s != '\0' && same_text(s, traits_of(static_cast<op>(j)).infix)) return false;
    }
  return true;
}
constexpr bool arities_fit() {
  for (int i = 0; i < ops; ++i) {
    const op_traits r = traits_of(static_cast<op>(i));
    if ((r.kind == op_class::leaf) != (r.arity == 0)) return false;
    if (r.infix[0] != '\0' && r.arity != 2) return false;
    if (r.arity < 0 || r.arity > 3) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("ops: every op has a row, a unique name and a valid number of operands") {
  BOTH(all_have_a_row());
  BOTH(names_are_distinct());
  BOTH(infixes_are_distinct());
  BOTH(arities_fit());
}

TEST_CASE("ops: classes") {
  BOTH(is_leaf(op::input));
  BOTH(is_leaf(op::saved));
  BOTH(!is_leaf(op::add));
  BOTH(!is_leaf(op::host));
  BOTH(is_pointwise(op::detach));
  BOTH(is_pointwise(op::heaviside));
  BOTH(!is_pointwise(op::matmul));
  BOTH(!is_pointwise(op::reshape));
}
