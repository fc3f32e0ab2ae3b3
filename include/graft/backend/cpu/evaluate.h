// SPDX-License-Identifier: Apache-2.0
// One node: from the values of its operands to its value. Both backends call this; they differ in which nodes they
// evaluate, on how many tokens at a time, and where the values live.
#pragma once
#include <graft/backend/cpu/algebra.h>
#include <graft/backend/cpu/attention.h>
#include <graft/backend/cpu/cross_entropy.h>
#include <graft/backend/cpu/dropout.h>
#include <graft/backend/cpu/host_function.h>
#include <graft/backend/cpu/layout.h>
#include <graft/backend/cpu/lookup.h>
#include <graft/backend/cpu/matmul.h>
#include <graft/backend/cpu/patches.h>
#include <graft/backend/cpu/pointwise.h>
#include <graft/backend/cpu/reduce.h>
#include <graft/backend/cpu/rope.h>
#include <graft/backend/cpu/rotate.h>
#include <graft/backend/cpu/rowwise.h>

namespace graft::cpu {

enum class rotations : unsigned char { blockwise, dense };

template <class Real> struct operands {
  tensor<Real> a, b, c;
  const std::int64_t* ids = nullptr;  // instead of the operand that is integers
  long long first = 0;                // the number of the result's first element, where it is a piece of a larger one
};

template <class Real> struct evaluator {
  const graph& g;
  const size_values& s;
  rotations how = rotations::blockwise;
  const host_function<Real>* host = nullptr;

  long long argument(const node& v, int k) const { return g.sizes.value(v.k[k], s); }
  window patch_window(const node& v, id image) const {
    const node& x = g[image];
    const long long kw = argument(v, 1), stride = argument(v, 2), pad = argument(v, 3);
    return {argument(v, 0), kw, stride, pad, (g.sizes.value(x.d[3], s) + 2 * pad - kw) / stride + 1};
  }

  void operator()(id i, tensor<Real> out, const operands<Real>& x, int accumulate = 0) const;
};

// Outside the class, so that a program may compile it once (extern template): behind it is all of Eigen.
template <class Real>
void evaluator<Real>::operator()(id i, tensor<Real> out, const operands<Real>& x, int accumulate) const {
  const node& v = g[i];
  switch (v.what) {
    case op::input:
    case op::ids:
    case op::state:
    case op::base:
    case op::frozen:
    case op::index:
    case op::param:
    case op::scalar:
    case op::kept: return;
    case op::constant: *out.p = static_cast<Real>(v.value); return;
    case op::number: *out.p = static_cast<Real>(argument(v, 0)); return;
    case op::zero: std::fill_n(out.p, out.count(), Real(0)); return;
    case op::eye:
      for (long long k = 0; k < out.area(); ++k) out.p[k] = k / out.d[3] == k % out.d[3] ? Real(1) : Real(0);
      return;
    case op::add:
    case op::sub:
    case op::mul:
    case op::div:
    case op::minimum:
    case op::maximum: binary(v.what, out, x.a, x.b); return;
    case op::sqrt:
    case op::exp:
    case op::log:
    case op::sin:
    case op::cos:
    case op::tanh:
    case op::erf:
    case op::sigmoid:
    case op::relu:
    case op::silu:
    case op::gelu:
    case op::gelu_tanh:
    case op::step:
    case op::detach: unary(v.what, out, x.a); return;
    case op::matmul: matmul(out, x.a, x.b, {v.ta, v.tb, v.sum, accumulate}); return;
    case op::row_dot: row_dot(out, x.a, x.b); return;
    case op::sum_to: sum_to(out, x.a); return;
    case op::transpose: transpose(out, x.a); return;
    case op::reshape: std::copy_n(x.a.p, out.count(), out.p); return;
    case op::permute: permute(out, x.a, {v.k[0].v, v.k[1].v, v.k[2].v, v.k[3].v}); return;
    case op::slice: slice(out, x.a, v.k[0].v, argument(v, 1)); return;
    case op::pad: pad(out, x.a, v.k[0].v, argument(v, 1)); return;
    case op::concat: concat(out, x.a, x.b, v.k[0].v); return;
    case op::repeat: repeat(out, x.a); return;
    case op::fold: fold(out, x.a); return;
    case op::upper: strict_upper(out, x.a); return;
    case op::skew: skew(out, x.a); return;
    case op::unskew: unskew(out, x.a); return;
    case op::inverse: inverse(out, x.a); return;
    case op::neumann: neumann(out, x.a, argument(v, 0)); return;
    case op::neumann_grad: neumann_grad(out, x.a, x.b, argument(v, 0)); return;
    case op::rotate: {
      if (how == rotations::blockwise) return rotate(out, x.a, x.b, v.tb);
      const long long in = x.a.d[3];
      const std::vector<Real> r = dense_rotation(x.b, in);
      return product(out.p, x.a.count() / in, in, x.a.p, r.data(), in, {false, v.tb});
    }
    case op::rotate_grad: rotate_grad(out, x.a, x.b, x.c, v.tb); return;
    case op::kron: kron(out, x.a, x.b); return;
    case op::row_kron: row_kron(out, x.a, x.b); return;
    case op::gather: gather(out, x.a, x.ids, v.ta); return;
    case op::scatter: scatter(out, x.a, x.ids, v.ta); return;
    case op::place: place(out, x.a, x.ids); return;
    case op::pick: pick(out, x.a, x.ids); return;
    case op::softmax: softmax(out, x.a); return;
    case op::topk_softmax: topk_softmax(out, x.a, argument(v, 0)); return;
    case op::softmax_grad: softmax_grad(out, x.a, x.b); return;
    case op::normalize: normalize(out, x.a, *x.b.p, v.k[0] == dim{1}); return;
    case op::normalize_grad: normalize_grad(out, x.a, *x.b.p, x.c, v.k[0] == dim{1}); return;
    case op::rope: rope(out, x.a, x.b, v.tb); return;
    case op::dropout: dropout(out, x.a, *x.ids, argument(v, 0), *x.c.p, x.first); return;
    case op::cross_entropy: cross_entropy(out, x.a, x.ids); return;
    case op::cross_entropy_grad: cross_entropy_grad(out, x.a, x.ids, x.c); return;
    case op::attention: attention(out, x.a, x.ids, argument(v, 0)); return;
    case op::attention_grad: attention_grad(out, x.a, x.ids, x.c, argument(v, 0)); return;
    case op::cached_attention: cached_attention(out, x.a, x.ids, x.c, argument(v, 0)); return;
    case op::patches:
      std::fill_n(out.p, out.count(), Real(0));
      each_patch(x.a.d, {1, out.d[1], out.d[2], out.d[3]}, patch_window(v, v.a),
                 [&](long long at, long long to) { out.p[to] = x.a.p[at]; });
      return;
    case op::unpatch:
      each_patch(out.d, {1, x.a.d[1], x.a.d[2], x.a.d[3]}, patch_window(v, i),
                 [&](long long at, long long from) { out.p[at] += x.a.p[from]; });
      return;
    case op::host: (*host)(v.name, x.a, out); return;
  }
}

}  // namespace graft::cpu
