// SPDX-License-Identifier: Apache-2.0
// Attention on the GPU as a plan sees it: the tensors of a call, and the kernels and launch functions as pointers. Only
// a program with models includes and compiles the kernels themselves (instances.cuh, launch.cuh).
#pragma once
#include <cuda_runtime_api.h>
#include <graft/backend/gpu/dispatch/attention.h>
#include <graft/backend/gpu/runtime/kernel_entry.h>
#include <graft/core/result.h>

#include <cstdint>

namespace graft::gpu {

class autotuner;

// Queries, keys and values of decode as three tensors, before they are concatenated and rotated by RoPE.
struct separate_qkv {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  const float* angles = nullptr;  // RoPE; null: q and k are rotated already, or have no rotary positions
  const std::int64_t* positions = nullptr;
};
// Tensors of a forward call: qkv [rows, (heads + 2 kv_heads) d], with one more column for each query head where there
// are sinks, and the attention ranges [3, rows] (graph/rules_model.h).
struct attention_tensors {
  const void* qkv = nullptr;
  const long long* ranges = nullptr;
  void* cache = nullptr;
  long long slots = 0;  // slots of the KV cache
  void* out = nullptr;
  float* lse = nullptr;                    // [heads][rows], written by prefill for backward; or null
  const separate_qkv* separate = nullptr;  // instead of qkv
  void* workspace = nullptr;               // partial results of decode (decode_workspace_bytes)
  std::uint32_t* counters = nullptr;       // decode counters (decode_counter_bytes), zero between calls
  bool pdl = false;  // the previous kernel writes no ranges, so programmatic dependent launch is allowed
  // Since the last copy or start of a graph no kernel has written ranges, cache or angles.
  bool no_pending_writes = false;
};
struct attention_grad_tensors {
  const void *qkv = nullptr, *d_out = nullptr;
  const long long* ranges = nullptr;
  void *d_qkv = nullptr, *workspace = nullptr;
  const void* out = nullptr;  // O and lse saved by forward; null: forward is recomputed in the workspace
  const float* lse = nullptr;
};

// The mma.sync kernels, which a program may compile in a file of their own. The first index is 1 for the variants with
// a soft cap.
struct mma_attention_kernels {
  kernel_entry prefill[2][head_sizes], decode[2][head_sizes], query_grad[2][head_sizes], key_grad[2][head_sizes],
      decode_sum;
};
struct attention_kernels {
  kernel_entry row_statistics_entry[head_sizes], query_grad[head_sizes], append;
  // The first index is 1 for the variants with a soft cap.
  kernel_entry prefill[2][head_sizes][2], key_grad[2][head_sizes];
  kernel_entry decode[2][head_sizes][4];  // default stages, long pipeline, four warps, split KV over all rows
  mma_attention_kernels mma{};
  // Launch functions for one call (launch.cuh).
  status (*run)(cudaStream_t, const attention_kernels&, const target&, autotuner*, const attention_size&,
                const attention_tensors&) = nullptr;
  status (*run_grad)(cudaStream_t, const attention_kernels&, const target&, const attention_size&,
                     const attention_grad_tensors&) = nullptr;
};
// Returns the kernels that the program compiled; a null pointer in programs without models.
using attention_table = const attention_kernels* (*)();

}  // namespace graft::gpu
