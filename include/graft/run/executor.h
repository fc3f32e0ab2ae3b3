// SPDX-License-Identifier: Apache-2.0
// Runs one adapted layer, on any engine: tensors stay where their owner keeps them, everything a call needs is found when
// the layer is bound, and a call only runs it.
//     executor<cpu::engine<float>> layer(graphs_of<linear_kind, lora<>, false>());
//     layer.set("weight", view_of(w, out, in)); …; layer.set("scaling", 2.0);
//     layer.bind({.tokens = 512});         // on the CPU it happens by itself at the first call
//     layer.forward(view_of(x, tokens, in), view_into(y, tokens, out));
// A layer has one base and any number of adapters, numbered from 0; one of them, several together, or none is active.
#pragma once
#include <graft/plan/kernels.h>
#include <graft/run/merge.h>
#include <graft/run/pass.h>

namespace graft {

struct gradient {
  std::string name;  // the parameter's name
  mutable_view into;
};
// Tensors, numbers and sizes of one adapter, to be taken whole or not at all.
struct adapter_values {
  tensor_map tensors;
  std::map<std::string, double, std::less<>> scalars;
  size_map sizes{};
};

template <class Engine> class executor {
 public:
  using queue = typename Engine::queue;

  explicit executor(const layer_graphs& graphs, mode how = mode::fused) : how_(how) {
    parts_.push_back(std::make_unique<part>(graphs));
  }
  // Where the work of the following calls is ordered.
  executor& on(queue q) {
    queue_ = std::move(q);
    return *this;
  }
  queue& queued() { return queue_; }
  const queue& queued() const { return queue_; }

  // ---- adapters
  // A further adapter on the same base; its number. The tensors of the base are known to it already.
  result<int> add(const layer_graphs& graphs) {
    const layer_graphs& mine = first().state.graphs();
    if (!same_text(graphs.kind, mine.kind) || graphs.has_bias != mine.has_bias)
      return fail("an adapter of kind ", graphs.kind, " cannot be added to a layer of kind ", mine.kind,
                  ", nor one with a bias to one without");
    auto fresh = std::make_unique<part>(graphs);
    if (status s = fresh->state.take_base(first().state); !s) return s.failure();
    parts_.push_back(std::move(fresh));
    return static_cast<int>(parts_.size()) - 1;
  }
  status remove(int adapter) {
    if (status s = expect(adapter); !s) return s;
    if (enabled_ && is_active(adapter))
      return fail("adapter ", adapter, " is active; activate another one, or enable(false), before it is removed");
    if (adapter == 0) return fail("adapter 0 came with the layer and stays; add() others and activate() those");
    parts_[static_cast<std::size_t>(adapter)] = nullptr;
    if (is_active(adapter)) active_ = {0}, together_ = nullptr;
    return ok;
  }
  // Other tensors, of another rank too, for an adapter of the same method: all of them or none.
  status replace(int adapter, const adapter_values& values) {
    if (status s = expect(adapter); !s) return s;
    std::unique_ptr<part>& place = parts_[static_cast<std::size_t>(adapter)];
    auto fresh = std::make_unique<part>(place->state.graphs());
    if (status s = fill(*fresh, place->state, values); !s) return of(adapter, s);
    std::swap(place, fresh);
    if (together_ == nullptr || !is_active(adapter)) return bound_ && is_active(adapter) ? publish() : status(ok);
    if (status s = activate(active_); !s) return std::swap(place, fresh), s;
    return ok;
  }
  // Which adapter a call uses, or which several: each works on what the ones before it made of the weight, so that side
  // branches add up.
  status activate(const std::vector<int>& adapters) {
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
  // What several adapters together are made of; a layer type states it when it activates several.
  void know_formula(int adapter, const layer_formula& f) { at(adapter).state.know_formula(f); }
  const std::vector<int>& active() const { return active_; }
  // A disabled adapter costs nothing: the base layer runs as if it were alone.
  status enable(bool adapter) {
    const bool before = std::exchange(enabled_, adapter);
    status s = bound_ ? publish() : status(ok);
    if (!s) enabled_ = before;
    return s;
  }
  bool enabled() const { return enabled_; }

  // ---- tensors
  // Tensors of the base belong to all adapters.
  status set(const char* name, const view& v, int adapter = 0) { return give({.name = name, .tensor = &v}, adapter); }
  status set(const char* name, double v, int adapter = 0) { return give({.name = name, .scalar = &v}, adapter); }
  status size(const char* name, long long v, int adapter = 0) { return give({.name = name, .size = v}, adapter); }

  // ---- running
  // Finds everything that calls with up to so many rows need, computes what does not depend on their data. Adapters that
  // are not active are bound when they are activated.
  status bind(const capacity& room = {}) {
    for (pass<Engine>* p : passes()) p->unbind();
    room_ = room, bound_ = false;
    if (status s = Engine::open(queue_); !s) return s;
    share();
    if (status s = bind_base(); !s && !enabled_) return s;  // an adapter that replaces the base's tensors runs without
    if (status s = bind_part(shown()); !s) return s;
    bound_ = true;
    return publish();
  }
  // The memory behind a parameter was written: what follows from it is computed again, nothing else happens.
  status parameters_changed() {
    for (pass<Engine>* p : passes())
      if (p->bound())
        if (status s = p->runs().parameters_changed(queue_); !s) return s;
    return bound_ ? publish() : status(ok);
  }
  status forward(const view& x, const mutable_view& y) {
    if (status s = ready(); !s) return s;
    pass<Engine>& p = enabled_ ? shown().forward : base_;
    if (status s = p.begin(x); !s) return s;
    if (y.data == nullptr && p.elements(0) != 0) return fail("output 'y' has no data");
    if (status s = p.want(0, y); !s) return s;
    return p.run(queue_);
  }
  // dx and any of the parameters' gradients; those not asked for are not written.
  status backward(const view& x, const view& dy, const mutable_view& dx, const std::vector<gradient>& gradients) {
    part& at_work = shown();
    const layer_graphs& graphs = at_work.state.graphs();
    const graph& made = enabled_ ? (eager() ? graphs.literal_backward : graphs.backward) : graphs.base_backward;
    if (made.bad.what == fault::not_differentiable) return fail("no gradient for ", located(made, made.bad.at));
    if (!enabled_ && !gradients.empty())
      return fail("the adapter is disabled: its parameters have no gradient, only dx exists");
    if (status s = ready(); !s) return s;
    pass<Engine>& p = enabled_ ? at_work.backward : base_backward_;
    if (!p.bound())
      if (status s = p.bind(queue_, at_work.state, made, aim(), room_, shared_); !s) return s;
    if (status s = p.begin(x, dy); !s) return s;
    if (const int k = made.find_output("dx"); k >= 0)
      if (status s = p.want(k, dx); !s) return s;
    for (const gradient& d : gradients) {
      const int k = made.find_output(d.name.c_str());
      if (k < 0) return fail("this layer has no parameter '", d.name.c_str(), "'");
      if (status s = p.want(k, d.into); !s) return s;
    }
    return p.run(queue_);
  }
  // W' and, where the adapter changes it, b', of what is active; and back. See run/merge.h.
  status merge(const mutable_view& weight, const mutable_view& bias = {}) {
    memory_changed();  // `weight` may be the one that the next call reads
    return merger_.merge(queue_, shown().state, weight, bias);
  }
  status unmerge(const char* what, const view& merged, const mutable_view& original) {
    memory_changed();
    return merger_.unmerge(queue_, shown().state, what, merged, original);
  }

  // ---- facts
  // The plan that forward() runs, once the layer is bound.
  const plan* forward_plan() const {
    const pass<Engine>& p = enabled_ ? shown().forward : base_;
    return p.bound() ? &p.runs().launches() : nullptr;
  }
  bool runs_folded() const { return shown().folded; }
  // The next call finds its kernels anew.
  void kernels_changed() {
    for (pass<Engine>* p : passes()) p->unbind();
    bound_ = false;
  }
  const typename Engine::bound* bound_forward() const {
    const pass<Engine>& p = enabled_ ? shown().forward : base_;
    return p.bound() ? &p.runs() : nullptr;
  }
  typename Engine::bound* bound_forward() {
    pass<Engine>& p = enabled_ ? shown().forward : base_;
    return p.bound() ? &p.runs() : nullptr;
  }
  const typename Engine::bound* bound_backward() const {
    const pass<Engine>& p = enabled_ ? shown().backward : base_backward_;
    return p.bound() ? &p.runs() : nullptr;
  }

 private:
  struct part {
    explicit part(const layer_graphs& graphs) : state(graphs) {}
    layer_state state;
    pass<Engine> forward, backward;
    bool folded = false;
  };

  bool eager() const { return how_ == mode::eager; }
  const target& aim() const { return eager() ? Engine::runs_eagerly_on(queue_) : Engine::runs_on(queue_); }
  part& first() const { return *parts_[0]; }
  part& at(int adapter) const { return *parts_[static_cast<std::size_t>(adapter)]; }
  part& shown() const { return together_ != nullptr ? *together_ : at(active_[0]); }
  bool is_active(int adapter) const {
    for (const int a : active_)
      if (a == adapter) return true;
    return false;
  }
  status expect(int adapter) const {
    if (adapter >= 0 && adapter < static_cast<int>(parts_.size()) &&
        parts_[static_cast<std::size_t>(adapter)] != nullptr)
      return ok;
    return fail("there is no adapter ", adapter, "; this layer was given ", static_cast<long long>(parts_.size()));
  }
  // Says which adapter an error is about, where there are several.
  status of(int adapter, const status& s) const {
    return s || parts_.size() == 1 ? s : status(fail("adapter ", adapter, ": ", s.message()));
  }
  status fill(part& fresh, const layer_state& old, const adapter_values& values) {
    if (status s = fresh.state.take_base(old); !s) return s;
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
  std::vector<pass<Engine>*> passes() {
    std::vector<pass<Engine>*> all{&base_, &base_backward_};
    for (auto& p : parts_)
      if (p != nullptr) all.push_back(&p->forward), all.push_back(&p->backward);
    if (together_ != nullptr) all.push_back(&together_->forward), all.push_back(&together_->backward);
    return all;
  }
  void memory_changed() {
    for (pass<Engine>* p : passes())
      if (p->bound()) p->runs().memory_changed();
  }
  status ready() {
    if (bound_ && (enabled_ ? shown().forward : base_).bound()) return ok;
    if (bound_) return publish();
    if (!Engine::binds_itself && room_.tokens == 0) return fail("bind() the layer before a call, with a capacity");
    return bind(room_);
  }
  status bind_base() {
    return base_.bind(queue_, first().state, first().state.graphs().base_forward, aim(), room_, shared_);
  }
  // The adapter as a branch beside the product, or inside a copy of the weight, whichever the target is better at.
  status bind_part(part& p) {
    const layer_graphs& graphs = p.state.graphs();
    const graph& branch = eager() ? graphs.literal : graphs.forward;
    p.folded = false;
    if (result<bound_leaves> b = p.state.bind(branch); b && !eager())
      p.folded = folds(aim(), branch, graphs.folded, b->sizes);
    p.backward.unbind();
    if (p.folded && !Engine::has_room(shared_, true))
      return fail(
          "this adapter is folded into a copy of the weight, and the layer was bound without one; bind() it again");
    return p.forward.bind(queue_, p.state, p.folded ? graphs.folded : branch, aim(), room_, shared_);
  }
  // What all adapters that are complete need of the place that launches read.
  void share() {
    int adapters = 0;
    for (auto& p : parts_) adapters += p != nullptr ? 1 : 0;
    Engine::begin(shared_, room_, adapters);
    for (auto& p : parts_) {
      if (p == nullptr || eager()) continue;
      const layer_graphs& graphs = p->state.graphs();
      const result<bound_leaves> b = p->state.bind(graphs.forward);
      if (!b) continue;  // binding it will say why
      const bool folded = folds(aim(), graphs.forward, graphs.folded, b->sizes);
      const graph& g = folded ? graphs.folded : graphs.forward;
      Engine::consider(shared_, aim(), g, folded ? sizes_for(g, graphs.forward, b->sizes) : b->sizes, folded, room_);
    }
    Engine::complete(shared_, queue_);
  }
  status publish() {
    if (!enabled_) {
      if (!base_.bound())
        if (status s = bind_base(); !s) return s;
      return base_.runs().publish(queue_);
    }
    if (!shown().forward.bound())
      if (status s = bind_part(shown()); !s) return s;
    return shown().forward.runs().publish(queue_);
  }
  [[gnu::noinline]] status give(const given_value& v, int adapter) {
    if (status s = expect(adapter); !s) return s;
    const graph& base = at(adapter).state.graphs().base_forward;
    if (base.find(v.name) < 0 && base.sizes.find(v.name) < 0) {
      if (status s = at(adapter).state.give(v); !s) return of(adapter, s);
      at(adapter).forward.unbind(), at(adapter).backward.unbind();
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
  result<std::unique_ptr<part>> combine(const std::vector<int>& adapters) const {
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

  std::vector<std::unique_ptr<part>> parts_;
  std::unique_ptr<part> together_;
  // Set by activate(): a program that never activates several adapters does not compile what combines them.
  result<std::unique_ptr<part>> (executor::*combine_)(const std::vector<int>&) const = nullptr;
  pass<Engine> base_, base_backward_;
  merger<Engine> merger_;
  queue queue_{};
  typename Engine::shared shared_{};
  capacity room_{};
  std::vector<int> active_{0};
  mode how_;
  bool enabled_ = true, bound_ = false;
};

}  // namespace graft
