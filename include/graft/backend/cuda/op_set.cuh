// SPDX-License-Identifier: Apache-2.0
// Operations whose kernels a program does not have are refused where they would run: see graph/op_set.h.
#pragma once
#include <graft/backend/cuda/attention_node.cuh>
#include <graft/backend/cuda/heads.cuh>
#include <graft/backend/cuda/layout.cuh>
#include <graft/backend/cuda/lookup.cuh>
#include <graft/backend/cuda/near_inverse.cuh>
#include <graft/backend/cuda/near_series.cuh>
#include <graft/backend/cuda/normalize_grad.cuh>
#include <graft/backend/cuda/pointwise.cuh>
#include <graft/backend/cuda/rope.cuh>
#include <graft/backend/cuda/rotate_blocks.cuh>
#include <graft/backend/cuda/rotate_few.cuh>
#include <graft/backend/cuda/rotate_pass.cuh>
#include <graft/backend/cuda/rowwise.cuh>
#include <graft/graph/op_set.h>

namespace graft::cuda {

inline status not_compiled(const char* name) {
  return fail("the kernel of ", name, " is not compiled into this program; a layer of another type needs its own");
}
// Runs the functors of operations that have kernels.
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
  template <narrow_types Narrow, class Real> status product(const products<Real>& p, Real* scratch) const {
    if constexpr (!Compiled)
      return not_compiled("matmul");
    else if constexpr (streams<On>)
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
  template <class Real> friend status join_heads(const compiled_on& to, const joined_heads<Real>& f) {
    if constexpr (Compiled) return join_heads(to.on, f);
    return not_compiled("heads side by side");
  }
  template <class Real> friend status slice(const compiled_on& to, const sliced<Real>& f, const char* name) {
    if constexpr (Compiled) return slice(to.on, f, name);
    return not_compiled(name);
  }
  template <class Real> friend status gather(const compiled_on& to, const gathered<Real>& f) {
    if constexpr (Compiled) return gather(to.on, f);
    return not_compiled("gather");
  }
  template <class Real> friend status turn_heads(const compiled_on& to, const turned_heads<Real>& f) {
    if constexpr (Compiled) return turn_heads(to.on, f);
    return not_compiled("rope");
  }
  template <class Real>
  friend status normalize_back(const compiled_on& to, const normalize_grads<Real>& f, const char* name) {
    if constexpr (Compiled) return normalize_back(to.on, f, name);
    return not_compiled(name);
  }
  template <class Real> friend status invert(const compiled_on& to, const inverses<Real>& f, const char* name) {
    if constexpr (Compiled) return invert(to.on, f, name);
    return not_compiled(name);
  }
  template <class Real> friend status sum_series(const compiled_on& to, const neumanns<Real>& f) {
    if constexpr (Compiled) return sum_series(to.on, f);
    return not_compiled("neumann");
  }
  template <class Real> friend status sum_series_back(const compiled_on& to, const neumann_grads<Real>& f) {
    if constexpr (Compiled) return sum_series_back(to.on, f);
    return not_compiled("neumann_grad");
  }
  template <class Real> friend status rotate(const compiled_on& to, const turn<Real>& t) {
    if constexpr (Compiled) return rotate(to.on, t);
    return not_compiled("rotate");
  }
  template <class Real> friend status turn_few(const compiled_on& to, const turned_values<Real>& all) {
    if constexpr (Compiled) return turn_few(to.on, all);
    return not_compiled("rotate");
  }
  template <class Real> friend status sum_blocks(const compiled_on& to, const rotate_sums<Real>& r) {
    if constexpr (Compiled) return sum_blocks(to.on, r);
    return not_compiled("rotate_grad");
  }
  template <class Real>
  friend status attend(const compiled_on& to, const attention_operands<Real>& a, const cells<Real>& out,
                       long long out_row) {
    if constexpr (Compiled) return attend(to.on, a, out, out_row);
    return not_compiled("attention");
  }
  template <class Real>
  friend status attend_back(const compiled_on& to, const attention_operands<Real>& a, const cells<Real>& dout,
                            long long out_row, const cells<Real>& d, Real* stats) {
    if constexpr (Compiled) return attend_back(to.on, a, dout, out_row, d, stats);
    return not_compiled("attention_grad");
  }
};

template <op_set Ops, op... What, class On> compiled_on<(Ops & (op_bit(What) | ...)).any(), On> with(const On& on) {
  return {on};
}

}  // namespace graft::cuda
