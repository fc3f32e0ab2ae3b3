// SPDX-License-Identifier: Apache-2.0
// The members of executor (run/executor.h): its adapters and their tensors, binding, running, training, merging.
#pragma once
#include <graft/core/result.h>
#include <graft/plan/kernel_count.h>
#include <graft/run/executor.h>
#include <graft/run/merge.h>
#include <graft/run/named_tensors.h>
#include <graft/run/training_variants.h>

#include <memory>
#include <vector>

namespace graft {

// Gradient accumulation: a gradient that is added to what its memory holds is computed into a scratch buffer first, in
// the engine's compute type, and then added. The buffers are reused by later calls.
template <class Engine> class gradient_accumulators {
 public:
  using queue = typename Engine::queue;

  // Gives the scratch buffer of gradient number `index` of a call, as a view of the sizes of `like`.
  result<mutable_view> buffer_for(queue& q, std::size_t index, const mutable_view& like) {
    if (buffers_.size() <= index) buffers_.resize(index + 1);
    scratch_buffer& r = buffers_[index];
    const long long bytes = like.count() * bits_of(Engine::compute_type) / 8;
    if (bytes > r.bytes) {
      result<typename Engine::memory> fresh = Engine::allocate(q, bytes);
      if (!fresh) return fresh.failure();
      r.memory = std::make_unique<typename Engine::memory>(std::move(*fresh)), r.bytes = bytes;
    }
    mutable_view v{r.memory != nullptr ? r.memory->data() : nullptr, Engine::compute_type, {}, like.rank};
    for (int k = 0; k < like.rank; ++k) v.size[k] = like.size[k];
    return v;
  }
  status add(queue& q, std::size_t index, const mutable_view& to) {
    view from{buffers_[index].memory->data(), Engine::compute_type, {}, to.rank};
    for (int k = 0; k < to.rank; ++k) from.size[k] = to.size[k];
    return Engine::add(q, from, to);
  }

 private:
  struct scratch_buffer {
    std::unique_ptr<typename Engine::memory> memory;
    long long bytes = 0;
  };
  std::vector<scratch_buffer> buffers_;
};

template <class Engine> struct executor<Engine>::adapter_state {
  explicit adapter_state(const layer_graphs& graphs, unsigned long long now = 0) : state(graphs), version(now) {}
  [[gnu::cold, gnu::noinline]] ~adapter_state() = default;  // compiled once, not inlined wherever one may be destroyed
  layer_state state;
  unsigned long long version;  // changes with every change of the parameters
  pass<Engine> forward;
  backward_passes<Engine> backward;
  std::unique_ptr<saved_passes<Engine>> training;  // a training_variants, made by training_of()
  training_variants<Engine>& variants() const { return static_cast<training_variants<Engine>&>(*training); }
  bool folded = false;  // the adapter is in a copy of the weight
  // The plan of forward for these tensors, from when it is chosen until a pass takes it.
  std::unique_ptr<launch_plan> planned;
};
template <class Engine> struct executor<Engine>::base_state {
  [[gnu::cold, gnu::noinline]] ~base_state() = default;  // compiled once, as ~adapter_state() is
  pass<Engine> forward;
  backward_passes<Engine> backward;
  merger<Engine> weight_merger;
  gradient_accumulators<Engine> accumulator;
  call_guard guard;
};

template <class Engine>
executor<Engine>::executor(const layer_graphs& graphs, execution_mode run_mode, queue q)
    : base_(std::make_unique<base_state>()), queue_(std::move(q)), run_mode_(run_mode) {
  adapters_.extend() = std::make_unique<adapter_state>(graphs, ++versions_);
}
template <class Engine> executor<Engine>::executor(executor&&) noexcept = default;
// Written out because an assignment to itself has to leave the layer as it is, which that of std::vector does not.
template <class Engine> executor<Engine>& executor<Engine>::operator=(executor&& o) noexcept {
  if (this == &o) return *this;
  adapters_ = std::move(o.adapters_), combined_ = std::move(o.combined_), combine_ = o.combine_;
  forward_saved_ = o.forward_saved_, base_ = std::move(o.base_), queue_ = std::move(o.queue_);
  shared_ = std::move(o.shared_), limits_ = o.limits_, active_ = std::move(o.active_), run_mode_ = o.run_mode_;
  enabled_ = o.enabled_, bound_ = o.bound_, versions_ = o.versions_;
  reports_changes_ = o.reports_changes_, parameters_stale_ = o.parameters_stale_;
  return *this;
}
template <class Engine> executor<Engine>::~executor() = default;

template <class Engine> result<int> executor<Engine>::add(const layer_graphs& graphs) {
  if (is_moved_from()) return call_guard::moved_from_error();
  const layer_graphs& mine = first().state.graphs();
  if (!same_text(graphs.kind, mine.kind) || graphs.has_bias != mine.has_bias)
    return fail("an adapter of kind ", graphs.kind, " cannot be added to a layer of kind ", mine.kind,
                ", nor one with a bias to one without");
  auto fresh = std::make_unique<adapter_state>(graphs, ++versions_);
  if (status s = fresh->state.copy_base(first().state); !s) return s.failure();
  adapters_.extend() = std::move(fresh);
  return adapters_.size() - 1;
}
template <class Engine> status executor<Engine>::remove(int adapter) {
  if (status s = check_adapter(adapter); !s) return s;
  if (enabled_ && is_active(adapter))
    return fail("adapter ", adapter, " is active; activate another one, or enable(false), before it is removed");
  if (adapter == 0) return fail("adapter 0 came with the layer and stays; add() others and activate() those");
  adapters_[adapter] = nullptr;
  if (is_active(adapter)) active_ = {0}, combined_ = nullptr;
  return ok;
}
template <class Engine> status executor<Engine>::replace(int adapter, const named_values& values) {
  if (status s = check_adapter(adapter); !s) return s;
  std::unique_ptr<adapter_state>& state_slot = adapters_[adapter];
  auto fresh = std::make_unique<adapter_state>(state_slot->state.graphs(), ++versions_);
  if (status s = fill(*fresh, *state_slot, values); !s) return of(adapter, s);
  std::swap(state_slot, fresh);
  if (combined_ == nullptr || !is_active(adapter))
    return bound_ && is_active(adapter) ? activate_adapter() : status(ok);
  if (status s = activate(active_); !s) return std::swap(state_slot, fresh), s;
  return ok;
}
template <class Engine> status executor<Engine>::activate(const std::vector<int>& adapters) {
  if (adapters.empty()) return fail("activate() needs an adapter; enable(false) runs the base alone");
  for (const int a : adapters)
    if (status s = check_adapter(a); !s) return s;
  std::unique_ptr<adapter_state> combined;
  if (adapters.size() > 1) {
    combine_ = &executor::combine;
    auto made = combine(adapters);
    if (!made) return made.failure();
    combined = std::move(*made);
    if (bound_)
      if (status s = bind_adapter(*combined); !s) return s;
  } else if (bound_ && !at(adapters[0]).forward.bound()) {
    if (status s = bind_adapter(at(adapters[0])); !s) return s;
  }
  active_ = adapters;
  combined_ = std::move(combined);
  return bound_ ? activate_adapter() : status(ok);
}
template <class Engine> void executor<Engine>::set_formula(int adapter, const layer_formula& f) {
  if (!is_moved_from()) at(adapter).state.set_formula(f);
}
template <class Engine> status executor<Engine>::enable(bool adapter) {
  if (is_moved_from()) return call_guard::moved_from_error();
  const bool before = std::exchange(enabled_, adapter);
  status s = bound_ ? activate_adapter() : status(ok);
  if (!s) enabled_ = before;
  return s;
}

template <class Engine> bool executor<Engine>::is_active(int adapter) const {
  for (const int a : active_)
    if (a == adapter) return true;
  return false;
}
// Combines the versions of the parameters of all active adapters.
template <class Engine> unsigned long long executor<Engine>::version() const {
  unsigned long long v = 0;
  for (const int a : active_) v = v * 1000003 + at(a).version;
  return v;
}
template <class Engine> status executor<Engine>::check_adapter(int adapter) const {
  if (is_moved_from()) return call_guard::moved_from_error();
  if (adapter >= 0 && adapter < adapters_.size() && adapters_[adapter] != nullptr) return ok;
  return fail("there is no adapter ", adapter, "; this layer was given ", adapters_.size());
}
// Adds the number of the adapter to an error, where there are several.
template <class Engine> status executor<Engine>::of(int adapter, const status& s) const {
  return s || adapters_.size() == 1 ? s : status(fail("adapter ", adapter, ": ", s.message()));
}
template <class Engine>
status executor<Engine>::fill(adapter_state& fresh, const adapter_state& old, const named_values& values) {
  if (status s = fresh.state.copy_base(old.state); !s) return s;
  for (const auto& [name, v] : values.sizes)
    if (status s = fresh.state.size(name.c_str(), v); !s) return s;
  for (const auto& [name, v] : values.tensors)
    if (status s = fresh.state.set(name.c_str(), v); !s) return s;
  for (const auto& [name, v] : values.scalars)
    if (status s = fresh.state.set(name.c_str(), v); !s) return s;
  if (bound_) return bind_adapter(fresh);
  result<bound_leaves> all = fresh.state.bind(fresh.state.graphs().literal);
  return all ? status(ok) : status(all.failure());
}
template <class Engine> status executor<Engine>::set_value(const named_value& v, int adapter) {
  const auto mine = enter();
  if (!mine) return mine.refusal();
  if (v.name == nullptr) return fail("a name is null; name the tensor, scalar or size");
  if (status s = check_adapter(adapter); !s) return s;
  const graph& base = at(adapter).state.graphs().base_forward;
  if (base.find(v.name) < 0 && base.sizes.find(v.name) < 0) {
    if (status s = at(adapter).state.set_value(v); !s) return of(adapter, s);
    at(adapter).forward.unbind(), at(adapter).backward.unbind(), at(adapter).training = nullptr;
    at(adapter).planned = nullptr;
    at(adapter).version = ++versions_;
  } else {
    for (auto& p : adapters_)
      if (p != nullptr)
        // Tried on a copy first, so that a refused value changes no adapter.
        if (status s = layer_state(p->state).set_value(v); !s) return of(adapter, s);
    for (auto& p : adapters_)
      if (p != nullptr) static_cast<void>(p->state.set_value(v));
    for (pass<Engine>* p : passes()) p->unbind();
    bound_ = false;
  }
  if (combined_ != nullptr) {
    auto made = (this->*combine_)(active_);
    if (!made) return made.failure();
    combined_ = std::move(*made);
  }
  return ok;
}
// Combines several adapters into one formula. The tensors of the second and later ones have a path: "1.lora_A.weight".
template <class Engine>
auto executor<Engine>::combine(const std::vector<int>& adapters) const -> result<std::unique_ptr<adapter_state>> {
  struct combination_owner {
    std::vector<formula> extra;
    std::vector<std::string> names;
    std::vector<const char*> paths;
    std::vector<std::shared_ptr<const void>> owners;
  };
  auto with = std::make_shared<combination_owner>();
  for (const int a : adapters)
    if (at(a).state.graphs().from.adapter.weight == nullptr)
      return fail("adapter ", a,
                  " came without its formula, so it cannot be active with others; make its graphs "
                  "with capture_graphs(), or call set_formula()");
  layer_formula all = at(adapters[0]).state.graphs().from;
  for (std::size_t i = 1; i < adapters.size(); ++i) {
    const layer_graphs& g = at(adapters[i]).state.graphs();
    with->extra.push_back(g.from.adapter), with->names.push_back(std::to_string(i)), with->owners.push_back(g.owner);
  }
  for (const std::string& n : with->names) with->paths.push_back(n.c_str());
  with->owners.push_back(at(adapters[0]).state.graphs().owner);
  all.extra = with->extra.data(), all.extra_paths = with->paths.data(),
  all.extra_count = static_cast<int>(with->extra.size());
  auto made = std::make_unique<adapter_state>(capture_graphs(all, with));
  if (status s = made->state.copy_base(at(adapters[0]).state); !s) return s.failure();
  if (status s = made->state.copy_adapter(at(adapters[0]).state, ""); !s) return s.failure();
  for (std::size_t i = 1; i < adapters.size(); ++i)
    if (status s = made->state.copy_adapter(at(adapters[i]).state, with->names[i - 1] + "."); !s) return s.failure();
  return result<std::unique_ptr<adapter_state>>(std::move(made));
}

inline error unknown_parameter(const graph& backward, const char* name) {
  name_suggester meant(name);
  for (int k = 0; k < backward.outs; ++k)
    if (!backward.out[k].of_input) meant.offer(backward.output_name(k).c_str());
  return fail("this layer has no parameter '", name, "'", meant.hint());
}

template <class Engine> status executor<Engine>::bind(const capacity& limits) {
  const auto mine = enter();
  if (!mine) return mine.refusal();
  if (limits.tokens < 0)
    return fail("bind() was given a capacity of ", limits.tokens, " tokens, expected a number that is not negative");
  if (limits.rank < 0)
    return fail("bind() was given a rank of ", limits.rank, ", expected a number that is not negative");
  const capacity before = limits_;
  status s = bind_all(limits);
  if (!s) limits_ = before;
  return s;
}
template <class Engine> status executor<Engine>::bind_all(const capacity& limits) {
  for (pass<Engine>* p : passes()) p->unbind();
  for (auto& p : adapters_)
    if (p != nullptr) p->training = nullptr;  // the variant depends on the capacity
  limits_ = limits, bound_ = false;
  drop_plans();
  if (status s = Engine::open(queue_); !s) return s;
  if constexpr (Engine::adapters_share_launches) reserve_shared();
  if (status s = bind_base(); !s && !enabled_) return s;  // an adapter that replaces the weight needs none of the base
  if (!trains_only()) {
    if (status s = bind_adapter(active_state()); !s) return s;
  } else if (const auto complete = active_state().state.bind(active_state().state.graphs().forward); !complete) {
    return complete.failure();
  }
  bound_ = true;
  return activate_adapter();
}
template <class Engine> status executor<Engine>::parameters_changed() {
  const auto mine = enter();
  if (!mine) return mine.refusal();
  reports_changes_ = true;
  return refresh_parameters();
}
template <class Engine> status executor<Engine>::refresh_parameters() {
  parameters_stale_ = false;
  for (auto& p : adapters_)
    if (p != nullptr) p->version = ++versions_;
  drop_saved();
  for (pass<Engine>* p : passes())
    if (p->bound())
      if (status s = p->parameters_changed(queue_); !s) return s;
  return bound_ ? activate_adapter() : status(ok);
}
template <class Engine> status executor<Engine>::weight_changed() {
  const auto mine = enter();
  if (!mine) return mine.refusal();
  return refresh_weight();
}
template <class Engine> status executor<Engine>::forward(const view& x, const mutable_view& y) {
  const auto mine = enter();
  if (!mine) return mine.refusal();
  if (parameters_stale_)
    if (status s = refresh_parameters(); !s) return s;
  if (status s = bind_if_needed(); !s) return s;
  if (status s = check_not_read("y", y); !s) return s;
  if (saves()) return (this->*forward_saved_)(x, y);
  pass<Engine>& p = enabled_ ? active_state().forward : base_->forward;
  if (status s = begin_forward(p, x, y); !s) return s;
  return p.run(queue_);
}
template <class Engine> status executor<Engine>::begin_forward(pass<Engine>& p, const view& x, const mutable_view& y) {
  call_tensors with;
  with[call_input::x] = x;
  if (status s = p.in->begin(p.with, with); !s) return s;
  if (const long long n = p.in->elements(0); y.data == nullptr && n != 0)
    return fail("output '", p.g().output_name(0), "' has no data; give it memory for ", n, " elements");
  return p.in->request_output(0, y);
}
// An output would overwrite a tensor that the layer reads.
template <class Engine> status executor<Engine>::check_not_read(const char* output, const mutable_view& to) const {
  const char* const tensor = active_state().state.tensor_in(to);
  if (tensor == nullptr) return ok;
  return fail("output '", output, "' overlaps tensor '", tensor, "' of the layer; give it memory of its own");
}
template <class Engine> status executor<Engine>::forward_saved(const view& x, const mutable_view& y) {
  const long long rows = x.rank > 1 ? x.size[0] : 1;
  training_passes<Engine>& t = training_of(active_state()).begin(active_state().state, rows);
  if (!t.forward.bound())
    if (status s =
            bind_pass(t.forward, queue_, active_state().state, t.forward_graph(), plan_target(), limits_, shared_);
        !s)
      return s;
  if (status s = begin_forward(t.forward, x, y); !s) return s;
  return t.run_and_save(queue_, x, limits_.tokens);
}
template <class Engine> void executor<Engine>::train(bool on) {
  if (is_moved_from()) return;
  forward_saved_ = on ? &executor::forward_saved : nullptr;
  for (auto& p : adapters_)
    if (p != nullptr) p->training = nullptr;
  if (combined_ != nullptr) combined_->training = nullptr;
}
// Returns true if forward() saves for backward(): in training, with an adapter that has a gradient.
template <class Engine> bool executor<Engine>::saves() const {
  const graph& backward = active_state().state.graphs().backward;
  return forward_saved_ != nullptr && enabled_ && !eager() && backward.outs > 0 &&
         backward.bad.what == formula_error::none;
}
// Returns true if a layer with one adapter only trains so far: passes that save nothing are then bound, and allocated,
// when the first call needs them.
template <class Engine> bool executor<Engine>::trains_only() const {
  return saves() && adapters_.size() == 1 && limits_.rank == 0;
}
template <class Engine> training_variants<Engine>& executor<Engine>::training_of(adapter_state& p) {
  if (p.training == nullptr)
    p.training = std::make_unique<training_variants<Engine>>(p.state.graphs(), p.state, plan_target(),
                                                             trains_only() ? limits_.tokens : 0);
  return p.variants();
}
// Forgets saved values, which were computed from other parameters than the next call reads.
template <class Engine> void executor<Engine>::drop_saved() {
  for (auto& p : adapters_)
    if (p != nullptr && p->training != nullptr) p->training->forget();
  if (combined_ != nullptr && combined_->training != nullptr) combined_->training->forget();
}
template <class Engine> long long executor<Engine>::saved_bytes(long long tokens) {
  if (is_moved_from() || !saves()) return 0;
  const training_passes<Engine>& t = training_of(active_state()).variant_for(active_state().state, tokens);
  const result<bound_leaves> b = active_state().state.bind(t.forward_graph());
  return b ? t.saved_bytes(b->sizes, tokens) : 0;
}
inline bool accumulates(const gradient& d) { return d.add && d.into.data != nullptr && d.into.count() > 0; }

template <class Engine>
status executor<Engine>::backward(const view& x, const view& dy, const mutable_view& dx,
                                  const std::vector<gradient>& gradients) {
  const auto mine = enter();
  if (!mine) return mine.refusal();
  adapter_state& current = active_state();
  const layer_graphs& graphs = current.state.graphs();
  const graph& made = enabled_ ? (eager() ? graphs.literal_backward : graphs.backward) : graphs.base_backward;
  if (made.bad.what == formula_error::not_differentiable) return fail("no gradient for ", located(made, made.bad.at));
  if (!enabled_ && !gradients.empty())
    return fail("the adapter is disabled: its parameters have no gradient, only dx exists");
  output_set requested;
  const int dx_at = made.find_output("dx");
  if (dx_at >= 0 && dx.data != nullptr) requested.add(dx_at);
  for (const gradient& d : gradients) {
    const int k = made.find_output(d.name.c_str());
    if (k < 0) return unknown_parameter(made, d.name.c_str());
    if (d.into.data != nullptr) requested.add(k);
    if (status s = check_not_read(d.name.c_str(), d.into); !s) return s;
  }
  if (status s = check_not_read("dx", dx); !s) return s;
  if (status s = bind_if_needed(); !s) return s;
  training_passes<Engine>* const training = saves() ? &training_of(current).current() : nullptr;
  const leaf_views nothing;
  result<const leaf_views*> saved = &nothing;
  if (training != nullptr) saved = training->saved(x);
  if (!saved) return saved.failure();
  const graph from = training != nullptr ? training->backward_graph() : made;
  result<pass<Engine>*> found =
      (training != nullptr ? training->backward
       : enabled_          ? current.backward
                           : base_->backward)
          .find(from, requested, [&](pass<Engine>& p, const graph& g) -> status {
            const result<bound_leaves> whole = current.state.bind(made);
            if (!whole) return whole.failure();
            const size_values known_sizes = sizes_for(g, made, whole->sizes);
            if (status s = bind_pass(p, queue_, current.state, g, plan_target(), limits_, shared_, &known_sizes); !s)
              return s;
            if (training != nullptr) p.in->share_precomputed(p.with, *training->forward.in, training->forward.with);
            return ok;
          });
  if (!found) return found.failure();
  pass<Engine>& p = **found;
  call_tensors with;
  with[call_input::x] = x, with[call_input::dy] = dy;
  if (status s = p.in->begin(p.with, with, **saved); !s) return s;
  if (dx_at >= 0)
    if (status s = p.in->request_output(p.g().find_output("dx"), dx); !s) return s;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const gradient& d = gradients[i];
    const int k = p.g().find_output(d.name.c_str());
    if (status s = p.in->request_output(k, d.into); !s) return s;
    if (!accumulates(d)) continue;
    if (status s = Engine::can_add(d.into); !s) return s;
    const result<mutable_view> accumulated = base_->accumulator.buffer_for(queue_, i, d.into);
    if (!accumulated) return accumulated.failure();
    p.in->redirect_output(k, *accumulated);
  }
  if (status s = p.run(queue_); !s) return s;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (accumulates(gradients[i]))
      if (status s = base_->accumulator.add(queue_, i, gradients[i].into); !s) return s;
  parameters_stale_ = training != nullptr && !gradients.empty() && !reports_changes_;
  return ok;
}
template <class Engine> status executor<Engine>::merge(const mutable_view& weight, const mutable_view& bias) {
  const auto mine = enter();
  if (!mine) return mine.refusal();
  if (parameters_stale_)
    if (status s = refresh_parameters(); !s) return s;
  if (status s = base_->weight_merger.merge(queue_, active_state().state, version(), weight, bias); !s) return s;
  return memory_written(weight, bias);
}
template <class Engine>
status executor<Engine>::unmerge(const char* what, const view& merged, const mutable_view& original) {
  const auto mine = enter();
  if (!mine) return mine.refusal();
  if (status s = base_->weight_merger.unmerge(queue_, active_state().state, version(), what, merged, original); !s)
    return s;
  return memory_written(original, {});
}

