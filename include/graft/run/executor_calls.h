// SPDX-License-Identifier: Apache-2.0
// The members of an executor that bind it and run it: see run/executor.h.
#pragma once
#include <graft/plan/kernels.h>
#include <graft/run/executor_adapters.h>

namespace graft {

inline error no_parameter(const graph& backward, const char* name) {
  nearest meant(name);
  for (int k = 0; k < backward.outs; ++k)
    if (!backward.out[k].of_input) meant.offer(backward.output_name(k).c_str());
  return fail("this layer has no parameter '", name, "'", meant.hint());
}

template <class Engine> status executor<Engine>::bind(const capacity& room) {
  const auto mine = base_->caller.enter();
  if (!mine) return one_caller::refusal();
  if (room.tokens < 0)
    return fail("bind() was given room for ", room.tokens, " tokens, expected a number that is not negative");
  if (room.rank < 0) return fail("bind() was given a rank of ", room.rank, ", expected a number that is not negative");
  const capacity before = room_;
  status s = bind_all(room);
  if (!s) room_ = before;
  return s;
}
template <class Engine> status executor<Engine>::bind_all(const capacity& room) {
  for (pass<Engine>* p : passes()) p->unbind();
  for (auto& p : parts_)
    if (p != nullptr) p->training = nullptr;  // its form depends on the room
  room_ = room, bound_ = false;
  if (status s = Engine::open(queue_); !s) return s;
  share();
  if (status s = bind_base(); !s && !enabled_) return s;  // an adapter that replaces the base's tensors runs without
  if (!only_trains()) {
    if (status s = bind_part(shown()); !s) return s;
  } else if (const auto complete = shown().state.bind(shown().state.graphs().forward); !complete) {
    return complete.failure();
  }
  bound_ = true;
  return publish();
}
template <class Engine> status executor<Engine>::parameters_changed() {
  const auto mine = base_->caller.enter();
  if (!mine) return one_caller::refusal();
  for (auto& p : parts_)
    if (p != nullptr) p->version = ++versions_;
  forget_kept();
  for (pass<Engine>* p : passes())
    if (p->bound())
      if (status s = p->runs().parameters_changed(queue_); !s) return s;
  return bound_ ? publish() : status(ok);
}
template <class Engine> status executor<Engine>::weight_changed() {
  const auto mine = base_->caller.enter();
  if (!mine) return one_caller::refusal();
  return read_weight_again();
}
template <class Engine> status executor<Engine>::forward(const view& x, const mutable_view& y) {
  const auto mine = base_->caller.enter();
  if (!mine) return one_caller::refusal();
  if (status s = ready(); !s) return s;
  if (keeps()) return (this->*forward_keeping_)(x, y);
  pass<Engine>& p = enabled_ ? shown().forward : base_->forward;
  if (status s = begin_forward(p, x, y); !s) return s;
  return p.run(queue_);
}
template <class Engine> status executor<Engine>::begin_forward(pass<Engine>& p, const view& x, const mutable_view& y) {
  if (status s = p.begin(x); !s) return s;
  if (y.data == nullptr && p.elements(0) != 0) return p.without_memory(0);
  return p.want(0, y);
}
template <class Engine> status executor<Engine>::forward_keeping(const view& x, const mutable_view& y) {
  const long long rows = x.rank > 1 ? x.size[0] : 1;
  training_passes<Engine>& t = training_of(shown()).begin(shown().state, rows);
  if (!t.forward.bound())
    if (status s = t.forward.bind(queue_, shown().state, t.forward_graph(), aim(), room_, shared_); !s) return s;
  if (status s = begin_forward(t.forward, x, y); !s) return s;
  return t.run_forward(queue_, x, room_.tokens);
}
template <class Engine> void executor<Engine>::train(bool on) {
  forward_keeping_ = on ? &executor::forward_keeping : nullptr;
  for (auto& p : parts_)
    if (p != nullptr) p->training = nullptr;
  if (together_ != nullptr) together_->training = nullptr;
}
// Is there anything to keep, and anybody to keep it for?
template <class Engine> bool executor<Engine>::keeps() const {
  const graph& backward = shown().state.graphs().backward;
  return forward_keeping_ != nullptr && enabled_ && !eager() && backward.outs > 0 && backward.bad.what == fault::none;
}
// One adapter in training: calls without keeping are bound when the first of them comes, and need no memory before.
template <class Engine> bool executor<Engine>::only_trains() const {
  return keeps() && parts_.size() == 1 && room_.rank == 0;
}
template <class Engine> training_forms<Engine>& executor<Engine>::training_of(part& p) {
  if (p.training == nullptr)
    p.training =
        std::make_unique<training_forms<Engine>>(p.state.graphs(), p.state, aim(), only_trains() ? room_.tokens : 0);
  return p.forms();
}
// What is kept was computed from other numbers than the next call reads.
template <class Engine> void executor<Engine>::forget_kept() {
  for (auto& p : parts_)
    if (p != nullptr && p->training != nullptr) p->training->forget();
  if (together_ != nullptr && together_->training != nullptr) together_->training->forget();
}
template <class Engine> long long executor<Engine>::kept_bytes(long long tokens) {
  if (!keeps()) return 0;
  const training_passes<Engine>& t = training_of(shown()).form_for(shown().state, tokens);
  const result<bound_leaves> b = shown().state.bind(t.forward_graph());
  return b ? t.kept_bytes(b->sizes, tokens) : 0;
}
inline bool adds(const gradient& d) { return d.add && d.into.data != nullptr && d.into.count() > 0; }

template <class Engine>
status executor<Engine>::backward(const view& x, const view& dy, const mutable_view& dx,
                                  const std::vector<gradient>& gradients) {
  const auto mine = base_->caller.enter();
  if (!mine) return one_caller::refusal();
  part& at_work = shown();
  const layer_graphs& graphs = at_work.state.graphs();
  const graph& made = enabled_ ? (eager() ? graphs.literal_backward : graphs.backward) : graphs.base_backward;
  if (made.bad.what == fault::not_differentiable) return fail("no gradient for ", located(made, made.bad.at));
  if (!enabled_ && !gradients.empty())
    return fail("the adapter is disabled: its parameters have no gradient, only dx exists");
  output_set asked;
  const int dx_at = made.find_output("dx");
  if (dx_at >= 0 && dx.data != nullptr) asked.add(dx_at);
  for (const gradient& d : gradients) {
    const int k = made.find_output(d.name.c_str());
    if (k < 0) return no_parameter(made, d.name.c_str());
    if (d.into.data != nullptr) asked.add(k);
  }
  if (status s = ready(); !s) return s;
  training_passes<Engine>* const training = keeps() ? &training_of(at_work).at_work() : nullptr;
  const leaf_views nothing;
  result<const leaf_views*> kept = &nothing;
  if (training != nullptr) kept = training->kept(x);
  if (!kept) return kept.failure();
  const graph from = training != nullptr ? training->backward_graph() : made;
  result<pass<Engine>*> found = (training != nullptr ? training->backward
                                 : enabled_          ? at_work.backward
                                                     : base_->backward)
                                    .find(from, asked, [&](pass<Engine>& p, const graph& g) -> status {
                                      const result<bound_leaves> whole = at_work.state.bind(made);
                                      if (!whole) return whole.failure();
                                      const size_values known = sizes_for(g, made, whole->sizes);
                                      return p.bind(queue_, at_work.state, g, aim(), room_, shared_, &known);
                                    });
  if (!found) return found.failure();
  pass<Engine>& p = **found;
  if (training != nullptr && training->forward.bound()) p.runs().borrow(training->forward.runs());
  if (status s = p.begin(x, dy, **kept); !s) return s;
  if (dx_at >= 0)
    if (status s = p.want(p.g().find_output("dx"), dx); !s) return s;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const gradient& d = gradients[i];
    const int k = p.g().find_output(d.name.c_str());
    if (status s = p.want(k, d.into); !s) return s;
    if (!adds(d)) continue;
    if (status s = Engine::can_add(d.into); !s) return s;
    const result<mutable_view> beside = base_->sums.place(queue_, i, d.into);
    if (!beside) return beside.failure();
    p.runs().this_call().outputs[k] = *beside;
  }
  if (status s = p.run(queue_); !s) return s;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (adds(gradients[i]))
      if (status s = base_->sums.add(queue_, i, gradients[i].into); !s) return s;
  return ok;
}
template <class Engine> status executor<Engine>::merge(const mutable_view& weight, const mutable_view& bias) {
  const auto mine = base_->caller.enter();
  if (!mine) return one_caller::refusal();
  if (status s = base_->merging.merge(queue_, shown().state, version(), weight, bias); !s) return s;
  return written_to(weight, bias);
}
template <class Engine>
status executor<Engine>::unmerge(const char* what, const view& merged, const mutable_view& original) {
  const auto mine = base_->caller.enter();
  if (!mine) return one_caller::refusal();
  if (status s = base_->merging.unmerge(queue_, shown().state, version(), what, merged, original); !s) return s;
  return written_to(original, {});
}

