// SPDX-License-Identifier: Apache-2.0
// Which operations a program has. There are some sixty, and compiling their arithmetic takes seconds: a layer type knows
// its own and compiles no others.
#pragma once
#include <graft/graph/graph.h>

#include <cstdint>

namespace graft {

using op_set = std::uint64_t;
// What a caller brings is not computed: the first leaves, state, and what it does outside the language, which come last.
constexpr op_set op_bit(op what) {
  if (what < op::constant || what >= op::state) return 0;
  return op_set{1} << (static_cast<unsigned>(what) - static_cast<unsigned>(op::constant));
}
static_assert(static_cast<int>(op::state) - static_cast<int>(op::constant) <= 64, "the operations in between fit");
inline constexpr op_set every_op = ~op_set{0};
constexpr op_set ops_of(const graph& g) {
  op_set ops = 0;
  for (int i = 0; i < g.size; ++i) ops |= op_bit(g.n[i].what);
  return ops;
}
// The first node whose operation is not among them.
constexpr id first_without(const graph& g, op_set have) {
  for (id i = 0; i < g.size; ++i)
    if ((op_bit(g.n[i].what) & ~have) != 0) return i;
  return none_id;
}

}  // namespace graft
