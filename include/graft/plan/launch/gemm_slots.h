// SPDX-License-Identifier: Apache-2.0
// gemm_slots: a part of a graph that runs as one GEMM launch with prologue, low-rank branches and epilogue,
//     y = act(scale ⊙ (p(x) · Wᵀ + Σ ± factor · U · Bᵀ) + shift) + residual        U = p(x) · Aᵀ [tokens, rank]
// The prologue p(x) is x, x ⊙ a factor per column, x R, or (x₁ ⊙ x₂) R, where R is a block-diagonal rotation (OFT,
// BOFT). W, A, B, R, factors, scale and shift are precomputed. x and the residual may come from earlier launches; so
// may the shrink result U where a branch has dropout. For the backward pass a launch can store U, even of a branch that
// it does not expand, and the accumulators before scale and shift. A backend with a kernel of this form runs all nodes
// `inside` as one launch.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/traversal.h>
#include <graft/plan/launch/wgrad.h>

#include <initializer_list>

namespace graft {

struct low_rank_branch {
  id a = none_id, b = none_id;  // precomputed; none where op::fold_columns computes U, or op::repeat expands it (MiSS)
  bool a_rank_major = true;     // A is stored [rank, in], else [in, rank]
  bool b_out_major = true;      // B is stored [out, rank], else [rank, out]
  bool minus = false;
  id factor = none_id;          // one number, or none
  id s = none_id;               // U, the shrink result
  bool computes_shrink = true;  // false: an earlier launch computed U from x with dropout, and there is no A
  bool stores_shrink = false;   // U is stored, because it is an output or later launches read it
  bool expands = true;          // adds U Bᵀ; false: U is only stored, and there is no B
  dim rank{};
};
struct epilogue_step {
  op what = op::mul;
  id operand = none_id;  // one value per output column, or one number
};

// What a target can do with the slots of one GEMM.
struct gemm_slot_capabilities {
  bool reads_nn_weight = false;        // GEMMs read stored weights [in, out] as well as [out, in]
  bool fuses_prologue = true;          // they apply a factor per column of x
  bool prologue_with_branch = false;   // they also do so with low-rank branches
  bool fuses_input_rotation = false;   // the rotation of x belongs to the launch of the GEMM that reads it
  bool fuses_output_rotation = false;  // the rotation of dx = dy W belongs to its launch
};

struct gemm_slots {
  bool found = false;
  id result = none_id, x = none_id, weight = none_id;
  id prologue = none_id, scaled = none_id;  // a factor per column of x, and x ⊙ prologue
  id input_rotation = none_id;              // x R, which the launch computes before the GEMM; not inside
  bool weight_is_nt = true;                 // W is stored [out, in], else [in, out]
  sequence<low_rank_branch> branches;
  sequence<epilogue_step> epilogue_steps;  // in the order they are applied
  id pre_epilogue = none_id;               // accumulators that the launch stores, because they have other readers
  id output_rotation = none_id;  // the accumulators whose rotation by R is the result; pre_epilogue if they are stored
  op act = op::detach;           // activation after the steps; detach: none
  id residual = none_id;         // has the shape of the result, added last
  sequence<id> inside;           // every node of the launch, the result included
};

// Returns true if the launch reads U of a branch from memory, or stores it.
constexpr bool exposes_shrink(const gemm_slots& p) {
  bool any = false;
  for (const low_rank_branch& b : p.branches) any = any || b.stores_shrink || !b.computes_shrink;
  return any;
}
// The number of adjacent columns that butterfly factors mix; too many factors give a width that no kernel supports.
constexpr long long rotation_width(long long factors, long long block) {
  return factors < 1 || factors > 16 ? 1 << 20 : block << (factors - 1);
}

namespace detail {
constexpr bool is_activation(op o) { return o == op::relu || o == op::silu || o == op::gelu || o == op::gelu_tanh; }

// Matches the slots from the result towards the inputs. A value with other readers must be stored, so the match ends
// there unless the launch can store it.
struct gemm_matcher {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;  // how often a value is read; being an output counts as one reader
  const wgrad_readers& sums;
  const node_set& shrinks;  // U of branches with dropout
  id result;
  bool with_branches = true;
  gemm_slots out{};

