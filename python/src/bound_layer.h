// SPDX-License-Identifier: Apache-2.0
// bound_layer: one adapted linear layer bound to the tensors of a PyTorch module, on any engine. A call brings the
// tensors again; while they lie where they lay, it only runs. Forward and backward are functions of their arguments:
// what backward reads of forward is memory that the caller keeps, so calls of several steps may be interleaved.
//
// Values that follow from tensors of the layer alone (DoRA's norm, rotations) are kept between calls. They are computed
// again when parameters of the adapter hold other numbers than in the last call, or when the version of another tensor has
// changed, which PyTorch counts with its writes; without versions, in every call. A formula that keeps no value of its
// parameters, as LoRA, reads them in place in every call, and they are not compared.
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

  // Elements of the saved values for each row of x.
  result<long long> saved_width(const std::vector<view>& tensors) {
    const std::lock_guard<std::mutex> lock(alone_);
    if (status s = take(tensors); !s) return s.failure();
    if (saved_width_ < 0)
      return fail("this formula saves values whose size does not follow from the rows of x");
    return saved_width_;
  }

  // Computes y for the rows of x. With memory in `saved`, of rows · saved_width elements of Engine::storage_type, it
  // also writes what backward() reads.
  status forward(queue q, const view& x, const std::vector<view>& tensors, const versions& seen, const mutable_view& y,
                 void* saved) {
    const std::lock_guard<std::mutex> lock(alone_);
    if (status s = take(tensors); !s) return s;
    if (status s = follow(q, seen); !s) return s;
    pass<Engine>& p = saved != nullptr ? training_ : inference_;
    if (!p.bound())
      if (status s = bind(q, p, saved != nullptr ? spec_->forward() : spec_->graphs.forward); !s) return s;
    call_tensors with;
    with[call_input::x] = x;
    if (status s = p.in->begin(p.with, with); !s) return s;
    if (status s = p.in->request_output(0, y); !s) return s;
    if (saved != nullptr) {
      const leaf_views all = saved_values(saved, x.size[0]);
      for (int k = 0; k < all.size(); ++k)
        if (status s = p.in->request_output(spec_->first_saved() + k, writable(all[k])); !s) return s;
    }
    return p.run(q);
  }

  // Computes dx and the listed gradients, from x, dy and what forward() saved.
  status backward(queue q, const view& x, const view& dy, const std::vector<view>& tensors, const versions& seen,
                  void* saved, const mutable_view& dx, const std::vector<gradient>& gradients) {
    const std::lock_guard<std::mutex> lock(alone_);
    if (status s = take(tensors); !s) return s;
    if (status s = follow(q, seen); !s) return s;
    const graph whole = spec_->graphs.backward, made = spec_->training.backward;
    output_set requested;
    const int dx_at = made.find_output("dx");
    if (dx.data != nullptr) requested.add(dx_at);
    for (const gradient& d : gradients) {
      const int k = made.find_output(d.name.c_str());
      if (k < 0)
        return fail("the formula has no gradient of '", d.name.c_str(), "'; it is no parameter of the adapter");
      requested.add(k);
    }
    const result<pass<Engine>*> found = backward_.find(made, requested, [&](pass<Engine>& p, const graph& g) -> status {
      const result<bound_leaves> b = state_->bind(whole);
      if (!b) return b.failure();
      const size_values known = sizes_for(g, whole, b->sizes);
      if (status s = bind(q, p, g, &known); !s) return s;
      if (training_.bound()) p.in->share_precomputed(p.with, *training_.in, training_.with);
      return ok;
    });
    if (!found) return found.failure();
    pass<Engine>& p = **found;
    call_tensors with;
    with[call_input::x] = x, with[call_input::dy] = dy;
    if (status s = p.in->begin(p.with, with, saved_values(saved, x.size[0])); !s) return s;
    if (status s = dx.data != nullptr ? p.in->request_output(p.g().find_output("dx"), dx) : status(ok); !s) return s;
    for (const gradient& d : gradients)
      if (status s = p.in->request_output(p.g().find_output(d.name.c_str()), d.into); !s) return s;
    return p.run(q);
  }

 private:
  // Binds anew where a tensor has moved or has another shape or type.
  status take(const std::vector<view>& tensors) {
    if (tensors.size() != spec_->names.size())
      return fail("the layer has ", static_cast<long long>(spec_->names.size()), " tensors, the call brings ",
                  static_cast<long long>(tensors.size()));
    bool same = state_ != nullptr;
    for (std::size_t k = 0; same && k < tensors.size(); ++k) same = same_tensor(tensors[k], tensors_[k]);
    if (same) return ok;
    tensors_.clear(), state_ = nullptr, seen_.clear(), keeps_parameter_values_ = false;
    inference_.unbind(), training_.unbind(), backward_.unbind();
    auto fresh = std::make_unique<layer_state>(spec_->graphs);
    for (const auto& [name, n] : spec_->sizes)
      if (status s = fresh->size(name.c_str(), n); !s) return s;
    for (const auto& [name, v] : spec_->scalars)
      if (status s = fresh->set(name.c_str(), v); !s) return s;
    for (std::size_t k = 0; k < tensors.size(); ++k)
      if (status s = fresh->set(spec_->names[k].c_str(), tensors[k]); !s) return s;
    const result<bound_leaves> b = fresh->bind(spec_->forward());
    if (!b) return b.failure();
    state_ = std::move(fresh), tensors_ = tensors, sizes_ = b->sizes;
    const long long one = saved_elements(1);
    saved_width_ = saved_elements(2) == 2 * one ? one : -1;
    return ok;
  }
  long long saved_elements(long long rows) const {
    const graph g = spec_->forward();
    size_values s = sizes_;
    g.sizes.set_tokens(s, rows);
    long long n = 0;
    for (int k = spec_->first_saved(); k < g.outs; ++k) n += count(g, g.out[k].at, s);
    return n;
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
    all.push(&inference_), all.push(&training_), backward_.list(all);
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
    const plan& p = in.launches();
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
  // The saved values lie one after the other in one matrix of the caller.
  leaf_views saved_values(void* memory, long long rows) const {
    const graph g = spec_->forward();
    leaf_views all;
    size_values s = sizes_;
    g.sizes.set_tokens(s, rows);
    auto* at = static_cast<unsigned char*>(memory);
    for (int k = spec_->first_saved(); k < g.outs; ++k) {
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
  size_values sizes_;  // of the training graph, without the rows of a call
  versions seen_;
  std::uint64_t fingerprint_ = 0;  // of the parameters
  bool keeps_parameter_values_ = false;
  long long saved_width_ = -1;  // elements of saved values per row; -1: they do not follow from the rows
  pass<Engine> inference_, training_;
  backward_passes<Engine> backward_;
  typename Engine::shared shared_{};
};

}  // namespace graft::pytorch
