// SPDX-License-Identifier: Apache-2.0
// GPU targets for the planner, as in compile<q_proj, fullgraph, for_target<sm_90>>, put together from what the folders
// of the kernels state. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/nodes.h>
#include <graft/backend/gpu/kernels/attention/capabilities.h>
#include <graft/backend/gpu/kernels/elementwise/capabilities.h>
#include <graft/backend/gpu/kernels/experts/capabilities.h>
#include <graft/backend/gpu/kernels/gemm/capabilities.h>
#include <graft/backend/gpu/kernels/linalg/capabilities.h>
#include <graft/backend/gpu/kernels/skinny/capabilities.h>
#include <graft/backend/gpu/kernels/wgrad/capabilities.h>
#include <graft/plan/fuse_products.h>

namespace graft {

namespace gpu {
// The target of a device with this compute capability, number of SMs and number of resident pairs of GEMM
// blocks. GEMMs reach 5.7e12 flop/s per SM of an H200 when all are busy; a launch with programmatic
// dependent launch costs 1.2 µs in addition to its work.
constexpr target device_target(const char* name, int capability, int sm_count, int resident_pairs,
                               double bytes_per_second = 0) {
  target t;
  t.name = name, t.granularity = target::work::by_products, t.fuse_products = &fuse_products;
  t.capability = capability, t.sm_count = sm_count;
  t.bytes_per_second = bytes_per_second;
  t.flops_per_second = (capability >= 90 ? 5.7e12 : 2.2e12) * sm_count;
  t.launch_overhead_seconds = capability >= 90 ? 1.2e-6 : 2.5e-6;
  t.can<gemm_launch>() = gemm_capabilities(resident_pairs), t.can<wgrad_launch>() = wgrad_capabilities();
  t.can<attention_launch>() = attention_capabilities(), t.can<expression_launch>() = expression_capabilities();
  t.can<kronecker_chain>() = chain_capabilities(capability), t.can<matrix_stack>() = stack_capabilities();
  t.can<dropout_gemm>() = dropout_gemm_capabilities(), t.can<rowwise_launch>() = rowwise_capabilities();
  t.can<expert_gemm>() = expert_gemm_capabilities(), t.can<nodes_launch>() = node_capabilities();
  return t;
}
}  // namespace gpu

inline constexpr target sm_80 = gpu::device_target("sm_80", 80, 108, 54);          // A100
inline constexpr target sm_90 = gpu::device_target("sm_90", 90, 132, 66, 4.3e12);  // H200; H100 SXM has slower memory

}  // namespace graft
