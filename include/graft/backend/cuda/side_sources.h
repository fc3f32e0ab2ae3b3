// SPDX-License-Identifier: Apache-2.0
// What packing a side branch reads: its matrices, each of which may be another value times a number.
#pragma once
#include <graft/derive/walk.h>
#include <graft/plan/product.h>

namespace graft::cuda {

// A value that is another one times a number: packing multiplies on its way.
struct scaled_source {
  id value, factor;
};
constexpr scaled_source scaled_value(const graph& g, id i, id factor) {
  if (i < 0 || factor >= 0 || g[i].what != op::mul) return {i, factor};
  const graft::node& v = g[i];
  if (is_scalar(g[v.a]) && same_shape(g[v.b], v)) return {v.b, v.a};
  if (is_scalar(g[v.b]) && same_shape(g[v.a], v)) return {v.a, v.b};
  return {i, factor};
}
constexpr bool of_adapter(const graph& g, const scaled_source& s) { return s.value < 0 || base_leaf(g, s.value) < 0; }
// Are A and B of every side numbers of the adapter? Then those of several products are packed by one launch.
constexpr bool packs_plainly(const graph& g, const product_slots& s) {
  bool plain = true;
  for (const side_branch& side : s.sides)
    plain = plain && (side.a >= 0 || !side.made) && (side.b >= 0 || !side.added) &&
            of_adapter(g, scaled_value(g, side.a, none_id)) && of_adapter(g, scaled_value(g, side.b, side.factor));
  return plain;
}
// The value that stands for x Aᵀ and was made before, of x with dropout; -1: none.
constexpr id given_side_of(const product_slots& s) {
  return !s.sides.empty() && !s.sides[0].made ? s.sides[0].s : none_id;
}
// The value x Aᵀ that the launch stores for others; -1: none.
constexpr id kept_side_of(const product_slots& s) {
  return !s.sides.empty() && s.sides[0].kept ? s.sides[0].s : none_id;
}

}  // namespace graft::cuda