// The pass that forward() runs: in training the one that saves, once a call has bound it.
template <class Engine> const pass<Engine>& executor<Engine>::forward_pass() const {
  if (!enabled_) return base_->forward;
  const adapter_state& p = active_state();
  return saves() && p.training != nullptr && p.variants().current().forward.bound() ? p.variants().current().forward
                                                                                    : p.forward;
}
template <class Engine> const launch_plan* executor<Engine>::forward_plan() const {
  if (is_moved_from()) return nullptr;
  const pass<Engine>& p = forward_pass();
  return p.bound() ? &p.in->launches() : nullptr;
}
template <class Engine> bool executor<Engine>::runs_folded() const { return !is_moved_from() && active_state().folded; }
template <class Engine> void executor<Engine>::kernels_changed() {
  if (is_moved_from()) return;
  for (pass<Engine>* p : passes()) p->unbind();
  bound_ = false;
}
template <class Engine> const pass<Engine>* executor<Engine>::bound_forward() const {
  if (is_moved_from()) return nullptr;
  const pass<Engine>& p = forward_pass();
  return p.bound() ? &p : nullptr;
}
template <class Engine> pass<Engine>* executor<Engine>::bound_forward() {
  if (is_moved_from()) return nullptr;
  pass<Engine>& p = enabled_ ? active_state().forward : base_->forward;
  return p.bound() ? &p : nullptr;
}
template <class Engine> const pass<Engine>* executor<Engine>::bound_backward() const {
  if (is_moved_from()) return nullptr;
  const pass<Engine>* const p =
      (saves() && active_state().training != nullptr ? active_state().variants().current().backward
       : enabled_                                    ? active_state().backward
                                                     : base_->backward)
          .last();
  return p != nullptr && p->bound() ? p : nullptr;
}

