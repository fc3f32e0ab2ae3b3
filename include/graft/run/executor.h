// SPDX-License-Identifier: Apache-2.0
// Runs one adapted layer, on any engine: tensors stay where their owner keeps them, everything a call needs is found when
// the layer is bound, and a call only runs it.
//     executor<cpu::engine<float>> layer(graphs_of<linear_kind, lora<>, false>());
//     layer.set("weight", view_of(w, out, in)); …; layer.set("scaling", 2.0);
//     layer.bind({.tokens = 512});         // on the CPU it happens by itself at the first call
//     layer.forward(view_of(x, tokens, in), view_into(y, tokens, out));
// One call at a time: another thread needs a layer of its own. Outputs share no memory with what a call reads.
// A layer has one base and any number of adapters, numbered from 0; one of them, several together, or none is active.
// The members are defined in run/executor_adapters.h and run/executor_calls.h: a file that finds them in a library
// compiles neither them nor the engine.
#pragma once
#include <graft/backend/mode.h>
#include <graft/core/result.h>
#include <graft/core/view.h>
#include <graft/plan/plan.h>
#include <graft/run/given.h>
#include <graft/run/layer_graphs.h>

#include <memory>
#include <vector>

namespace graft {

template <class Engine> class pass;            // run/pass.h
template <class Engine> class training_forms;  // run/training_forms.h

template <class Engine> class executor {
 public:
  using queue = typename Engine::queue;

  [[gnu::cold]] explicit executor(const layer_graphs& graphs, mode how = mode::fused, queue q = {});
  [[gnu::cold]] executor(executor&&) noexcept;
  [[gnu::cold]] executor& operator=(executor&&) noexcept;
  [[gnu::cold]] ~executor();
  // Where the work of the following calls is ordered.
  executor& on(queue q) {
    queue_ = std::move(q);
    return *this;
  }
  queue& queued() { return queue_; }
  const queue& queued() const { return queue_; }

  // ---- adapters
  // A further adapter on the same base; its number. The tensors of the base are known to it already.
  [[gnu::cold]] result<int> add(const layer_graphs& graphs);
  [[gnu::cold]] status remove(int adapter);
  // Other tensors, of another rank too, for an adapter of the same method: all of them or none.
  [[gnu::cold]] status replace(int adapter, const adapter_values& values);
  // Which adapter a call uses, or which several: each works on what the ones before it made of the weight, so that side
  // branches add up.
  [[gnu::cold]] status activate(const std::vector<int>& adapters);
  // What several adapters together are made of; a layer type states it when it activates several.
  [[gnu::cold]] void know_formula(int adapter, const layer_formula& f);
  const std::vector<int>& active() const { return active_; }
  bool has(int adapter) const { return bool(expect(adapter)); }
  // A disabled adapter costs nothing: the base layer runs as if it were alone.
  [[gnu::cold]] status enable(bool adapter);
  bool enabled() const { return enabled_; }

  // ---- tensors
  // Tensors of the base belong to all adapters.
  status set(const char* name, const view& v, int adapter = 0) { return give({.name = name, .tensor = &v}, adapter); }
  status set(const char* name, double v, int adapter = 0) { return give({.name = name, .scalar = &v}, adapter); }
  status size(const char* name, long long v, int adapter = 0) { return give({.name = name, .size = v}, adapter); }
  [[gnu::cold]] status give(const given_value& v, int adapter);

  // ---- running
  // Finds everything that calls with up to so many rows need, computes what does not depend on their data. Adapters that
  // are not active are bound when they are activated.
  [[gnu::cold]] status bind(const capacity& room = {});
  // The memory behind a parameter was written: what follows from it is computed again, nothing else happens.
  [[gnu::cold]] status parameters_changed();
  // The memory behind a tensor of the base was written: what follows from it (DoRA's norm, copies of the weight) is
  // computed again as well. set() does it by itself, and so does a merge into the layer's own weight.
  [[gnu::cold]] status weight_changed();
  status forward(const view& x, const mutable_view& y);
  // In training forward keeps what backward would compute a second time, in memory of the executor's, and backward()
  // follows forward() with the same x. Eager mode keeps nothing.
  [[gnu::cold]] void train(bool on);
  // How much forward keeps for so many rows; 0 where it depends on more than the rows.
  [[gnu::cold]] long long kept_bytes(long long tokens);
  // dx and any of the parameters' gradients; those not asked for are not computed. A gradient may be added to what its
  // memory holds.
  status backward(const view& x, const view& dy, const mutable_view& dx, const std::vector<gradient>& gradients);
  // W' and, where the adapter changes it, b', of what is active; and back. See run/merge.h.
  [[gnu::cold]] status merge(const mutable_view& weight, const mutable_view& bias = {});
  [[gnu::cold]] status unmerge(const char* what, const view& merged, const mutable_view& original);

  // ---- facts
  // The plan that forward() runs, once the layer is bound.
  const plan* forward_plan() const;
  bool runs_folded() const;
  // The next call finds its kernels anew.
  [[gnu::cold]] void kernels_changed();
  const typename Engine::bound* bound_forward() const;
  typename Engine::bound* bound_forward();
  const typename Engine::bound* bound_backward() const;

 private:
  struct part;  // an adapter: its tensors and its passes
  struct bare;  // the passes of the base alone, what merging keeps, and who is inside

  bool eager() const { return how_ == mode::eager; }
  const target& aim() const { return eager() ? Engine::runs_eagerly_on(queue_) : Engine::runs_on(queue_); }
  part& first() const { return *parts_[0]; }
  part& at(int adapter) const { return *parts_[adapter]; }
  part& shown() const { return together_ != nullptr ? *together_ : at(active_[0]); }
  bool is_active(int adapter) const;
  [[gnu::cold]] status expect(int adapter) const;
  [[gnu::cold]] status of(int adapter, const status& s) const;
  [[gnu::cold]] status fill(part& fresh, const part& old, const adapter_values& values);
  [[gnu::cold]] sequence<pass<Engine>*> passes();
  unsigned long long version() const;
  [[gnu::cold]] status written_to(const mutable_view& a, const mutable_view& b);
  [[gnu::cold]] status read_weight_again();
  status ready();
  [[gnu::cold]] status bind_all(const capacity& room);
  [[gnu::cold]] status bind_base();
  [[gnu::cold]] status bind_part(part& p);
  status begin_forward(pass<Engine>& p, const view& x, const mutable_view& y);
  status forward_keeping(const view& x, const mutable_view& y);
  bool keeps() const;
  bool only_trains() const;
  const pass<Engine>& forward_pass() const;
  void forget_kept();
  training_forms<Engine>& training_of(part& p);
  [[gnu::cold]] void share();
  [[gnu::cold]] status publish();
  [[gnu::cold]] result<std::unique_ptr<part>> combine(const std::vector<int>& adapters) const;

  sequence<std::unique_ptr<part>> parts_;
  std::unique_ptr<part> together_;
  // Set by activate(): a program that never activates several adapters does not compile what combines them.
  result<std::unique_ptr<part>> (executor::*combine_)(const std::vector<int>&) const = nullptr;
  // The same for train(), and what forward keeps.
  status (executor::*forward_keeping_)(const view&, const mutable_view&) = nullptr;
  std::unique_ptr<bare> base_;
  queue queue_;
  typename Engine::shared shared_{};
  capacity room_{};
  std::vector<int> active_{0};
  mode how_;
  bool enabled_ = true, bound_ = false;
  unsigned long long versions_ = 0;  // of parameters, counted over all adapters
};

}  // namespace graft
