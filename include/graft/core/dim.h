// SPDX-License-Identifier: Apache-2.0
// dim: one size of a tensor, either a number or a symbol that gets its number later. Users write a number or `dyn`. In
// a graph a non-negative `v` is the number; a negative one is an entry of the graph's size table (graph/sizes.h).
#pragma once
namespace graft {

inline constexpr int dyn = -1;

struct dim {
  int v = 1;
  constexpr bool is_static() const { return v >= 0; }
  constexpr int entry() const { return -1 - v; }
  friend constexpr bool operator==(dim, dim) = default;
};
constexpr dim entry_dim(int index) { return {-1 - index}; }

}  // namespace graft
