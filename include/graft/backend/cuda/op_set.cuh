// SPDX-License-Identifier: Apache-2.0
// Which operations have kernels in a program. There are some fifty, and compiling them takes seconds: a layer type knows
// its own and compiles no others.
#pragma once
#include <graft/backend/cuda/product.cuh>

namespace graft::cuda {

using op_set = std::uint64_t;
// What a caller brings has no kernel: the first leaves, and state and host, which come last.
constexpr op_set op_bit(op what) {
  if (what < op::constant || what >= op::state) return 0;
  return op_set{1} << (static_cast<unsigned>(what) - static_cast<unsigned>(op::constant));
}
static_assert(static_cast<int>(op::state) - static_cast<int>(op::constant) <= 64, "the operations in between fit");
inline constexpr op_set every_op = ~op_set{0};
constexpr op_set ops_of(const graph& g) {
  op_set ops = 0;
  for (int i = 0; i < g.size; ++i) ops |= op_bit(g.n[i].what);
  return ops;
}
// Runs the functors of operations that have kernels.
template <bool Compiled, class On> struct compiled_on {
  const On& on;
  static status refuse(const char* name) {
    return fail("the kernel of ", name, " is not compiled into this program; a layer of another type needs its own");
  }
  template <class F> status elements(long long n, const F& f, const char* name) const {
    if constexpr (Compiled) return on.elements(n, f, name);
    return refuse(name);
  }
  template <class F> status rows(long long n, const F& f, const char* name) const {
    if constexpr (Compiled) return on.rows(n, f, name);
    return refuse(name);
  }
  template <class F> status columns(long long n, const F& f, const char* name) const {
    if constexpr (Compiled) return on.columns(n, f, name);
    return refuse(name);
  }
  template <class F> status matrices(long long n, long long work, const F& f, const char* name) const {
    if constexpr (Compiled) return on.matrices(n, work, f, name);
    return refuse(name);
  }
  template <class Real> friend status multiply(const compiled_on& to, const products<Real>& p) {
    if constexpr (Compiled) return multiply(to.on, p);
    return refuse("matmul");
  }
};

template <op_set Ops, op... What, class On> compiled_on<((Ops & (op_bit(What) | ...)) != 0), On> with(const On& on) {
  return {on};
}

}  // namespace graft::cuda
