// SPDX-License-Identifier: Apache-2.0
// grad: reverse-mode differentiation (autograd) of a graph, in one loop over the forward graph from its end. Given dy,
// the graph gains dx (dgrad) and the gradient of every parameter that the output depends on (wgrad); detach and frozen
// leaves stop it. The rule of an operation is its adjoint, written with other operations.
#pragma once
#include <graft/derive/traversal.h>
#include <graft/graph/rules_experts.h>
#include <graft/graph/rules_model.h>

namespace graft {

struct adjoints {
  builder& g;
  node_set wanted;  // nodes that lead to an input or a parameter
  sequence<id> d;

  [[gnu::cold, gnu::noinline]] constexpr void push(id to, id value) {
    if (!wanted[to]) return;
    const id fitted = make_node::sum_to(g, value, to);
    d[to] = d[to] < 0 ? fitted : added(d[to], fitted);
  }
  // Adds two gradients. A term with dropout comes last, because the launch of the product that begins the sum also
  // computes what such a term reads (plan/launch/dropout_gemm.h).
  constexpr id added(id sum, id more) {
    const node v = g.n[sum];
    if (g.is(more, op::dropout)) return make_node::add(g, sum, more);
    if (v.what == op::dropout) return make_node::add(g, more, sum);
    return v.what == op::add && g.is(v.b, op::dropout) ? make_node::add(g, added(v.a, more), v.b)
                                                       : make_node::add(g, sum, more);
  }
  constexpr id half_quotient(id t, id v) { return make_node::div(g, make_node::mul(g, g.constant(0.5), t), v); }

  // c exp(-k x²)
  constexpr id gaussian(id x, double k, double c) {
    const id square = make_node::mul(g, g.constant(-k), make_node::mul(g, x, x));
    return make_node::mul(g, g.constant(c), make_node::unary(g, op::exp, square));
  }
  // The derivative of silu, y = x σ(x), is σ + y (1 - σ).
  constexpr id silu_slope(id x, id y) {
    const id s = make_node::unary(g, op::sigmoid, x), rest = make_node::sub(g, g.constant(1), s);
    return make_node::add(g, s, make_node::mul(g, y, rest));
  }
  // The derivative of gelu, x Φ(x), is Φ(x) + x φ(x), where Φ is the normal distribution and φ its density.
  constexpr id gelu_slope(id x) {
    const id inner = make_node::unary(g, op::erf, make_node::mul(g, g.constant(0.70710678118654752440), x));
    const id cumulative = make_node::add(g, g.constant(0.5), make_node::mul(g, g.constant(0.5), inner));
    return make_node::add(g, cumulative, make_node::mul(g, x, gaussian(x, 0.5, 0.39894228040143267794)));
  }
  // The derivative of x (1 + tanh u) / 2 with u = c (x + k x³) is (1 + tanh u) / 2 + x (1 - tanh² u) u' / 2.
  constexpr id gelu_tanh_slope(id x) {
    const double c = 0.79788456080286535588, k = 0.044715;
    const id square = make_node::mul(g, x, x);
    const id u = make_node::mul(g, x, make_node::add(g, g.constant(c), make_node::mul(g, g.constant(c * k), square)));
    const id du = make_node::add(g, g.constant(c), make_node::mul(g, g.constant(3 * c * k), square));
    const id curve = make_node::unary(g, op::tanh, u);
    const id half = make_node::mul(g, g.constant(0.5), make_node::add(g, curve, g.constant(1)));
    const id rest = make_node::sub(g, g.constant(1), make_node::mul(g, curve, curve));
    return make_node::add(g, half,
                          make_node::mul(g, g.constant(0.5), make_node::mul(g, x, make_node::mul(g, rest, du))));
  }