// What forward() runs: in training the pass that keeps, once a call has bound it.
template <class Engine> const pass<Engine>& executor<Engine>::forward_pass() const {
  if (!enabled_) return base_->forward;
  const part& p = shown();
  return keeps() && p.training != nullptr && p.forms().at_work().forward.bound() ? p.forms().at_work().forward
                                                                                 : p.forward;
}
template <class Engine> const plan* executor<Engine>::forward_plan() const {
  const pass<Engine>& p = forward_pass();
  return p.bound() ? &p.runs().launches() : nullptr;
}
template <class Engine> bool executor<Engine>::runs_folded() const { return shown().folded; }
template <class Engine> void executor<Engine>::kernels_changed() {
  for (pass<Engine>* p : passes()) p->unbind();
  bound_ = false;
}
template <class Engine> const typename Engine::bound* executor<Engine>::bound_forward() const {
  const pass<Engine>& p = forward_pass();
  return p.bound() ? &p.runs() : nullptr;
}
template <class Engine> typename Engine::bound* executor<Engine>::bound_forward() {
  pass<Engine>& p = enabled_ ? shown().forward : base_->forward;
  return p.bound() ? &p.runs() : nullptr;
}
template <class Engine> const typename Engine::bound* executor<Engine>::bound_backward() const {
  const pass<Engine>* const p = (keeps() && shown().training != nullptr ? shown().forms().at_work().backward
                                 : enabled_                             ? shown().backward
                                                                        : base_->backward)
                                    .last();
  return p != nullptr && p->bound() ? &p->runs() : nullptr;
}

