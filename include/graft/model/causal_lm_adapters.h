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
template <class Engine>
result<merged_model> causal_lm<Engine>::merge_of(std::span<const shared_adapter> adapters, merged_as as) {
  const result<shared_adapter> all = together(adapters, named_.how, true);
  if (!all) return all.failure();
  return merge_into<Engine>(programs_->queue, *config_, *weights_, **all, as);
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

template <class Engine> status causal_lm<Engine>::merge(const names& which) {
  return change([&](named_adapters& next) { return next.merge(which); });
}
template <class Engine> status causal_lm<Engine>::unmerge() {
  return change([](named_adapters& next) -> status { return next.unmerge(), ok; });
}
template <class Engine> auto causal_lm<Engine>::merged() const -> names {
  const auto mine = alone();
  return named_.merged();
}
template <class Engine> long long causal_lm<Engine>::merged_bytes() const {
  const auto mine = alone();
  return merged_ != nullptr ? merged_->model.bytes : 0;
}
template <class Engine> std::map<std::string, double> causal_lm<Engine>::merge_rounding() const {
  const auto mine = alone();
  return merged_ != nullptr ? merged_->model.rounding : std::map<std::string, double>();
}
template <class Engine> result<model_weights> causal_lm<Engine>::merged_weights(const names& which, merged_as as) {
  const auto mine = alone();
  if (status s = named_.knows(which); !s) return s.failure();
  result<merged_model> made = merge_of(listed(named_, which), as);
  if (!made) return made.failure();
  return std::move(made->weights);
}
template <class Engine> status causal_lm<Engine>::merge_and_unload(const names& which) {
  const auto mine = alone();
  if (status s = named_.knows(which); !s) return s;
  result<merged_model> made = merge_of(listed(named_, which));
  if (!made) return made.failure();
  auto base = std::exchange(weights_, std::make_unique<model_weights>(std::move(made->weights)));
  const unsigned long long number = std::exchange(weights_number_, ++numbers_);
  named_adapters none = named_;
  none.clear();
  status s = take(std::move(none));
  if (!s) weights_ = std::move(base), weights_number_ = number;
  forget_unused();
  return s;
}

template <class Engine>
result<std::unique_ptr<block_stack<Engine>>> causal_lm<Engine>::make_stack(std::span<const shared_adapter> adapters,
                                                                           const numbered_weights& on,
                                                                           const stack_use& use) {
  const result<shared_adapter> all = together(adapters, named_.how);
  if (!all) return all.failure();
  return block_stack<Engine>::make(
      *programs_, {*config_, on.of, *texts_, adapters.empty() ? nullptr : all->get(), use.loss, use.dropped, context_,
                   view_of(rotary_.data(), context_, config_->head_size), use.cache, weights_at_, adapters_at_});
}
template <class Engine>
result<std::unique_ptr<block_stack<Engine>>> causal_lm<Engine>::make_stack(const names& which, bool loss,
                                                                           bool dropped) {
  if (status s = named_.knows(which); !s) return s.failure();
  return make_stack(listed(named_, which), base_weights(), {loss, dropped});
}

template <class Engine>
result<block_stack<Engine>*> causal_lm<Engine>::prepare(stack_cache<Engine>& stacks, kept_rows<Engine>* cache,
                                                        std::span<const shared_adapter> adapters,
                                                        const numbered_weights& on, std::span<const row_run> runs) {
  const way w = cache != nullptr ? way::cached : way::forward;
  if (status s = set_rows(runs, cache != nullptr); !s) return s.failure();
  const auto found = stacks.of(adapters, on.number, [&] { return make_stack(adapters, on, {false, false, cache}); });
  if (!found) return found.failure();
  const result<capacity> room = reserve(rows_.rows());
  if (!room) return room.failure();
  if (status s = (*found)->ready(w, rows_.rows(), *room); !s) return s.failure();
  return (*found)->made.get();
}
template <class Engine>
result<block_stack<Engine>*> causal_lm<Engine>::prepare(stack_cache<Engine>& stacks, kept_rows<Engine>* cache,
                                                        std::span<const row_run> runs) {
  if (status s = check_runs(runs); !s) return s.failure();
  return prepare(stacks, cache, acting(), weights_now(), runs);
}

template <class Engine>
status causal_lm<Engine>::check_adapters(std::span<const row_run> runs, std::span<const names> of_runs) const {
  if (status s = check_runs(runs); !s) return s;
  if (of_runs.size() != runs.size())
    return fail("adapters are named for ", static_cast<long long>(of_runs.size()), " sequences, and there are ",
                static_cast<long long>(runs.size()));
  if (merged_ != nullptr) return fail("adapters are merged into the weights; unmerge() to run rows with others");
  for (const names& n : of_runs)
    if (status s = named_.knows(n); !s) return s;
  return ok;
}
template <class Engine>
result<block_stack<Engine>*> causal_lm<Engine>::prepare_mixed(stack_cache<Engine>& stacks, kept_rows<Engine>* cache,
                                                              std::span<const row_run> runs,
                                                              std::span<const names> of_runs) {
  block_stack<Engine>* const by_groups = nullptr;
  if (status s = check_adapters(runs, of_runs); !s) return s.failure();
  if constexpr (Engine::mixed_rows > 0) {
    long long rows = 0;
    for (const row_run& r : runs) rows += static_cast<long long>(r.tokens.size());
    if (rows > Engine::mixed_rows) return by_groups;
    const way w = cache != nullptr ? way::cached : way::forward;
    const numbered_weights on = base_weights();
    const result<capacity> room = reserve(rows);
    if (!room) return room.failure();
    const auto base = stacks.base_of_mixed(on.number, [&] { return make_stack({}, on, {false, false, cache}); });
    if (!base) return base.failure();
    if (status s = (*base)->ready(w, rows, *room); !s) return s.failure();
    if (status s = stacks.mixed().begin(programs_->queue, w, *(*base)->made); !s) return s.failure();
    std::vector<std::int64_t> places;
    for (const names& n : of_runs) {
      places.push_back(-1);
      if (n.empty()) continue;
      const std::vector<shared_adapter> adapters = listed(named_, n);
      const auto with = stacks.of(adapters, on.number, [&] { return make_stack(adapters, on, {false, false, cache}); });
      if (!with) return with.failure();
      if (status s = (*with)->ready(w, rows, *room); !s) return s.failure();
      const result<int> place = stacks.mixed().place_of(w, *(*with)->made);
      if (!place) return by_groups;
      places.back() = *place;
    }
    if (status s = set_rows(runs, cache != nullptr, places); !s) return s.failure();
    if (status s = stacks.mixed().send(programs_->queue, rows_.adapters()); !s) return s.failure();
    return (*base)->made.get();
  }
  return by_groups;
}
template <class Engine> result<std::string> causal_lm<Engine>::explain_rows(std::span<const names> sets) {
  const auto mine = alone();
  std::string all;
  for (const names& n : sets) {
    if (status s = named_.knows(n); !s) return s.failure();
    for (const std::string& name : n) all += (&name == n.data() ? "" : ", ") + name;
    if constexpr (Engine::mixed_rows > 0) {
      const std::int64_t token[1] = {0};
      const row_run run{token};
      if (const auto made = prepare_mixed(stacks_, nullptr, {&run, 1}, {&n, 1}); !made) return made.failure();
      const auto with = stacks_.of(listed(named_, n), weights_number_, [] { return fail("it was made above"); });
      const result<int> place = !with ? with.failure() : stacks_.mixed().place_of(way::forward, *(*with)->made);
      all += place ? ": in the launches of the base" : std::string(": ") + place.message();
    } else {
      all += ": as a group of their own; this engine has no launches that rows of several adapters share";
    }
    all += "\n";
  }
  return all;
}

// Rows of different adapters that cannot share launches run by groups: tokens see their own sequence only, and a sequence
// has one set of adapters.
template <class Engine>
status causal_lm<Engine>::run_rows(stack_cache<Engine>& stacks, kept_rows<Engine>* cache, std::span<const row_run> runs,
                                   std::span<const names> of_runs, const mutable_view& out) {
  const way w = cache != nullptr ? way::cached : way::forward;
  if (of_runs.empty()) {
    const auto stack = prepare(stacks, cache, runs);
    if (!stack) return stack.failure();
    return run_prepared(**stack, w, out);
  }
  const auto together = prepare_mixed(stacks, cache, runs, of_runs);
  if (!together) return together.failure();
  if (*together != nullptr) return run_prepared(**together, w, out);
  const long long width = config_->vocabulary, bytes = width * bits_of(out.type) / 8;
  const bool last_only = out.size[0] == static_cast<long long>(runs.size());
  std::vector<long long> first{0};  // row of the result where each run begins
  for (const row_run& r : runs)
    first.push_back(first.back() + (last_only ? 1 : static_cast<long long>(r.tokens.size())));
  if (status s = grouped_.reserve(programs_->queue, first.back() * width * bits_of(out.type) / bits_of(Engine::keeps));
      !s)
    return s;
  for (std::size_t k = 0; k < runs.size(); ++k) {
    if (std::find(of_runs.begin(), of_runs.begin() + static_cast<std::ptrdiff_t>(k), of_runs[k]) !=
        of_runs.begin() + static_cast<std::ptrdiff_t>(k))
      continue;  // ran with the group of an earlier one
    std::vector<row_run> group;
    long long rows = 0;
    for (std::size_t i = k; i < runs.size(); ++i)
      if (of_runs[i] == of_runs[k]) group.push_back(runs[i]), rows += first[i + 1] - first[i];
    const auto stack = prepare(stacks, cache, listed(named_, of_runs[k]), base_weights(), group);
    if (!stack) return stack.failure();
    if (status s = run_prepared(**stack, w, {grouped_.data(), out.type, {rows, width, 1, 1}, 2}); !s) return s;
    const char* from = static_cast<const char*>(grouped_.data());
    for (std::size_t i = k; i < runs.size(); ++i) {
      if (of_runs[i] != of_runs[k]) continue;
      const long long count = (first[i + 1] - first[i]) * bytes;
      if (status s = Engine::copy(programs_->queue, static_cast<char*>(out.data) + first[i] * bytes, from, count); !s)
        return s;
      from += count;
    }
  }
  return ok;
}

}  // namespace graft