  [[gnu::cold]] constexpr void matmul(const node& v, id t) {
    const node p = g.n[v.a], q = g.n[v.b];
    // One operand may be shared by all matrices of the other: its gradient sums over them inside the product.
    auto product = [&](id a, id b, bool ta, bool tb, const node& like) {
      bool shared = false;
      for (int i = 0; i < 2; ++i)
        shared = shared || (like.d[i] == dim{1} && (g.n[a].d[i] != dim{1} || g.n[b].d[i] != dim{1}));
      return make_node::matmul(g, a, b, ta, tb, v.line, shared);
    };
    if (wanted[v.a]) push(v.a, v.ta ? product(v.b, t, v.tb, true, p) : product(t, v.b, false, !v.tb, p));
    if (wanted[v.b]) push(v.b, v.tb ? product(t, v.a, true, v.ta, q) : product(v.a, t, !v.ta, false, q));
  }
  // For a = Q R the gradient is da = (dQ + Q S) R⁻ᵀ, where S is the symmetric matrix with the lower triangle of −dQᵀ Q
  // (Walter and Lehmann 2010, Algorithmic differentiation of linear algebra functions).
  constexpr void orthonormal(id q, const node& v, id t) {
    const dim n = v.d[3];
    const id m = make_node::negate(g, make_node::matmul(g, t, q, true, false));
    const id above = make_node::unary(g, op::strict_upper, make_node::transpose(g, m));
    const id diagonal = make_node::mul(g, m, g.leaf(op::eye, "I", 0, 2, {1}, {1}, n, n));
    const id sym = make_node::add(g, make_node::add(g, above, make_node::transpose(g, above)), diagonal);
    const id back = make_node::inverse(g, make_node::matmul(g, q, v.a, true, false));
    push(v.a, make_node::matmul(g, make_node::add(g, t, make_node::matmul(g, q, sym)), back, false, true));
  }
  // For y = x R the gradients are dx = dy Rᵀ and dR = xᵀ dy. For a single orthogonal R dR is also xᵀ dx R: then dy need
  // not be in memory where the GEMM that computes it applies the rotation in its epilogue.
  constexpr void rotated(const node& v, id t) {
    const id dx = wanted[v.a] ? make_node::rotate(g, t, v.b, !v.tb) : none_id;
    const bool from_dx = dx >= 0 && g.n[v.b].orthogonal && g.n[v.b].d[0] == dim{1};
    if (wanted[v.b]) {
      const id sum = make_node::rotate_grad(g, v.a, from_dx ? dx : t, v.b, v.tb);
      push(v.b, !from_dx ? sum : v.tb ? make_node::matmul(g, v.b, sum) : make_node::matmul(g, sum, v.b));
    }
    if (dx >= 0) push(v.a, dx);
  }
  constexpr void kron(const node& v, id t) {
    const node p = g.n[v.a], q = g.n[v.b];
    const id blocks =
        make_node::permute(g, make_node::reshape(g, t, p.d[2], q.d[2], p.d[3], q.d[3]), 0, 2, 1, 3);  // [a, c, b, d]
    const id flat = make_node::reshape(g, blocks, {1}, {1}, g.times(p.d[2], p.d[3]), g.times(q.d[2], q.d[3]));
    const id w1 = make_node::reshape(g, v.a, {1}, {1}, g.times(p.d[2], p.d[3]), {1});
    const id w2 = make_node::reshape(g, v.b, {1}, {1}, g.times(q.d[2], q.d[3]), {1});
    push(v.a, make_node::reshape_like(g, make_node::matmul(g, flat, w2), v.a));
    push(v.b, make_node::reshape_like(g, make_node::matmul(g, flat, w1, true, false), v.b));
  }
  constexpr void row_kron(const node& v, id t) {
    const node p = g.n[v.a], q = g.n[v.b];
    const id cube = make_node::reshape(g, t, {1}, v.d[2], p.d[3], q.d[3]);
    const id a = make_node::reshape(g, v.a, {1}, v.d[2], p.d[3], {1}),
             b = make_node::reshape(g, v.b, {1}, v.d[2], q.d[3], {1});
    push(v.a, make_node::reshape_like(g, make_node::matmul(g, cube, b), v.a));
    push(v.b, make_node::reshape_like(g, make_node::matmul(g, cube, a, true, false), v.b));
  }

