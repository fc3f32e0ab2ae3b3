// SPDX-License-Identifier: Apache-2.0
// Launches of attention.
#pragma once
#include <graft/backend/gpu/kernels/attention/binding.cuh>
#include <graft/backend/gpu/runtime/program.cuh>

namespace graft::gpu {

template <> struct launch_on_gpu<attention_launch> {
  template <class T, class F> static void each_own_node(const program<T>&, const attention_launch& l, F f) {
    f(l.anchor());
  }
  template <class T>
  static void each_stored(const program<T>& in, const attention_launch& l, const stored_nodes<T>& to) {
    if (l.heads >= 0) to.add(in.p_.template all<rowwise_launch>()[l.heads].result);
    to.add(l.node);
  }
  template <class T> static long long scratch(const program<T>& in, const attention_launch& l, const size_values&) {
    long long bytes = 0;
    for (const attention_binding<T>& a : in.attentions_)
      if (a.runs() && a.node() == l.node) bytes = max_of(bytes, a.workspace());
    return bytes;
  }
  template <class T>
  static void each_typed(const program<T>& in, const attention_launch& l, const typed_values<T>& to) {
    for (const attention_binding<T>& a : in.attentions_)
      if (a.runs() && a.node() == l.node) a.each_tensor([&](id i) { to.add(i); });
  }
  // Runs a fused kernel if there is one, else node by node. The launch that concatenates heads and applies RoPE runs
  // first, unless the kernel reads q, k and v separately.
  template <class T> static status run(execution<T>& e, const attention_launch& l, const graft::launch&) {
    const id i = l.node;
    const auto at = [&](id o) { return e.tensor_at(o); };
    const attention_binding<T>* by = nullptr;
    for (const attention_binding<T>& a : e.program_.attentions_)
      if (a.node() == i) by = &a;
    separate_qkv separate;
    bool takes = by != nullptr && by->fuses_heads(e.to_, e.call_.sizes, at, separate);
    if (separate.angles != nullptr)
      takes = takes && e.values_[e.p_.template all<rowwise_launch>()[l.heads].table].p.type == dtype::f32;
    if (l.heads >= 0 && !takes)
      if (status s = e.run_rows(e.p_.template all<rowwise_launch>()[l.heads]); !s) return s;
    if (by == nullptr || !by->runs()) return e.run_node(i);
    const int k = e.written_output(i);
    void* const y = k >= 0 ? e.call_.outputs[k].data : e.values_.storage(i).at;
    e.values_.put(i, {y, dtype_of<T>});
    // In a model no two calls overlap: it copies the inputs of a call first, or replays a graph.
    return by->run(e.stream_, e.to_, e.call_.sizes, at, y, e.values_.scratch_now(), takes ? &separate : nullptr,
                   {e.call_.attention_out, e.call_.attention_lse}, e.kernels_.gemm.timed.by, e.program_.in_model_);
  }
};

}  // namespace graft::gpu
