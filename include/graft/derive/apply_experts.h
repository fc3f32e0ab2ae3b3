// SPDX-License-Identifier: Apache-2.0
// apply_experts: x W'ᵀ of the experts of a mixture, where each sorted row is multiplied by the weight of its expert
// (graph/rules_experts.h), without building W'. As apply() it distributes over sums, multiplies chains from the
// activation's end, so that W + B A becomes a base product and a low-rank branch of every expert, and pulls row and
// column factors out: a factor of an expert's rows or columns multiplies the rows that the expert has.
#pragma once
#include <graft/derive/apply.h>
#include <graft/graph/rules_experts.h>

namespace graft {

constexpr id apply_experts(builder& g, id w, id x, id routing, bool transposed = false);

namespace detail {

constexpr bool is_expert_column(const builder& g, id a) { return g.n[a].d[3] == dim{1}; }
constexpr bool is_expert_factor(const builder& g, id a, id w) {
  return !has_shape_of(g, a, w) && (g.n[a].d[2] == dim{1} || g.n[a].d[3] == dim{1});
}
// Multiplies or divides rows by the factors of their experts.
constexpr id scale_rows(builder& g, op scale_op, id rows, id factors, id routing) {
  return make_node::pointwise(g, scale_op, rows, make_node::dispatch(g, factors, routing, routed_by::expert));
}
[[gnu::cold]] constexpr id apply_scaled_experts(builder& g, op scale_op, id w, id f, id x, id routing,
                                                bool transposed) {
  const node v = g.n[w];
  const bool shared = g.n[f].d[1] == dim{1};  // all experts have the same factor
  // s (P Q) = (s P) Q: the small operand is scaled once per change of the parameters.
  if (v.what == op::matmul && !v.from_base && !v.ta && !v.sum && is_expert_column(g, f)) {
    const id left = make_node::pointwise(g, scale_op, v.a, f);
    return apply_experts(g, make_node::matmul(g, left, v.b, false, v.tb), x, routing, transposed);
  }
  const bool column = is_expert_column(g, f) && !is_scalar(g.n[f]);
  const id factor_row = column ? make_node::reshape(g, f, {1}, g.n[f].d[1], {1}, g.n[f].d[2]) : f;
  auto scale = [&](id a) {
    return shared ? make_node::pointwise(g, scale_op, a, factor_row) : scale_rows(g, scale_op, a, factor_row, routing);
  };
  if (is_scalar(g.n[f]) || column != transposed) return scale(apply_experts(g, w, x, routing, transposed));
  return apply_experts(g, w, scale(x), routing, transposed);
}

}  // namespace detail

constexpr id apply_experts(builder& g, id w, id x, id routing, bool transposed) {
  const node v = g.n[w];
  auto of = [&](id m, id rows, bool flipped) { return apply_experts(g, m, rows, routing, flipped); };
  auto scaled = [&](op scale_op, id m, id f) {
    return detail::apply_scaled_experts(g, scale_op, m, f, x, routing, transposed);
  };
  if (v.what == op::eye) return x;
  if (!worth_precomputing(g, w)) switch (v.what) {
      case op::add:
      case op::sub:
        if (!has_shape_of(g, v.a, w) || !has_shape_of(g, v.b, w)) break;
        return make_node::pointwise(g, v.what, of(v.a, x, transposed), of(v.b, x, transposed), v.line);
      case op::mul:
        if (detail::is_expert_factor(g, v.a, w) && has_shape_of(g, v.b, w)) return scaled(op::mul, v.b, v.a);
        if (detail::is_expert_factor(g, v.b, w) && has_shape_of(g, v.a, w)) return scaled(op::mul, v.a, v.b);
        break;
      case op::div:
        if (detail::is_expert_factor(g, v.b, w) && has_shape_of(g, v.a, w)) return scaled(op::div, v.a, v.b);
        break;
      case op::matmul:
        if (v.sum) break;
        if (transposed) return of(v.b, of(v.a, x, !v.ta), !v.tb);
        return of(v.a, of(v.b, x, v.tb), v.ta);
      case op::transpose: return of(v.a, x, !transposed);
      case op::repeat:
        if (transposed) return make_node::repeat(g, of(v.a, x, true), v.d[3]);
        return of(v.a, make_node::fold_columns(g, x, g.n[v.a].d[3]), false);
      default: break;
    }
  return make_node::grouped_matmul(g, x, w, routing, !transposed, v.line);
}

}  // namespace graft
