// SPDX-License-Identifier: Apache-2.0
// compiled_on runs the kernel of an operation if the program has compiled it, and otherwise returns an error that names
// the operation. A layer type compiles only the operations of its own graphs (graph/op_set.h).
#pragma once
#include <graft/backend/gpu/kernels/attention/reference.cuh>
#include <graft/backend/gpu/kernels/elementwise/concat_heads.cuh>
#include <graft/backend/gpu/kernels/elementwise/layout.cuh>
#include <graft/backend/gpu/kernels/elementwise/pointwise.cuh>
#include <graft/backend/gpu/kernels/elementwise/rope_dropout.cuh>
#include <graft/backend/gpu/kernels/gather/gather_scatter.cuh>
#include <graft/backend/gpu/kernels/linalg/inverse_warp.cuh>
#include <graft/backend/gpu/kernels/linalg/neumann_block.cuh>
#include <graft/backend/gpu/kernels/rotation/block_diagonal.cuh>
#include <graft/backend/gpu/kernels/rotation/skinny.cuh>
#include <graft/backend/gpu/kernels/rotation/wgrad.cuh>
#include <graft/backend/gpu/kernels/rowwise/norm_backward.cuh>
#include <graft/backend/gpu/kernels/rowwise/rowwise.cuh>
#include <graft/graph/op_set.h>

namespace graft::gpu {

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
  template <class Real>
  friend status combine(const compiled_on& to, op what, const tensor<Real>& out, const tensor<Real>& a,
                        const tensor<Real>& b) {
    if constexpr (Compiled) return combine(to.on, what, out, a, b);
    return not_compiled(row(what).name);
  }
  template <class Real> friend status normalize(const compiled_on& to, const normalized<Real>& f, const char* name) {
    if constexpr (Compiled) return normalize(to.on, f, name);
    return not_compiled(name);
  }
  template <class Real> friend status run_concat_heads(const compiled_on& to, const concat_heads<Real>& f) {
    if constexpr (Compiled) return run_concat_heads(to.on, f);
    return not_compiled("concatenating heads");
  }
  template <class Real> friend status slice(const compiled_on& to, const sliced<Real>& f, const char* name) {
    if constexpr (Compiled) return slice(to.on, f, name);
    return not_compiled(name);
  }
  template <class Real> friend status gather(const compiled_on& to, const gathered<Real>& f) {
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
  template <class Real> friend status invert(const compiled_on& to, const inverses<Real>& f, const char* name) {
    if constexpr (Compiled) return invert(to.on, f, name);
    return not_compiled(name);
  }
  template <class Real> friend status run_neumann(const compiled_on& to, const neumanns<Real>& f) {
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
  template <class Real> friend status rotate_skinny(const compiled_on& to, const skinny_rotations<Real>& all) {
    if constexpr (Compiled) return rotate_skinny(to.on, all);
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

}  // namespace graft::gpu
