// SPDX-License-Identifier: Apache-2.0
// A size that is known now or named and known later. Users write a number or `dyn`; inside a graph a size is a `dim`:
// a value when non-negative, else an entry of the graph's table of named and derived sizes (graph/sizes.h).
#pragma once
namespace graft {

inline constexpr int dyn = -1;

struct dim {
  int v = 1;
  constexpr bool known() const { return v >= 0; }
  constexpr int entry() const { return -1 - v; }
  friend constexpr bool operator==(dim, dim) = default;
};
constexpr dim entry_dim(int index) { return {-1 - index}; }

}  // namespace graft
