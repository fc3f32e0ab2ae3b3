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
