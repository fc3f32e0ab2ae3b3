// SPDX-License-Identifier: Apache-2.0
// op_set: which operations a program has. Their arithmetic takes seconds to compile for all of more than sixty ops, so
// a layer type compiles only its own.
#pragma once
#include <graft/graph/graph.h>

#include <cstdint>

namespace graft {

struct op_set {
  std::uint64_t first = 0, further = 0;  // one bit per operation from op::constant on

  friend constexpr bool operator==(op_set, op_set) = default;
  friend constexpr op_set operator|(op_set a, op_set b) { return {a.first | b.first, a.further | b.further}; }
  friend constexpr op_set operator&(op_set a, op_set b) { return {a.first & b.first, a.further & b.further}; }
  friend constexpr op_set operator~(op_set a) { return {~a.first, ~a.further}; }
  constexpr bool any() const { return (first | further) != 0; }
};
// The bit of an op that a kernel evaluates. Tensors that a caller binds (the leaves before constant, and state),
// collectives and host functions have none.
constexpr op_set op_bit(op what) {
  if (what < op::constant || what >= op::state) return {};
  const unsigned bit = static_cast<unsigned>(what) - static_cast<unsigned>(op::constant);
  return bit < 64 ? op_set{std::uint64_t{1} << bit, 0} : op_set{0, std::uint64_t{1} << (bit - 64)};
}
static_assert(static_cast<int>(op::state) - static_cast<int>(op::constant) <= 128, "the operations in between fit");
inline constexpr op_set every_op = ~op_set{};
constexpr op_set ops_of(const graph& g) {
  op_set ops;
  for (int i = 0; i < g.size; ++i) ops = ops | op_bit(g.n[i].what);
  return ops;
}
// The first node whose operation is not in `have`.
constexpr id first_missing_op(const graph& g, op_set have) {
  for (id i = 0; i < g.size; ++i)
    if ((op_bit(g.n[i].what) & ~have).any()) return i;
  return none_id;
}

}  // namespace graft
