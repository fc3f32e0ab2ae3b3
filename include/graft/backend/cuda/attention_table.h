// SPDX-License-Identifier: Apache-2.0
// What attention is given on the GPU, and the kernels that compute it with what launches them, as pointers: a plan names
// these, and only a program with models reads and compiles what they point at (attention.cuh).
#pragma once
#include <cuda_runtime_api.h>
#include <graft/backend/cuda/attention_choice.h>
#include <graft/backend/cuda/kernel_entry.h>
#include <graft/core/result.h>

#include <cstdint>

namespace graft::cuda {

class choice_timer;

// How queries, keys and values come to decode where they are not side by side yet, and not turned: each with rows of its own.
struct apart_heads {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  const float* angles = nullptr;  // null: nothing turns
  const std::int64_t* positions = nullptr;
};
// Queries, keys and values of a call side by side, and who looks at whom (graph/rules_model.h).
struct attention_tensors {
  const void* qkv = nullptr;
  const long long* spans = nullptr;
  void* cache = nullptr;
  long long places = 0;  // rows of the cache
  void* out = nullptr;
  float* sums = nullptr;               // [heads][rows] of prefill, where backward follows; or null
  const apart_heads* apart = nullptr;  // instead of qkv
  void* room = nullptr;                // of the parts of few rows (room_of_decode)
  std::uint32_t* counters = nullptr;   // of few rows (counters_of_decode): zero, and zero again after the call
  bool chained = false;  // the kernel ahead wrote none of the spans: this one may begin while that one ends
  bool settled = false;  // nor did any kernel since a copy or the start of a graph write spans, cache or angles
};
struct attention_grad_tensors {
  const void *qkv = nullptr, *d_out = nullptr;
  const long long* spans = nullptr;
  void *d_qkv = nullptr, *room = nullptr;
  const void* out = nullptr;  // O of the forward pass and the sums of its rows; null: computed again, in the room
  const float* sums = nullptr;
};

// By mma.sync, compiled apart from the others.
struct mma_attention_kernels {
  kernel_entry prefill[head_sizes], decode[head_sizes], query_grad[head_sizes], key_grad[head_sizes], decode_sum;
};
struct attention_kernels {
  kernel_entry prefill[head_sizes][2], grad_notes[head_sizes], key_grad[head_sizes], query_grad[head_sizes], append;
  kernel_entry decode[head_sizes][4];  // with a short ring, with a long one, small, and in equal pieces
  mma_attention_kernels mma{};
  // From the tensors of a call to launches of these.
  status (*run)(cudaStream_t, const attention_kernels&, const target&, choice_timer*, const attention_size&,
                const attention_tensors&) = nullptr;
  status (*run_grad)(cudaStream_t, const attention_kernels&, const target&, const attention_size&,
                     const attention_grad_tensors&) = nullptr;
};
// Those that a program compiled; none where it has no models.
using attention_table = const attention_kernels* (*)();

}  // namespace graft::cuda
