// SPDX-License-Identifier: Apache-2.0
// executor: runs, trains and merges one adapted layer on any engine (CPU or GPU). Tensors stay where their owner keeps
// them, binding finds everything that a call needs, and a call only runs it.
//     executor<cpu::engine<float>> layer(graphs_of<linear_kind, lora<>, false>());
//     layer.set("weight", view_of(w, out, in)); …; layer.set("scaling", 2.0);
//     layer.bind({.tokens = 512});         // on the CPU it happens by itself at the first call
//     layer.forward(view_of(x, tokens, in), view_into(y, tokens, out));
// One call runs at a time: another thread needs a layer of its own. Outputs share no memory with what a call reads.
// Calls on a layer that was moved from are refused; another layer may be assigned to it. A layer has one base and any
// number of adapters, numbered from 0; one of them, several in turn, or none is active. The members are defined in
// run/executor_impl.h: a file that finds them in a library compiles neither them nor the engine.
#pragma once
#include <graft/backend/execution_mode.h>
#include <graft/core/result.h>
#include <graft/core/view.h>
#include <graft/plan/plan.h>
#include <graft/run/layer_graphs.h>
#include <graft/run/named_tensors.h>

#include <atomic>
#include <memory>
#include <vector>

namespace graft {

// call_guard: makes a concurrent call of one layer an error in every build, for the price of one atomic exchange per
// call. A layer has one call and one workspace, so two threads need two layers, or a lock.
class call_guard {
 public:
  class scoped_call {
   public:
    // A null guard is that of a layer that was moved from.
    explicit scoped_call(call_guard* guard)
        : guard_(guard), entered_(guard != nullptr && !guard->in_call_.exchange(true, std::memory_order_acquire)) {}
    scoped_call(const scoped_call&) = delete;
    scoped_call& operator=(const scoped_call&) = delete;
    ~scoped_call() {
      if (entered_) guard_->in_call_.store(false, std::memory_order_release);
    }
    explicit operator bool() const { return entered_; }
    // Says why the call was not entered.
    [[gnu::cold, gnu::noinline]] error refusal() const {
      if (guard_ == nullptr) return moved_from_error();
      return fail("this layer is in a call of another thread; one call at a time, or a layer for each thread");
    }

   private:
    call_guard* guard_;
    bool entered_;
  };
  [[gnu::cold, gnu::noinline]] static error moved_from_error() {
    return fail("this layer was moved from; use the one that it was moved to, or assign another one to it");
  }

