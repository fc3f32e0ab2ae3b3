// SPDX-License-Identifier: Apache-2.0
// Launches of a linear layer of experts with its low-rank branch.
#pragma once
#include <graft/backend/gpu/runtime/program.cuh>

namespace graft::gpu {

template <> struct launch_on_gpu<expert_gemm> {
  template <class T, class F> static void each_own_node(const program<T>&, const expert_gemm& l, F f) { f(l.result); }
  template <class T> static void each_stored(const program<T>&, const expert_gemm& l, const stored_nodes<T>& to) {
    to.add(l.result);
  }
  // Tensor cores multiply the rows of experts.
  template <class T> static void each_typed(const program<T>& in, const expert_gemm& l, const typed_values<T>& to) {
    to.add_rows(in.g_[l.base].a), to.add_rows(in.g_[l.branch].a), to.add_rows(l.result);
  }
  template <class T> static status run(execution<T>& e, const expert_gemm& l, const graft::launch&) {
    const int k = e.written_output(l.result);
    element_ptr<float> to = e.values_.storage(l.result);
    if (k >= 0) to = {e.call_.outputs[k].data, e.call_.outputs[k].type};
    return e.values_.compute_expert_gemm(e.stream_, l, to);
  }
};

}  // namespace graft::gpu
