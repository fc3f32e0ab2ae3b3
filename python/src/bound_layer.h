// SPDX-License-Identifier: Apache-2.0
// bound_layer: one adapted linear layer bound to the tensors of a PyTorch module, on any engine. A call brings the
// tensors again; while they lie where they lay, it only runs. Forward and backward are functions of their arguments:
// what backward reads of forward is memory that the caller keeps, so calls of several steps may be interleaved. Which
// variant of a training step they run follows from the sizes alone.
//
// Values that follow from tensors of the layer alone (DoRA's norm, rotations) are kept between calls. They are computed
// again when parameters of the adapter hold other numbers than in the last call, or when the version of another tensor
// has changed, which PyTorch counts with its writes; without versions, in every call. A formula that keeps no value of
// its parameters, as IA3, reads them in place in every call, and they are not compared.
#pragma once
#include <graft/plan/kernel_count.h>
#include <graft/run/pass.h>

#include <cstdint>
#include <mutex>

#include "fingerprint.h"
#include "layer_spec.h"

namespace graft::pytorch {

template <class Engine> class bound_layer {
 public:
  using queue = typename Engine::queue;
  using versions = std::vector<std::int64_t>;  // by tensor; empty: unknown

  explicit bound_layer(std::shared_ptr<const layer_spec> spec) : spec_(std::move(spec)) {}

  const layer_spec& spec() const { return *spec_; }

  // Elements of the saved values for each row of x, of the variant that saves most.
  result<long long> saved_width(const std::vector<view>& tensors) {
    const std::lock_guard<std::mutex> lock(alone_);
    if (status s = take(tensors); !s) return s.failure();
    return saved_width_;
  }

  // Computes y for the rows of x. With memory in `saved`, of rows · saved_width elements of Engine::storage_type, it
  // also writes what backward() reads.
  status forward(queue q, const view& x, const std::vector<view>& tensors, const versions& seen, const mutable_view& y,
                 void* saved) {
    const std::lock_guard<std::mutex> lock(alone_);
    if (status s = take(tensors); !s) return s;
    if (status s = follow(q, seen); !s) return s;
    training_form* const form = saved != nullptr ? &form_for(x.size[0]) : nullptr;
    pass<Engine>& p = form != nullptr ? form->forward : inference_;
    if (!p.bound())
      if (status s = bind(q, p, form != nullptr ? form->forward_graph() : spec_->graphs.forward); !s) return s;
    call_tensors with;
    with[call_input::x] = x;
    if (status s = p.in->begin(p.with, with); !s) return s;
    if (status s = p.in->request_output(0, y); !s) return s;
    if (form != nullptr) {
      const leaf_views all = saved_values(*form, saved, x.size[0]);
      for (int k = 0; k < all.size(); ++k)
        if (status s = p.in->request_output(form->first_saved() + k, writable(all[k])); !s) return s;
    }
    return p.run(q);
  }

  // Computes dx and the listed gradients, from x, dy and what forward() saved.
  status backward(queue q, const view& x, const view& dy, const std::vector<view>& tensors, const versions& seen,
                  void* saved, const mutable_view& dx, const std::vector<gradient>& gradients) {
    const std::lock_guard<std::mutex> lock(alone_);
    if (status s = take(tensors); !s) return s;
    if (status s = follow(q, seen); !s) return s;
    training_form& form = form_for(x.size[0]);
    const graph whole = spec_->graphs.backward, made = form.graphs->backward;
    output_set requested;
    const int dx_at = made.find_output("dx");
    if (dx.data != nullptr) requested.add(dx_at);
    for (const gradient& d : gradients) {
      const int k = made.find_output(d.name.c_str());
      if (k < 0)
        return fail("the formula has no gradient of '", d.name.c_str(), "'; it is no parameter of the adapter");
      requested.add(k);
    }
    const auto bind_backward = [&](pass<Engine>& p, const graph& g) -> status {
      const result<bound_leaves> b = state_->bind(whole);
      if (!b) return b.failure();
      const size_values known = sizes_for(g, whole, b->sizes);
      if (status s = bind(q, p, g, &known); !s) return s;
      if (form.forward.bound()) p.in->share_precomputed(p.with, *form.forward.in, form.forward.with);
      return ok;
    };
    const result<pass<Engine>*> found = form.backward.find(made, requested, bind_backward);
    if (!found) return found.failure();
    pass<Engine>& p = **found;
    call_tensors with;
    with[call_input::x] = x, with[call_input::dy] = dy;
    if (status s = p.in->begin(p.with, with, saved_values(form, saved, x.size[0])); !s) return s;
    if (status s = dx.data != nullptr ? p.in->request_output(p.g().find_output("dx"), dx) : status(ok); !s) return s;
    for (const gradient& d : gradients)
      if (status s = p.in->request_output(p.g().find_output(d.name.c_str()), d.into); !s) return s;
    return p.run(q);
  }

 private:
  // One variant of a training step, with its passes for the tensors of this layer.
  struct training_form {
    const saved_pair* graphs;
    size_values sizes;    // of the forward graph, without the rows of a call
    long long width = 0;  // elements of its saved values per row
    pass<Engine> forward{};
    backward_passes<Engine> backward{};

    graph forward_graph() const { return graphs->forward; }
    int first_saved() const { return forward_graph().outs - graphs->leaf.size(); }
    long long saved_elements(long long rows) const {
      const graph g = forward_graph();
      size_values s = sizes;
      g.sizes.set_tokens(s, rows);
      long long n = 0;
      for (int k = first_saved(); k < g.outs; ++k) n += element_count(g, g.out[k].at, s);
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
  // The variant for calls with so many rows. The first one is taken unless another one is less work by a margin.
  training_form& form_for(long long rows) {
    if (rows == counted_rows_) return *forms_[least_];
    constexpr double min_gain = 0.95;
    double least = forms_[0]->work(rows);
    least_ = 0, counted_rows_ = rows;
    for (std::size_t k = 1; k < forms_.size(); ++k)
      if (const double its = forms_[k]->work(rows); its < min_gain * least) least = its, least_ = k;
    return *forms_[least_];
  }

  // Binds anew where a tensor has moved or has another shape or type.
  status take(const std::vector<view>& tensors) {
    if (tensors.size() != spec_->names.size())
      return fail("the layer has ", static_cast<long long>(spec_->names.size()), " tensors, the call brings ",
                  static_cast<long long>(tensors.size()));
    bool same = state_ != nullptr;
    for (std::size_t k = 0; same && k < tensors.size(); ++k) same = same_tensor(tensors[k], tensors_[k]);
    if (same) return ok;
    tensors_.clear(), state_ = nullptr, seen_.clear(), keeps_parameter_values_ = false;
    inference_.unbind(), forms_.clear(), counted_rows_ = -1;
    auto fresh = std::make_unique<layer_state>(spec_->graphs);
    for (const auto& [name, n] : spec_->sizes)
      if (status s = fresh->size(name.c_str(), n); !s) return s;
    for (const auto& [name, v] : spec_->scalars)
      if (status s = fresh->set(name.c_str(), v); !s) return s;
    for (std::size_t k = 0; k < tensors.size(); ++k)
      if (status s = fresh->set(spec_->names[k].c_str(), tensors[k]); !s) return s;
    std::vector<std::unique_ptr<training_form>> forms;
    saved_width_ = 0;
    for (const saved_pair& graphs : spec_->training) {
      const result<bound_leaves> b = fresh->bind(graphs.forward);
      if (!b) return b.failure();
      auto form = std::make_unique<training_form>(training_form{&graphs, b->sizes});
      form->width = form->saved_elements(1);
      if (form->saved_elements(2) != 2 * form->width) continue;
      saved_width_ = std::max(saved_width_, form->width);
      forms.push_back(std::move(form));
    }
    if (forms.empty()) return fail("this formula saves values whose size does not follow from the rows of x");
    state_ = std::move(fresh), tensors_ = tensors, forms_ = std::move(forms);
    return ok;
  }
  static bool same_tensor(const view& a, const view& b) {
    if (a.data != b.data || a.type != b.type || a.rank != b.rank) return false;
    for (int k = 0; k < a.rank; ++k)
      if (a.size[k] != b.size[k] || a.stride(k) != b.stride(k)) return false;
    return true;
  }
  // Marks as changed what follows from tensors that were written since the last call.
  status follow(queue& q, const versions& seen) {
    static_assert(Engine::reads_host_memory, "parameters are compared in the memory of the host");
    bool base = seen.empty() || seen.size() != seen_.size(), parameters = base;
    std::uint64_t now = 0;
    for (std::size_t k = 0; k < tensors_.size(); ++k) {
      if (!spec_->trained[k])
        base = base || seen[k] != seen_[k];
      else if (!keeps_parameter_values_)
        continue;
      else if (tensors_[k].contiguous())
        now = fingerprint(tensors_[k], now);
      else
        parameters = true;
    }
    parameters = parameters || base || now != fingerprint_;
    seen_ = seen, fingerprint_ = now;
    if (!parameters) return ok;
    sequence<pass<Engine>*> all;
    all.push(&inference_);
    for (auto& form : forms_) all.push(&form->forward), form->backward.list(all);
    for (pass<Engine>* p : all) {
      if (!p->bound()) continue;
      if (status s = base ? p->weight_changed(q) : p->parameters_changed(q); !s) return s;
    }
    return ok;
  }
  status bind(queue& q, pass<Engine>& p, const graph& g, const size_values* known = nullptr) {
    if (status s = bind_pass(p, q, *state_, g, Engine::runs_on(q), {}, shared_, known); !s) return s;
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
    for (int k = form.first_saved(); k < g.outs; ++k) {
      const node& v = g[g.out[k].at];
      const int rank = saved_rank(v);
      view one{at, Engine::storage_type, {}, rank};
      for (int i = 0; i < rank; ++i) one.size[i] = g.sizes.value(v.d[4 - rank + i], s);
      at += one.count() * bits_of(Engine::storage_type) / 8;
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
  pass<Engine> inference_;
  std::vector<std::unique_ptr<training_form>> forms_;
  std::size_t least_ = 0;
  long long saved_width_ = 0, counted_rows_ = -1;
  typename Engine::shared shared_{};
};

}  // namespace graft::pytorch