 private:
  std::atomic<bool> in_call_{false};
};

struct bound_leaves;                              // run/layer_state.h
template <class Engine> struct pass;              // run/program.h
template <class Engine> class training_variants;  // run/training_variants.h

template <class Engine> class executor {
 public:
  using queue = typename Engine::queue;

  [[gnu::cold]] explicit executor(const layer_graphs& graphs, execution_mode run_mode = execution_mode::fused,
                                  queue q = {});
  [[gnu::cold]] executor(executor&&) noexcept;
  [[gnu::cold]] executor& operator=(executor&&) noexcept;
  [[gnu::cold]] ~executor();
  // Sets the queue that the following calls put their work on.
  executor& on(queue q) {
    queue_ = std::move(q);
    return *this;
  }
  queue& queued() { return queue_; }
  const queue& queued() const { return queue_; }

  // ---- adapters
  // Adds a further adapter on the same base and returns its number. It uses the tensors of the base; its own are set
  // with that number, and it acts once activate() names it.
  //     const result<int> second = layer.add(graphs_of<linear_kind, lora<>, false>());
  //     layer.set("lora_A.weight", view_of(a, r, in), *second); …; layer.activate({*second});
  [[gnu::cold]] result<int> add(const layer_graphs& graphs);
  // Removes an adapter that add() returned and that is not active. The numbers of other adapters do not change.
  [[gnu::cold]] status remove(int adapter);
  // Replaces all tensors of an adapter by others of the same method, whose rank may differ. An error changes nothing.
  [[gnu::cold]] status replace(int adapter, const named_values& values);
  // Sets the adapter that calls use, or several. Several act in turn, each on the weight that the ones before it made,
  // so that low-rank branches add up.
  [[gnu::cold]] status activate(const std::vector<int>& adapters);
  // States the formula of an adapter, which activating several adapters needs. A layer type calls it for adapter 0.
  [[gnu::cold]] void set_formula(int adapter, const layer_formula& f);
  const std::vector<int>& active() const { return active_; }
  bool has(int adapter) const { return bool(check_adapter(adapter)); }
  // With false the bare base layer runs, at no extra cost.
  [[gnu::cold]] status enable(bool adapter);
  bool enabled() const { return enabled_; }

  // ---- tensors
  // Sets a tensor, a number or a size by its name in the formula. A tensor is not copied and has to live as long as the
  // layer reads it. The base's ("weight", "bias") belong to all adapters.
  status set(const char* name, const view& v, int adapter = 0) {
    return set_value({.name = name, .tensor = &v}, adapter);
  }
  status set(const char* name, double v, int adapter = 0) { return set_value({.name = name, .scalar = &v}, adapter); }
  status size(const char* name, long long v, int adapter = 0) { return set_value({.name = name, .size = v}, adapter); }
  [[gnu::cold]] status set_value(const named_value& v, int adapter);
  // Sets a size that the layer's type states: size() refuses another value for it.
  status set_static_size(const char* name, long long v) {
    return set_value({.name = name, .size = v, .is_fixed = true}, 0);
  }

  // ---- running
  // Plans, allocates for calls of up to limits.tokens rows, and computes what does not depend on their data. Adapters
  // that are not active are bound when they are activated.
  [[gnu::cold]] status bind(const capacity& limits = {});
  // Recomputes what follows from parameters, after the caller wrote their memory. A training program that never calls
  // it is safe as well: until the first call, the layer assumes that an optimizer wrote the parameters after every
  // backward(), and the next forward() recomputes what follows from them.
  [[gnu::cold]] status parameters_changed();
  // Also recomputes what follows from tensors of the base (DoRA's norm, copies of the weight), after the caller wrote
  // their memory. set() does this by itself, and so does a merge into the layer's own weight.
  [[gnu::cold]] status weight_changed();
  // Computes y = x W'ᵀ + b' for the rows of x. The caller owns y, which overlaps neither x nor the layer's tensors.
  status forward(const view& x, const mutable_view& y);
  // With true forward() saves what backward() would compute a second time, in memory of the executor, and backward()
  // must follow a forward() with the same x. Eager mode saves nothing.
  [[gnu::cold]] void train(bool on);
  // Bytes that forward() saves for so many rows; 0 where they depend on more than the rows.
  [[gnu::cold]] long long saved_bytes(long long tokens);
  // Computes dx and the listed gradients of parameters; gradients that are not listed are not computed. A gradient may
  // be added to what its memory holds.
  status backward(const view& x, const view& dy, const mutable_view& dx, const std::vector<gradient>& gradients);
  // Writes W' and, where the active adapters change it, b'; unmerge() recovers the base tensor. See run/merge.h.
  [[gnu::cold]] status merge(const mutable_view& weight, const mutable_view& bias = {});
  [[gnu::cold]] status unmerge(const char* what, const view& merged, const mutable_view& original);

  // ---- facts
  // The plan that forward() runs, once the layer is bound.
  const launch_plan* forward_plan() const;
  bool runs_folded() const;
  // Unbinds everything, so that the next call chooses its kernels again.
  [[gnu::cold]] void kernels_changed();
  // The passes that calls run, with their programs; null before they are bound.
  const pass<Engine>* bound_forward() const;
  pass<Engine>* bound_forward();
  const pass<Engine>* bound_backward() const;

 private:
  struct adapter_state;  // an adapter: its tensors and its passes
  struct base_state;     // passes of the bare base, values saved by a merge, the guard against concurrent calls

  bool eager() const { return run_mode_ == execution_mode::eager; }
  const target& plan_target() const { return eager() ? Engine::runs_eagerly_on(queue_) : Engine::runs_on(queue_); }
  adapter_state& first() const { return *adapters_[0]; }
  adapter_state& at(int adapter) const { return *adapters_[adapter]; }
  adapter_state& active_state() const { return combined_ != nullptr ? *combined_ : at(active_[0]); }
  bool is_active(int adapter) const;
  [[gnu::cold]] status check_adapter(int adapter) const;
  [[gnu::cold]] status of(int adapter, const status& s) const;
  [[gnu::cold]] status fill(adapter_state& fresh, const adapter_state& old, const named_values& values);
  [[gnu::cold]] sequence<pass<Engine>*> passes();
  unsigned long long version() const;
  [[gnu::cold]] status memory_written(const mutable_view& a, const mutable_view& b);
  auto enter() const { return call_guard::scoped_call(base_ != nullptr ? &base_->guard : nullptr); }
  bool is_moved_from() const { return base_ == nullptr; }
  [[gnu::cold]] status refresh_parameters();
  status check_not_read(const char* output, const mutable_view& to) const;
  [[gnu::cold]] status refresh_weight();
  status bind_if_needed();
  [[gnu::cold]] status bind_all(const capacity& limits);
  [[gnu::cold]] status bind_base();
  [[gnu::cold]] void plan_adapter(adapter_state& p, const bound_leaves& b);
  [[gnu::cold]] void drop_plans();
  [[gnu::cold]] status bind_adapter(adapter_state& p);
  status begin_forward(pass<Engine>& p, const view& x, const mutable_view& y);
  status forward_saved(const view& x, const mutable_view& y);
  bool saves() const;
  bool trains_only() const;
  const pass<Engine>& forward_pass() const;
  void drop_saved();
  training_variants<Engine>& training_of(adapter_state& p);
  [[gnu::cold]] void reserve_shared();
  [[gnu::cold]] status activate_adapter();
  [[gnu::cold]] result<std::unique_ptr<adapter_state>> combine(const std::vector<int>& adapters) const;

  sequence<std::unique_ptr<adapter_state>> adapters_;
  std::unique_ptr<adapter_state> combined_;
  // activate() sets it, so that a program that never activates several adapters does not compile combine().
  result<std::unique_ptr<adapter_state>> (executor::*combine_)(const std::vector<int>&) const = nullptr;
  // train() sets it, so that a program that never trains does not compile the passes of training.
  status (executor::*forward_saved_)(const view&, const mutable_view&) = nullptr;
  std::unique_ptr<base_state> base_;
  queue queue_;
  typename Engine::shared shared_{};
  capacity limits_{};
  std::vector<int> active_{0};
  execution_mode run_mode_;
  bool enabled_ = true, bound_ = false;
  bool reports_changes_ = false;     // the program calls parameters_changed() itself
  bool parameters_stale_ = false;    // a backward() in training has ended, and an optimizer may have written parameters
  unsigned long long versions_ = 0;  // the last version given to an adapter's parameters; each change takes the next
};

}  // namespace graft
