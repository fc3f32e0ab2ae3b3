// SPDX-License-Identifier: Apache-2.0
// The adapters of a model: every change is made on a copy of their list, checked by making what will run, and then taken.
#pragma once
#include <graft/model/causal_lm.h>

namespace graft {

template <class Engine> template <class Edit> status causal_lm<Engine>::change(Edit edit) {
  const auto mine = alone();
  named_adapters next = named_;
  status s = edit(next);
  if (s) s = take(std::move(next));
  forget_unused();
  return s;
}
template <class Engine> status causal_lm<Engine>::take(named_adapters next) {
  const std::vector<shared_adapter> merge = listed(next, next.merged());
  std::vector<shared_adapter> run = listed(next, merge.empty() ? next.active() : names{});
  const result<shared_adapter> acting = together(run, next.how);
  if (!acting) return acting.failure();
  std::unique_ptr<numbered_merge> made;
  if (!merge.empty() && (merged_ == nullptr || merged_->of != merge)) {
    result<merged_model> with = merge_of(merge);
    if (!with) return with.failure();
    made = std::make_unique<numbered_merge>(numbered_merge{std::move(*with), merge, ++numbers_});
  }
  const numbered_merge* const merged = merge.empty() ? nullptr : made != nullptr ? made.get() : merged_.get();
  const numbered_weights on = merged != nullptr ? merged->numbered() : base_weights();
  const auto stack = stacks_.of(run, on.number, [&] { return make_stack(run, on, {}); });
  if (!stack) return stack.failure();
  const result<capacity> one = reserve(1);
  if (!one) return one.failure();
  if (status s = (*stack)->ready(way::forward, 1, *one); !s) return s;
  if (made != nullptr || merge.empty()) merged_ = std::move(made);
  named_ = std::move(next), running_ = std::move(run), acting_ = *acting;
  return ok;
}
// Makes what would run with this adapter alone.
template <class Engine> status causal_lm<Engine>::fits(const shared_adapter& adapter) {
  const numbered_weights on = base_weights();
  const std::span<const shared_adapter> one(&adapter, 1);
  const auto stack = stacks_.of(one, on.number, [&] { return make_stack(one, on, {}); });
  if (!stack) return stack.failure();
  const result<capacity> room = reserve(1);
  if (!room) return room.failure();
  return (*stack)->ready(way::forward, 1, *room);
}
template <class Engine> void causal_lm<Engine>::forget_unused() {
  stacks_.keep_only([&](const typename stack_cache<Engine>::entry& e) {
    if (e.on != weights_number_ && (merged_ == nullptr || e.on != merged_->number)) return false;
    return std::all_of(e.of.begin(), e.of.end(), [&](const shared_adapter& a) { return named_.has(a); });
  });
  weights_at_->forget_unused(), adapters_at_->forget_unused();
}
// The numbers of an adapter as they are now, where an earlier state of the same tensors was copied.
template <class Engine> status causal_lm<Engine>::bring(const adapter_set& adapter) {
  for (const module_adapter& m : adapter.modules)
    for (const auto* tensors : {&m.tensors, &m.base})
      for (const auto& [name, t] : *tensors)
        if (status s = adapters_at_->again(programs_->queue, t.value()); !s) return s;
  return ok;
}
template <class Engine>
std::vector<shared_adapter> causal_lm<Engine>::listed(const named_adapters& in, const names& which) const {
  std::vector<shared_adapter> list;
  for (const std::string& n : which) list.push_back(*in.find(n));
  return list;
}

template <class Engine> status causal_lm<Engine>::add(const std::string& name, adapter_set adapter) {
  return change([&](named_adapters& next) -> status {
    auto shared = std::make_shared<const adapter_set>(std::move(adapter));
    if (status s = next.add(name, shared); !s) return s;
    if (status s = bring(*shared); !s) return s;
    return fits(shared);
  });
}
template <class Engine> status causal_lm<Engine>::replace(const std::string& name, adapter_set adapter) {
  return change([&](named_adapters& next) -> status {
    auto shared = std::make_shared<const adapter_set>(std::move(adapter));
    if (status s = next.replace(name, shared); !s) return s;
    if (status s = bring(*shared); !s) return s;
    return fits(shared);
  });
}
template <class Engine> status causal_lm<Engine>::set_adapters(adapter_set adapter) {
  return change([&](named_adapters& next) -> status {
    next.clear();
    if (status s = bring(adapter); !s) return s;
    if (status s = next.add("default", std::make_shared<const adapter_set>(std::move(adapter))); !s) return s;
    return next.activate({"default"});
  });
}
template <class Engine> status causal_lm<Engine>::remove(const std::string& name) {
  return change([&](named_adapters& next) { return next.remove(name); });
}
template <class Engine> status causal_lm<Engine>::rename(const std::string& from, const std::string& to) {
  return change([&](named_adapters& next) { return next.rename(from, to); });
}
template <class Engine> status causal_lm<Engine>::activate(const names& which) {
  return change([&](named_adapters& next) { return next.activate(which); });
}
template <class Engine> status causal_lm<Engine>::unload() {
  return change([](named_adapters& next) -> status { return next.clear(), ok; });
}
template <class Engine> status causal_lm<Engine>::adapters_changed() {
  const auto mine = alone();
  if (status s = adapters_at_->all_again(programs_->queue); !s) return s;
  return stacks_.parameters_changed();
}
template <class Engine> auto causal_lm<Engine>::all_names() const -> names {
  const auto mine = alone();
  return named_.all();
}
template <class Engine> auto causal_lm<Engine>::active() const -> names {
  const auto mine = alone();
  return named_.active();
}
template <class Engine> shared_adapter causal_lm<Engine>::find(const std::string& name) const {
  const auto mine = alone();
  const shared_adapter* const at = named_.find(name);
  return at != nullptr ? *at : nullptr;
}
template <class Engine> void causal_lm<Engine>::enable(bool on) {
  const auto mine = alone();
  named_.enabled = on;
}
template <class Engine> bool causal_lm<Engine>::enabled() const {
  const auto mine = alone();
  return named_.enabled;
}

}  // namespace graft
