// SPDX-License-Identifier: Apache-2.0
// apply: the forward product x W'ᵀ (fprop) of an adapted weight without building W'. It distributes over sums,
// multiplies chains from the activation's end, so that W + B A becomes a base product and a low-rank branch, pulls row
// and column factors out, rotates x instead of W, and uses two identities:
//     x (A1 B1 ⊙ A2 B2)ᵀ = (x (B1 ⋆ B2)ᵀ) (A1 • A2)ᵀ        Khatri–Rao and face-splitting products, rank r1 r2
//     x (w1 ⊗ w2)ᵀ       = vec(w1 X w2ᵀ),  X = x as [c, d]     the vec trick
// A factor that is no larger than the chain it replaces is computed once per change of the parameters. select() does
// this for look-ups: it gives the rows of W' that the ids name.
#pragma once
#include <graft/derive/traversal.h>
#include <graft/graph/rules.h>

namespace graft {

// Counts the multiplications per token, on nominal sizes, when w is applied factor by factor.
[[gnu::cold, gnu::noinline]] constexpr long long chain_cost(const graph& g, id w) {
  const node& v = g[w];
  const long long own_count = nominal_count(g, w);
  switch (v.what) {
    case op::add:
    case op::sub: return chain_cost(g, v.a) + chain_cost(g, v.b);
    case op::div: return chain_cost(g, v.a);
    case op::mul:
      if (nominal_count(g, v.a) < own_count) return chain_cost(g, v.b);
      if (nominal_count(g, v.b) < own_count) return chain_cost(g, v.a);
      if (g[v.a].what == op::matmul && g[v.b].what == op::matmul) {
        const node &p = g[v.a], &q = g[v.b];
        const long long rank =
            g.sizes.nominal(p.ta ? g[p.a].d[2] : g[p.a].d[3]) * g.sizes.nominal(q.ta ? g[q.a].d[2] : g[q.a].d[3]);
        return rank * (g.sizes.nominal(v.d[2]) + g.sizes.nominal(v.d[3]));
      }
      return own_count;
    case op::matmul: return chain_cost(g, v.a) + chain_cost(g, v.b);
    case op::transpose: return chain_cost(g, v.a);
    case op::rotate: return chain_cost(g, v.a) + nominal_count(g, v.b);
    case op::repeat: return chain_cost(g, v.a) + g.sizes.nominal(v.d[3]);
    case op::kron:
      return nominal_count(g, v.a) * g.sizes.nominal(g[v.b].d[2]) +
             nominal_count(g, v.b) * g.sizes.nominal(g[v.a].d[3]);
    default: return own_count;
  }
}
// Counts the elements of the largest base weight that w is computed from.
[[gnu::cold, gnu::noinline]] constexpr long long base_count(const graph& g, id w) {
  if (!g.n[w].from_base) return 0;
  const node_set s = dependencies(g, w);
  const bool* const in = s.in.data();
  long long most = 0;
  for (id i = 0; i <= w; ++i)
    if (in[i] && g.n[i].what == op::base && nominal_count(g, i) > most) most = nominal_count(g, i);
  return most;
}
// Returns true if the matrix w is computed once per change of the parameters: it must be no larger than the chain that
// it replaces, and no second copy of the base weight.
constexpr bool worth_precomputing(const graph& g, id w) {
  const long long own_count = nominal_count(g, w);
  if (is_leaf(g.n[w].what) || own_count > chain_cost(g, w)) return false;
  const long long base = base_count(g, w);
  return base == 0 || 4 * own_count <= base;
}
constexpr bool has_shape_of(const builder& g, id a, id w) { return same_shape(g.n[a], g.n[w]); }
constexpr bool is_column(const builder& g, id a) { return g.n[a].d[3] == dim{1} && g.n[a].d[1] == dim{1}; }
constexpr bool is_row(const builder& g, id a) { return g.n[a].d[2] == dim{1} && g.n[a].d[1] == dim{1}; }

constexpr id apply(builder& g, id w, id x, bool transposed = false);
constexpr id absorb_factor(builder& g, op scale_op, id m, id f);

[[gnu::cold, gnu::noinline]] constexpr id apply_kron(builder& g, id w1, id w2, id x) {
  const node p = g.n[w1], q = g.n[w2], in = g.n[x];
  const dim tokens = g.times(in.d[1], in.d[2]);
  const id blocks = make_node::reshape(g, x, {1}, tokens, p.d[3], q.d[3]);  // [tokens, c, d]
  const id right = make_node::matmul(g, blocks, w2, false, true);           // [tokens, c, b]
  const id left = make_node::matmul(g, w1, right);                          // [tokens, a, b]
  return make_node::reshape(g, left, in.d[0], in.d[1], in.d[2], g.times(p.d[2], q.d[2]));
}
// Applies a weight whose rows or columns v scales: row factors scale y and column factors scale x, or the other way
// round where the weight is transposed.
[[gnu::cold]] constexpr id apply_scaled(builder& g, op scale_op, id w, id v, id x, bool transposed) {
  if (is_scalar(g.n[v]) && g.is(w, op::kron) && !transposed) {  // s (w1 ⊗ w2) = (s w1) ⊗ w2
    const node k = g.n[w];
    return apply_kron(g, scale_op == op::mul ? make_node::mul(g, k.a, v) : make_node::div(g, k.a, v), k.b, x);
  }
  if (!is_scalar(g.n[v]) || scale_op == op::div)  // simplify() moves scalars that multiply
    if (const id absorbed = absorb_factor(g, scale_op, w, v); absorbed >= 0) return apply(g, absorbed, x, transposed);
  const bool column = is_column(g, v);
  const id factor_row = column ? make_node::as_row(g, v) : v;
  const bool on_output = column != transposed;
  auto scale = [&](id a) {
    return scale_op == op::mul ? make_node::mul(g, a, factor_row) : make_node::div(g, a, factor_row);
  };
  return is_scalar(g.n[v]) || on_output ? scale(apply(g, w, x, transposed)) : apply(g, w, scale(x), transposed);
}
[[gnu::cold, gnu::noinline]] constexpr id apply_hadamard(builder& g, id m1, id m2, id x) {
  const node p = g.n[m1], q = g.n[m2];
  auto rows = [&](id a, bool flipped) { return flipped ? make_node::transpose(g, a) : a; };
  const id left = make_node::row_kron(g, rows(p.a, p.ta), rows(q.a, q.ta));
  const id right = make_node::row_kron(g, rows(p.b, !p.tb), rows(q.b, !q.tb));
  return make_node::matmul(g, make_node::matmul(g, x, right), left, false, true);
}
// W (I - P Q) = W - (W P) Q: the product becomes a low-rank branch, whose left factor W P is precomputed.
constexpr id expand_identity(builder& g, id w) {
  const node v = g.n[w];
  if (v.what != op::matmul || v.ta || v.tb) return none_id;
  const node sum = g.n[v.b];
  if ((sum.what != op::sub && sum.what != op::add) || !g.is(sum.a, op::eye) || !g.is(sum.b, op::matmul)) return none_id;
  const node low = g.n[sum.b];
  const id left = make_node::matmul(g, v.a, low.a, false, low.ta);
  const id branch = make_node::matmul(g, left, low.b, false, low.tb);
  return sum.what == op::sub ? make_node::sub(g, v.a, branch) : make_node::add(g, v.a, branch);
}

// f ⊙ (P Q) = (f ⊙ P) Q for a column of factors, P (f ⊙ Q) for a row: the factor of a low-rank product moves onto one
// of its operands, through the scalars, other factors, sums and transpositions between them, so that the brackets of a
// formula do not decide what fuses. A small operand is then scaled once per change of the parameters, instead of the
// activations at every call. `m` is the matrix, `f` the factor, `scale_op` multiplication or division. The result is
// none_id where some term of `m` has no such operand: the base weight has none.
[[gnu::cold]] constexpr id absorb_factor(builder& g, op scale_op, id m, id f) {
  const node v = g.n[m];
  if (v.from_base) return none_id;
  auto scaled = [&](id operand, bool flipped) {  // `flipped`: the product reads the operand transposed
    const id factor_row = flipped ? make_node::transpose(g, f) : f;
    return scale_op == op::mul ? make_node::mul(g, operand, factor_row) : make_node::div(g, operand, factor_row);
  };
  switch (v.what) {
    case op::matmul:
      if (v.sum) return none_id;
      if (is_row(g, f)) return make_node::matmul(g, v.a, scaled(v.b, v.tb), v.ta, v.tb, v.line);
      return make_node::matmul(g, scaled(v.a, v.ta), v.b, v.ta, v.tb, v.line);
    case op::mul:
    case op::div: {
      const bool first = v.what == op::mul && !has_shape_of(g, v.a, m);
      const id other = first ? v.a : v.b;
      const id inner = absorb_factor(g, scale_op, first ? v.b : v.a, f);
      if (inner < 0) return none_id;
      const bool is_factor = !has_shape_of(g, other, m) && !is_scalar(g.n[other]);
      return is_factor ? absorb_factor(g, v.what, inner, other) : make_node::pointwise(g, v.what, inner, other, v.line);
    }
    case op::add:
    case op::sub: {
      if (!has_shape_of(g, v.a, m) || !has_shape_of(g, v.b, m)) return none_id;
      const id left = absorb_factor(g, scale_op, v.a, f),
               right = left < 0 ? none_id : absorb_factor(g, scale_op, v.b, f);
      return right < 0 ? none_id : make_node::pointwise(g, v.what, left, right, v.line);
    }
    case op::transpose: {
      const id below = absorb_factor(g, scale_op, v.a, make_node::transpose(g, f));
      return below < 0 ? none_id : make_node::transpose(g, below, v.line);
    }
    default: return none_id;
  }
}

constexpr id apply(builder& g, id w, id x, bool transposed) {
  const node v = g.n[w];
  if (v.what == op::eye) return x;
  if (!worth_precomputing(g, w)) switch (v.what) {
      case op::add:
      case op::sub:
        if (!has_shape_of(g, v.a, w) || !has_shape_of(g, v.b, w)) break;
        return make_node::pointwise(g, v.what, apply(g, v.a, x, transposed), apply(g, v.b, x, transposed), v.line);
      case op::mul:
        if (is_scalar(g.n[v.a]) || (!has_shape_of(g, v.a, w) && (is_column(g, v.a) || is_row(g, v.a))))
          return apply_scaled(g, op::mul, v.b, v.a, x, transposed);
        if (is_scalar(g.n[v.b]) || (!has_shape_of(g, v.b, w) && (is_column(g, v.b) || is_row(g, v.b))))
          return apply_scaled(g, op::mul, v.a, v.b, x, transposed);
        if (!transposed && g.is(v.a, op::matmul) && g.is(v.b, op::matmul)) return apply_hadamard(g, v.a, v.b, x);
        break;
      case op::div:
        if (is_scalar(g.n[v.b]) || (!has_shape_of(g, v.b, w) && (is_column(g, v.b) || is_row(g, v.b))))
          return apply_scaled(g, op::div, v.a, v.b, x, transposed);
        break;
      case op::matmul: {
        const id expanded = expand_identity(g, w);
        if (expanded >= 0) return apply(g, expanded, x, transposed);
        if (transposed) return apply(g, v.b, apply(g, v.a, x, !v.ta), !v.tb);
        return apply(g, v.a, apply(g, v.b, x, v.tb), v.ta);
      }
      case op::transpose: return apply(g, v.a, x, !transposed);
      case op::rotate:
        if (transposed) return make_node::rotate(g, apply(g, v.a, x, true), v.b, v.tb, v.line);
        return apply(g, v.a, make_node::rotate(g, x, v.b, !v.tb, v.line), false);
      case op::repeat:
        if (transposed) return make_node::repeat(g, apply(g, v.a, x, true), v.d[3]);
        return apply(g, v.a, make_node::fold_columns(g, x, g.n[v.a].d[3]), false);
      case op::kron:
        if (!transposed) return apply_kron(g, v.a, v.b, x);
        break;
      default: break;
    }
  return make_node::matmul(g, x, w, false, !transposed, v.line);
}

[[gnu::cold]] constexpr id select(builder& g, id w, id ids, bool by_column = false) {
  const node v = g.n[w];
  switch (v.what) {
    case op::add:
    case op::sub:
      if (!has_shape_of(g, v.a, w) || !has_shape_of(g, v.b, w)) break;
      return make_node::pointwise(g, v.what, select(g, v.a, ids, by_column), select(g, v.b, ids, by_column), v.line);
    case op::mul:
    case op::div: {
      const bool first = v.what == op::mul && !has_shape_of(g, v.a, w);
      const id factor = first ? v.a : v.b, matrix = first ? v.b : v.a;
      if (!has_shape_of(g, factor, w) && !is_scalar(g.n[factor]))
        if (const id absorbed = absorb_factor(g, v.what, matrix, factor); absorbed >= 0)
          return select(g, absorbed, ids, by_column);
      if (has_shape_of(g, factor, w) || by_column || (!is_scalar(g.n[factor]) && !is_row(g, factor))) break;
      return make_node::pointwise(g, v.what, select(g, matrix, ids, by_column), factor, v.line);
    }
    case op::matmul:
      if (by_column) return make_node::matmul(g, select(g, v.b, ids, !v.tb), v.a, false, !v.ta);
      return make_node::matmul(g, select(g, v.a, ids, v.ta), v.b, false, v.tb);
    case op::transpose: return select(g, v.a, ids, !by_column);
    case op::rotate:
      if (by_column) break;
      return make_node::rotate(g, select(g, v.a, ids, false), v.b, v.tb, v.line);
    default: break;
  }
  return make_node::gather(g, w, ids, by_column);
}

}  // namespace graft
