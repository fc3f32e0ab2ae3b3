// SPDX-License-Identifier: Apache-2.0
// The members of an executor that are about its adapters and their tensors: see run/executor.h.
#pragma once
#include <graft/run/executor.h>
#include <graft/run/gradient_sums.h>
#include <graft/run/merge.h>
#include <graft/run/one_caller.h>
#include <graft/run/training_forms.h>

namespace graft {

template <class Engine> struct executor<Engine>::part {
  explicit part(const layer_graphs& graphs, unsigned long long now = 0) : state(graphs), version(now) {}
  [[gnu::cold, gnu::noinline]] ~part() = default;  // compiled once, not wherever one may end
  layer_state state;
  unsigned long long version;  // another number after every change of the parameters
  pass<Engine> forward;
  backward_passes<Engine> backward;
  std::unique_ptr<kept_passes<Engine>> training;  // training_forms, made by training_of()
  training_forms<Engine>& forms() const { return static_cast<training_forms<Engine>&>(*training); }
  bool folded = false;
};
template <class Engine> struct executor<Engine>::bare {
  [[gnu::cold, gnu::noinline]] ~bare() = default;  // as above
  pass<Engine> forward;
  backward_passes<Engine> backward;
  merger<Engine> merging;
  gradient_sums<Engine> sums;
  one_caller caller;
};

template <class Engine>
executor<Engine>::executor(const layer_graphs& graphs, mode how, queue q)
    : base_(std::make_unique<bare>()), queue_(std::move(q)), how_(how) {
  parts_.extend() = std::make_unique<part>(graphs, ++versions_);
}
template <class Engine> executor<Engine>::executor(executor&&) noexcept = default;
template <class Engine> executor<Engine>& executor<Engine>::operator=(executor&&) noexcept = default;
template <class Engine> executor<Engine>::~executor() = default;

template <class Engine> result<int> executor<Engine>::add(const layer_graphs& graphs) {
  const layer_graphs& mine = first().state.graphs();
  if (!same_text(graphs.kind, mine.kind) || graphs.has_bias != mine.has_bias)
    return fail("an adapter of kind ", graphs.kind, " cannot be added to a layer of kind ", mine.kind,
                ", nor one with a bias to one without");
  auto fresh = std::make_unique<part>(graphs, ++versions_);
  if (status s = fresh->state.take_base(first().state); !s) return s.failure();
  parts_.extend() = std::move(fresh);
  return parts_.size() - 1;
}
template <class Engine> status executor<Engine>::remove(int adapter) {
  if (status s = expect(adapter); !s) return s;
  if (enabled_ && is_active(adapter))
    return fail("adapter ", adapter, " is active; activate another one, or enable(false), before it is removed");
  if (adapter == 0) return fail("adapter 0 came with the layer and stays; add() others and activate() those");
  parts_[adapter] = nullptr;
  if (is_active(adapter)) active_ = {0}, together_ = nullptr;
  return ok;
}
template <class Engine> status executor<Engine>::replace(int adapter, const adapter_values& values) {
  if (status s = expect(adapter); !s) return s;
  std::unique_ptr<part>& place = parts_[adapter];
  auto fresh = std::make_unique<part>(place->state.graphs(), ++versions_);
  if (status s = fill(*fresh, *place, values); !s) return of(adapter, s);
  std::swap(place, fresh);
  if (together_ == nullptr || !is_active(adapter)) return bound_ && is_active(adapter) ? publish() : status(ok);
  if (status s = activate(active_); !s) return std::swap(place, fresh), s;
  return ok;
}
template <class Engine> status executor<Engine>::activate(const std::vector<int>& adapters) {
  if (adapters.empty()) return fail("activate() needs an adapter; enable(false) runs the base alone");
  for (const int a : adapters)
    if (status s = expect(a); !s) return s;
  std::unique_ptr<part> several;
  if (adapters.size() > 1) {
    combine_ = &executor::combine;
    auto made = combine(adapters);
    if (!made) return made.failure();
    several = std::move(*made);
    if (bound_)
      if (status s = bind_part(*several); !s) return s;
  } else if (bound_ && !at(adapters[0]).forward.bound()) {
    if (status s = bind_part(at(adapters[0])); !s) return s;
  }
  active_ = adapters;
  together_ = std::move(several);
  return bound_ ? publish() : status(ok);
}
template <class Engine> void executor<Engine>::know_formula(int adapter, const layer_formula& f) {
  at(adapter).state.know_formula(f);
}
template <class Engine> status executor<Engine>::enable(bool adapter) {
  const bool before = std::exchange(enabled_, adapter);
  status s = bound_ ? publish() : status(ok);
  if (!s) enabled_ = before;
  return s;
}

template <class Engine> bool executor<Engine>::is_active(int adapter) const {
  for (const int a : active_)
    if (a == adapter) return true;
  return false;
}
// Of the parameters of all that is active.
template <class Engine> unsigned long long executor<Engine>::version() const {
  unsigned long long v = 0;
  for (const int a : active_) v = v * 1000003 + at(a).version;
  return v;
}
template <class Engine> status executor<Engine>::expect(int adapter) const {
  if (adapter >= 0 && adapter < parts_.size() && parts_[adapter] != nullptr) return ok;
  return fail("there is no adapter ", adapter, "; this layer was given ", parts_.size());
}
// Says which adapter an error is about, where there are several.
template <class Engine> status executor<Engine>::of(int adapter, const status& s) const {
  return s || parts_.size() == 1 ? s : status(fail("adapter ", adapter, ": ", s.message()));
}
template <class Engine> status executor<Engine>::fill(part& fresh, const part& old, const adapter_values& values) {
  if (status s = fresh.state.take_base(old.state); !s) return s;
  for (const auto& [name, v] : values.sizes)
    if (status s = fresh.state.size(name.c_str(), v); !s) return s;
  for (const auto& [name, v] : values.tensors)
    if (status s = fresh.state.set(name.c_str(), v); !s) return s;
  for (const auto& [name, v] : values.scalars)
    if (status s = fresh.state.set(name.c_str(), v); !s) return s;
  if (bound_) return bind_part(fresh);
  result<bound_leaves> all = fresh.state.bind(fresh.state.graphs().literal);
  return all ? status(ok) : status(all.failure());
}
template <class Engine> status executor<Engine>::give(const given_value& v, int adapter) {
  const auto mine = base_->caller.enter();
  if (!mine) return one_caller::refusal();
  if (v.name == nullptr) return fail("a name is null; name the tensor, scalar or size");
  if (status s = expect(adapter); !s) return s;
  const graph& base = at(adapter).state.graphs().base_forward;
  if (base.find(v.name) < 0 && base.sizes.find(v.name) < 0) {
    if (status s = at(adapter).state.give(v); !s) return of(adapter, s);
    at(adapter).forward.unbind(), at(adapter).backward.unbind(), at(adapter).training = nullptr;
    at(adapter).version = ++versions_;
  } else {
    for (auto& p : parts_)
      if (p != nullptr)
        if (status s = layer_state(p->state).give(v); !s) return of(adapter, s);  // all of them take it, or none
    for (auto& p : parts_)
      if (p != nullptr) static_cast<void>(p->state.give(v));
    for (pass<Engine>* p : passes()) p->unbind();
    bound_ = false;
  }
  if (together_ != nullptr) {
    auto made = (this->*combine_)(active_);
    if (!made) return made.failure();
    together_ = std::move(*made);
  }
  return ok;
}
// One part of the formulas of several, each with its tensors in a path of its own: "1.lora_A.weight".
template <class Engine>
auto executor<Engine>::combine(const std::vector<int>& adapters) const -> result<std::unique_ptr<part>> {
  struct kept {
    std::vector<formula> more;
    std::vector<std::string> names;
    std::vector<const char*> paths;
    std::vector<std::shared_ptr<const void>> owners;
  };
  auto with = std::make_shared<kept>();
  for (const int a : adapters)
    if (at(a).state.graphs().from.adapter.weight == nullptr)
      return fail("adapter ", a,
                  " came without its formula, so it cannot be active together with others; make its graphs "
                  "with capture_graphs(), or know_formula() it");
  layer_formula all = at(adapters[0]).state.graphs().from;
  for (std::size_t i = 1; i < adapters.size(); ++i) {
    const layer_graphs& g = at(adapters[i]).state.graphs();
    with->more.push_back(g.from.adapter), with->names.push_back(std::to_string(i)), with->owners.push_back(g.owner);
  }
  for (const std::string& n : with->names) with->paths.push_back(n.c_str());
  with->owners.push_back(at(adapters[0]).state.graphs().owner);
  all.more = with->more.data(), all.more_paths = with->paths.data(), all.mores = static_cast<int>(with->more.size());
  auto made = std::make_unique<part>(capture_graphs(all, with));
  if (status s = made->state.take_base(at(adapters[0]).state); !s) return s.failure();
  if (status s = made->state.take_all(at(adapters[0]).state, ""); !s) return s.failure();
  for (std::size_t i = 1; i < adapters.size(); ++i)
    if (status s = made->state.take_all(at(adapters[i]).state, with->names[i - 1] + "."); !s) return s.failure();
  return result<std::unique_ptr<part>>(std::move(made));
}

}  // namespace graft