template <class Engine> sequence<pass<Engine>*> executor<Engine>::passes() {
  sequence<pass<Engine>*> all;
  all.push(&base_->forward);
  base_->backward.list(all);
  auto list = [&](part* p) {
    if (p == nullptr) return;
    all.push(&p->forward), p->backward.list(all);
    if (p->training != nullptr) p->training->list(all);
  };
  for (auto& p : parts_) list(p.get());
  list(together_.get());
  return all;
}
// Memory was written that the next call may read, and that the layer may have copies of.
template <class Engine> status executor<Engine>::written_to(const mutable_view& a, const mutable_view& b) {
  for (pass<Engine>* p : passes())
    if (p->bound()) p->runs().memory_changed();
  return shown().state.reads(a) || shown().state.reads(b) ? read_weight_again() : status(ok);
}
template <class Engine> status executor<Engine>::read_weight_again() {
  forget_kept();
  for (pass<Engine>* p : passes())
    if (p->bound())
      if (status s = p->runs().weight_changed(queue_); !s) return s;
  return bound_ ? publish() : status(ok);
}
template <class Engine> status executor<Engine>::ready() {
  if (bound_ && (only_trains() || (enabled_ ? shown().forward : base_->forward).bound())) return ok;
  if (bound_) return publish();
  if (!Engine::binds_itself && room_.tokens == 0) return fail("bind() the layer before a call, with a capacity");
  return bind_all(room_);
}
template <class Engine> status executor<Engine>::bind_base() {
  return base_->forward.bind(queue_, first().state, first().state.graphs().base_forward, aim(), room_, shared_);
}
// The adapter as a branch beside the product, or inside a copy of the weight, whichever the target is better at. A weight
// that is codes has no such copy.
template <class Engine> status executor<Engine>::bind_part(part& p) {
  const layer_graphs& graphs = p.state.graphs();
  const graph& branch = eager() ? graphs.literal : graphs.forward;
  p.folded = false;
  if (result<bound_leaves> b = p.state.bind(branch); b && !eager())
    p.folded = !has_codes(b->leaf) && folds(aim(), branch, graphs.folded, b->sizes, weight_type(branch, b->leaf));
  p.backward.unbind();
  if (p.folded && !Engine::has_room(shared_, true))
    return fail(
        "this adapter is folded into a copy of the weight, and the layer was bound without one; bind() it again");
  return p.forward.bind(queue_, p.state, p.folded ? graphs.folded : branch, aim(), room_, shared_);
}
// What all adapters that are complete need of the place that launches read.
template <class Engine> void executor<Engine>::share() {
  int adapters = 0;
  for (auto& p : parts_) adapters += p != nullptr ? 1 : 0;
  Engine::begin(shared_, room_, adapters);
  for (auto& p : parts_) {
    if (p == nullptr || eager()) continue;
    const layer_graphs& graphs = p->state.graphs();
    const result<bound_leaves> b = p->state.bind(graphs.forward);
    if (!b) continue;  // binding it will say why
    const bool folded = !has_codes(b->leaf) &&
                        folds(aim(), graphs.forward, graphs.folded, b->sizes, weight_type(graphs.forward, b->leaf));
    const graph& g = folded ? graphs.folded : graphs.forward;
    Engine::consider(shared_, aim(), g, folded ? sizes_for(g, graphs.forward, b->sizes) : b->sizes, folded, room_);
  }
  Engine::complete(shared_, queue_);
}
template <class Engine> status executor<Engine>::publish() {
  if (!enabled_) {
    if (!base_->forward.bound())
      if (status s = bind_base(); !s) return s;
    return base_->forward.runs().publish(queue_);
  }
  if (only_trains()) return ok;
  if (!shown().forward.bound())
    if (status s = bind_part(shown()); !s) return s;
  return shown().forward.runs().publish(queue_);
}

}  // namespace graft
