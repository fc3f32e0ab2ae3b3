// SPDX-License-Identifier: Apache-2.0
// What a program (program.cuh) is bound to for one layer: its tensors, the values that follow from them, and the
// launches that read their addresses. Layers of equal sizes share a program, and each has a binding of its own.
#pragma once
#include <graft/backend/call.h>
#include <graft/backend/gpu/kernels/attention/binding.cuh>
#include <graft/backend/gpu/kernels/gemm/binding_pack.cuh>
#include <graft/backend/gpu/kernels/grouped/binding.cuh>
#include <graft/backend/gpu/kernels/wgrad/binding.cuh>
#include <graft/backend/gpu/runtime/values.cuh>

namespace graft::gpu {

template <class T> struct binding {
  size_values sizes;
  leaf_views leaves;
  gpu::values values;
  node_set precomputed, changing;  // precomputed nodes; those of them that follow from parameters
  node_set borrowed{};             // parameter-stage values that another binding computes
  sequence<gemm_binding<T>> products;
  sequence<wgrad_binding<T>> sums;
  sequence<grouped_gemm_binding<T>> grouped;  // one for each launch of several products
  element_ptr<float> next_gain{};             // gain of the RMS norm that the next block begins with
  node_set normed;                            // results of norms that are stored as h ⊙ gain in this call
  multi_lora_launches multi_lora;
  long long bound_version = -1;  // address version of the program that the launches were bound for

  // Makes this binding read parameter-stage values from that of another program of the same layer, whose
  // parameters_changed() must run first. `equal` has the node of that program for each node of this one, or none_id.
  void share_precomputed(const binding& from, const sequence<id>& equal) {
    if (borrowed.in.size() != equal.size()) borrowed = node_set(equal.size());
    for (id i = 0; i < equal.size(); ++i) {
      if (!changing[i] && !borrowed[i]) continue;
      if (equal[i] < 0 || !from.changing[equal[i]] || from.values.location(equal[i]).at == nullptr) continue;
      values.set_external(i, from.values.location(equal[i]));
      borrowed.add(i), changing.in[i] = precomputed.in[i] = false;
    }
    for (gemm_binding<T>& p : products)
      for (const gemm_binding<T>& other : from.products)
        if (p.makes_weight() && other.makes_weight() && equal[p.slots().weight] == other.slots().weight)
          p.borrow_weight(other);
  }
  status publish(cudaStream_t stream) {
    for (gemm_binding<T>& b : products)
      if (status s = b.publish(stream); !s) return s;
    return ok;
  }
  void skip_pdl_once() {
    for (gemm_binding<T>& b : products) b.skip_pdl_once();
  }
};

}  // namespace graft::gpu
