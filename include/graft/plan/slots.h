// SPDX-License-Identifier: Apache-2.0
// slots: a forward graph read as one product with its surroundings,
//     y = post(x · Wᵀ + Σ ± factor · (x · Aᵀ) · Bᵀ),   or   y = post((unscaled ⊙ pre) · Wᵀ)
// where W, A, B, pre, the factors and the operands of post are all known before the data comes. A backend that has a
// kernel of this form runs the whole graph with it; x may itself be computed (a rotation), which then happens before.
#pragma once
#include <graft/plan/fuse.h>

namespace graft {

struct side_branch {
  id a = none_id, b = none_id;  // values known before the data; a is none where the input is folded (MiSS)
  bool a_by_rank = true;        // A is stored [rank, in], else [in, rank]
  bool b_by_row = true;         // B is stored [out, rank], else [rank, out]
  bool minus = false;
  id factor = none_id;  // one number, if any
  dim rank{};
};
struct post_step {
  op what = op::mul;
  id operand = none_id;  // a value per output column, or one number
};

inline constexpr int max_sides = 4, max_posts = 8;
// A side branch of a larger rank is folded into a copy of the weight.
inline constexpr int max_branch_rank = 64;

struct linear_slots {
  bool found = false;
  id x = none_id, weight = none_id;
  id unscaled = none_id, pre = none_id;  // where x is no more than an input with a factor per column
  bool weight_by_row = true;             // W is stored [out, in], else [in, out]
  side_branch side[max_sides]{};
  int sides = 0;
  post_step post[max_posts]{};  // in the order they are applied
  int posts = 0;
};

namespace detail {
constexpr bool one_number(const node& v) {
  for (const dim d : v.d)
    if (d != dim{1}) return false;
  return true;
}
constexpr bool one_matrix(const node& v) { return v.d[0] == dim{1} && v.d[1] == dim{1}; }

struct slot_reader {
  const graph& g;
  const stages& when;
  linear_slots out{};

  constexpr bool data(id i) const { return i >= 0 && when.of[i] == stage::data; }
  constexpr bool known(id i) const { return i >= 0 && when.of[i] != stage::data; }
  constexpr bool product(id i) const {
    const node& v = g[i];
    return v.what == op::matmul && !v.ta && !v.sum && data(v.a) && known(v.b) && one_matrix(v) && one_matrix(g[v.b]);
  }

  constexpr bool branch(id i, bool minus, id factor) {
    const node& v = g[i];
    const node& s = g[v.a];
    const bool low_rank = product(v.a), folded = s.what == op::fold && data(s.a) && one_matrix(s);
    if (!low_rank && !folded) return false;
    if (out.sides == max_sides) return false;
    side_branch b{.b = v.b, .b_by_row = v.tb, .minus = minus, .factor = factor, .rank = s.d[3]};
    if (low_rank) b.a = s.b, b.a_by_rank = s.tb;
    if (out.x >= 0 && out.x != s.a) return false;  // another input than the base product's
    out.x = s.a;
    out.side[out.sides++] = b;
    return true;
  }
  // A term of the sum: the base product, or a side branch with at most one factor.
  constexpr bool term(id i, bool minus, id factor = none_id) {
    const node& v = g[i];
    if ((v.what == op::add || v.what == op::sub) && data(v.a) && data(v.b) && factor < 0)
      return term(v.a, minus) && term(v.b, minus != (v.what == op::sub));
    if (v.what == op::mul && factor < 0) {
      const id value = data(v.a) ? v.a : v.b, number = data(v.a) ? v.b : v.a;
      return data(value) && known(number) && one_number(g[number]) && term(value, minus, number);
    }
    if (!product(i)) return false;
    if (branch(i, minus, factor)) return true;
    if (out.weight >= 0 || minus || factor >= 0 || (out.x >= 0 && out.x != v.a)) return false;
    out.x = v.a;
    out.weight = v.b;
    out.weight_by_row = v.tb;
    return true;
  }
  constexpr bool per_column(id i) const { return known(i) && one_matrix(g[i]) && g[i].d[2] == dim{1}; }
  // What is applied to the sum as a whole.
  constexpr bool root(id i) {
    const node& v = g[i];
    const bool affine = v.what == op::add || v.what == op::sub || v.what == op::mul || v.what == op::div;
    const bool left = affine && data(v.a) && per_column(v.b);
    const bool right = (v.what == op::add || v.what == op::mul) && per_column(v.a) && data(v.b);
    if (!left && !right) return term(i, false);
    if (!root(left ? v.a : v.b) || out.posts == max_posts) return false;
    out.post[out.posts++] = {v.what, left ? v.b : v.a};
    return true;
  }
  constexpr void read_pre() {
    const node& v = g[out.x];
    if (out.sides > 0 || v.what != op::mul) return;
    const bool left = data(v.a) && per_column(v.b), right = per_column(v.a) && data(v.b);
    if (left || right) out.unscaled = left ? v.a : v.b, out.pre = left ? v.b : v.a;
  }
};
}  // namespace detail

constexpr linear_slots slots_of(const graph& g, const stages& when) {
  detail::slot_reader r{g, when};
  if (g.outs != 1 || !when.by_token[g.out[0].at] || !detail::one_matrix(g[g.out[0].at])) return linear_slots{};
  r.out.found = r.root(g.out[0].at) && r.out.weight >= 0;
  if (r.out.found) r.read_pre();
  return r.out.found ? r.out : linear_slots{};
}

// What a backend with such a kernel makes of a layer: its forward graph as one product, the same after nodes that make
// its input, one product with the adapter inside the weight, or a kernel per node.
enum class slot_form : unsigned char { product, input_first, folded, unfused };

constexpr slot_form form_of(const graph& forward, const linear_slots& branch, const graph& folded,
                            const linear_slots& plain, long long side_rank) {
  auto reads_input = [](const graph& g, const linear_slots& s) {
    return s.found && (g[s.x].what == op::input || (s.pre >= 0 && g[s.unscaled].what == op::input));
  };
  const bool fits = branch.found && side_rank <= max_branch_rank;
  if (!fits && reads_input(folded, plain)) return slot_form::folded;
  if (!branch.found) return slot_form::unfused;
  return reads_input(forward, branch) ? slot_form::product : slot_form::input_first;
}

}  // namespace graft
