// SPDX-License-Identifier: Apache-2.0
// Launches of norms and of concatenated heads.
#pragma once
#include <graft/backend/gpu/kernels/rowwise/rowwise.cuh>
#include <graft/backend/gpu/runtime/program.cuh>

namespace graft::gpu {

template <> struct launch_on_gpu<rowwise_launch> {
  template <class T, class F> static void each_own_node(const program<T>&, const rowwise_launch& l, F f) {
    f(l.anchor());
  }
  template <class T> static void each_stored(const program<T>&, const rowwise_launch& r, const stored_nodes<T>& to) {
    to.add(r.result);
  }
  // Norm kernels for long rows need operands of one type.
  template <class T> static void each_typed(const program<T>& in, const rowwise_launch& r, const typed_values<T>& to) {
    if (r.norm >= 0) to.add_rows(in.g_[r.norm].a), to.add_rows(r.grad_output), to.add_rows(r.residual);
  }
  template <class T> static status run(execution<T>& e, const rowwise_launch& r, const graft::launch&) {
    return e.run_rows(r);
  }
};

}  // namespace graft::gpu
