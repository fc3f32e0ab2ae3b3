// SPDX-License-Identifier: Apache-2.0
// bound_layer: one adapted linear layer bound to the tensors of a PyTorch module, on any engine. A call brings the
// tensors again; while they lie where they lay, it only runs. Forward and backward are functions of their arguments:
// what backward reads of forward is memory that the caller keeps, so calls of several steps may be interleaved. Which
// variant of a training step they run follows from the sizes alone.
//
// Values that follow from tensors of the layer alone (DoRA's norm, rotations) are kept between calls. They are computed
// again when the version of a tensor has changed, which PyTorch counts with its writes; without versions, in every call.
// Writes of fused optimizers are not counted. In host memory parameters are therefore compared by their numbers. In
// device memory that would need a synchronization, so there every forward call that saves values for backward counts as
// one after a write. A formula that keeps no value of its parameters, as IA3 on the CPU, reads them in place.
#pragma once
#include <graft/plan/kernel_count.h>
#include <graft/run/pass.h>

#include <bit>
#include <cstdint>
#include <mutex>

#include "fingerprint.h"
#include "layer_spec.h"

namespace graft::pytorch {

// Where a call runs. An engine with devices and streams has a specialization of its own.
template <class Engine> struct placement {
  status enter(typename Engine::queue&) const { return ok; }
  bool captured() const { return false; }  // in a graph that is replayed later
};

template <class Engine> class bound_layer {
 public:
  using queue = typename Engine::queue;
  using place = placement<Engine>;
  using versions = std::vector<std::int64_t>;  // by tensor; empty: unknown

  explicit bound_layer(std::shared_ptr<const layer_spec> spec) : spec_(std::move(spec)) {}

  const layer_spec& spec() const { return *spec_; }

  // Elements of the saved values for each row of x, of the variant that saves most.
  result<long long> saved_width(const std::vector<view>& tensors) {
    const std::lock_guard<std::mutex> lock(alone_);
    if (status s = take(tensors); !s) return s.failure();
    return saved_width_;
  }

  // Binds every pass that calls with these tensors may take, so that an error comes now and not in a call.
  status check(const place& at, const std::vector<view>& tensors) {
    const std::lock_guard<std::mutex> lock(alone_);
    if (status s = take(tensors); !s) return s;
    if (status s = prepare(at, 16); !s) return s;
    if (status s = bind(passes_->inference, spec_->graphs.forward); !s) return s;
    for (auto& form : passes_->forms) {
      if (status s = bind(form->forward, form->forward_graph()); !s) return s;
      const graph made = form->graphs->backward;
      output_set all;
      for (int k = 0; k < made.outs; ++k) all.add(k);
      if (const auto found = backward_pass(*form, all); !found) return found.failure();
    }
    return ok;
  }

  // Computes y for the rows of x. With memory in `saved`, of rows · saved_width elements of Engine::storage_type, it
  // also writes what backward() reads.
  status forward(const place& at, const view& x, const std::vector<view>& tensors, const versions& seen,
                 const mutable_view& y, void* saved) {
    const std::lock_guard<std::mutex> lock(alone_);
    if (status s = take(tensors); !s) return s;
    if (status s = prepare(at, x.size[0]); !s) return s;
    follow(seen, saved != nullptr);
    training_form* const form = saved != nullptr ? &form_for(x.size[0]) : nullptr;
    pass<Engine>& p = form != nullptr ? form->forward : passes_->inference;
    if (status s = current(p, form != nullptr ? form->forward_graph() : spec_->graphs.forward); !s) return s;
    call_tensors with;
    with[call_input::x] = x;
    if (status s = p.in->begin(p.with, with); !s) return s;
    if (status s = p.in->request_output(0, y); !s) return s;
    if (form != nullptr) {
      const leaf_views all = saved_values(*form, saved, x.size[0]);
      for (int k = 0; k < all.size(); ++k)
        if (status s = p.in->request_output(form->first_saved() + k, writable(all[k])); !s) return s;
    }
    return p.run(queue_);
  }

  // Computes dx and the listed gradients, from x, dy and what forward() saved.
  status backward(const place& at, const view& x, const view& dy, const std::vector<view>& tensors,
                  const versions& seen, void* saved, const mutable_view& dx, const std::vector<gradient>& gradients) {
    const std::lock_guard<std::mutex> lock(alone_);
    if (status s = take(tensors); !s) return s;
    if (status s = prepare(at, x.size[0]); !s) return s;
    follow(seen, false);
    training_form& form = form_for(x.size[0]);
    const graph made = form.graphs->backward;
    output_set requested;
    if (dx.data != nullptr) requested.add(made.find_output("dx"));
    for (const gradient& d : gradients) {
      const int k = made.find_output(d.name.c_str());
      if (k < 0)
        return fail("the formula has no gradient of '", d.name.c_str(), "'; it is no parameter of the adapter");
      requested.add(k);
    }
    // The backward pass reads values that the forward pass has computed from parameters.
    if (form.forward.bound())
      if (status s = refresh(form.forward); !s) return s;
    const result<pass<Engine>*> found = backward_pass(form, requested);
    if (!found) return found.failure();
    pass<Engine>& p = **found;
    if (status s = refresh(p); !s) return s;
    call_tensors with;
    with[call_input::x] = x, with[call_input::dy] = dy;
    if (status s = p.in->begin(p.with, with, saved_values(form, saved, x.size[0])); !s) return s;
    if (status s = dx.data != nullptr ? p.in->request_output(p.g().find_output("dx"), dx) : status(ok); !s) return s;
    for (const gradient& d : gradients)
      if (status s = p.in->request_output(p.g().find_output(d.name.c_str()), d.into); !s) return s;
    return p.run(queue_);
  }

 private:
  // One variant of a training step, with its passes for the tensors of this layer.
  struct training_form {
    const saved_pair* graphs;
    size_values sizes;             // of the forward graph, without the rows of a call
    sequence<long long> widths{};  // of its saved values, in elements per row
    pass<Engine> forward{};
    backward_passes<Engine> backward{};

    graph forward_graph() const { return graphs->forward; }
    int first_saved() const { return forward_graph().outs - graphs->leaf.size(); }
    // Whether the sizes of all saved values follow from the rows alone; sets their widths.
    bool set_widths() {
      const graph g = forward_graph();
      size_values one = sizes, two = sizes;
      g.sizes.set_tokens(one, 1), g.sizes.set_tokens(two, 2);
      widths = {};
      for (int k = first_saved(); k < g.outs; ++k) {
        widths.push(element_count(g, g.out[k].at, one));
        if (element_count(g, g.out[k].at, two) != 2 * widths.back()) return false;
      }
      return true;
    }
    long long width() const {
      long long n = 0;
      for (const long long w : widths) n += padded(w);
      return n;
    }
    // The counted work of a step, as graft/run/training_variants.h counts it.
    double work(long long rows) const {
      const graph fwd = forward_graph(), bwd = graphs->backward;
      size_values s = sizes;
      fwd.sizes.set_tokens(s, rows);
      sequence<bool> reused;
      for (const id i : same_nodes(fwd, bwd)) reused.push(i >= 0);
      return training_step_work(fwd, s) + training_step_work(bwd, sizes_for(bwd, fwd, s), reused);
    }
  };
  // Which writes the values of a pass come after.
  struct values_in {
    const pass<Engine>* of;
    long long base_writes, parameter_writes;
  };
  // Passes with the memory that they share, for calls of up to `rows` rows.
  struct pass_set {
    typename Engine::shared shared{};
    pass<Engine> inference{};
    std::vector<std::unique_ptr<training_form>> forms;
    std::vector<values_in> values;  // by pass
    long long rows = 0;             // 0: any number
    bool captured = false;
  };
  // Saved values begin at multiples of 16 bytes in device memory, as loads of kernels need it. Their width is the same
  // for all types.
  static constexpr long long padded(long long elements) {
    constexpr long long unit = Engine::reads_host_memory ? 1 : 8;
    return (elements + unit - 1) / unit * unit;
  }
  // The variant for calls with so many rows. The first one is taken unless another one is less work by a margin.
  training_form& form_for(long long rows) {
    auto& forms = passes_->forms;
    if (rows == counted_rows_ || forms.size() == 1) return *forms[least_];
    constexpr double min_gain = 0.95;
    double least = forms[0]->work(rows);
    least_ = 0, counted_rows_ = rows;
    for (std::size_t k = 1; k < forms.size(); ++k)
      if (const double its = forms[k]->work(rows); its < min_gain * least) least = its, least_ = k;
    return *forms[least_];
  }

  // Binds anew where a tensor has moved or has another shape or type.
  status take(const std::vector<view>& tensors) {
    if (tensors.size() != spec_->names.size())
      return fail("the layer has ", static_cast<long long>(spec_->names.size()), " tensors, the call brings ",
                  static_cast<long long>(tensors.size()));
    bool same = state_ != nullptr;
    for (std::size_t k = 0; same && k < tensors.size(); ++k) same = same_tensor(tensors[k], tensors_[k]);
    if (same) return ok;
    tensors_.clear(), state_ = nullptr, seen_.clear();
    passes_ = nullptr, captured_.clear();
    auto fresh = std::make_unique<layer_state>(spec_->graphs);
    for (const auto& [name, n] : spec_->sizes)
      if (status s = fresh->size(name.c_str(), n); !s) return s;
    for (const auto& [name, v] : spec_->scalars)
      if (status s = fresh->set(name.c_str(), v); !s) return s;
    for (std::size_t k = 0; k < tensors.size(); ++k)
      if (status s = fresh->set(spec_->names[k].c_str(), tensors[k]); !s) return s;
    auto fresh_passes = new_passes(*fresh);
    if (!fresh_passes) return fresh_passes.failure();
    saved_width_ = 0;
    for (const auto& form : (*fresh_passes)->forms) saved_width_ = std::max(saved_width_, form->width());
    state_ = std::move(fresh), tensors_ = tensors, passes_ = std::move(*fresh_passes);
    return ok;
  }
  result<std::unique_ptr<pass_set>> new_passes(const layer_state& state) {
    auto made = std::make_unique<pass_set>();
    for (const saved_pair& graphs : spec_->training) {
      const result<bound_leaves> b = state.bind(graphs.forward);
      if (!b) return b.failure();
      auto form = std::make_unique<training_form>(training_form{&graphs, b->sizes});
      if (form->set_widths()) made->forms.push_back(std::move(form));
      // The other variants apply factors row by row, which is for engines that run any graph so.
      if (!Engine::reads_host_memory) break;
    }
    if (made->forms.empty()) return fail("this formula saves values whose size does not follow from the rows of x");
    keeps_parameter_values_ = !Engine::reads_host_memory, counted_rows_ = -1, least_ = 0;
    return result<std::unique_ptr<pass_set>>(std::move(made));
  }
  // Brings the queue to the place of this call, and makes room for its rows. Passes that a captured graph may replay
  // are kept as long as the tensors stay where they are.
  status prepare(const place& at, long long rows) {
    if (status s = at.enter(queue_); !s) return s;
    captured_now_ = at.captured();
    if (Engine::binds_itself || (rows <= passes_->rows && passes_->rows > 0)) {
      passes_->captured = passes_->captured || captured_now_;
      return ok;
    }
    if (captured_now_) return not_in_a_capture();
    if (passes_->rows > 0) {
      auto fresh = new_passes(*state_);
      if (!fresh) return fresh.failure();
      if (passes_->captured) captured_.push_back(std::move(passes_));
      passes_ = std::move(*fresh);
    }
    constexpr long long step = 1024;
    passes_->rows = rows > step ? (rows + step - 1) / step * step
                                : static_cast<long long>(std::bit_ceil(static_cast<unsigned long long>(rows)));
    if constexpr (Engine::adapters_share_launches)
      Engine::begin(passes_->shared, {passes_->rows}, 1), Engine::complete(passes_->shared, queue_);
    return ok;
  }
  static status not_in_a_capture() {
    return fail("this call is captured in a graph, and memory has to be allocated for it: call the layer once before "
                "the capture with as many rows, and with gradients if the captured call has some");
  }
  static bool same_tensor(const view& a, const view& b) {
    if (a.data != b.data || a.type != b.type || a.rank != b.rank) return false;
    for (int k = 0; k < a.rank; ++k)
      if (a.size[k] != b.size[k] || a.stride(k) != b.stride(k)) return false;
    return true;
  }
  // Counts writes to tensors since the last call. What follows from them is computed again before a pass runs.
  void follow(const versions& seen, bool trains) {
    bool base = seen.empty() || seen.size() != seen_.size(), parameters = base;
    std::uint64_t now = 0;
    for (std::size_t k = 0; k < tensors_.size(); ++k) {
      if (!spec_->trained[k]) {
        base = base || seen[k] != seen_[k];
      } else if constexpr (!Engine::reads_host_memory) {
        parameters = parameters || trains || seen[k] != seen_[k];
      } else if (keeps_parameter_values_) {
        if (tensors_[k].contiguous())
          now = fingerprint(tensors_[k], now);
        else
          parameters = true;
      }
    }
    base_writes_ += base ? 1 : 0, parameter_writes_ += parameters || now != fingerprint_ ? 1 : 0;
    seen_ = seen, fingerprint_ = now;
  }
  values_in& values_of(const pass<Engine>& p) {
    for (values_in& v : passes_->values)
      if (v.of == &p) return v;
    return passes_->values.emplace_back(values_in{&p, base_writes_, parameter_writes_});
  }
  // Computes again what a bound pass has computed from tensors before they were written.
  status refresh(pass<Engine>& p) {
    values_in& v = values_of(p);
    const bool base = std::exchange(v.base_writes, base_writes_) != base_writes_,
               parameters = std::exchange(v.parameter_writes, parameter_writes_) != parameter_writes_;
    const status done = base ? p.weight_changed(queue_) : parameters ? p.parameters_changed(queue_) : status(ok);
    if (!done) v.base_writes = -1;
    return done;
  }
  status current(pass<Engine>& p, const graph& g) { return p.bound() ? refresh(p) : bind(p, g); }
  result<pass<Engine>*> backward_pass(training_form& form, const output_set& requested) {
    const graph whole = spec_->graphs.backward;
    return form.backward.find(form.graphs->backward, requested, [&](pass<Engine>& p, const graph& g) -> status {
      const result<bound_leaves> b = state_->bind(whole);
      if (!b) return b.failure();
      const size_values known = sizes_for(g, whole, b->sizes);
      if (status s = bind(p, g, &known); !s) return s;
      if (form.forward.bound()) p.in->share_precomputed(p.with, *form.forward.in, form.forward.with);
      return ok;
    });
  }
  status bind(pass<Engine>& p, const graph& g, const size_values* known = nullptr) {
    if (captured_now_) return not_in_a_capture();
    const capacity limits{passes_->rows};
    if (status s = bind_pass(p, queue_, *state_, g, Engine::runs_on(queue_), limits, passes_->shared, known); !s)
      return s;
    values_of(p) = {&p, base_writes_, parameter_writes_};
    if constexpr (Engine::reads_host_memory)
      if (keeps_parameter_values(*p.in) && !std::exchange(keeps_parameter_values_, true)) seen_.clear();
    return ok;
  }
  // Whether the calls of a program read values that were computed from parameters, or parameters that were converted.
  bool keeps_parameter_values(const program<Engine>& in) const {
    const graph& g = in.value();
    const launch_plan& p = in.launches();
    for (id i = 0; i < g.size; ++i) {
      if (!p.live[i] || p.when.of[i] != stage::parameter || g[i].what == op::reshape) continue;
      if (!is_leaf(g[i].what)) return true;
      for (std::size_t k = 0; k < tensors_.size(); ++k)
        if (same_text(g.name(i).c_str(), spec_->names[k].c_str()) &&
            (tensors_[k].type != Engine::storage_type || !tensors_[k].contiguous()))
          return true;
    }
    return false;
  }
  // The saved values lie one after the other at the begin of the caller's memory.
  leaf_views saved_values(const training_form& form, void* memory, long long rows) const {
    const graph g = form.forward_graph();
    leaf_views all;
    size_values s = form.sizes;
    auto* at = static_cast<unsigned char*>(memory);
    g.sizes.set_tokens(s, rows);
    for (int k = form.first_saved(), i = 0; k < g.outs; ++k, ++i) {
      const node& v = g[g.out[k].at];
      const int rank = saved_rank(v);
      view one{at, Engine::storage_type, {}, rank};
      for (int axis = 0; axis < rank; ++axis) one.size[axis] = g.sizes.value(v.d[4 - rank + axis], s);
      at += rows * padded(form.widths[i]) * bits_of(Engine::storage_type) / 8;
      all.push(one);
    }
    return all;
  }
  static mutable_view writable(const view& v) {
    return {const_cast<void*>(v.data), v.type, {v.size[0], v.size[1], v.size[2], v.size[3]}, v.rank};
  }

  std::shared_ptr<const layer_spec> spec_;
  std::mutex alone_;
  std::unique_ptr<layer_state> state_;
  std::vector<view> tensors_;
  versions seen_;
  std::uint64_t fingerprint_ = 0;  // of the parameters
  bool keeps_parameter_values_ = false;
  long long base_writes_ = 0, parameter_writes_ = 0;
  queue queue_{};  // kernels of it are what passes point to
  std::unique_ptr<pass_set> passes_;
  std::vector<std::unique_ptr<pass_set>> captured_;
  bool captured_now_ = false;
  std::size_t least_ = 0;
  long long saved_width_ = 0, counted_rows_ = -1;
};

}  // namespace graft::pytorch
