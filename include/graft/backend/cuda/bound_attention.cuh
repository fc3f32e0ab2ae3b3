// SPDX-License-Identifier: Apache-2.0
// Attention nodes of a plan bound to device memory: by the kernels for whole models where there is one for their sizes,
// which read and write T; else by a node of its own.
#pragma once
#include <graft/backend/cuda/attention_table.h>
#include <graft/backend/cuda/cells.cuh>
#include <graft/backend/cuda/memory.h>
#include <graft/plan/row_launch.h>

namespace graft::cuda {

template <class T> class bound_attention {
 public:
  bound_attention() = default;
  // `heads`: what puts its operand together, where that is part of its launch.
  bound_attention(const graph& g, id i, const row_launch* heads) : g_(&g), i_(i), heads_(heads) {}
  id node() const { return i_; }
  // Sizes of the largest call. Which kernels there are is decided once: all calls of a plan store their values alike.
  status bind(cudaStream_t stream, const size_values& largest, const target& device, attention_table table) {
    const attention_size p = attention_size_of(*g_, i_, largest, dtype_of<T>);
    const bool runs = dtype_of<T> == dtype::bf16 && table != nullptr;
    kernels_ = runs && choice_of(*g_, i_, p, device).how != attention_way::node ? table() : nullptr;
    room_ = 0;
    if (kernels_ != nullptr && (*g_)[i_].what == op::attention_grad) {
      room_ = room_of_attention_grad(p, device).bytes;
      score_bytes_ = score_pieces_of(p, device).bytes;
    }
    if (kernels_ == nullptr || !p.cached) return ok;
    room_ = room_of_decode(p, device);
    if (counters_.bytes() >= counters_of_decode(p)) return ok;
    if (status s = counters_.reserve(counters_of_decode(p)); !s) return s;
    const auto bytes = static_cast<std::size_t>(counters_.bytes());
    return check(cudaMemsetAsync(counters_.data(), 0, bytes, stream), "clearing");
  }
  // False: it is a node like any other.
  bool runs() const { return kernels_ != nullptr; }
  long long room() const { return room_; }
  // Which values are stored as T.
  template <class F> void each_tensor(F f) const {
    f(i_), f((*g_)[i_].a);
    if ((*g_)[i_].what == op::attention_grad) f((*g_)[i_].c);
    if (heads_ != nullptr)
      for (const joined_part& p : heads_->parts) f(p.value);
  }
  // The heads of this call, where the kernel puts them together and turns them itself.
  template <class At>
  bool takes_heads(const target& device, const size_values& s, const At& at, apart_heads& to) const {
    if (heads_ == nullptr || heads_->parts.size() != 3 || !runs()) return false;
    const attention_size p = attention_size_of(*g_, i_, s, dtype_of<T>);
    const long long widths[] = {p.heads, p.groups, p.groups};
    const attention_choice c = choice_of(*g_, i_, p, device);
    bool fits = c.how == attention_way::decode && !c.mma;
    for (int k = 0; k < 3; ++k) {
      const joined_part& part = heads_->parts[k];
      fits = fits && part.turned == (k < 2 && heads_->table >= 0) &&
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
  // `at`: where the value of a node lies. What rows look at is copied to the device before the kernels of a call.
  // `settled`: a copy or the start of a graph lies between two calls.
  // `kept`: O of the forward pass and the sums of its rows, to be written or read; null where they are not kept.
  struct kept_rows {
    const void* out = nullptr;
    float* sums = nullptr;
  };
  template <class At>
  status run(cudaStream_t stream, const target& device, const size_values& s, const At& at, void* out, void* room,
             const apart_heads* apart, const kept_rows& kept, choice_timer* timer, bool settled) const {
    const graft::node& v = (*g_)[i_];
    attention_size p = attention_size_of(*g_, i_, s, dtype_of<T>);
    if (p.rows == 0) return ok;
    if (score_bytes_ > 0) p.score_bytes = score_bytes_;
    const auto* const spans = static_cast<const long long*>(at(v.b));
    if (v.what == op::attention_grad)
      return kernels_->run_grad(stream, *kernels_, device, p,
                                {at(v.a), at(v.c), spans, out, room, kept.out, kept.sums});
    attention_tensors t{at(v.a), spans};
    if (kept.out == out) t.sums = kept.sums;
    t.out = out, t.room = room, t.counters = counters_.template as<std::uint32_t>(), t.apart = apart, t.chained = true,
    t.settled = settled;
    if (p.cached) t.cache = const_cast<void*>(at(v.c)), t.places = g_->sizes.value((*g_)[v.c].d[2], s);
    return kernels_->run(stream, *kernels_, device, timer, p, t);
  }

 private:
  const graph* g_ = nullptr;
  id i_ = -1;
  const row_launch* heads_ = nullptr;
  const attention_kernels* kernels_ = nullptr;
  long long room_ = 0, score_bytes_ = 0;  // score_bytes_: what the largest call has for dS
  buffer counters_;
};

}  // namespace graft::cuda
