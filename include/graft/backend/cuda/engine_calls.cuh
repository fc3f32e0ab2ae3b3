// SPDX-License-Identifier: Apache-2.0
// The members of an engine that ask what the device has room for, add gradients, and evaluate a graph node by node: see
// engine.cuh. Outside the class, so that a program may compile them once (extern template).
#pragma once
#include <graft/backend/cuda/engine.cuh>

namespace graft::cuda {

struct add_numbers {
  const float* from;
  cells<float> to;
  __device__ void operator()(long long i) const { to.add(i, from[i]); }
};

template <class T> status engine<T>::open(queue& q) {
  if (q.kernels.evaluate == nullptr) return fail("this executor was given no kernels");
  const auto major = attribute_of_device(cudaDevAttrComputeCapabilityMajor),
             minor = attribute_of_device(cudaDevAttrComputeCapabilityMinor),
             processors = attribute_of_device(cudaDevAttrMultiProcessorCount);
  for (const auto* a : {&major, &minor, &processors})
    if (!*a) return a->failure();
  q.where = device_target("this GPU", 10 * *major + *minor, *processors, *processors / 2, bytes_per_second());
  q.eager = q.where, q.eager.gathers = target::work::by_nodes;
  return is_hopper(q.where) ? ask_residency(q) : status(ok);
}
template <class T> status engine<T>::ask_residency(queue& q) {
  for (const kernel_entry& gemm : q.kernels.linear.gemm) {
    if (gemm.kernel == nullptr) continue;
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {2, 1, 1};
    const auto shared_bytes = static_cast<int>(gemm.shared);
    if (status s = check(cudaFuncSetAttribute(gemm.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
                         "the gemm kernel");
        !s)
      return s;
    const cudaLaunchConfig_t config{
        dim3(static_cast<unsigned>(2 * q.where.processors)), dim3(gemm.threads), gemm.shared, nullptr, &cluster, 1};
    return check(cudaOccupancyMaxActiveClusters(&q.where.resident_pairs, gemm.kernel, &config),
                 "asking how many blocks fit");
  }
  return ok;
}
template <class T> status engine<T>::add(queue& q, const view& from, const mutable_view& to) {
  const auto* const values = static_cast<const float*>(from.data);
  return each(q.stream, to.count(), add_numbers{values, {to.data, to.type}}, "adding a gradient");
}
template <class T>
status engine<T>::evaluate(queue& q, const graph& g, const size_values& s, const leaf_views& leaves,
                           const std::vector<mutable_view>& outputs) {
  if (q.kernels.evaluate == nullptr) return fail("this executor was given no kernels");
  for (int k = 0; k < g.outs; ++k)
    if (const mutable_view& to = outputs[static_cast<std::size_t>(k)];
        to.data != nullptr && (!to.contiguous() || !cells<float>::can_be(to.type)))
      return fail("output '", g.output_name(k), "' has gaps or is ", name_of(to.type),
                  "; on the GPU give it one piece of f32, bf16 or f16");
  for (id i = 0; i < g.size; ++i)
    if (const view& v = leaves[i]; v.data != nullptr && !v.contiguous())
      return fail("tensor '", g.name(i), "' is not stored row after row; on the GPU copy it first");
  values v(g, s, leaves, q.kernels.evaluate);
  code_panel panel(q.kernels.launches.codes);
  v.decode_into(&panel, dtype::f32);
  if (status room = panel.reserve(v.panel_bytes(dtype::f32)); !room) return room;
  if (status done = v.compute(q.stream, reachable(g)); !done) return done;
  for (int k = 0; k < g.outs; ++k)
    if (const mutable_view& to = outputs[static_cast<std::size_t>(k)]; to.data != nullptr)
      if (status done = v.copy(q.stream, g.out[k].at, {to.data, to.type}); !done) return done;
  return check(cudaStreamSynchronize(q.stream), "merging");
}
template <class T>
status engine<T>::evaluate_in_host_memory(queue& q, const graph& g, const size_values& s, leaf_views leaves,
                                          const std::vector<mutable_view>& outputs) {
  sequence<block> memory;
  for (id i = 0; i < g.size; ++i) {
    view& v = leaves[i];
    if (v.data == nullptr || g[i].what == op::scalar) continue;
    result<view> placed = place(q, v, dtype::f32, memory.extend());
    if (!placed) return placed.failure();
    v = *placed;
  }
  std::vector<mutable_view> there(outputs.size());
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k].data == nullptr) continue;
    if (status done = memory.extend().memory().reserve(4 * outputs[k].count()); !done) return done;
    there[k] = {memory.back().data(), dtype::f32, {outputs[k].count()}, 1};
  }
  if (status done = evaluate(q, g, s, leaves, there); !done) return done;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k].data == nullptr) continue;
    std::vector<float> numbers(static_cast<std::size_t>(outputs[k].count()));
    if (status done = fetch(q, {there[k].data, dtype::f32, {outputs[k].count()}, 1}, numbers.data()); !done)
      return done;
    write_in_host_memory(outputs[k], numbers.data());
  }
  return ok;
}

}  // namespace graft::cuda
