// SPDX-License-Identifier: Apache-2.0
// chained: part of a graph read as a small matrix of every token between two that all tokens share, and as the gradients of
// these (LoKr):
//     D = L Z R                                    Z comes with the data, L and R are known before
//     E = Σ Z (X Rᵀ)ᵀ,  F = Σ (L Z)ᵀ X              where Z is the gradient of what X was multiplied to
// A target that has a kernel for it runs all of it as one launch, and stores nothing between Z and D.
#pragma once
#include <graft/plan/target.h>
#include <graft/plan/token_sum.h>

namespace graft {

struct chained_product {
  id result = none_id, between = none_id;  // D, and L Z or Z R below it
  id z = none_id, left = none_id, right = none_id;
  bool left_turned = false, right_turned = false;  // stored as Lᵀ, as Rᵀ
  id x = none_id, other = none_id;                 // X, and X Rᵀ; none: nothing is summed
  id left_sum = none_id, right_sum = none_id;      // E, F

  constexpr bool found() const { return result >= 0; }
  constexpr bool sums() const { return x >= 0; }
  constexpr sequence<id> inside() const {
    sequence<id> all;
    all.push(between), all.push(result);
    if (sums()) all.push(other), all.push(left_sum), all.push(right_sum);
    return all;
  }
};

namespace detail {
struct chain_reader {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;

  constexpr bool known(id i) const { return when.of[i] != stage::data && one_matrix(g[i]); }
  // A matrix of each token.
  constexpr bool is_stack(id i) const {
    return when.of[i] == stage::data && g[i].d[0] == dim{1} && g[i].d[1] != dim{1};
  }
  constexpr bool multiplies(id i) const {
    return i >= 0 && g[i].what == op::matmul && when.of[i] == stage::data && !is_output(g, i);
  }
  constexpr chained_product at(id i) const {
    const node& v = g[i];
    if (!multiplies(i) || v.sum || !is_stack(i)) return {};
    chained_product c;
    const bool ends_right = is_stack(v.a) && known(v.b);
    c.between = ends_right ? v.a : v.b;
    if ((!ends_right && !(known(v.a) && is_stack(v.b))) || !multiplies(c.between)) return {};
    const node& m = g[c.between];
    if (m.sum ||
        (ends_right ? v.ta || m.tb || !known(m.a) || !is_stack(m.b) : v.tb || m.ta || !known(m.b) || !is_stack(m.a)))
      return {};
    c.z = ends_right ? m.b : m.a;
    c.left = ends_right ? m.a : v.a, c.left_turned = ends_right ? m.ta : v.ta;
    c.right = ends_right ? v.b : m.b, c.right_turned = ends_right ? v.tb : m.tb;
    if (readers[c.between] == 1) return c.result = i, c;
    if (ends_right) take_sums(c);
    if (c.sums()) c.result = i;
    return c;
  }
  constexpr void take_sums(chained_product& c) const {
    id e = none_id, f = none_id, u = none_id;
    for (id i = c.between + 1; i < g.size; ++i) {
      const node& v = g[i];
      if (v.what != op::matmul || !v.sum || when.of[i] != stage::data) continue;
      if (v.a == c.between && v.ta && !v.tb && is_stack(v.b)) f = i;
      if (v.a == c.z && !v.ta && v.tb && multiplies(v.b)) e = i, u = v.b;
    }
    if (e < 0 || f < 0 || readers[c.between] != 2 || readers[u] != 1 || g[u].sum) return;
    const node& v = g[u];
    if (v.a != g[f].b || v.b != c.right || v.ta || v.tb == c.right_turned) return;
    c.x = v.a, c.other = u, c.left_sum = e, c.right_sum = f;
  }
};
}  // namespace detail

// All of a graph; `of`: for each node the one that it is part of, or -1.
[[gnu::cold]] constexpr sequence<chained_product> chained_products(const graph& g, const stages& when,
                                                                   const sequence<int>& readers, sequence<int>& of) {
  sequence<chained_product> all;
  const detail::chain_reader r{g, when, readers};
  for (id i = 0; i < g.size; ++i) {
    const chained_product c = r.at(i);
    if (!c.found()) continue;
    bool free = true;
    for (const id n : c.inside()) free = free && of[n] < 0;
    if (!free) continue;
    for (const id n : c.inside()) of[n] = all.size();
    all.push(c);
  }
  return all;
}

struct chain_sides {
  long long left_rows = 0, rows = 0, columns = 0,
            right_columns = 0;  // L is [left_rows, rows], R [columns, right_columns]
};
constexpr chain_sides sides_of(const graph& g, const chained_product& c, const size_values& s) {
  auto size = [&](id i, int axis) { return g.sizes.value(g[i].d[axis], s); };
  return {size(c.result, 2), size(c.z, 2), size(c.z, 3), size(c.result, 3)};
}
// Does the kernel take these? Else each of the products is one of its own.
constexpr bool takes_chain(const graph& g, const chained_product& c, const size_values& s, dtype type,
                           const target& to) {
  const chain_sides n = sides_of(g, c, s);
  const long long most = to.largest_chained_side;
  return (type == dtype::bf16 || type == dtype::f16) && n.left_rows <= most && n.rows <= most && n.columns <= most &&
         n.right_columns <= most && n.columns % 8 == 0 && n.right_columns % 8 == 0;
}

}  // namespace graft