template <class Engine> sequence<pass<Engine>*> executor<Engine>::passes() {
  sequence<pass<Engine>*> all;
  all.push(&base_->forward);
  base_->backward.list(all);
  auto list = [&](adapter_state* p) {
    if (p == nullptr) return;
    all.push(&p->forward), p->backward.list(all);
    if (p->training != nullptr) p->training->list(all);
  };
  for (auto& p : adapters_) list(p.get());
  list(combined_.get());
  return all;
}
// Refreshes copies of tensors after memory was written that the layer may read.
template <class Engine> status executor<Engine>::memory_written(const mutable_view& a, const mutable_view& b) {
  for (pass<Engine>* p : passes())
    if (p->bound()) Engine::memory_changed(p->with.values);
  return active_state().state.reads(a) || active_state().state.reads(b) ? refresh_weight() : status(ok);
}
template <class Engine> status executor<Engine>::refresh_weight() {
  drop_saved();
  for (pass<Engine>* p : passes())
    if (p->bound())
      if (status s = p->weight_changed(queue_); !s) return s;
  return bound_ ? activate_adapter() : status(ok);
}
template <class Engine> status executor<Engine>::bind_if_needed() {
  if (bound_ && (trains_only() || (enabled_ ? active_state().forward : base_->forward).bound())) return ok;
  if (bound_) return activate_adapter();
  if (!Engine::binds_itself && limits_.tokens == 0) return fail("bind() the layer before a call, with a capacity");
  return bind_all(limits_);
}
template <class Engine> status executor<Engine>::bind_base() {
  return bind_pass(base_->forward, queue_, first().state, first().state.graphs().base_forward, plan_target(), limits_,
                   shared_);
}
template <class Engine> void executor<Engine>::drop_plans() {
  for (auto& p : adapters_)
    if (p != nullptr) p->planned = nullptr;
  if (combined_ != nullptr) combined_->planned = nullptr;
}
// Plans an adapter as a low-rank branch, or folded into a copy of the weight, whichever is faster on the target. A
// quantized weight is never copied.
template <class Engine> void executor<Engine>::plan_adapter(adapter_state& p, const bound_leaves& b) {
  const graph &branch = p.state.graphs().forward, &folded = p.state.graphs().folded;
  const target& to = plan_target();
  launch_plan made;
  if (has_quantized(b.leaf)) {
    p.folded = false, made = fuse(branch, to);
  } else if (to.granularity == target::work::by_products) {
    launch_plan branched = fuse(branch, to), plain = fuse(folded, to);
    p.folded = folds(branch, branched, plain, b.sizes), made = std::move(p.folded ? plain : branched);
  } else {
    p.folded = folds(to, branch, folded, b.sizes, weight_type(branch, b.leaf)),
    made = fuse(p.folded ? folded : branch, to);
  }
  p.planned = std::make_unique<launch_plan>(std::move(made));
}
template <class Engine> status executor<Engine>::bind_adapter(adapter_state& p) {
  const layer_graphs& graphs = p.state.graphs();
  const graph& branch = eager() ? graphs.literal : graphs.forward;
  if (p.planned == nullptr) p.folded = false;
  if (p.planned == nullptr && !eager())
    if (const result<bound_leaves> b = p.state.bind(branch)) plan_adapter(p, *b);
  p.backward.unbind();
  if (p.folded && !Engine::can_store_folded(shared_, true))
    return fail(
        "this adapter is folded into a copy of the weight, and the layer was bound without one; bind() it again");
  const std::unique_ptr<launch_plan> planned = std::move(p.planned);
  return bind_pass(p.forward, queue_, p.state, p.folded ? graphs.folded : branch, plan_target(), limits_, shared_,
                   nullptr, planned.get());
}
// Sizes the adapter arguments that launches share, for all adapters whose tensors are complete.
template <class Engine> void executor<Engine>::reserve_shared() {
  int adapters = 0;
  for (auto& p : adapters_) adapters += p != nullptr ? 1 : 0;
  Engine::begin(shared_, limits_, adapters);
  for (auto& p : adapters_) {
    if (p == nullptr || eager()) continue;
    const layer_graphs& graphs = p->state.graphs();
    const result<bound_leaves> b = p->state.bind(graphs.forward);
    if (!b) continue;  // binding this adapter will report the error
    plan_adapter(*p, *b);
    const graph& g = p->folded ? graphs.folded : graphs.forward;
    Engine::add_requirements(shared_, g, *p->planned, p->folded ? sizes_for(g, graphs.forward, b->sizes) : b->sizes,
                             p->folded, limits_);
  }
  if (Engine::finish(shared_, queue_)) drop_plans();
}
template <class Engine> status executor<Engine>::activate_adapter() {
  if (!enabled_) {
    if (!base_->forward.bound())
      if (status s = bind_base(); !s) return s;
    return Engine::activate_adapter(queue_, base_->forward.with.values);
  }
  if (trains_only()) return ok;
  if (!active_state().forward.bound())
    if (status s = bind_adapter(active_state()); !s) return s;
  return Engine::activate_adapter(queue_, active_state().forward.with.values);
}

}  // namespace graft
