// SPDX-License-Identifier: Apache-2.0
// product: part of a graph read as one product with its slots,
//     y = act(scale ⊙ (x · Wᵀ + Σ ± factor · (x · Aᵀ) · Bᵀ) + shift) + residual,   or the same with x = unscaled ⊙ pre,
//     or with x R for x, where nothing but the product reads it: R acts on blocks of columns, and x may be x₁ ⊙ x₂
// where W, A, B, pre, the factors, scale and shift are all known before the data comes. A backend that has a kernel of
// this form runs all nodes of it in one launch; x and the residual may themselves be computed, which happens before. So may
// what stands for x · Aᵀ, where a branch has dropout. For a backward pass it also stores x · Aᵀ, which may be all that is
// wanted of the branch, and the sum before scale and shift.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/walk.h>
#include <graft/plan/target.h>
#include <graft/plan/token_sum.h>

#include <initializer_list>

namespace graft {

struct side_branch {
  id a = none_id, b = none_id;  // values known before the data; none where x is folded, or S repeated (MiSS)
  bool a_by_rank = true;        // A is stored [rank, in], else [in, rank]
  bool b_by_row = true;         // B is stored [out, rank], else [rank, out]
  bool minus = false;
  id factor = none_id;  // one number, if any
  id s = none_id;       // x Aᵀ,
  bool made = true;     // by this launch; else another one made it before, of x with dropout: there is no A
  bool kept = false;    // others read it later, or it is an output: the launch stores it,
  bool added = true;    // and adds S Bᵀ; else there is no B
  dim rank{};
};
struct post_step {
  op what = op::mul;
  id operand = none_id;  // a value per output column, or one number
};

struct product_slots {
  bool found = false;
  id result = none_id, x = none_id, weight = none_id;
  id pre = none_id, scaled = none_id;  // a factor per column of x, and x ⊙ pre, which the launch makes for itself
  id turn = none_id;                   // x R, which the launch makes ahead of the product; not among those inside,
  id gate = none_id, other = none_id;  // x₁ ⊙ x₂ that R is applied to, and x₂: x is then x₁
  bool weight_by_row = true;           // W is stored [out, in], else [in, out]
  sequence<side_branch> sides;
  sequence<post_step> posts;  // in the order they are applied
  id before_posts = none_id;  // the sum, where it is an output or others read it as well; none: it is not stored
  id turned = none_id;        // where the result is that sum times R: the sum, which the launch may store as well
  op act = op::detach;        // behind them; detach: none
  id residual = none_id;      // like the result, added last
  sequence<id> inside;        // every node of the launch, the result included
};

// Does the launch read S of a branch, or store it for others?
constexpr bool has_side_tensors(const product_slots& p) {
  bool any = false;
  for (const side_branch& b : p.sides) any = any || b.kept || !b.made;
  return any;
}
// Columns that so many butterfly factors keep together.
constexpr long long turned_columns(long long factors, long long block) {
  return factors < 1 || factors > 16 ? 1 << 20 : block << (factors - 1);
}

namespace detail {
constexpr bool is_activation(op o) { return o == op::relu || o == op::silu || o == op::gelu || o == op::gelu_tanh; }

// Reads the slots from the result towards the inputs. A value that somebody else reads too must be stored, so it ends
// what the launch can take in.
struct slot_reader {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;  // how often a value is read; an output counts as read once more
  const sum_readers& sums;
  const node_set& given;  // S of branches with dropout
  id result;
  bool with_sides = true;
  product_slots out{};

