// SPDX-License-Identifier: Apache-2.0
// Evaluates one graph node on the GPU by a kernel of its own, as backend/cpu/ops/evaluate.h does on the CPU.
//
// sum_to, rotate_grad, scatter, place and unpatch add to the output; the other operations overwrite it, a matmul only
// if `accumulate` is 0. combine and grouped_wgrad overwrite it too. Operands and results may each be stored as Real, bf16 or f16; arithmetic is in Real. Kernels
// are queued on the stream, and nothing waits for them. A rowwise launch (plan/launch/rowwise.h) is evaluated as its
// norm or its last concat, with the additional operands of the launch.
#pragma once
#include <graft/backend/gpu/kernels/attention/reference.cuh>
#include <graft/backend/gpu/kernels/elementwise/concat_heads.cuh>
#include <graft/backend/gpu/kernels/elementwise/layout.cuh>
#include <graft/backend/gpu/kernels/elementwise/pointwise.cuh>
#include <graft/backend/gpu/kernels/elementwise/rope_dropout.cuh>
#include <graft/backend/gpu/kernels/experts/multiply_groups.cuh>
#include <graft/backend/gpu/kernels/gather/gather_scatter.cuh>
#include <graft/backend/gpu/kernels/linalg/dense.cuh>
#include <graft/backend/gpu/kernels/linalg/neumann_block.cuh>
#include <graft/backend/gpu/kernels/rotation/block_diagonal.cuh>
#include <graft/backend/gpu/kernels/rotation/wgrad.cuh>
#include <graft/backend/gpu/kernels/rowwise/cross_entropy.cuh>
#include <graft/backend/gpu/kernels/rowwise/norm_backward.cuh>
#include <graft/backend/gpu/kernels/rowwise/rowwise.cuh>
#include <graft/backend/gpu/runtime/library.h>
#include <graft/graph/op_set.h>

