// SPDX-License-Identifier: Apache-2.0
// The calls of a model: which stack runs them, and rows that have adapters of their own, in the launches of the base where
// those fit, else group by group.
#pragma once
#include <graft/model/causal_lm.h>

#include <set>

namespace graft {

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
  const long long rows = rows_of(runs);
  const auto base = begin_mixed(stacks, cache, rows);
  if (!base) return base.failure();
  std::set<names> sets(of_runs.begin(), of_runs.end());
  sets.erase(names{});
  if (sets.size() > mixed_rows<Engine>::places) return by_groups;
  std::vector<std::int64_t> places;
  for (const names& n : of_runs) {
    const result<int> place = place_of_mixed(stacks, cache, rows, n);
    if (!place) return place.failure();
    if (*place == no_place) return by_groups;
    places.push_back(*place);
  }
  if (status s = set_rows(runs, cache != nullptr, places); !s) return s.failure();
  if (status s = stacks.mixed().send(programs_->queue, rows_.adapters(), rows_.adapter_numbers()); !s)
    return s.failure();
  return *base;
}
template <class Engine>
result<block_stack<Engine>*> causal_lm<Engine>::begin_mixed(stack_cache<Engine>& stacks, kept_rows<Engine>* cache,
                                                            long long rows) {
  const way w = cache != nullptr ? way::cached : way::forward;
  const numbered_weights on = base_weights();
  const result<capacity> room = reserve(rows);
  if (!room) return room.failure();
  const auto base = stacks.base_of_mixed(on.number, [&] { return make_stack({}, on, {false, false, cache}); });
  if (!base) return base.failure();
  if (status s = (*base)->ready(w, rows, *room); !s) return s.failure();
  if (status s = stacks.mixed().begin(programs_->queue, w, *(*base)->made, room->tokens); !s) return s.failure();
  return (*base)->made.get();
}
template <class Engine>
result<int> causal_lm<Engine>::place_of_mixed(stack_cache<Engine>& stacks, kept_rows<Engine>* cache, long long rows,
                                              const names& n, std::string* why) {
  if (n.empty()) return base_place;
  const way w = cache != nullptr ? way::cached : way::forward;
  const numbered_weights on = base_weights();
  const result<capacity> room = reserve(rows);
  if (!room) return room.failure();
  const std::vector<shared_adapter> adapters = listed(named_, n);
  const auto with = stacks.of(adapters, on.number, [&] { return make_stack(adapters, on, {false, false, cache}); });
  if (!with) return with.failure();
  if (status s = (*with)->ready(w, rows, *room); !s) return s.failure();
  const result<int> place = stacks.mixed().place_of(w, *(*with)->made);
  if (!place && why != nullptr) *why = place.message();
  return place ? *place : no_place;
}
template <class Engine> result<std::string> causal_lm<Engine>::explain_rows(std::span<const names> sets) {
  const auto mine = alone();
  std::string all;
  for (const names& n : sets) {
    if (status s = named_.knows(n); !s) return s.failure();
    for (const std::string& name : n) all += (&name == n.data() ? "" : ", ") + name;
    if (const auto base = begin_mixed(stacks_, nullptr, 1); !base) return base.failure();
    std::string why = "in the launches of the base";
    if (const result<int> place = place_of_mixed(stacks_, nullptr, 1, n, &why); !place) return place.failure();
    all += ": " + why;
    all += "\n";
  }
  return all;
}

// Rows of adapters that cannot share launches run by groups: tokens see their own sequence only, and a sequence has one
// set of adapters. Those that can are one group.
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
  std::vector<int> group_of;  // 0: those that share launches
  std::set<names> sharing;
  std::vector<names> others;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    bool shares = sharing.count(of_runs[i]) > 0;
    if (!shares && sharing.size() < mixed_rows<Engine>::places) {
      const result<int> place = place_of_mixed(stacks, cache, rows_of(runs), of_runs[i]);
      if (!place) return place.failure();
      shares = *place != no_place;
    }
    if (shares) sharing.insert(of_runs[i]);
    const auto at = std::find(others.begin(), others.end(), of_runs[i]);
    group_of.push_back(shares ? 0 : static_cast<int>(at - others.begin()) + 1);
    if (!shares && at == others.end()) others.push_back(of_runs[i]);
  }
  for (int g = 0; g <= static_cast<int>(others.size()); ++g) {
    std::vector<row_run> group;
    std::vector<names> of_group;
    long long rows = 0;
    for (std::size_t i = 0; i < runs.size(); ++i)
      if (group_of[i] == g) group.push_back(runs[i]), of_group.push_back(of_runs[i]), rows += first[i + 1] - first[i];
    if (group.empty()) continue;
    const auto stack = g == 0 ? prepare_mixed(stacks, cache, group, of_group)
                              : prepare(stacks, cache, listed(named_, of_group[0]), base_weights(), group);
    if (!stack) return stack.failure();
    if (status s = run_prepared(**stack, w, {grouped_.data(), out.type, {rows, width, 1, 1}, 2}); !s) return s;
    const char* from = static_cast<const char*>(grouped_.data());
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (group_of[i] != g) continue;
      const long long count = (first[i + 1] - first[i]) * bytes;
      if (status s = Engine::copy(programs_->queue, static_cast<char*>(out.data) + first[i] * bytes, from, count); !s)
        return s;
      from += count;
    }
  }
  return ok;
}

}  // namespace graft
