// SPDX-License-Identifier: Apache-2.0
// grad: one loop over the forward graph, backwards. Given dy, the graph gains dx and the gradient of every parameter
// the output depends on; detach and the frozen leaves stop it. The rule of an op is its adjoint, stated with other ops.
#pragma once
#include <graft/derive/walk.h>
#include <graft/graph/rules_algebra.h>

namespace graft {

struct adjoints {
  builder& g;
  node_set wanted;  // nodes that lead to an input or a parameter
  id d[max_nodes]{};

  constexpr void push(id to, id value) {
    if (!wanted[to]) return;
    const id fitted = make::sum_to(g, value, to);
    d[to] = d[to] < 0 ? fitted : make::add(g, d[to], fitted);
  }
  constexpr id half_over(id t, id v) { return make::div(g, make::mul(g, g.constant(0.5), t), v); }

  constexpr void matmul(const node& v, id t) {
    const node p = g.n[v.a], q = g.n[v.b];
    // One operand may be shared by all matrices of the other: its gradient sums over them inside the product.
    auto product = [&](id a, id b, bool ta, bool tb, const node& like) {
      bool shared = false;
      for (int i = 0; i < 2; ++i)
        shared = shared || (like.d[i] == dim{1} && (g.n[a].d[i] != dim{1} || g.n[b].d[i] != dim{1}));
      return make::matmul(g, a, b, ta, tb, v.line, shared);
    };
    if (wanted[v.a]) push(v.a, v.ta ? product(v.b, t, v.tb, true, p) : product(t, v.b, false, !v.tb, p));
    if (wanted[v.b]) push(v.b, v.tb ? product(t, v.a, true, v.ta, q) : product(v.a, t, !v.ta, false, q));
  }
  constexpr void kron(const node& v, id t) {
    const node p = g.n[v.a], q = g.n[v.b];
    const id blocks = make::swap_inner(g, make::reshape(g, t, p.d[2], q.d[2], p.d[3], q.d[3]));  // [a, c, b, d]
    const id flat = make::reshape(g, blocks, {1}, {1}, g.times(p.d[2], p.d[3]), g.times(q.d[2], q.d[3]));
    const id w1 = make::reshape(g, v.a, {1}, {1}, g.times(p.d[2], p.d[3]), {1});
    const id w2 = make::reshape(g, v.b, {1}, {1}, g.times(q.d[2], q.d[3]), {1});
    push(v.a, make::reshape_like(g, make::matmul(g, flat, w2), v.a));
    push(v.b, make::reshape_like(g, make::matmul(g, flat, w1, true, false), v.b));
  }
  constexpr void row_kron(const node& v, id t) {
    const node p = g.n[v.a], q = g.n[v.b];
    const id cube = make::reshape(g, t, {1}, v.d[2], p.d[3], q.d[3]);
    const id a = make::reshape(g, v.a, {1}, v.d[2], p.d[3], {1}), b = make::reshape(g, v.b, {1}, v.d[2], q.d[3], {1});
    push(v.a, make::reshape_like(g, make::matmul(g, cube, b), v.a));
    push(v.b, make::reshape_like(g, make::matmul(g, cube, a, true, false), v.b));
  }