  constexpr bool data(id i) const { return i >= 0 && when.of[i] == stage::data; }
  constexpr bool known(id i) const { return i >= 0 && when.of[i] != stage::data; }
  constexpr bool inner(id i) const { return readers[i] == 1; }
  constexpr int outputs(id i) const {  // how many outputs it is
    int n = 0;
    for (int k = 0; k < g.outs; ++k) n += g.out[k].at == i ? 1 : 0;
    return n;
  }
  // Beside this launch only products over the tokens read it, and the launch needs none of them; or it is an output.
  [[gnu::cold]] constexpr bool kept(id i) const {
    const int others = sums.times[i] + outputs(i);
    if (others == 0 || readers[i] != others + 1) return false;
    for (id s = i + 1; s < result; ++s)
      if (sums.product_of[s] && (g[s].a == i || g[s].b == i) && reaches(s)) return false;
    return true;
  }
  // Beside `reader` it is an output, or read by what the launch does not need: the launch stores it as well.
  [[gnu::cold]] constexpr bool stored_too(id i, id reader) const {
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
  [[gnu::cold]] constexpr bool reaches(id from) const {  // does the result depend on it?
    node_set above(g.size);
    above.add(from);
    for (id n = from + 1; n <= result; ++n)
      for (int k = 0; k < 3; ++k)
        if (const id o = g[n].operand(k); o >= 0 && above[o]) above.add(n);
    return above[result];
  }
  constexpr bool product(id i) const {
    const node& v = g[i];
    return v.what == op::matmul && !v.ta && !v.sum && data(v.a) && known(v.b) && one_matrix(v) && one_matrix(g[v.b]);
  }
  constexpr bool per_column(id i) const { return known(i) && one_matrix(g[i]) && g[i].d[2] == dim{1}; }
  constexpr bool take(id i) { return out.inside.push(i), true; }

  [[gnu::cold]] constexpr bool branch(id i, bool minus, id factor) {
    const node& v = g[i];
    if (with_sides && v.what == op::matmul && given[v.a]) {
      out.sides.push({none_id, v.b, true, v.tb, minus, factor, v.a, false, false, true, g[v.a].d[3]});
      return take(i);
    }
    const bool keeps = kept(v.a);
    if (!with_sides || is_leaf(g[v.a].what) || (!inner(v.a) && !keeps)) return false;
    const node& s = g[v.a];
    const bool low_rank = product(v.a), folded = s.what == op::fold && data(s.a) && one_matrix(s) && !keeps;
    if (!low_rank && (!folded || v.what == op::repeat)) return false;
    if (out.x >= 0 && out.x != s.a) return false;  // another input than the base product's
    side_branch b;
    b.b = v.b, b.b_by_row = v.tb, b.minus = minus, b.factor = factor, b.rank = s.d[3], b.s = v.a, b.kept = keeps;
    if (low_rank) b.a = s.b, b.a_by_rank = s.tb;
    out.x = s.a;
    out.sides.push(b);
    return take(v.a) && take(i);
  }
  // A term of the sum: the base product, or a side branch with at most one factor.
  [[gnu::cold]] constexpr bool term(id i, bool minus, id factor, bool root) {
    const node& v = g[i];
    if (!data(i) || is_leaf(v.what) || (!root && !inner(i))) return false;
    if ((v.what == op::add || v.what == op::sub) && data(v.a) && data(v.b) && factor < 0)
      return term(v.a, minus, factor, false) && term(v.b, minus != (v.what == op::sub), factor, false) && take(i);
    if (v.what == op::mul && factor < 0) {
      const id value = data(v.a) ? v.a : v.b, number = data(v.a) ? v.b : v.a;
      return known(number) && is_scalar(g[number]) && term(value, minus, number, false) && take(i);
    }
    const bool repeated = v.what == op::repeat && data(v.a) && one_matrix(v);
    if (!product(i) && !repeated) return false;
    if (branch(i, minus, factor)) return true;
    if (repeated) return false;
    if (out.weight >= 0 || minus || factor >= 0 || (out.x >= 0 && out.x != v.a)) return false;
    out.x = v.a, out.weight = v.b, out.weight_by_row = v.tb;
    return take(i);
  }
  // What is applied to the sum as a whole.
  [[gnu::cold]] constexpr bool affine(id i, bool root) {
    const node& v = g[i];
    if (!data(i) || is_leaf(v.what) || (!root && !inner(i))) return false;
    const bool any = v.what == op::add || v.what == op::sub || v.what == op::mul || v.what == op::div;
    const bool left = any && data(v.a) && per_column(v.b);
    const bool right = (v.what == op::add || v.what == op::mul) && per_column(v.a) && data(v.b);
    if (!left && !right) return term(i, false, none_id, root);
    const id below = left ? v.a : v.b;
    if (stored_too(below, i))
      out.before_posts = below;
    else if (!inner(below))
      return false;
    if (out.before_posts == below ? !term(below, false, none_id, true) : !affine(below, false)) return false;
    out.posts.push({v.what, left ? v.b : v.a});
    return take(i);
  }
  [[gnu::cold]] constexpr bool activated(id i, bool root) {
    const node& v = g[i];
    if (!is_activation(v.what)) return affine(i, root);
    if ((!root && !inner(i)) || !affine(v.a, false)) return false;
    out.act = v.what;
    return take(i);
  }
  // A rotation of what is else a bare product with a weight that lies across: dx of a layer that rotates its input.
  [[gnu::cold]] constexpr bool turned_result(id i) {
    const node& v = g[i];
    if (!data(v.a) || !known(v.b) || !one_matrix(v)) return false;
    const bool others = stored_too(v.a, i);
    if ((!others && !inner(v.a)) || !term(v.a, false, none_id, true)) return false;
    if (out.weight < 0 || out.weight_by_row || !out.sides.empty() || base_leaf(g, out.weight) < 0) return false;
    out.turned = v.a, out.before_posts = others ? v.a : none_id;
    return take(i);
  }
  // A sum with a value like the result, where it is not all one product. Either side may be the product; the first that
  // can be is.
  [[gnu::cold]] constexpr bool with_residual(id i) {
    const product_slots before = out;
    if (activated(i, true) && out.weight >= 0) return true;
    const node v = g[i];
    if (v.what != op::add || !data(v.a) || !data(v.b) || !same_shape(g[v.a], v) || !same_shape(g[v.b], v)) return false;
    for (int k = 0; k < 2; ++k) {
      out = before;
      if (activated(v.operand(k), false) && out.weight >= 0) {
        out.residual = v.operand(1 - k);
        take_branches();
        return take(i);
      }
    }
    return false;
  }
  // A residual that is itself a sum with a branch of the same x, as in the gradient of several layers' input: the branch
  // belongs to this product. It is added before what the product is multiplied with, so there is none of that.
  [[gnu::cold]] constexpr void take_branches() {
    while (out.posts.empty() && out.act == op::detach) {
      const id sum = out.residual;
      const node& v = g[sum];
      if (v.what != op::add || !inner(sum) || !data(v.a) || !data(v.b)) return;
      if (!same_shape(g[v.a], v) || !same_shape(g[v.b], v)) return;
      bool taken = false;
      for (int k = 0; k < 2 && !taken; ++k) {
        const id side = v.operand(k);
        taken = product(side) && inner(side) && branch(side, false, none_id);
        if (taken) out.residual = v.operand(1 - k), take(sum);
      }
      if (!taken) return;
    }
  }
  // x ⊙ pre, where nothing else reads it; `norms`: the factors of a norm are part of its launch.
  [[gnu::cold]] constexpr void read_pre(bool beside_side, bool norms) {
    if (is_leaf(g[out.x].what) || (!beside_side && !out.sides.empty())) return;
    const node& v = g[out.x];
    int uses = 1;
    for (const side_branch& b : out.sides) uses += b.made ? 1 : 0;
    if (v.what != op::mul || readers[out.x] != uses) return;
    const bool left = data(v.a) && per_column(v.b), right = per_column(v.a) && data(v.b);
    if (!left && !right) return;
    if (norms && g[left ? v.a : v.b].what == op::normalize) return;
    take(out.x);
    out.scaled = out.x, out.pre = left ? v.b : v.a, out.x = left ? v.a : v.b;
  }
  [[gnu::cold]] constexpr void read_turn() {
    const node& v = g[out.x];
    if (v.what != op::rotate || out.pre >= 0 || !out.sides.empty()) return;
    if (!inner(out.x) || !data(v.a) || !known(v.b) || !one_matrix(v)) return;
    out.turn = out.x, out.x = v.a;
    const node& m = g[v.a];
    if (m.what != op::mul || !inner(v.a) || !data(m.a) || !data(m.b) || !same_shape(g[m.a], g[m.b])) return;
    out.gate = out.x, out.x = m.a, out.other = m.b;
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

// The product whose result is node i. What would be a side branch and nothing beside it, x Aᵀ Bᵀ, is two products.
[[gnu::cold]] constexpr product_slots product_at(const graph& g, const stages& when, const sequence<int>& readers,
                                                 const sum_readers& sums, const node_set& given, id i,
                                                 const target& to) {
  if (!when.by_token[i] || !detail::one_matrix(g[i])) return {};
  for (const bool with_sides : {true, false}) {
    detail::slot_reader r{g, when, readers, sums, given, i, with_sides};
    const bool turns = g[i].what == op::rotate && to.turns_results;
    if (turns ? !r.turned_result(i) : !r.with_residual(i)) continue;
    if (has_side_tensors(r.out) && r.out.sides.size() > 1) continue;  // S of several branches lies in one matrix
    const bool lies_across = !r.out.weight_by_row && base_leaf(g, r.out.weight) >= 0;  // and is not copied
    if (lies_across && !to.weight_either_way) return {};
    r.out.found = true, r.out.result = i;
    if (to.takes_pre) r.read_pre(to.pre_beside_side, to.joins_rows);
    if (to.turns_inputs) r.read_turn();
    return static_cast<product_slots&&>(r.out);
  }
  return {};
}

// The rank of all side branches together; unknown where one of them is.
[[gnu::cold]] constexpr long long side_rank(const graph& g, const product_slots& p, const size_values& s) {
  long long rank = 0;
  for (const side_branch& b : p.sides) {
    const long long r = g.sizes.value(b.rank, s);
    if (r == unknown) return unknown;
    rank += r;
  }
  return rank;
}

}  // namespace graft
