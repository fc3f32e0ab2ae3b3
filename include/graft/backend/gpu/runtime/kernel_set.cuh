// SPDX-License-Identifier: Apache-2.0
// kernel_set: the kernels that an executor or a model runs, as tables of function pointers. What is not in a table is
// not compiled: a layer type selects the kernels of its plans (dispatch/kernel_selection.h), and a program that learns
// its plans at run time names all of them.
#pragma once
#include <graft/backend/gpu/dispatch/evaluate_node.cuh>
#include <graft/backend/gpu/dispatch/launchers.cuh>
#include <graft/backend/gpu/kernels/attention/kernel_table.h>
#include <graft/backend/gpu/kernels/gemm/instances.cuh>
#include <graft/backend/gpu/kernels/multi_lora/launch.cuh>
#include <graft/backend/rank_reduce.h>

namespace graft::gpu {

struct kernel_set {
  gemm_kernel_set gemm;
  node_function evaluate = nullptr;
  launchers launches{};
  op_set nodes{};  // operations that `evaluate` has kernels for
  attention_table attention = nullptr;
  multi_lora_kernels multi_lora{};  // empty: a batch cannot mix adapters
  rank_reducer ranks{};             // empty: this process computes alone

  // Adds GEMMs, launches and operations. One of both sets has all operations of the other.
  void add(const kernel_set& more) {
    gemm.add(more.gemm), launches.add(more.launches);
    if ((more.nodes & ~nodes).any()) evaluate = more.evaluate, nodes = more.nodes;
  }
};

// The selected kernels, compiled here or taken from the library graft::gpu_compiled.
template <class T, kernel_selection Which, sixteen_bit_types Narrow> kernel_set selected_kernels() {
  kernel_set k;
  if constexpr (in_library) {
    k.gemm = all_kernels<T>();
    k.gemm.have = k.gemm.have & Which.gemms;
    k.launches.add(all_launchers<T>(), Which.launches);
  } else {
    k.gemm = compiled_kernels<T, Which.gemms>();
    k.gemm.quantized = quantized_kernels_of<T, Which.quantized>();
    k.launches = compiled_launchers<T, Which.launches>();
  }
  k.evaluate = &evaluate_layer_node<Which.nodes, Narrow>, k.nodes = Which.nodes;
  return k;
}
// All kernels, for sizes, ranks and adapters that are known only at run time.
template <class T> kernel_set every_kernel_of_one_adapter() {
  kernel_set k;
  k.gemm = all_kernels<T>(), k.launches = all_launchers<T>();
  k.evaluate = &evaluate_node<every_op>, k.nodes = every_op;
  return k;
}
template <class T> kernel_set every_kernel_of_layers() {
  kernel_set k = every_kernel_of_one_adapter<T>();
  return k.multi_lora = all_multi_lora_kernels<T>(), k;
}

}  // namespace graft::gpu