  constexpr void visit(id i, id t) {
    const node v = g.n[i];
    switch (v.what) {
      case op::input:
      case op::ids:
      case op::base:
      case op::frozen:
      case op::param:
      case op::scalar:
      case op::constant:
      case op::eye:
      case op::zero:
      case op::kept:
      case op::detach:
      case op::step: return;
      case op::add: push(v.a, t), push(v.b, t); return;
      case op::sub: push(v.a, t), push(v.b, make::negate(g, t)); return;
      case op::mul:
        if (wanted[v.a]) push(v.a, make::mul(g, t, v.b));
        if (wanted[v.b]) push(v.b, make::mul(g, t, v.a));
        return;
      case op::div:
        if (wanted[v.a]) push(v.a, make::div(g, t, v.b));
        if (wanted[v.b]) push(v.b, make::negate(g, make::div(g, make::mul(g, t, i), v.b)));
        return;
      case op::minimum:
        push(v.a, make::mul(g, t, make::unary(g, op::step, make::sub(g, v.b, v.a))));
        push(v.b, make::mul(g, t, make::unary(g, op::step, make::sub(g, v.a, v.b))));
        return;
      case op::sqrt: push(v.a, half_over(t, i)); return;
      case op::exp: push(v.a, make::mul(g, t, i)); return;
      case op::tanh: push(v.a, make::mul(g, t, make::sub(g, g.constant(1), make::mul(g, i, i)))); return;
      case op::sigmoid: push(v.a, make::mul(g, t, make::mul(g, i, make::sub(g, g.constant(1), i)))); return;
      case op::relu: push(v.a, make::mul(g, t, make::unary(g, op::step, v.a))); return;
      case op::matmul: matmul(v, t); return;
      case op::row_dot: push(v.a, make::mul(g, t, v.b)), push(v.b, make::mul(g, t, v.a)); return;
      case op::transpose: push(v.a, make::transpose(g, t)); return;
      case op::reshape: push(v.a, make::reshape_like(g, t, v.a)); return;
      case op::swap_inner: push(v.a, make::swap_inner(g, t)); return;
      case op::tile: push(v.a, make::fold(g, t, g.n[v.a].d[3])); return;
      case op::fold: push(v.a, make::tile(g, t, g.n[v.a].d[3])); return;
      case op::upper: push(v.a, make::unary(g, op::upper, t)); return;
      case op::skew: push(v.a, make::unskew(g, t, v.a)); return;
      case op::inverse:
        push(v.a, make::negate(g, make::matmul(g, make::matmul(g, i, t, true), i, false, true)));
        return;
      case op::neumann: push(v.a, make::neumann_grad(g, v.a, t, v.k[0])); return;
      case op::rotate:
        if (wanted[v.a]) push(v.a, make::rotate(g, t, v.b, !v.tb));
        if (wanted[v.b]) push(v.b, make::rotate_grad(g, v.a, t, v.b, v.tb));
        return;
      case op::kron: kron(v, t); return;
      case op::row_kron: row_kron(v, t); return;
      case op::gather: push(v.a, make::scatter(g, t, v.b, v.ta, v.a)); return;
      case op::topk_softmax: push(v.a, g.emit(g.shaped(op::softmax_grad, i, i, t))); return;
      case op::normalize: push(v.a, make::normalize_grad(g, v.a, v.b, t, v.k[0] == dim{1})); return;
      case op::patches: push(v.a, make::unpatch(g, t, v.a, v)); return;
      case op::sum_to:
      case op::unskew:
      case op::neumann_grad:
      case op::rotate_grad:
      case op::scatter:
      case op::softmax_grad:
      case op::normalize_grad:
      case op::unpatch:
      case op::host: g.stop(fault::not_differentiable, i, v.line); return;
    }
  }
};

// The forward graph `f` with output "y" becomes the backward graph: input "dy", outputs "dx" and one under the name of
// each parameter.
constexpr builder grad(const builder& f) {
  builder g = f;
  const id y = f.result("y");
  const node_set wanted = dependents(
      f, [](const node& v) { return v.what == op::param || v.what == op::input; }, false);
  adjoints a{g, wanted};
  for (id& v : a.d) v = none_id;
  const node shape = f.n[y];
  const int rank = shape.d[0] == dim{1} && shape.d[1] == dim{1} ? 2 : 4;
  a.d[y] = g.leaf(op::input, "dy", rank, shape.d[0], shape.d[1], shape.d[2], shape.d[3]);
  for (int i = f.size - 1; i >= 0; --i)
    if (a.d[i] >= 0) a.visit(static_cast<id>(i), a.d[i]);
  g.outs = 0;
  for (int i = 0; i < f.size; ++i) {
    const node& v = f.n[i];
    if (v.what != op::param && v.what != op::input) continue;
    const id d = a.d[i] >= 0 ? a.d[i] : g.zero_like(static_cast<id>(i));
    g.give(d, v.what == op::input ? "dx" : v.name);
  }
  return g;
}

}  // namespace graft