  constexpr bool data(id i) const { return i >= 0 && when.of[i] == stage::call; }
  constexpr bool is_precomputed(id i) const { return i >= 0 && when.of[i] != stage::call; }
  constexpr bool has_one_reader(id i) const { return readers[i] == 1; }
  constexpr int outputs(id i) const {  // how many outputs node i is
    int n = 0;
    for (int k = 0; k < g.outs; ++k) n += g.out[k].at == i ? 1 : 0;
    return n;
  }
  // Returns true if the other readers of shrink result i are wgrads that this launch does not depend on, or outputs.
  [[gnu::cold]] constexpr bool stores_shrink(id i) const {
    const int others = sums.times[i] + outputs(i);
    if (others == 0 || readers[i] != others + 1) return false;
    for (id s = i + 1; s < result; ++s)
      if (sums.product_of[s] && (g[s].a == i || g[s].b == i) && reaches(s)) return false;
    return true;
  }
  // Returns true if this launch depends on no reader of i except `reader`, so that it can store i for the others.
  [[gnu::cold]] constexpr bool also_stored(id i, id reader) const {
    if (readers[i] < 2) return false;
    int by_reader = 0;
    for (id r = i + 1; r < g.size; ++r)
      for (int k = 0; k < 3; ++k) {
        if (g[r].operand(k) != i) continue;
        if (r != reader && reaches(r)) return false;
        by_reader += r == reader ? 1 : 0;
      }
    return by_reader == 1;
  }
  [[gnu::cold]] constexpr bool reaches(id from) const {  // true where the result depends on node `from`
    node_set above(g.size);
    above.add(from);
    for (id n = from + 1; n <= result; ++n)
      for (int k = 0; k < 3; ++k)
        if (const id o = g[n].operand(k); o >= 0 && above[o]) above.add(n);
    return above[result];
  }
  constexpr bool product(id i) const {
    const node& v = g[i];
    return v.what == op::matmul && !v.ta && !v.sum && data(v.a) && is_precomputed(v.b) && one_matrix(v) &&
           one_matrix(g[v.b]);
  }
  constexpr bool per_column(id i) const { return is_precomputed(i) && one_matrix(g[i]) && g[i].d[2] == dim{1}; }
  constexpr bool take(id i) { return out.inside.push(i), true; }