namespace graft::gpu {

// ---- Operations that are compiled

// compiled_on runs the kernel of an operation if the program has compiled it, and otherwise returns an error that names
// the operation. A layer type compiles only the operations of its own graphs (graph/op_set.h).

inline status not_compiled(const char* name) {
  return fail("the kernel of ", name, " is not compiled into this program; a layer of another type needs its own");
}
// `Compiled` says whether the operation is in the set of compiled ones; if not, no call below instantiates a kernel.
template <bool Compiled, class On> struct compiled_on {
  const On& on;
  template <class F> status elements(long long n, const F& f, const char* name) const {
    if constexpr (Compiled) return on.elements(n, f, name);
    return not_compiled(name);
  }
  template <class F> status rows(long long n, const F& f, const char* name) const {
    if constexpr (Compiled) return on.rows(n, f, name);
    return not_compiled(name);
  }
  template <class F> status columns(long long n, const F& f, const char* name) const {
    if constexpr (Compiled) return on.columns(n, f, name);
    return not_compiled(name);
  }
  template <class F> status matrices(long long n, long long work, const F& f, const char* name) const {
    if constexpr (Compiled) return on.matrices(n, work, f, name);
    return not_compiled(name);
  }
  template <sixteen_bit_types Narrow, class Real> status product(const products<Real>& p, Real* scratch) const {
    if constexpr (!Compiled)
      return not_compiled("matmul");
    else if constexpr (runs_on_stream<On>)
      return multiply<Real, Narrow>(on, p, scratch);
    else
      return multiply(on, p, scratch);
  }
  template <sixteen_bit_types Narrow, class Real> status groups(const grouped_products<Real>& g) const {
    if constexpr (!Compiled)
      return not_compiled("grouped_matmul");
    else if constexpr (runs_on_stream<On>)
      return multiply_groups<Narrow>(on, g);
    else
      return multiply_groups(on, g);
  }
  template <class Real>
  friend status route(const compiled_on& to, const tensor<Real>& table, const tensor<Real>& scores, long long k,
                      int* chosen) {
    if constexpr (Compiled) return route(to.on, table, scores, k, chosen);
    return not_compiled("route");
  }
  template <class Real> friend status dispatch_rows(const compiled_on& to, const dispatch_functor<Real>& f) {
    if constexpr (Compiled) return dispatch_rows(to.on, f);
    return not_compiled("dispatch");
  }
  template <class Real>
  friend status combine_rows(const compiled_on& to, const tensor<Real>& out, const tensor<Real>& rows,
                             const routing_table<Real>& routing, routed_by by, const expert_range& mine) {
    if constexpr (Compiled) return combine_rows(to.on, out, rows, routing, by, mine);
    return not_compiled("combine");
  }
  template <class Real>
  friend status combine(const compiled_on& to, op what, const tensor<Real>& out, const tensor<Real>& a,
                        const tensor<Real>& b) {
    if constexpr (Compiled) return combine(to.on, what, out, a, b);
    return not_compiled(traits_of(what).name);
  }
  template <class Real>
  friend status normalize(const compiled_on& to, const normalize_functor<Real>& f, const char* name) {
    if constexpr (Compiled) return normalize(to.on, f, name);
    return not_compiled(name);
  }
  template <class Real> friend status run_concat_heads(const compiled_on& to, const concat_heads<Real>& f) {
    if constexpr (Compiled) return run_concat_heads(to.on, f);
    return not_compiled("concatenating heads");
  }
  template <class Real> friend status slice(const compiled_on& to, const slice_functor<Real>& f, const char* name) {
    if constexpr (Compiled) return slice(to.on, f, name);
    return not_compiled(name);
  }
  template <class Real> friend status gather(const compiled_on& to, const gather_functor<Real>& f) {
    if constexpr (Compiled) return gather(to.on, f);
    return not_compiled("gather");
  }
  template <class Real> friend status apply_rope(const compiled_on& to, const rope_heads<Real>& f) {
    if constexpr (Compiled) return apply_rope(to.on, f);
    return not_compiled("rope");
  }
  template <class Real>
  friend status normalize_backward(const compiled_on& to, const normalize_grads<Real>& f, const char* name) {
    if constexpr (Compiled) return normalize_backward(to.on, f, name);
    return not_compiled(name);
  }
  template <class Real> friend status invert(const compiled_on& to, const inverse_functor<Real>& f, const char* name) {
    if constexpr (Compiled) return invert(to.on, f, name);
    return not_compiled(name);
  }
  template <class Real> friend status run_neumann(const compiled_on& to, const neumann_functor<Real>& f) {
    if constexpr (Compiled) return run_neumann(to.on, f);
    return not_compiled("neumann");
  }
  template <class Real> friend status run_neumann_backward(const compiled_on& to, const neumann_grads<Real>& f) {
    if constexpr (Compiled) return run_neumann_backward(to.on, f);
    return not_compiled("neumann_grad");
  }
  template <class Real> friend status rotate(const compiled_on& to, const rotation_op<Real>& t) {
    if constexpr (Compiled) return rotate(to.on, t);
    return not_compiled("rotate");
  }
  template <class Real> friend status rotate_grouped(const compiled_on& to, const grouped_rotations<Real>& all) {
    if constexpr (Compiled) return rotate_grouped(to.on, all);
    return not_compiled("rotate");
  }
  template <class Real> friend status run_rotation_wgrad(const compiled_on& to, const rotation_wgrad<Real>& r) {
    if constexpr (Compiled) return run_rotation_wgrad(to.on, r);
    return not_compiled("rotate_grad");
  }
  template <class Real>
  friend status attention_forward(const compiled_on& to, const attention_operands<Real>& a,
                                  const element_ptr<Real>& out, long long out_row) {
    if constexpr (Compiled) return attention_forward(to.on, a, out, out_row);
    return not_compiled("attention");
  }
  template <class Real>
  friend status attention_backward(const compiled_on& to, const attention_operands<Real>& a,
                                   const element_ptr<Real>& dout, long long out_row, const element_ptr<Real>& d,
                                   Real* stats) {
    if constexpr (Compiled) return attention_backward(to.on, a, dout, out_row, d, stats);
    return not_compiled("attention_grad");
  }
};

template <op_set Ops, op... What, class On> compiled_on<(Ops & (op_bit(What) | ...)).any(), On> with(const On& on) {
  return {on};
}

// ---- Evaluation

template <class Real> struct evaluator {
  const graph& g;
  const size_values& s;

  long long argument(const node& v, int k) const { return g.sizes.value(v.k[k], s); }
  window patch_window(const node& v, id image) const {
    const node& x = g[image];
    const long long kw = argument(v, 1), stride = argument(v, 2), pad = argument(v, 3);
    return {argument(v, 0), kw, stride, pad, (g.sizes.value(x.d[3], s) + 2 * pad - kw) / stride + 1};
  }

  // The shard of a table that this rank has (tensor parallel), for operations that read a table.
  table_shard shard(const node& v) const { return is_shard(v) ? table_shard{true, argument(v, 0)} : table_shard{}; }

  expert_range experts(const node& v) const {
    const long long count = argument(v, 2), first = argument(v, 1);
    return count > 0 ? expert_range{first, first + count} : expert_range{};
  }

  attention_dropout_mask drops(const node& v, const operands<Real>& x) const {
    return attention_dropout_mask::of(x.ids, g.sizes.value(g[v.b].d[2], s), x.a.d[2], argument(v, 1));
  }

  // Elements of scratch memory that computing node i needs; it must be aligned to 8 bytes.
  long long scratch(id i) const {
    const node& v = g[i];
    auto sizes = [&](id o) { return shaped<Real>(g, o, s, {}); };
    if (v.what == op::inverse) return inverse_functor<Real>::needs(sizes(v.a));
    if (v.what == op::orthonormal) return orthonormals<Real>::needs(sizes(v.a));
    if (v.what == op::neumann) return neumann_functor<Real>::needs(sizes(v.a));
    if (v.what == op::neumann_grad) return neumann_grads<Real>::needs(sizes(v.a), neumann_series(argument(v, 0)));
    if (v.what == op::matmul) {
      const long long parts = splits_of_product(g, i, s);
      return parts > 1 ? parts * element_count(g, i, s) : 0;
    }
    if (v.what == op::scatter) return scatter_add<Real>::needs(sizes(v.a));
    if (v.what == op::route) return g.sizes.value(v.d[2], s);  // the chosen experts; an int is no larger than a Real
    if (v.what == op::rotate) return rotate_functor<Real>::needs(sizes(v.a), sizes(v.b));
    if (v.what == op::rotate_grad) return rotation_traces<Real>::needs(sizes(v.a), sizes(v.c));
    if (v.what == op::attention_grad) return 2 * sizes(v.a).d[2] * (sizes(v.c).d[3] / argument(v, 0));
    return 0;
  }

  // The number of kernels that node i launches.
  int launches(id i) const {
    const node& v = g[i];
    const bool made =
        !is_leaf(v.what) || v.what == op::constant || v.what == op::number || v.what == op::zero || v.what == op::eye;
    if (!made || element_count(g, i, s) == 0) return 0;
    const bool composes =
        v.what == op::rotate && rotation(shaped<Real>(g, v.b, s, {}), g.sizes.value(v.d[3], s), v.tb).composes();
    return node_kernels(g, i, s, dtype_of<Real>, {}) + (composes ? 1 : 0);
  }

  status operator()(cudaStream_t stream, id i, tensor<Real> out, const operands<Real>& x, Real* scratch,
                    int accumulate = 0) const;

  // Evaluates node i on `on`, which runs functors: on_stream, or a loop on the host in a test.
  template <op_set Ops = every_op, sixteen_bit_types Narrow = sixteen_bit_types::both, class On>
  status run(const On& on, id i, tensor<Real> out, const operands<Real>& x, Real* scratch, int accumulate) const;
};

template <class Real>
template <op_set Ops, sixteen_bit_types Narrow, class On>
status evaluator<Real>::run(const On& on, id i, tensor<Real> out, const operands<Real>& x, Real* scratch,
                            int accumulate) const {
  const node& v = g[i];
  const long long n = out.count();
  const char* const name = traits_of(v.what).name;
  const int axis = v.k[0].v;  // meaningful for operations along an axis
  auto* const doubles = reinterpret_cast<double*>(scratch);
  auto* const links = reinterpret_cast<int*>(scratch);
  const auto filling = with<Ops, op::constant, op::number, op::zero>(on);
  const auto mapped = with<Ops, op::sqrt, op::exp, op::log, op::sin, op::cos, op::tanh, op::erf, op::sigmoid, op::relu,
                           op::silu, op::gelu, op::gelu_tanh, op::heaviside, op::detach, op::reshape>(on);
  for (const tensor<Real>* t : {static_cast<const tensor<Real>*>(&out), &x.a, &x.b, &x.c})
    if (!element_ptr<Real>::is_supported(t->p.type))
      return fail(name, " computes with ", name_of(dtype_of<Real>), ", bf16 and f16, not with ", name_of(t->p.type));
  if (n == 0) return ok;
  switch (v.what) {
    case op::input:
    case op::ids:
    case op::state:
    case op::base:
    case op::frozen:
    case op::index:
    case op::param:
    case op::scalar:
    case op::saved: break;
    case op::constant: return filling.elements(1, fill_functor<Real>{out.p, static_cast<Real>(v.value)}, name);
    case op::number: return filling.elements(1, fill_functor<Real>{out.p, static_cast<Real>(argument(v, 0))}, name);
    case op::zero: return filling.elements(n, fill_functor<Real>{out.p, Real(0)}, name);
    case op::eye: return with<Ops, op::eye>(on).elements(out.area(), identity<Real>{out}, name);
    case op::add:
    case op::sub:
    case op::mul:
    case op::div:
    case op::minimum:
    case op::maximum:
      return combine(with<Ops, op::add, op::sub, op::mul, op::div, op::minimum, op::maximum>(on), v.what, out, x.a,
                     x.b);
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
    case op::detach: return mapped.elements(n, unary<Real>{v.what, out.p, x.a.p}, name);
    case op::matmul:
      return with<Ops, op::matmul>(on).template product<Narrow>(
          products_of(out, x.a, x.b, {v.ta, v.tb, v.sum, accumulate}), scratch);
    case op::row_dot: {
      const auto dots = with<Ops, op::row_dot>(on);
      const row_dots<Real> f{out, x.a, x.b};
      const bool few = x.a.rows() <= 128 && x.a.d[3] >= 512;  // a CTA per long row
      return few ? dots.matrices(x.a.rows(), x.a.d[3], f, name) : dots.rows(x.a.rows(), f, name);
    }
    case op::sum_to: return sum_to(with<Ops, op::sum_to>(on), sum_to_functor<Real>(out, x.a), name);
    case op::transpose: return with<Ops, op::transpose>(on).elements(n, transpose_functor<Real>{out, x.a}, name);
    case op::reshape: return mapped.elements(n, unary<Real>{op::detach, out.p, x.a.p}, name);
    case op::permute: return with<Ops, op::permute>(on).elements(n, permute_functor<Real>(out, x.a, v.k), name);
    case op::slice:
      return slice(with<Ops, op::slice>(on), slice_functor<Real>{out, x.a, {out, axis}, {x.a, axis}, argument(v, 1)},
                   name);
    case op::pad:
      return with<Ops, op::pad>(on).elements(n, pad_functor<Real>{out, x.a, {out, axis}, {x.a, axis}, argument(v, 1)},
                                             name);
    case op::concat: {
      if (x.concat_inputs_ptr != nullptr)
        return run_concat_heads(with<Ops, op::concat>(on), concat_heads<Real>{out, *x.concat_inputs_ptr});
      return with<Ops, op::concat>(on).elements(
          n, concat_functor<Real>{out, x.a, x.b, {out, axis}, {x.a, axis}, {x.b, axis}}, name);
    }
    case op::repeat: return with<Ops, op::repeat>(on).elements(n, repeated_columns<Real>{out, x.a}, name);
    case op::fold_columns:
      return with<Ops, op::fold_columns>(on).elements(n, fold_columns_functor<Real>{out, x.a}, name);
    case op::strict_upper: return with<Ops, op::strict_upper>(on).elements(n, upper_part<Real>{out, x.a}, name);
    case op::skew: return with<Ops, op::skew>(on).elements(n, skew_functor<Real>{out, x.a}, name);
    case op::unskew: return with<Ops, op::unskew>(on).elements(x.a.count(), unskew_functor<Real>{out, x.a}, name);
    case op::circulant: {
      const auto moved = with<Ops, op::circulant>(on);
      return v.ta ? moved.elements(n, circulant_sums<Real>{out, x.a, v.tb}, name)
                  : moved.elements(n, circulants<Real>{out, x.a, v.tb}, name);
    }
    case op::inverse: return invert(with<Ops, op::inverse>(on), inverse_functor<Real>{out, x.a, doubles}, name);
    case op::orthonormal:
      return with<Ops, op::orthonormal>(on).matrices(x.a.matrices(), out.area(), orthonormals<Real>{out, x.a, doubles},
                                                     name);
    case op::neumann:
      return run_neumann(with<Ops, op::neumann>(on),
                         neumann_functor<Real>{out, x.a, neumann_series(argument(v, 0)), doubles});
    case op::neumann_grad:
      return run_neumann_backward(with<Ops, op::neumann_grad>(on),
                                  neumann_grads<Real>{out, x.a, x.b, neumann_series(argument(v, 0)), doubles});
    case op::rotate:
      if (x.rotations != nullptr) return rotate_grouped(with<Ops, op::rotate>(on), *x.rotations);
      if (x.composes)
        return compose(with<Ops, op::rotate>(on), x.b.p, rotation(x.b, g.sizes.value(v.d[3], s), v.tb),
                       static_cast<Real*>(out.p.at));
      return rotate(with<Ops, op::rotate>(on), rotation_op<Real>{out, x.a, x.b, v.tb, scratch, x.composed});
    case op::rotate_grad:
      return run_rotation_wgrad(with<Ops, op::rotate_grad>(on),
                                rotation_wgrad<Real>{out, x.a, x.b, x.c, v.tb, scratch, x.overwrites});
    case op::kron: return with<Ops, op::kron>(on).elements(out.area(), kronecker<Real>{out, x.a, x.b}, name);
    case op::row_kron:
      return with<Ops, op::row_kron>(on).elements(x.a.d[2] * out.d[3], row_kronecker<Real>{out, x.a, x.b}, name);
    case op::gather: return gather(with<Ops, op::gather>(on), gather_functor<Real>{out, x.a, x.ids, v.ta, shard(v)});
    case op::scatter:
      return scatter(with<Ops, op::scatter>(on), scatter_add<Real>{out, x.a, x.ids, links, v.ta}, links);
    case op::scatter_elements:
      return with<Ops, op::scatter_elements>(on).rows(out.d[2], scatter_elements<Real>{out, x.a, x.ids}, name);
    case op::gather_elements:
      return with<Ops, op::gather_elements>(on).elements(n, gather_elements<Real>{out, x.a, x.ids}, name);
    case op::softmax: return with<Ops, op::softmax>(on).rows(x.a.rows(), softmax_functor<Real>{out, x.a}, name);
    case op::topk_softmax:
      return with<Ops, op::topk_softmax>(on).rows(x.a.rows(), topk_softmaxes<Real>{out, x.a, argument(v, 0)}, name);
    case op::softmax_grad:
      return with<Ops, op::softmax_grad>(on).rows(x.a.rows(), softmax_grads<Real>{out, x.a, x.b}, name);
    case op::normalize:
      return normalize(with<Ops, op::normalize>(on), normalize_functor<Real>{out, x.a, x.b.p, v.k[0] == dim{1}, x.c.p},
                       name);
    case op::normalize_grad: {
      const normalize_grads<Real> f{out, x.a, x.b.p, x.c, v.k[0] == dim{1}, x.factors, x.residual};
      return normalize_backward(with<Ops, op::normalize_grad>(on), f, name);
    }
    case op::im2col:
      return with<Ops, op::im2col>(on).elements(n, im2col_functor<Real>{out, x.a, patch_window(v, v.a)}, name);
    case op::col2im: return with<Ops, op::col2im>(on).elements(n, unpatched<Real>{out, x.a, patch_window(v, i)}, name);
    case op::rope: return apply_rope(with<Ops, op::rope>(on), rope_heads<Real>{out, x.a, x.b, v.tb});
    case op::dropout: {
      const dropout_elements<Real> f{out, x.a, x.ids, argument(v, 0), x.c.p};
      return with<Ops, op::dropout>(on).elements(n, f, name);
    }
    case op::cross_entropy: {
      const cross_entropies<Real> f{out, x.a, x.ids, shard(v)};
      return with<Ops, op::cross_entropy>(on).matrices(x.a.rows(), x.a.d[3], f, name);
    }
    case op::cross_entropy_grad: {
      const cross_entropy_grads<Real> f{out, x.a, x.ids, x.c, shard(v)};
      return with<Ops, op::cross_entropy_grad>(on).matrices(x.a.rows(), x.a.d[3], f, name);
    }
    case op::attention:
      return attention_forward(
          with<Ops, op::attention>(on),
          attention_operands_of(x.a, out.d[3], x.ids, argument(v, 0), drops(v, x), attention_options_of(v)), out.p,
          out.d[3]);
    case op::attention_grad:
      return attention_backward(
          with<Ops, op::attention_grad>(on),
          attention_operands_of(x.a, x.c.d[3], x.ids, argument(v, 0), drops(v, x), attention_options_of(v)), x.c.p,
          x.c.d[3], out.p, scratch);
    case op::cached_attention: {  // the first kernel writes keys and values to their cache slots
      const auto here = with<Ops, op::cached_attention>(on);
      const tensor<Real>& cache = x.c;
      if (status s = here.elements(x.a.d[2] * cache.d[3], append_keys<Real>{cache, x.a, x.ids, out.d[3]}, name); !s)
        return s;
      attention_operands<Real> a =
          attention_operands_of(x.a, out.d[3], x.ids, argument(v, 0), {}, attention_options_of(v));
      a.k = cache.p, a.v = cache.p + cache.d[3] / 2, a.k_row = cache.d[3];
      return attention_forward(here, a, out.p, out.d[3]);
    }
    case op::route: return route(with<Ops, op::route>(on), out, x.a, argument(v, 0), reinterpret_cast<int*>(scratch));
    case op::dispatch: {
      const dispatch_functor<Real> f{out, x.a, routing_table<Real>(x.b), static_cast<routed_by>(v.k[0].v), experts(v)};
      return dispatch_rows(with<Ops, op::dispatch>(on), f);
    }
    case op::combine:
      return combine_rows(with<Ops, op::combine>(on), out, x.a, routing_table<Real>(x.b),
                          static_cast<routed_by>(v.k[0].v), experts(v));
    case op::grouped_matmul:
    case op::grouped_wgrad: {
      const bool is_wgrad = v.what == op::grouped_wgrad;
      const grouped_products<Real> f{out,
                                     x.a,
                                     x.b,
                                     routing_table<Real>(x.c),
                                     is_wgrad ? out.d[1] : x.b.d[1],
                                     experts(v),
                                     is_wgrad,
                                     v.tb,
                                     x.branch != nullptr ? *x.branch : expert_branch<Real>{}};
      return with<Ops, op::grouped_matmul, op::grouped_wgrad>(on).template groups<Narrow>(f);
    }
    case op::all_reduce_sum:
    case op::all_reduce_max: return fail(name, " is no kernel; it runs where a plan has the ranks");
    case op::host: return fail("host function '", v.name, "' cannot run on the GPU");
  }
  return ok;
}

// Defined outside of the class, so that a program can compile it, with all its kernels, once (extern template).
template <class Real>
status evaluator<Real>::operator()(cudaStream_t stream, id i, tensor<Real> out, const operands<Real>& x, Real* scratch,
                                   int accumulate) const {
  return run(on_stream{stream}, i, out, x, scratch, accumulate);
}

// Evaluation as a function pointer, for a program that compiles the kernels of some operations only.
using node_function = status (*)(cudaStream_t, const graph&, const size_values&, id, tensor<float>,
                                 const operands<float>&, float*);
template <op_set Ops, sixteen_bit_types Narrow = sixteen_bit_types::both>
status evaluate_node(cudaStream_t stream, const graph& g, const size_values& s, id i, tensor<float> out,
                     const operands<float>& x, float* scratch) {
  return evaluator<float>{g, s}.template run<Ops, Narrow>(on_stream{stream}, i, out, x, scratch, 0);
}
// Evaluation for a layer type: compiled for the operations of the type, or taken from graft::gpu_compiled.
template <op_set Ops, sixteen_bit_types Narrow>
status evaluate_layer_node(cudaStream_t stream, const graph& g, const size_values& s, id i, tensor<float> out,
                           const operands<float>& x, float* scratch) {
  if constexpr (in_library) {
    if ((op_bit(g[i].what) & ~Ops).any()) return not_compiled(traits_of(g[i].what).name);
    return evaluate_node<every_op>(stream, g, s, i, out, x, scratch);
  } else {
    return evaluate_node<Ops, Narrow>(stream, g, s, i, out, x, scratch);
  }
}

}  // namespace graft::gpu