  [[gnu::cold]] constexpr void visit(id i, id t) {
    const node v = g.n[i];
    switch (v.what) {
      case op::input:
      case op::ids:
      case op::state:
      case op::base:
      case op::frozen:
      case op::index:
      case op::param:
      case op::scalar:
      case op::constant:
      case op::number:
      case op::eye:
      case op::zero:
      case op::saved:
      case op::detach:
      case op::route:  // the choice of experts is not differentiable
      case op::heaviside: return;
      case op::add: push(v.a, t), push(v.b, t); return;
      case op::sub: push(v.a, t), push(v.b, make_node::negate(g, t)); return;
      case op::mul:
        if (wanted[v.a]) push(v.a, make_node::mul(g, t, v.b));
        if (wanted[v.b]) push(v.b, make_node::mul(g, t, v.a));
        return;
      case op::div:
        if (wanted[v.a]) push(v.a, make_node::div(g, t, v.b));
        if (wanted[v.b]) push(v.b, make_node::negate(g, make_node::div(g, make_node::mul(g, t, i), v.b)));
        return;
      case op::minimum:
        push(v.a, make_node::mul(g, t, make_node::unary(g, op::heaviside, make_node::sub(g, v.b, v.a))));
        push(v.b, make_node::mul(g, t, make_node::unary(g, op::heaviside, make_node::sub(g, v.a, v.b))));
        return;
      case op::maximum:
        push(v.a, make_node::mul(g, t, make_node::unary(g, op::heaviside, make_node::sub(g, v.a, v.b))));
        push(v.b, make_node::mul(g, t, make_node::unary(g, op::heaviside, make_node::sub(g, v.b, v.a))));
        return;
      case op::sqrt: push(v.a, half_quotient(t, i)); return;
      case op::exp: push(v.a, make_node::mul(g, t, i)); return;
      case op::log: push(v.a, make_node::div(g, t, v.a)); return;
      case op::sin: push(v.a, make_node::mul(g, t, make_node::unary(g, op::cos, v.a))); return;
      case op::cos: push(v.a, make_node::negate(g, make_node::mul(g, t, make_node::unary(g, op::sin, v.a)))); return;
      case op::erf: push(v.a, make_node::mul(g, t, gaussian(v.a, 1.0, 2 * 0.56418958354775628695))); return;
      case op::tanh: push(v.a, make_node::mul(g, t, make_node::sub(g, g.constant(1), make_node::mul(g, i, i)))); return;
      case op::sigmoid:
        push(v.a, make_node::mul(g, t, make_node::mul(g, i, make_node::sub(g, g.constant(1), i))));
        return;
      case op::relu: push(v.a, make_node::mul(g, t, make_node::unary(g, op::heaviside, v.a))); return;
      case op::silu: push(v.a, make_node::mul(g, t, silu_slope(v.a, i))); return;
      case op::gelu: push(v.a, make_node::mul(g, t, gelu_slope(v.a))); return;
      case op::gelu_tanh: push(v.a, make_node::mul(g, t, gelu_tanh_slope(v.a))); return;
      case op::matmul: matmul(v, t); return;
      case op::row_dot: push(v.a, make_node::mul(g, t, v.b)), push(v.b, make_node::mul(g, t, v.a)); return;
      case op::transpose: push(v.a, make_node::transpose(g, t)); return;
      case op::reshape: push(v.a, make_node::reshape_like(g, t, v.a)); return;
      case op::permute: push(v.a, make_node::unpermute(g, t, v)); return;
      case op::slice: push(v.a, make_node::pad(g, t, v.a, v)); return;
      case op::pad: push(v.a, make_node::slice(g, t, v.k[0].v, v.k[1], g.n[v.a].d[v.k[0].v])); return;
      case op::concat: {
        const int axis = v.k[0].v;
        const dim first = g.n[v.a].d[axis], second = g.n[v.b].d[axis];
        if (wanted[v.a]) push(v.a, make_node::slice(g, t, axis, {0}, first));
        if (wanted[v.b]) push(v.b, make_node::slice(g, t, axis, first, second));
        return;
      }
      case op::repeat: push(v.a, make_node::fold_columns(g, t, g.n[v.a].d[3])); return;
      case op::fold_columns: push(v.a, make_node::repeat(g, t, g.n[v.a].d[3])); return;
      case op::strict_upper: push(v.a, make_node::unary(g, op::strict_upper, t)); return;
      case op::skew: push(v.a, make_node::unskew(g, t, v.a)); return;
      case op::circulant:
        push(v.a, v.ta ? make_node::circulant(g, t, v.tb) : make_node::circulant_sum(g, t, v.a, v.tb));
        return;
      case op::inverse:
        push(v.a, make_node::negate(g, make_node::matmul(g, make_node::matmul(g, i, t, true), i, false, true)));
        return;
      case op::orthonormal: orthonormal(i, v, t); return;
      case op::neumann: push(v.a, make_node::neumann_grad(g, v.a, t, v.k[0])); return;
      case op::rotate: rotated(v, t); return;
      case op::kron: kron(v, t); return;
      case op::row_kron: row_kron(v, t); return;
      case op::gather: push(v.a, make_node::scatter(g, t, v.b, v.ta, v.a)); return;
      case op::scatter_elements: push(v.a, make_node::gather_elements(g, t, v.b, v.a)); return;
      case op::gather_elements: push(v.a, g.emit(g.shaped(op::scatter_elements, v.a, t, v.b))); return;
      case op::softmax:
      case op::topk_softmax: push(v.a, g.emit(g.shaped(op::softmax_grad, i, i, t))); return;
      case op::normalize: push(v.a, make_node::normalize_grad(g, v.a, v.b, t, v.k[0] == dim{1})); return;
      case op::rope: push(v.a, make_node::rope(g, t, v.b, !v.tb)); return;
      case op::dropout: push(v.a, make_node::dropout(g, t, v.b, v.c, v.k[0])); return;
      case op::cross_entropy: push(v.a, make_node::cross_entropy_grad(g, v.a, v.b, t)); return;
      case op::attention: push(v.a, make_node::attention_grad(g, v.a, v.b, t, i)); return;
      case op::dispatch: push(v.a, make_node::combine(g, t, v.b, static_cast<routed_by>(v.k[0].v), v.a)); return;
      case op::combine: push(v.a, make_node::dispatch(g, t, v.b, static_cast<routed_by>(v.k[0].v))); return;
      case op::grouped_matmul:
        if (wanted[v.a]) push(v.a, make_node::grouped_matmul(g, t, v.b, v.c, !v.tb));
        if (wanted[v.b]) push(v.b, make_node::grouped_wgrad(g, v.tb ? t : v.a, v.tb ? v.a : t, v.c, v.b));
        return;
      case op::im2col: push(v.a, make_node::col2im(g, t, v.a, v)); return;
      case op::sum_to:
      case op::unskew:
      case op::neumann_grad:
      case op::rotate_grad:
      case op::scatter:
      case op::softmax_grad:
      case op::normalize_grad:
      case op::grouped_wgrad:
      case op::col2im:
      case op::cross_entropy_grad:
      case op::attention_grad:
      case op::cached_attention:
      case op::all_reduce_sum:
      case op::all_reduce_max:
      case op::host: g.stop({formula_error::not_differentiable, i, v.line}); return;
    }
  }
};

// Turns the forward graph `f` with output "y" into the backward graph, which has the input "dy" and one output per
// input and parameter of `f`: its gradient, by path and name. The sums of a router have a gradient of their own, an
// input as "dy" is (model/router_loss.h).
[[gnu::cold]] constexpr builder grad(const builder& f) {
  builder g = f;
  const id y = f.result("y");
  const node_set wanted = dependents(
      f, [](const node& v) { return v.what == op::param || v.what == op::input; }, false);
  const int before = f.n.size();
  adjoints a{g, wanted, sequence<id>(before, none_id)};
  const node shape = f.n[y];
  const int rank = shape.d[0] == dim{1} && shape.d[1] == dim{1} ? 2 : 4;
  a.d[y] = g.leaf(op::input, "dy", 0, rank, shape.d[0], shape.d[1], shape.d[2], shape.d[3]);
  for (const output& o : f.out)
    if (same_text(o.name, router_loss_names::sums))
      a.push(o.at, g.leaf(op::input, router_loss_names::sums_gradient, 0, 2, {1}, {1}, {1}, f.n[o.at].d[3]));
  for (id i = before - 1; i >= 0; --i)
    if (a.d[i] >= 0) a.visit(i, a.d[i]);
  g.out.clear();
  for (id i = 0; i < before; ++i) {
    const node v = f.n[i];
    if (v.what != op::param && v.what != op::input) continue;
    g.add_output(a.d[i] >= 0 ? a.d[i] : g.zero_like(i), v.name, v.path, v.what == op::input);
  }
  return g;
}

}  // namespace graft
