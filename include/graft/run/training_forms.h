// SPDX-License-Identifier: Apache-2.0
// The forms of a training step. The usual one computes what follows from the parameters first, as inference does; another
// lets every factor of the adapter meet the rows by itself (derive/through_rows.h), a third does so in the gradients of
// factors alone (derive/factors_first.h). The parameters change before each step, so which is less work depends on the rows
// of a call: it is counted when a number of rows comes for the first time.
// On a GPU the other one has the adapter in a copy of the weight (derive/in_weight.h), for all calls of a layer or none.
#pragma once
#include <graft/derive/factors_first.h>
#include <graft/plan/kernels.h>
#include <graft/run/training.h>

namespace graft {

template <class Engine> class training_forms final : public kept_passes<Engine> {
 public:
  // These forms are for targets that take any graph row by row, and for layers whose formula is known.
  // `room`: for so many rows, of a layer that has no other adapter; 0: it may have.
  training_forms(const layer_graphs& graphs, const layer_state& state, const target& to, long long room)
      : usual_(graphs.forward, graphs.backward) {
    if (graphs.from.kind.run == nullptr) return;
    if constexpr (!Engine::reads_host_memory)  // a CPU takes any graph row by row
      if (room > 0 && graphs.from.adapter.weight_seen_backward == nullptr) consider_weight(graphs, state, to, room);
    if (to.gathers != target::work::by_rows) return;
    auto also = [&](const graph& forth, const builder& back) {
      if (back.bad.what == fault::none) others_.push_back(std::make_unique<training_passes<Engine>>(forth, back));
    };
    also(graphs.forward, factors_first(capture_backward(graphs.from)));
    if (const builder forth = capture_forward_by_rows(graphs.from); forth.bad.what == fault::none)
      also(forth, capture_backward_by_rows(graphs.from));
  }
  // The form for calls with so many rows.
  training_passes<Engine>& form_for(const layer_state& state, long long rows) {
    if (in_weight_ != nullptr) return *in_weight_;
    if (others_.empty() || rows == counted_) return *least_;
    counted_ = rows, least_ = &usual_;
    result<double> least = work(usual_, state, rows);
    for (auto& form : others_)
      if (const result<double> its = work(*form, state, rows); least && its && *its < least_gain * *least)
        least = its, least_ = form.get();
    return *least_;
  }
  training_passes<Engine>& begin(const layer_state& state, long long rows) {
    return *(at_work_ = &form_for(state, rows));
  }
  // The one of the last forward call, which backward follows.
  training_passes<Engine>& at_work() { return at_work_ != nullptr ? *at_work_ : usual_; }
  const training_passes<Engine>& at_work() const { return at_work_ != nullptr ? *at_work_ : usual_; }
  void forget() override {
    usual_.forget();
    for (auto& form : others_) form->forget();
    if (in_weight_ != nullptr) in_weight_->forget();
  }
  void list(sequence<pass<Engine>*>& to) override {
    usual_.list(to);
    for (auto& form : others_) form->list(to);
    if (in_weight_ != nullptr) in_weight_->list(to);
  }

 private:
  void consider_weight(const layer_graphs& graphs, const layer_state& state, const target& to, long long room) {
    const graph forth = usual_.forward_graph();
    const result<bound_leaves> b = state.bind(forth);
    if (to.gathers != target::work::by_products || !b || has_codes(b->leaf)) return;
    const builder whole = capture_forward_in_weight(graphs.from), back = capture_backward_in_weight(graphs.from);
    if (whole.bad.what != fault::none || back.bad.what != fault::none) return;
    auto other = std::make_unique<training_passes<Engine>>(whole, back);
    size_values s = b->sizes;
    forth.sizes.set_tokens(s, room);
    if (trains_in_weight(to, {forth, usual_.backward_graph()}, {other->forward_graph(), other->backward_graph()}, s))
      in_weight_ = std::move(other);
  }
  static constexpr double least_gain = 0.95;  // below it the counts say little

  static result<double> work(const training_passes<Engine>& of, const layer_state& state, long long rows) {
    const graph forth = of.forward_graph(), back = of.backward_graph();
    const result<bound_leaves> b = state.bind(forth);
    if (!b) return b.failure();
    size_values s = b->sizes;
    forth.sizes.set_tokens(s, rows);
    const sequence<id> same = same_nodes(forth, back);
    sequence<bool> again;
    for (const id i : same) again.push(i >= 0);
    return step_work(forth, s) + step_work(back, sizes_for(back, forth, s), again);
  }

  training_passes<Engine> usual_;
  std::unique_ptr<training_passes<Engine>> in_weight_;
  std::vector<std::unique_ptr<training_passes<Engine>>> others_;
  training_passes<Engine>*at_work_ = nullptr, *least_ = &usual_;
  long long counted_ = -1;
};

}  // namespace graft
