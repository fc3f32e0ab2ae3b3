// SPDX-License-Identifier: Apache-2.0
// Attention nodes of a plan bound to device memory. Sizes that have a bf16 kernel use it; all other sizes, and other
// types T, are evaluated as single nodes by the reference kernels (reference.cuh).
#pragma once
#include <graft/backend/gpu/kernels/attention/kernel_table.h>
#include <graft/backend/gpu/runtime/device_memory.h>
#include <graft/backend/gpu/tile/elements.cuh>
#include <graft/plan/launch/rowwise.h>

namespace graft::gpu {

template <class T> class attention_binding {
 public:
  attention_binding() = default;
  // `heads` is the concatenation of Q, K and V with RoPE, where it is fused into this launch; or null.
  attention_binding(const graph& g, id i, const rowwise_launch* heads) : g_(&g), i_(i), heads_(heads) {}
  id node() const { return i_; }
  // `largest` has the sizes of the largest call. The choice between kernel and node is made here once, because it
  // decides in which type all calls of the plan store their values.
  status bind(cudaStream_t stream, const size_values& largest, const target& device, attention_table table) {
    const attention_size p = attention_size_of(*g_, i_, largest, dtype_of<T>);
    const bool runs = dtype_of<T> == dtype::bf16 && table != nullptr;
    kernels_ = runs && choice_of(*g_, i_, p, device).path != attention_path::node ? table() : nullptr;
    workspace_ = 0;
    if (kernels_ != nullptr && (*g_)[i_].what == op::attention_grad) {
      workspace_ = attention_backward_workspace_of(p, device).bytes;
      ds_bytes_ = ds_slabs_of(p, device).bytes;
    }
    if (kernels_ == nullptr || !p.cached) return ok;
    workspace_ = decode_workspace_bytes(p, device);
    if (counters_.bytes() >= decode_counter_bytes(p)) return ok;
    if (status s = counters_.reserve(decode_counter_bytes(p)); !s) return s;
    const auto bytes = static_cast<std::size_t>(counters_.bytes());
    return check(cudaMemsetAsync(counters_.data(), 0, bytes, stream), "clearing");
  }
  // False where the node is evaluated by the reference kernels.
  bool runs() const { return kernels_ != nullptr; }
  long long workspace() const { return workspace_; }
  // Calls f for every value that must be stored as T.
  template <class F> void each_tensor(F f) const {
    f(i_), f((*g_)[i_].a);
    if ((*g_)[i_].what == op::attention_grad) f((*g_)[i_].c);
    if (heads_ != nullptr)
      for (const concat_part& p : heads_->parts) f(p.value);
  }
  // Fills `to` with Q, K and V as separate tensors and returns true where the decode kernel rotates them itself.
  template <class At>
  bool fuses_heads(const target& device, const size_values& s, const At& at, separate_qkv& to) const {
    if (heads_ == nullptr || heads_->parts.size() != 3 || !runs()) return false;
    const attention_size p = attention_size_of(*g_, i_, s, dtype_of<T>);
    const long long widths[] = {p.heads, p.kv_heads, p.kv_heads};
    const attention_choice c = choice_of(*g_, i_, p, device);
    bool fits = c.path == attention_path::decode && !c.mma && !p.sinks;
    for (int k = 0; k < 3; ++k) {
      const concat_part& part = heads_->parts[k];
      fits = fits && part.has_rope == (k < 2 && heads_->table >= 0) &&
             g_->sizes.value((*g_)[part.value].d[3], s) == widths[k] * p.head &&
             reinterpret_cast<std::uintptr_t>(at(part.value)) % 16 == 0;
    }
    if (!fits) return false;
    to = {at(heads_->parts[0].value), at(heads_->parts[1].value), at(heads_->parts[2].value)};
    if (heads_->table < 0) return true;
    to.angles = static_cast<const float*>(at(heads_->table));
    to.positions = static_cast<const std::int64_t*>(at(heads_->positions));
    return true;
  }
  // O and log-sum-exp of the forward pass, saved for backward; null where backward recomputes them.
  struct saved_attention {
    const void* out = nullptr;
    float* lse = nullptr;
  };
  // `at(i)` is the address of the value of node i. Attention ranges are on the device before the kernels of a call.
  // `no_pending_writes`: a copy or the start of a graph separates two calls.
  template <class At>
  status run(cudaStream_t stream, const target& device, const size_values& s, const At& at, void* out, void* workspace,
             const separate_qkv* separate, const saved_attention& saved, autotuner* tuner,
             bool no_pending_writes) const {
    const graft::node& v = (*g_)[i_];
    attention_size p = attention_size_of(*g_, i_, s, dtype_of<T>);
    if (p.rows == 0) return ok;
    if (ds_bytes_ > 0) p.ds_bytes = ds_bytes_;
    const auto* const ranges = static_cast<const long long*>(at(v.b));
    if (v.what == op::attention_grad)
      return kernels_->run_grad(stream, *kernels_, device, p,
                                {at(v.a), at(v.c), ranges, out, workspace, saved.out, saved.lse});
    attention_tensors t{at(v.a), ranges};
    if (saved.out == out) t.lse = saved.lse;
    t.out = out, t.workspace = workspace, t.counters = counters_.template as<std::uint32_t>(), t.separate = separate,
    t.pdl = true, t.no_pending_writes = no_pending_writes;
    if (p.cached) t.cache = const_cast<void*>(at(v.c)), t.slots = g_->sizes.value((*g_)[v.c].d[2], s);
    return kernels_->run(stream, *kernels_, device, tuner, p, t);
  }

 private:
  const graph* g_ = nullptr;
  id i_ = -1;
  const rowwise_launch* heads_ = nullptr;
  const attention_kernels* kernels_ = nullptr;
  long long workspace_ = 0, ds_bytes_ = 0;  // ds_bytes_: memory for dS in the largest call
  buffer counters_;
};

}  // namespace graft::gpu
