// SPDX-License-Identifier: Apache-2.0
// matrix_stack: products and sums of small square matrices, single ones or equally long stacks, that do not depend on
// the tokens, as one launch. They occur between the gradient of a rotation and that of its parameters:
//     dV = unskew(((I - Q)ᵀ …) …)            OFT, BOFT: Q is a skew-symmetric matrix of the parameters V
//     dT = upper(T⁻ᵀ (ÛᵀG) T⁻ᵀ)              HRA: T is the rank x rank matrix of the compact WY form
// The kernel takes one matrix of every stack through all steps and stores the values that other launches read.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/traversal.h>
#include <graft/plan/launch/single_nodes.h>

namespace graft {

inline constexpr int max_stack_steps = 16, max_stack_operands = 8, max_stack_slots = 12;

struct matrix_stack {
  struct capabilities {
    int max_size = 0;  // largest matrix; 0: there is no kernel
  };
  struct work {};

  sequence<id> inside, operands;     // nodes in order of computation; what they read, without scalars
  sequence<int> slot, operand_slot;  // the matrix slot of each node and operand; a slot is reused after its last reader
  int slots = 0;

  constexpr id anchor() const { return inside[inside.size() - 1]; }
  constexpr const char* name(const graph&) const { return "GEMM"; }
  template <class Facts> constexpr int kernels(const Facts& in) const;
  template <class Planner> static constexpr void match(Planner& by);
  template <class Planner> static constexpr void add(Planner& by, int index, id i);
};

namespace detail {
struct stack_matcher {
  const graph& g;
  const stages& when;
  const node_set& free;  // nodes that no other launch computes

  constexpr bool square(id i) const {
    const node& v = g[i];
    return v.d[2] == v.d[3] && v.d[2] != dim{1};
  }
  constexpr bool reads(const node& like, id o) const { return same_shape(g[o], like) || is_scalar(g[o]); }
  constexpr bool can_join(id i) const {
    const node& v = g[i];
    if (!free[i] || when.has_token_rows[i]) return false;
    if (v.what == op::unskew) return square(v.a);
    if (!square(i)) return false;
    if (v.what == op::matmul) return !v.sum && same_shape(g[v.a], v) && same_shape(g[v.b], v);
    if (v.what == op::transpose || v.what == op::strict_upper) return true;
    return (v.what == op::add || v.what == op::sub || v.what == op::mul) && reads(v, v.a) && reads(v, v.b);
  }
  // Returns true if no node outside depends on the set and is read by it, so that the set can be one launch.
  [[gnu::cold]] constexpr bool closed(const node_set& in) const {
    node_set after(g.size);
    for (id i = 0; i < g.size; ++i)
      for (int k = 0; k < 3; ++k)
        if (const id o = g[i].operand(k); o >= 0) {
          if (in[i] && !in[o] && after[o]) return false;
          if ((in[o] || after[o]) && !in[i]) after.add(i);
        }
    return true;
  }
  // Operands occupy slots from the start; the result of a node takes a slot that is free at its step.
  [[gnu::cold]] constexpr void assign_slots(matrix_stack& s) const {
    sequence<int> last(g.size, -1);  // the step that reads it last
    node_set known(g.size);
    for (int k = 0; k < s.inside.size(); ++k)
      for (int n = 0; n < 3; ++n)
        if (const id o = g[s.inside[k]].operand(n); o >= 0) last[o] = k;
    for (const id i : s.inside) known.add(i);
    sequence<int> busy;  // by slot: the step of its last reader
    for (const id i : s.inside)
      for (int n = 0; n < 3; ++n)
        if (const id o = g[i].operand(n); o >= 0 && !known[o] && !is_scalar(g[o]))
          known.add(o), s.operands.push(o), s.operand_slot.push(busy.size()), busy.push(last[o]);
    for (int k = 0; k < s.inside.size(); ++k) {
      int at = 0;
      while (at < busy.size() && busy[at] >= k) ++at;
      if (at == busy.size()) busy.push(k);
      s.slot.push(at), busy[at] = last[s.inside[k]];
    }
    s.slots = busy.size();
  }
  [[gnu::cold]] constexpr bool fits(const matrix_stack& s, const node_set& in) const {
    int products = 0;
    for (const id i : s.inside) products += g[i].what == op::matmul ? 1 : 0;
    return products > 1 && s.inside.size() <= max_stack_steps && s.operands.size() <= max_stack_operands &&
           s.slots <= max_stack_slots && closed(in);
  }
};
}  // namespace detail

// Finds all matrix stacks of a graph; of[i] becomes the index of the one that contains node i.
[[gnu::cold]] constexpr sequence<matrix_stack> find_matrix_stacks(const graph& g, const stages& when,
                                                                  const node_set& free, sequence<int>& of) {
  sequence<matrix_stack> all;
  const detail::stack_matcher f{g, when, free};
  sequence<id> root(g.size, none_id);  // connected nodes have one root
  for (id i = 0; i < g.size; ++i) {
    if (!f.can_join(i)) continue;
    root[i] = i;
    for (int k = 0; k < 3; ++k)
      if (const id o = g[i].operand(k); o >= 0 && root[o] >= 0 && root[o] != root[i]) {
        const id from = root[i], to = root[o];
        for (id& r : root) r = r == from ? to : r;
      }
  }
  for (id first = 0; first < g.size; ++first) {
    if (root[first] < 0) continue;
    matrix_stack s;
    node_set in(g.size);
    for (id i = first; i < g.size; ++i)
      if (root[i] == root[first]) s.inside.push(i), in.add(i);
    const id mine = root[first];
    for (id& r : root) r = r == mine ? none_id : r;
    f.assign_slots(s);
    if (!f.fits(s, in)) continue;
    for (const id i : s.inside) of[i] = all.size();
    all.push(static_cast<matrix_stack&&>(s));
  }
  return all;
}

// Returns true if the target's kernel supports these sizes; otherwise each node is a kernel of its own.
constexpr bool fuses_stack(const graph& g, const matrix_stack& s, const size_values& sizes,
                           const matrix_stack::capabilities& can) {
  for (const id i : s.inside)
    if (g[i].what == op::matmul) return g.sizes.value(g[i].d[3], sizes) <= can.max_size;
  return false;
}

template <class Facts> constexpr int matrix_stack::kernels(const Facts& in) const {
  if (fuses_stack(in.g, *this, in.s, in.p.to.template can<matrix_stack>()))
    return element_count(in.g, anchor(), in.s) == 0 ? 0 : 1;
  int n = 0;
  for (const id i : inside) n += nodes_launch::kernels_of(in, i);
  return n;
}
template <class Planner> [[gnu::cold]] constexpr void matrix_stack::match(Planner& by) {
  if (by.template can<matrix_stack>().max_size == 0) return;
  sequence<int> of(by.g.size, -1);
  by.p.template all<matrix_stack>() = find_matrix_stacks(by.g, by.p.when, by.free_nodes(), of);
  for (id i = 0; i < by.g.size; ++i)
    if (of[i] >= 0) by.template claim<matrix_stack>(i, of[i]);
}
template <class Planner> [[gnu::cold]] constexpr void matrix_stack::add(Planner& by, int index, id) {
  const matrix_stack& s = by.p.template all<matrix_stack>()[index];
  if (!by.template computed<matrix_stack>(s.inside, index)) return;
  by.template open<matrix_stack>(index);
  for (const id n : s.inside) by.add(n, launch_slot::standalone);
}

}  // namespace graft
