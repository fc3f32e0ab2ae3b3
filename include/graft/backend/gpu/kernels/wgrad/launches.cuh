// SPDX-License-Identifier: Apache-2.0
// Launches of wgrads.
#pragma once
#include <graft/backend/gpu/kernels/wgrad/binding.cuh>
#include <graft/backend/gpu/runtime/program.cuh>

namespace graft::gpu {

template <> struct launch_on_gpu<wgrad_launch> {
  static constexpr bool operands_are_packed = true;
  template <class T>
  static void describe(text& t, const graph& g, const launch_plan&, const binding<T>&, const wgrad_launch& s, long long,
                       const gemm_kernel_mask&) {
    t << traits_of(g[s.product].what).name << " wgrad";
  }
  template <class T, class F> static void each_own_node(const program<T>&, const wgrad_launch&, F) {}
  template <class T> static void each_stored(const program<T>&, const wgrad_launch&, const stored_nodes<T>&) {}
  template <class T, class F> static void each_operand(const program<T>&, const wgrad_launch& s, F f) {
    f(s.left), f(s.right), f(s.scaled);
  }
  // dW = dyᵀ x, as large as the weight.
  template <class T> static void each_typed(const program<T>& in, const wgrad_launch& s, const typed_values<T>& to) {
    if (!s.by_column && in.is_large_matrix(to.with, s.result)) to.add(s.result);
  }
  template <class T>
  static void each_precomputed(const program<T>&, const wgrad_launch& s, const precomputed_values<T>& to) {
    to.add(s.factor), to.add(s.scale), to.add_if_precomputed(s.left), to.add_if_precomputed(s.right);
  }
  template <class T> static status run(execution<T>& e, const wgrad_launch&, const graft::launch& l) {
    return e.run_wgrad(l.index);
  }
};

}  // namespace graft::gpu
