// SPDX-License-Identifier: Apache-2.0
// Gradients that are added to what their memory holds, as the batches of one training step are: computed beside it first,
// in the type the engine computes with, then added. The memory beside it stays for the next call.
#pragma once
#include <graft/core/result.h>
#include <graft/run/given.h>

#include <memory>
#include <vector>

namespace graft {

template <class Engine> class gradient_sums {
 public:
  using queue = typename Engine::queue;

  // Where the gradient number `index` of a call is computed: a view like its own.
  result<mutable_view> place(queue& q, std::size_t index, const mutable_view& like) {
    if (places_.size() <= index) places_.resize(index + 1);
    room& r = places_[index];
    const long long bytes = like.count() * bits_of(Engine::computes) / 8;
    if (bytes > r.bytes) {
      result<typename Engine::block> fresh = Engine::allocate(q, bytes);
      if (!fresh) return fresh.failure();
      r.memory = std::make_unique<typename Engine::block>(std::move(*fresh)), r.bytes = bytes;
    }
    mutable_view v{r.memory != nullptr ? r.memory->data() : nullptr, Engine::computes, {}, like.rank};
    for (int k = 0; k < like.rank; ++k) v.size[k] = like.size[k];
    return v;
  }
  status add(queue& q, std::size_t index, const mutable_view& to) {
    view from{places_[index].memory->data(), Engine::computes, {}, to.rank};
    for (int k = 0; k < to.rank; ++k) from.size[k] = to.size[k];
    return Engine::add(q, from, to);
  }

 private:
  struct room {
    std::unique_ptr<typename Engine::block> memory;
    long long bytes = 0;
  };
  std::vector<room> places_;
};

}  // namespace graft
