// SPDX-License-Identifier: Apache-2.0
// kronecker_chain: LoKr's products of small matrices, one per token, as one launch, and the gradients of both factors:
//     D = L Z R                            Z and D are a matrix per token; L and R are precomputed, for all tokens
//     E = Σ Z (X Rᵀ)ᵀ,  F = Σ (L Z)ᵀ X     are sums over the tokens; Z is dy, and X has the shape of D
// A target with a kernel for it stores nothing between Z and D.
#pragma once
#include <graft/plan/launch/single_nodes.h>
#include <graft/plan/launch/wgrad.h>

namespace graft {

struct kronecker_chain {
  struct capabilities {
    int max_size = 0;  // largest matrix; 0: there is no kernel
  };
  struct work {};
  static constexpr bool by_nodes = true;

  id result = none_id, between = none_id;  // D, and L Z or Z R
  id z = none_id, left = none_id, right = none_id;
  bool left_transposed = false, right_transposed = false;  // stored as Lᵀ, as Rᵀ
  id x = none_id, other = none_id;                         // X, and X Rᵀ; none: there are no gradients
  id left_sum = none_id, right_sum = none_id;              // E, F

  constexpr bool found() const { return result >= 0; }
  constexpr bool sums() const { return x >= 0; }
  constexpr sequence<id> inside() const {
    sequence<id> all;
    all.push(between), all.push(result);
    if (sums()) all.push(other), all.push(left_sum), all.push(right_sum);
    return all;
  }

  constexpr id anchor() const { return result; }
  constexpr const char* name(const graph&) const { return "GEMM"; }
  template <class Facts> constexpr int kernels(const Facts& in) const;
  template <class Planner> static constexpr void match(Planner& by);
  template <class Planner> static constexpr void add(Planner& by, int index, id i);
};

namespace detail {
struct chain_matcher {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;

  constexpr bool is_precomputed(id i) const { return when.of[i] != stage::call && one_matrix(g[i]); }
  // Returns true for a stack of matrices, one per token.
  constexpr bool is_stack(id i) const {
    return when.of[i] == stage::call && g[i].d[0] == dim{1} && g[i].d[1] != dim{1};
  }
  constexpr bool multiplies(id i) const {
    return i >= 0 && g[i].what == op::matmul && when.of[i] == stage::call && !is_output(g, i);
  }
  constexpr kronecker_chain at(id i) const {
    const node& v = g[i];
    if (!multiplies(i) || v.sum || !is_stack(i)) return {};
    kronecker_chain c;
    const bool right_last = is_stack(v.a) && is_precomputed(v.b);
    c.between = right_last ? v.a : v.b;
    if ((!right_last && !(is_precomputed(v.a) && is_stack(v.b))) || !multiplies(c.between)) return {};
    const node& m = g[c.between];
    if (m.sum || (right_last ? v.ta || m.tb || !is_precomputed(m.a) || !is_stack(m.b)
                             : v.tb || m.ta || !is_precomputed(m.b) || !is_stack(m.a)))
      return {};
    c.z = right_last ? m.b : m.a;
    c.left = right_last ? m.a : v.a, c.left_transposed = right_last ? m.ta : v.ta;
    c.right = right_last ? v.b : m.b, c.right_transposed = right_last ? v.tb : m.tb;
    if (readers[c.between] == 1) return c.result = i, c;
    if (right_last) match_wgrads(c);
    if (c.sums()) c.result = i;
    return c;
  }
  constexpr void match_wgrads(kronecker_chain& c) const {
    id e = none_id, f = none_id, u = none_id;
    for (id i = c.between + 1; i < g.size; ++i) {
      const node& v = g[i];
      if (v.what != op::matmul || !v.sum || when.of[i] != stage::call) continue;
      if (v.a == c.between && v.ta && !v.tb && is_stack(v.b)) f = i;
      if (v.a == c.z && !v.ta && v.tb && multiplies(v.b)) e = i, u = v.b;
    }
    if (e < 0 || f < 0 || readers[c.between] != 2 || readers[u] != 1 || g[u].sum) return;
    const node& v = g[u];
    if (v.a != g[f].b || v.b != c.right || v.ta || v.tb == c.right_transposed) return;
    c.x = v.a, c.other = u, c.left_sum = e, c.right_sum = f;
  }
};
}  // namespace detail

// Finds all chains of a graph; of[i] becomes the index of the one that contains node i.
[[gnu::cold]] constexpr sequence<kronecker_chain> find_kronecker_chains(const graph& g, const stages& when,
                                                                        const sequence<int>& readers,
                                                                        sequence<int>& of) {
  sequence<kronecker_chain> all;
  const detail::chain_matcher r{g, when, readers};
  for (id i = 0; i < g.size; ++i) {
    const kronecker_chain c = r.at(i);
    if (!c.found()) continue;
    bool free = true;
    for (const id n : c.inside()) free = free && of[n] < 0;
    if (!free) continue;
    for (const id n : c.inside()) of[n] = all.size();
    all.push(c);
  }
  return all;
}

struct chain_sizes {
  long long left_rows = 0, rows = 0, columns = 0,
            right_columns = 0;  // L is [left_rows, rows], R [columns, right_columns]
};
constexpr chain_sizes chain_sizes_of(const graph& g, const kronecker_chain& c, const size_values& s) {
  auto size = [&](id i, int axis) { return g.sizes.value(g[i].d[axis], s); };
  return {size(c.result, 2), size(c.z, 2), size(c.z, 3), size(c.result, 3)};
}
// Returns true if the target's kernel supports these sizes; otherwise each product is a kernel of its own.
constexpr bool fuses_chain(const graph& g, const kronecker_chain& c, const size_values& s, dtype type,
                           const kronecker_chain::capabilities& can) {
  const chain_sizes n = chain_sizes_of(g, c, s);
  const long long most = can.max_size;
  return (type == dtype::bf16 || type == dtype::f16) && n.left_rows <= most && n.rows <= most && n.columns <= most &&
         n.right_columns <= most && n.columns % 8 == 0 && n.right_columns % 8 == 0;
}

template <class Facts> constexpr int kronecker_chain::kernels(const Facts& in) const {
  if (fuses_chain(in.g, *this, in.s, in.type, in.p.to.template can<kronecker_chain>()))
    return element_count(in.g, result, in.s) == 0 ? 0 : sums() ? 2 : 1;
  int n = 0;
  for (const id i : inside()) n += nodes_launch::kernels_of(in, i);
  return n;
}
template <class Planner> [[gnu::cold]] constexpr void kronecker_chain::match(Planner& by) {
  if (by.template can<kronecker_chain>().max_size == 0) return;
  sequence<int> of(by.g.size, -1);
  by.p.template all<kronecker_chain>() = find_kronecker_chains(by.g, by.p.when, by.readers, of);
  for (id i = 0; i < by.g.size; ++i)
    if (of[i] >= 0) by.template claim<kronecker_chain>(i, of[i]);
}
template <class Planner> [[gnu::cold]] constexpr void kronecker_chain::add(Planner& by, int index, id i) {
  const kronecker_chain& c = by.p.template all<kronecker_chain>()[index];
  if (c.result != i || !by.template computed<kronecker_chain>(c.inside(), index)) return;
  by.template open<kronecker_chain>(index);
  for (const id n : c.inside())
    by.add(n, n == c.result                         ? launch_slot::mainloop
              : n == c.left_sum || n == c.right_sum ? launch_slot::reduce
                                                    : launch_slot::prologue);
}

}  // namespace graft
