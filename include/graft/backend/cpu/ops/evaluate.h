// SPDX-License-Identifier: Apache-2.0
// Evaluates one node: from the values of its operands to its value. Plans and eager execution both call this; they
// differ in which nodes they evaluate, on how many rows at a time, and in where values are stored.
#pragma once
#include <graft/backend/cpu/gemm/matmul.h>
#include <graft/backend/cpu/ops/algebra.h>
#include <graft/backend/cpu/ops/attention.h>
#include <graft/backend/cpu/ops/circulant.h>
#include <graft/backend/cpu/ops/cross_entropy.h>
#include <graft/backend/cpu/ops/dropout.h>
#include <graft/backend/cpu/ops/elementwise.h>
#include <graft/backend/cpu/ops/experts.h>
#include <graft/backend/cpu/ops/gather.h>
#include <graft/backend/cpu/ops/im2col.h>
#include <graft/backend/cpu/ops/layout.h>
#include <graft/backend/cpu/ops/reduce.h>
#include <graft/backend/cpu/ops/rope.h>
#include <graft/backend/cpu/ops/rotate.h>
#include <graft/backend/cpu/ops/rowwise.h>
#include <graft/backend/cpu/runtime/compiled_ops.h>

namespace graft::cpu {

// How a rotation is applied: block by block, or by the oracle as a dense matrix.
enum class rotations : unsigned char { blockwise, dense };

template <class Real> struct operands {
  tensor<Real> a, b, c;
  const std::int64_t* ids = nullptr;         // the operand that is an index
  const gemm_epilogue<Real>* end = nullptr;  // epilogue of a matmul
  long long first = 0;  // number of the first element of the result in the whole value, for a chunk of rows
};

template <class Real> struct evaluator {
  const graph& g;
  const size_values& s;
  node_function<Real> function;
  rotations rotation_form = rotations::blockwise;
  const host_function<Real>* host = nullptr;

  long long argument(const node& v, int k) const { return g.sizes.value(v.k[k], s); }
  expert_range experts(const node& v) const {
    const long long count = argument(v, 2), first = argument(v, 1);
    return count > 0 ? expert_range{first, first + count} : expert_range{};
  }
  table_shard part(const node& v) const { return is_shard(v) ? table_shard{true, argument(v, 0)} : table_shard{}; }
  attention_dropout_mask drops(const node& v, const operands<Real>& x) const {
    return attention_dropout_mask::of(x.ids, g.sizes.value(g[v.b].d[2], s), x.a.d[2], argument(v, 1));
  }
  window conv_window(const node& v, id image) const {
    const node& x = g[image];
    const long long kw = argument(v, 1), stride = argument(v, 2), pad = argument(v, 3);
    return {argument(v, 0), kw, stride, pad, (g.sizes.value(x.d[3], s) + 2 * pad - kw) / stride + 1};
  }

  void rotated(tensor<Real> out, tensor<Real> x, tensor<Real> by, bool back) const {
    if (rotation_form == rotations::blockwise) return rotate(out, x, by, back);
    const long long in = x.d[3];
    const std::vector<Real> r = dense_rotation(by, in);
    product(out.p, x.count() / in, in, x.p, r.data(), in, {false, back});
  }

  void operator()(id i, tensor<Real> out, const operands<Real>& x, int accumulate = 0) const {
    function(*this, i, out, x, accumulate);
  }
};

namespace detail {
template <op_set Ops, op... What> constexpr bool has = (Ops & (op_bit(What) | ...)).any();
template <op_set Ops>
constexpr bool has_unary = has<Ops, op::sqrt, op::exp, op::log, op::sin, op::cos, op::tanh, op::erf, op::sigmoid,
                               op::relu, op::silu, op::gelu, op::gelu_tanh, op::heaviside, op::detach>;
}  // namespace detail

// Evaluates a node with an operation of Ops; binding a graph checks that it has no others.
template <class Real, op_set Ops, weights Of = weights::any>
void evaluate_node(const evaluator<Real>& e, id i, tensor<Real> out, const operands<Real>& x, int accumulate) {
  using detail::has;
  using detail::has_unary;
  const node& v = e.g[i];
  switch (v.what) {
    case op::input:
    case op::ids:
    case op::state:
    case op::base:
    case op::frozen:
    case op::index:
    case op::param:
    case op::scalar:
    case op::saved: return;
    case op::constant: *out.p = static_cast<Real>(v.value); return;
    case op::number: *out.p = static_cast<Real>(e.argument(v, 0)); return;
    case op::zero: std::fill_n(out.p, out.count(), Real(0)); return;
    case op::eye:
      for (long long k = 0; k < out.area(); ++k) out.p[k] = k / out.d[3] == k % out.d[3] ? Real(1) : Real(0);
      return;
    case op::add:
    case op::sub:
    case op::mul:
    case op::div:
    case op::minimum:
    case op::maximum:
      if constexpr (has<Ops, op::add, op::sub, op::mul, op::div, op::minimum, op::maximum>)
        binary(v.what, out, x.a, x.b);
      return;
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
    case op::heaviside:
    case op::detach:
      if constexpr (has_unary<Ops>) unary(v.what, out, x.a);
      return;
    case op::matmul:
      if constexpr (has<Ops, op::matmul>)
        matmul<Real, Of>(out, x.a, x.b, {v.ta, v.tb, v.sum, accumulate},
                         x.end != nullptr ? *x.end : gemm_epilogue<Real>{});
      return;
    case op::row_dot:
      if constexpr (has<Ops, op::row_dot>)
        x.a.stored != nullptr ? weight_row_dot<Real, Of>(out, *x.a.stored) : row_dot(out, x.a, x.b);
      return;
    case op::sum_to:
      if constexpr (has<Ops, op::sum_to>) sum_to(out, x.a);
      return;
    case op::transpose:
      if constexpr (has<Ops, op::transpose>) transpose(out, x.a);
      return;
    case op::reshape: std::copy_n(x.a.p, out.count(), out.p); return;
    case op::permute:
      if constexpr (has<Ops, op::permute>) permute(out, x.a, {v.k[0].v, v.k[1].v, v.k[2].v, v.k[3].v});
      return;
    case op::slice:
      if constexpr (has<Ops, op::slice>) slice(out, x.a, v.k[0].v, e.argument(v, 1));
      return;
    case op::pad:
      if constexpr (has<Ops, op::pad>) pad(out, x.a, v.k[0].v, e.argument(v, 1));
      return;
    case op::concat:
      if constexpr (has<Ops, op::concat>) concat(out, x.a, x.b, v.k[0].v);
      return;
    case op::repeat:
      if constexpr (has<Ops, op::repeat>) repeat(out, x.a);
      return;
    case op::fold_columns:
      if constexpr (has<Ops, op::fold_columns>) fold_columns(out, x.a);
      return;
    case op::strict_upper:
      if constexpr (has<Ops, op::strict_upper>) strict_upper(out, x.a);
      return;
    case op::skew:
      if constexpr (has<Ops, op::skew>) skew(out, x.a);
      return;
    case op::unskew:
      if constexpr (has<Ops, op::unskew>) unskew(out, x.a);
      return;
    case op::circulant:
      if constexpr (has<Ops, op::circulant>) v.ta ? circulant_sum(out, x.a, v.tb) : circulant(out, x.a, v.tb);
      return;
    case op::inverse:
      if constexpr (has<Ops, op::inverse>) inverse(out, x.a);
      return;
    case op::orthonormal:
      if constexpr (has<Ops, op::orthonormal>) orthonormal(out, x.a);
      return;
    case op::neumann:
      if constexpr (has<Ops, op::neumann>) neumann(out, x.a, e.argument(v, 0));
      return;
    case op::neumann_grad:
      if constexpr (has<Ops, op::neumann_grad>) neumann_grad(out, x.a, x.b, e.argument(v, 0));
      return;
    case op::rotate:
      if constexpr (has<Ops, op::rotate>) e.rotated(out, x.a, x.b, v.tb);
      return;
    case op::rotate_grad:
      if constexpr (has<Ops, op::rotate_grad>) rotate_grad(out, x.a, x.b, x.c, v.tb);
      return;
    case op::kron:
      if constexpr (has<Ops, op::kron>) kron(out, x.a, x.b);
      return;
    case op::row_kron:
      if constexpr (has<Ops, op::row_kron>) row_kron(out, x.a, x.b);
      return;
    case op::gather:
      if constexpr (has<Ops, op::gather>) gather<Real, Of>(out, x.a, x.ids, v.ta, e.part(v));
      return;
    case op::scatter:
      if constexpr (has<Ops, op::scatter>) scatter(out, x.a, x.ids, v.ta);
      return;
    case op::scatter_elements:
      if constexpr (has<Ops, op::scatter_elements>) scatter_elements(out, x.a, x.ids);
      return;
    case op::gather_elements:
      if constexpr (has<Ops, op::gather_elements>) gather_elements(out, x.a, x.ids);
      return;
    case op::softmax:
      if constexpr (has<Ops, op::softmax>) softmax(out, x.a);
      return;
    case op::topk_softmax:
      if constexpr (has<Ops, op::topk_softmax>) topk_softmax(out, x.a, e.argument(v, 0));
      return;
    case op::softmax_grad:
      if constexpr (has<Ops, op::softmax_grad>) softmax_grad(out, x.a, x.b);
      return;
    case op::normalize:
      if constexpr (has<Ops, op::normalize>) normalize(out, x.a, *x.b.p, v.k[0] == dim{1});
      return;
    case op::normalize_grad:
      if constexpr (has<Ops, op::normalize_grad>) normalize_grad(out, x.a, *x.b.p, x.c, v.k[0] == dim{1});
      return;
    case op::rope:
      if constexpr (has<Ops, op::rope>) rope(out, x.a, x.b, v.tb);
      return;
    case op::dropout:
      if constexpr (has<Ops, op::dropout>) dropout(out, x.a, *x.ids, e.argument(v, 0), *x.c.p, x.first);
      return;
    case op::cross_entropy:
      if constexpr (has<Ops, op::cross_entropy>) cross_entropy(out, x.a, x.ids, e.part(v));
      return;
    case op::cross_entropy_grad:
      if constexpr (has<Ops, op::cross_entropy_grad>) cross_entropy_grad(out, x.a, x.ids, x.c, e.part(v));
      return;
    case op::attention:
      if constexpr (has<Ops, op::attention>)
        attention(out, x.a, x.ids, e.argument(v, 0), e.drops(v, x), attention_options_of(v));
      return;
    case op::attention_grad:
      if constexpr (has<Ops, op::attention_grad>)
        attention_grad(out, x.a, x.ids, x.c, e.argument(v, 0), e.drops(v, x), attention_options_of(v));
      return;
    case op::cached_attention:
      if constexpr (has<Ops, op::cached_attention>)
        cached_attention(out, x.a, x.ids, x.c, e.argument(v, 0), attention_options_of(v));
      return;
    case op::route:
      if constexpr (has<Ops, op::route>) route(out, x.a, e.argument(v, 0));
      return;
    case op::dispatch:
      if constexpr (has<Ops, op::dispatch>) dispatch(out, x.a, x.b, static_cast<routed_by>(v.k[0].v), e.experts(v));
      return;
    case op::combine:
      if constexpr (has<Ops, op::combine>) combine(out, x.a, x.b, static_cast<routed_by>(v.k[0].v), e.experts(v));
      return;
    case op::grouped_matmul:
      if constexpr (has<Ops, op::grouped_matmul>) grouped_matmul<Real, Of>(out, x.a, x.b, x.c, v.tb, e.experts(v));
      return;
    case op::grouped_wgrad:
      if constexpr (has<Ops, op::grouped_wgrad>) grouped_wgrad(out, x.a, x.b, x.c, e.experts(v));
      return;
    case op::im2col:
      if constexpr (has<Ops, op::im2col>) im2col(out, x.a, e.conv_window(v, v.a));
      return;
    case op::col2im:
      if constexpr (has<Ops, op::col2im>) col2im(out, x.a, e.conv_window(v, i));
      return;
    case op::all_reduce_sum:
    case op::all_reduce_max: (*e.host)(traits_of(v.what).name, x.a, out); return;
    case op::host: (*e.host)(v.name, x.a, out); return;
  }
}
template <class Real> operations<Real> every_operation() {
  return {&evaluate_node<Real, every_op>, every_op, &dequantize_elements<Real>};
}

}  // namespace graft::cpu