  [[gnu::cold]] constexpr bool branch(id i, bool minus, id factor) {
    const node& v = g[i];
    if (with_branches && v.what == op::matmul && shrinks[v.a]) {
      out.branches.push({none_id, v.b, true, v.tb, minus, factor, v.a, false, false, true, g[v.a].d[3]});
      return take(i);
    }
    const bool stores = stores_shrink(v.a);
    if (!with_branches || is_leaf(g[v.a].what) || (!has_one_reader(v.a) && !stores)) return false;
    const node& s = g[v.a];
    const bool low_rank = product(v.a), folded = s.what == op::fold_columns && data(s.a) && one_matrix(s) && !stores;
    if (!low_rank && (!folded || v.what == op::repeat)) return false;
    if (out.x >= 0 && out.x != s.a) return false;  // the branch reads another x
    low_rank_branch b;
    b.b = v.b, b.b_out_major = v.tb, b.minus = minus, b.factor = factor, b.rank = s.d[3], b.s = v.a,
    b.stores_shrink = stores;
    if (low_rank) b.a = s.b, b.a_rank_major = s.tb;
    out.x = s.a;
    out.branches.push(b);
    return take(v.a) && take(i);
  }
  // Matches a term of the accumulator sum: the base product, or a low-rank branch with at most one factor.
  [[gnu::cold]] constexpr bool term(id i, bool minus, id factor, bool root) {
    const node& v = g[i];
    if (!data(i) || is_leaf(v.what) || (!root && !has_one_reader(i))) return false;
    if ((v.what == op::add || v.what == op::sub) && data(v.a) && data(v.b) && factor < 0)
      return term(v.a, minus, factor, false) && term(v.b, minus != (v.what == op::sub), factor, false) && take(i);
    if (v.what == op::mul && factor < 0) {
      const id value = data(v.a) ? v.a : v.b, number = data(v.a) ? v.b : v.a;
      return is_precomputed(number) && is_scalar(g[number]) && term(value, minus, number, false) && take(i);
    }
    const bool repeated = v.what == op::repeat && data(v.a) && one_matrix(v);
    if (!product(i) && !repeated) return false;
    if (branch(i, minus, factor)) return true;
    if (repeated) return false;
    if (out.weight >= 0 || minus || factor >= 0 || (out.x >= 0 && out.x != v.a)) return false;
    out.x = v.a, out.weight = v.b, out.weight_is_nt = v.tb;
    return take(i);
  }
  // Matches the epilogue steps that apply to the whole sum.
  [[gnu::cold]] constexpr bool affine(id i, bool root) {
    const node& v = g[i];
    if (!data(i) || is_leaf(v.what) || (!root && !has_one_reader(i))) return false;
    const bool any = v.what == op::add || v.what == op::sub || v.what == op::mul || v.what == op::div;
    const bool left = any && data(v.a) && per_column(v.b);
    const bool right = (v.what == op::add || v.what == op::mul) && per_column(v.a) && data(v.b);
    if (!left && !right) return term(i, false, none_id, root);
    const id below = left ? v.a : v.b;
    if (also_stored(below, i))
      out.pre_epilogue = below;
    else if (!has_one_reader(below))
      return false;
    if (out.pre_epilogue == below ? !term(below, false, none_id, true) : !affine(below, false)) return false;
    out.epilogue_steps.push({v.what, left ? v.b : v.a});
    return take(i);
  }
  [[gnu::cold]] constexpr bool activated(id i, bool root) {
    const node& v = g[i];
    if (!is_activation(v.what)) return affine(i, root);
    if ((!root && !has_one_reader(i)) || !affine(v.a, false)) return false;
    out.act = v.what;
    return take(i);
  }
  // Matches a rotation of a bare product with an NN base weight: the dgrad of a layer that rotates its input.
  [[gnu::cold]] constexpr bool rotated_result(id i) {
    const node& v = g[i];
    if (!data(v.a) || !is_precomputed(v.b) || !one_matrix(v)) return false;
    const bool others = also_stored(v.a, i);
    if ((!others && !has_one_reader(v.a)) || !term(v.a, false, none_id, true)) return false;
    if (out.weight < 0 || out.weight_is_nt || !out.branches.empty() || base_leaf(g, out.weight) < 0) return false;
    out.output_rotation = v.a, out.pre_epilogue = others ? v.a : none_id;
    return take(i);
  }
  // Matches a residual sum if the node is not a product with epilogue. The first operand that can be the product is it.
  [[gnu::cold]] constexpr bool with_residual(id i) {
    const gemm_slots before = out;
    if (activated(i, true) && out.weight >= 0) return true;
    const node v = g[i];
    if (v.what != op::add || !data(v.a) || !data(v.b) || !same_shape(g[v.a], v) || !same_shape(g[v.b], v)) return false;
    for (int k = 0; k < 2; ++k) {
      out = before;
      if (activated(v.operand(k), false) && out.weight >= 0) {
        out.residual = v.operand(1 - k);
        absorb_residual_branches();
        return take(i);
      }
    }
    return false;
  }
  // Moves branches of the same x out of the residual, as in the dgrad of several layers with one input. A branch is
  // added to the accumulators before the epilogue, so the product must have no steps and no activation.
  [[gnu::cold]] constexpr void absorb_residual_branches() {
    while (out.epilogue_steps.empty() && out.act == op::detach) {
      const id sum = out.residual;
      const node& v = g[sum];
      if (v.what != op::add || !has_one_reader(sum) || !data(v.a) || !data(v.b)) return;
      if (!same_shape(g[v.a], v) || !same_shape(g[v.b], v)) return;
      bool taken = false;
      for (int k = 0; k < 2 && !taken; ++k) {
        const id summand = v.operand(k);
        taken = product(summand) && has_one_reader(summand) && branch(summand, false, none_id);
        if (taken) out.residual = v.operand(1 - k), take(sum);
      }
      if (!taken) return;
    }
  }
  // Matches x ⊙ factor if only this launch reads it. With `norms`, the gain of a norm stays in the norm's launch.
  [[gnu::cold]] constexpr void read_prologue(bool with_branch, bool norms) {
    if (is_leaf(g[out.x].what) || (!with_branch && !out.branches.empty())) return;
    const node& v = g[out.x];
    int uses = 1;
    for (const low_rank_branch& b : out.branches) uses += b.computes_shrink ? 1 : 0;
    if (v.what != op::mul || readers[out.x] != uses) return;
    const bool left = data(v.a) && per_column(v.b), right = per_column(v.a) && data(v.b);
    if (!left && !right) return;
    if (norms && g[left ? v.a : v.b].what == op::normalize) return;
    take(out.x);
    out.scaled = out.x, out.prologue = left ? v.b : v.a, out.x = left ? v.a : v.b;
  }
  [[gnu::cold]] constexpr void read_rotation() {
    const node& v = g[out.x];
    if (v.what != op::rotate || out.prologue >= 0 || !out.branches.empty()) return;
    if (!has_one_reader(out.x) || !data(v.a) || !is_precomputed(v.b) || !one_matrix(v)) return;
    out.input_rotation = out.x, out.x = v.a;
  }
};

[[gnu::cold]] constexpr sequence<int> count_readers(const graph& g, const node_set& live) {
  sequence<int> readers(g.size, 0);
  for (id i = 0; i < g.size; ++i)
    for (int k = 0; live[i] && k < 3; ++k)
      if (const id o = g[i].operand(k); o >= 0) ++readers[o];
  for (int k = 0; k < g.outs; ++k) ++readers[g.out[k].at];
  return readers;
}
}  // namespace detail

// The GEMM whose result is node i. x Aᵀ Bᵀ without a base product is matched as two products, in the second iteration.
// `norms` says whether norms with a gain are launches, which keep the gain.
[[gnu::cold]] constexpr gemm_slots gemm_at(const graph& g, const stages& when, const sequence<int>& readers,
                                           const wgrad_readers& sums, const node_set& shrinks, id i,
                                           const gemm_slot_capabilities& can, bool norms) {
  if (!when.has_token_rows[i] || !detail::one_matrix(g[i])) return {};
  for (const bool with_branches : {true, false}) {
    detail::gemm_matcher r{g, when, readers, sums, shrinks, i, with_branches};
    const bool rotates = g[i].what == op::rotate && can.fuses_output_rotation;
    if (rotates ? !r.rotated_result(i) : !r.with_residual(i)) continue;
    if (exposes_shrink(r.out) && r.out.branches.size() > 1) continue;  // U of several branches is one matrix
    const bool weight_is_nn = !r.out.weight_is_nt && base_leaf(g, r.out.weight) >= 0;  // the launch reads it as stored
    if (weight_is_nn && !can.reads_nn_weight) return {};
    r.out.found = true, r.out.result = i;
    if (can.fuses_prologue) r.read_prologue(can.prologue_with_branch, norms);
    if (can.fuses_input_rotation) r.read_rotation();
    return static_cast<gemm_slots&&>(r.out);
  }
  return {};
}

// The sum of the ranks of all low-rank branches; unknown where one of them is.
[[gnu::cold]] constexpr long long branch_rank(const graph& g, const gemm_slots& p, const size_values& s) {
  long long rank = 0;
  for (const low_rank_branch& b : p.branches) {
    const long long r = g.sizes.value(b.rank, s);
    if (r == unknown) return unknown;
    rank += r;
  }
  return rank;
}

}  // namespace graft
