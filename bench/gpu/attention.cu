// SPDX-License-Identifier: Apache-2.0
// A C interface to the attention kernels, so that bench/compare_attention.py can run them in its process, on the stream
// and on the tensors of cuDNN. Every function that launches returns 0, or 1 with a message in graft_error().
#include <graft/gpu.h>

#include <cstdlib>
#include <string>

namespace {

using namespace graft;
using bf = __nv_bfloat16;

std::string message;

int report(const status& s) {
  if (!s) message = s.message();
  return s ? 0 : 1;
}
// The target of the dispatch: with GRAFT_ATTENTION=mma a device without wgmma.
const target& run_as() {
  static const char* const how = std::getenv("GRAFT_ATTENTION");
  static const target made = how != nullptr && std::string(how) == "mma" ? sm_80 : sm_90;
  return made;
}
const gpu::attention_launcher<bf>& calls() {
  static const gpu::attention_kernels kernels = [] {
    gpu::attention_kernels k = gpu::all_attention_kernels<bf>();
    k.mma = gpu::all_mma_attention_kernels<bf>();
    return k;
  }();
  static const gpu::attention_launcher<bf> made(kernels, run_as());
  return made;
}

}  // namespace

extern "C" {

struct graft_attention_size {
  long long rows;
  int head, heads, kv_heads, cached;
};

const char* graft_error() { return message.c_str(); }
// Bytes of the backward workspace, and the offsets at which forward stores O and the log-sum-exp.
void graft_attention_workspace(const graft_attention_size* s, long long* bytes, long long* out, long long* lse) {
  const gpu::attention_backward_workspace r = gpu::attention_backward_workspace_of(
      {dtype::bf16, s->rows, s->head, s->heads, s->kv_heads, false, true}, run_as());
  *bytes = r.bytes, *out = r.out, *lse = r.lse;
}
int graft_attention(const graft_attention_size* s, cudaStream_t stream, const void* qkv, const long long* ranges,
                    void* cache, long long slots, void* out, float* lse) {
  gpu::attention_size size{dtype::bf16, s->rows, s->head, s->heads, s->kv_heads, s->cached != 0, true};
  size.slots = slots;
  static gpu::buffer workspace, counters;  // grow in calls before a capture
  if (status made = workspace.reserve(gpu::decode_workspace_bytes(size, run_as())); !made) return report(made);
  if (const long long bytes = gpu::decode_counter_bytes(size); counters.bytes() < bytes) {
    if (status made = counters.reserve(bytes); !made) return report(made);
    if (status made = gpu::check(cudaMemset(counters.data(), 0, static_cast<std::size_t>(bytes)), "clearing"); !made)
      return report(made);
  }
  gpu::attention_tensors t{qkv, ranges, cache, slots, out, lse};
  t.workspace = workspace.data(), t.counters = counters.as<std::uint32_t>(), t.pdl = true;
  return report(calls().forward(stream, size, t));
}
int graft_attention_grad(const graft_attention_size* s, cudaStream_t stream, const void* qkv, const void* d_out,
                         const long long* ranges, void* d_qkv, void* workspace, int has_forward) {
  const gpu::attention_size size{dtype::bf16, s->rows, s->head, s->heads, s->kv_heads, false, true};
  const gpu::attention_backward_workspace r = gpu::attention_backward_workspace_of(size, run_as());
  gpu::attention_grad_tensors t{qkv, d_out, ranges, d_qkv, workspace};
  if (has_forward != 0)
    t.out = static_cast<char*>(workspace) + r.out,
    t.lse = reinterpret_cast<const float*>(static_cast<char*>(workspace) + r.lse);
  return report(calls().backward(stream, size, t));
}
}
