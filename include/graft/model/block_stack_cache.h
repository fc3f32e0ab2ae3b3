// SPDX-License-Identifier: Apache-2.0
// Cache of a model's stacks, by adapters and weights. A stack is made on first use, so that switching back to
// adapters is a lookup. It is evicted when one of its adapters was removed, or as the least recently used of too many.
#pragma once
#include <graft/backend/lru_cache.h>
#include <graft/model/adapter_composition.h>
#include <graft/model/multi_lora_rows.h>

namespace graft {

template <class Engine> class block_stack_cache {
 public:
  using stack = block_stack<Engine>;
  struct entry {
    std::vector<shared_adapter> of;
    unsigned long long weights_version = 0;
    std::unique_ptr<stack> made;
    long long bound_rows = 0;  // largest call that it is bound for

    status ensure_bound(pass_kind w, long long rows, const capacity& all) {
      if (rows <= bound_rows) return ok;
      if (status s = made->bind(w, all); !s) return s;
      bound_rows = all.tokens;
      return ok;
    }
  };

  // `make` makes a stack that is not in the cache.
  template <class Make>
  result<entry*> of(std::span<const shared_adapter> adapters, unsigned long long weights_version, Make make) {
    const auto same = [&](const entry& e) {
      return e.weights_version == weights_version &&
             std::equal(e.of.begin(), e.of.end(), adapters.begin(), adapters.end());
    };
    if (entry* const e = all_.find(same)) return e;  // evicted last, so a call with several stacks keeps all of them
    result<std::unique_ptr<stack>> fresh = make();
    if (!fresh) return fresh.failure();
    return &all_.add({{adapters.begin(), adapters.end()}, weights_version, std::move(*fresh)}, max_stacks);
  }
  // Adds a stack that was made and bound elsewhere, for calls of up to `rows` rows.
  void add(std::span<const shared_adapter> adapters, unsigned long long weights_version, std::unique_ptr<stack> made,
           long long rows) {
    all_.add({{adapters.begin(), adapters.end()}, weights_version, std::move(made), rows}, max_stacks);
  }
  // Returns the base stack whose launches the rows of a multi-LoRA batch share.
  template <class Make> result<entry*> multi_lora_base(unsigned long long weights_version, Make make) {
    if (multi_lora_base_.made != nullptr && multi_lora_base_.weights_version == weights_version)
      return &multi_lora_base_;
    result<std::unique_ptr<stack>> fresh = make();
    if (!fresh) return fresh.failure();
    multi_lora_base_ = {{}, weights_version, std::move(*fresh)};
    return &multi_lora_base_;
  }
  multi_lora_rows<Engine>& multi_lora() { return multi_lora_; }
  template <class Retain> void retain(Retain retains) {
    all_.remove_if([&](const entry& e) { return !retains(e); });
  }
  status parameters_changed() {
    for (entry& e : all_)
      for (bound_block<Engine>& b : e.made->blocks())
        if (status s = b.parameters_changed(); !s) return s;
    return ok;
  }

 private:
  static constexpr std::size_t max_stacks = multi_lora_rows<Engine>::slots;
  lru_cache<entry> all_;
  entry multi_lora_base_;
  multi_lora_rows<Engine> multi_lora_;
};

}  // namespace graft
