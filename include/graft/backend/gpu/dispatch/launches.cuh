// SPDX-License-Identifier: Apache-2.0
// The launches of all kinds on the GPU. A kind that is missing here does not compile (runtime/program.cuh).
#pragma once
#include <graft/backend/gpu/kernels/attention/launches.cuh>
#include <graft/backend/gpu/kernels/elementwise/launches.cuh>
#include <graft/backend/gpu/kernels/experts/launches.cuh>
#include <graft/backend/gpu/kernels/gemm/launches.cuh>
#include <graft/backend/gpu/kernels/linalg/launches.cuh>
#include <graft/backend/gpu/kernels/rowwise/launches.cuh>
#include <graft/backend/gpu/kernels/skinny/launches.cuh>
#include <graft/backend/gpu/kernels/wgrad/launches.cuh>

namespace graft::gpu {

// A node by a kernel of its own.
template <> struct launch_on_gpu<nodes_launch> {
  template <class T, class F> static void each_own_node(const program<T>&, const nodes_launch& l, F f) {
    f(l.anchor());
  }
  template <class T> static void each_stored(const program<T>&, const nodes_launch& l, const stored_nodes<T>& to) {
    to.add(l.first);
  }
  // Batched GEMMs and rotations have 16-bit kernels, and tensor cores multiply the rows of experts. The routing of
  // experts stays in float, which holds the numbers of rows.
  template <class T> static void each_typed(const program<T>& in, const nodes_launch& l, const typed_values<T>& to) {
    const graft::node& v = in.g_[l.first];
    if (v.what == op::matmul || v.what == op::rotate || v.what == op::rotate_grad)
      for (const id i : {v.a, v.b, v.c, l.first}) to.add_rows(i);
    if (v.what == op::grouped_matmul || v.what == op::grouped_wgrad)
      for (const id i : {v.a, v.b, l.first}) to.add_rows(i);
  }
  // An all-reduce of rows keeps the element type of its operand, and so do elementwise functions of a dW.
  template <class T>
  static void each_inherited(const program<T>& in, const nodes_launch& l, const typed_values<T>& to) {
    const graft::node& v = in.g_[l.first];
    if (traits_of(v.what).kind == op_class::collective && in.p_.when.has_token_rows[unshaped(in.g_, v.a)] &&
        to.has(v.a))
      to.add(l.first);
    if (!is_pointwise(v.what) || !in.is_large_matrix(to.with, l.first)) return;
    for (const id o : {v.a, v.b})
      if (o >= 0 && to.has(o)) to.add(l.first);
  }
  template <class T> static status run(execution<T>& e, const nodes_launch& l, const graft::launch&) {
    return e.run_node(l.first);
  }
};
// Chunks of rows are launches of the CPU.
template <> struct launch_on_gpu<rows_launch> {
  template <class T, class F> static void each_own_node(const program<T>&, const rows_launch&, F) {}
  template <class T> static void each_stored(const program<T>&, const rows_launch&, const stored_nodes<T>&) {}
  template <class T> static status run(execution<T>&, const rows_launch&, const graft::launch&) {
    return fail("this plan is for a CPU");
  }
};

}  // namespace graft::gpu
