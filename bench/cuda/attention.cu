// SPDX-License-Identifier: Apache-2.0
// The attention kernels behind a few C functions, so that bench/compare_attention.py can run them in the process, on the
// stream and on the tensors of the opponent. Every function that launches returns 0, or 1 with a message in graft_error().
#include <graft/cuda.h>

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
// With GRAFT_ATTENTION=mma as a device without wgmma runs it.
const target& run_as() {
  static const char* const how = std::getenv("GRAFT_ATTENTION");
  static const target made = how != nullptr && std::string(how) == "mma" ? sm_80 : sm_90;
  return made;
}
const cuda::attention_calls<bf>& calls() {
  static const cuda::attention_kernels kernels = [] {
    cuda::attention_kernels k = cuda::all_attention_kernels<bf>();
    k.mma = cuda::all_mma_attention_kernels<bf>();
    return k;
  }();
  static const cuda::attention_calls<bf> made(kernels, run_as());
  return made;
}

}  // namespace

extern "C" {

struct graft_attention_size {
  long long rows;
  int head, heads, groups, cached;
};

const char* graft_error() { return message.c_str(); }
// Bytes for backward, and where in them forward leaves O and the sums of the rows.
void graft_attention_room(const graft_attention_size* s, long long* bytes, long long* out, long long* sums) {
  const cuda::attention_room r =
      cuda::room_of_attention_grad({dtype::bf16, s->rows, s->head, s->heads, s->groups, false, true}, run_as());
  *bytes = r.bytes, *out = r.out, *sums = r.sums;
}
int graft_attention(const graft_attention_size* s, cudaStream_t stream, const void* qkv, const long long* spans,
                    void* cache, long long places, void* out, float* sums) {
  cuda::attention_size size{dtype::bf16, s->rows, s->head, s->heads, s->groups, s->cached != 0, true};
  size.places = places;
  static cuda::buffer room, counters;  // as large as the calls before a capture needed them
  if (status made = room.reserve(cuda::room_of_decode(size, run_as())); !made) return report(made);
  if (const long long bytes = cuda::counters_of_decode(size); counters.bytes() < bytes) {
    if (status made = counters.reserve(bytes); !made) return report(made);
    if (status made = cuda::check(cudaMemset(counters.data(), 0, static_cast<std::size_t>(bytes)), "clearing"); !made)
      return report(made);
  }
  cuda::attention_tensors t{qkv, spans, cache, places, out, sums};
  t.room = room.data(), t.counters = counters.as<std::uint32_t>(), t.chained = true;
  return report(calls().forward(stream, size, t));
}
int graft_attention_grad(const graft_attention_size* s, cudaStream_t stream, const void* qkv, const void* d_out,
                         const long long* spans, void* d_qkv, void* room, int has_forward) {
  const cuda::attention_size size{dtype::bf16, s->rows, s->head, s->heads, s->groups, false, true};
  const cuda::attention_room r = cuda::room_of_attention_grad(size, run_as());
  cuda::attention_grad_tensors t{qkv, d_out, spans, d_qkv, room};
  if (has_forward != 0)
    t.out = static_cast<char*>(room) + r.out,
    t.sums = reinterpret_cast<const float*>(static_cast<char*>(room) + r.sums);
  return report(calls().backward(stream, size, t));
}
}
