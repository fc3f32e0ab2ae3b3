// SPDX-License-Identifier: Apache-2.0
// A graph of a layer bound to the layer's tensors, and where the tensors of a call belong in it. Binding happens once
// after a change; a call fills in its tensors and runs.
#pragma once
#include <graft/backend/call.h>
#include <graft/backend/mode.h>
#include <graft/derive/keep.h>
#include <graft/plan/target.h>
#include <graft/run/check_ids.h>
#include <graft/run/layer_state.h>

namespace graft {

template <class Engine> class pass {
 public:
  using queue = typename Engine::queue;

  bool bound() const { return plan_ != nullptr; }
  void unbind() { plan_ = nullptr; }
  typename Engine::bound& runs() { return *plan_; }
  const typename Engine::bound& runs() const { return *plan_; }
  const graph& g() const { return plan_->value(); }

  // `known`: sizes of a larger graph, of which this one may not have the tensors that they follow from.
  [[gnu::cold]] status bind(queue& q, const layer_state& state, const graph& made, const target& to,
                            const capacity& room, typename Engine::shared& shared, const size_values* known = nullptr) {
    if (made.size == 0) return fail("this method does not exist for this kind of layer");
    for (id i = 0; i < made.size; ++i)
      if (const text name = made.name(i); layer_state::comes_with_calls(made[i]))
        if (!same_text(name.c_str(), "x") && !same_text(name.c_str(), "dy") && !same_text(made[i].name, "kept"))
          return fail("the kind of layer has an input '", name, "', a call brings only x; give it as a frozen tensor");
    result<bound_leaves> b = state.bind(made);
    if (!b) return b.failure();
    for (int i = 0; known != nullptr && i < made.sizes.count; ++i)
      if (const int index = made.sizes.e[i].index; index >= 0 && b->sizes.v[index] == unknown)
        b->sizes.v[index] = known->v[index];
    if (size_values largest = b->sizes; room.tokens > 0) {
      made.sizes.set_tokens(largest, room.tokens);
      if (!layer_state::fits_memory(made, largest))
        return fail("room for ", room.tokens, " tokens is more than any memory holds");
    }
    if constexpr (Engine::reads_host_memory)
      if (status s = check_index(made, b->sizes, b->leaf); !s) return s;
    auto fresh = std::make_unique<typename Engine::bound>(made, to);
    if (status s = fresh->bind(q, b->sizes, b->leaf, room, shared); !s) return s;
    plan_ = std::move(fresh);
    x_ = made.find("x"), dy_ = made.find("dy");
    kept_.clear();
    for (id at; (at = made.find(kept_name(kept_.size()).c_str())) >= 0;) kept_.push(at);
    formed_ = false;
    room_ = room;
    return ok;
  }

  // x, and dy where the graph is a backward pass, with what forward kept for it: as many values as the graph reads. A call
  // like the one before only brings other addresses.
  status begin(const view& x, const view& dy = {}, const leaf_views& kept = {}) {
    if (formed_ && same_form(x, like_x_) && same_form(dy, like_dy_)) {
      call& c = plan_->this_call();
      for (mutable_view& v : c.outputs) v = {};
      for (int k = 0; k < kept_.size(); ++k) c.data[kept_[k]] = kept[k];
      if (x_ >= 0) c.data[x_] = x;
      if (dy_ >= 0) c.data[dy_] = dy;
      return check_places(c);
    }
    formed_ = false;
    call& c = plan_->next_call();
    for (const auto& [at, v] : {std::pair{x_, &x}, std::pair{dy_, &dy}}) {
      if (at < 0) continue;
      if (status s = layer_state::bind_leaf(g(), at, *v, c.sizes); !s) return s;
      c.data[at] = *v;
    }
    for (int k = 0; k < kept_.size(); ++k) {
      if (status s = layer_state::bind_leaf(g(), kept_[k], kept[k], c.sizes); !s) return s;
      c.data[kept_[k]] = kept[k];
    }
    if (status s = layer_state::check_sizes(g(), c.sizes); !s) return s;
    if (const long long n = g().sizes.tokens(c.sizes); room_.tokens > 0 && n > room_.tokens)
      return fail("x has ", n, " rows, the layer was bound for ", room_.tokens, "; bind() it with a larger capacity");
    if (x.count() > many_elements && !layer_state::fits_memory(g(), c.sizes))
      return fail("x has ", g().sizes.tokens(c.sizes),
                  " rows, with which a value of this layer is more than any memory holds");
    like_x_ = x, like_dy_ = dy, formed_ = true;
    return check_places(c);
  }
  // Of an output of this call.
  long long elements(int output) const { return count(g(), g().out[output].at, plan_->this_call().sizes); }
  status want(int output, const mutable_view& to) {
    if (to.data == nullptr) return ok;
    if (!is_sound(to)) return wrong_view("output ", g().output_name(output), to);
    if (!computes_in(to.type))
      return fail("output '", g().output_name(output), "' is ", name_of(to.type), ", expected f32, f64, bf16 or f16");
    if (const long long n = elements(output); to.count() != n)
      return fail("output '", g().output_name(output), "' has ", to.count(), " elements, expected ", n);
    call& c = plan_->this_call();
    if (c.outputs[output].data != nullptr)
      return fail("the gradient of '", g().output_name(output), "' was asked for twice");
    if (status s = check_apart(c, output, to); !s) return s;
    c.outputs[output] = to;
    return ok;
  }
  error without_memory(int output) const {
    return fail("output '", g().output_name(output), "' has no data; give it memory for ", elements(output),
                " elements");
  }
  status run(queue& q) { return plan_->run(q); }

 private:
  // A call with fewer makes no value that is too large.
  static constexpr long long many_elements = 1LL << 24;

  [[gnu::noinline]] static bool same_form(const view& a, const view& b) {
    if (a.data == nullptr || b.data == nullptr || a.type != b.type || a.rank != b.rank)
      return a.rank == 0 && b.rank == 0;
    for (int k = 0; k < a.rank; ++k)
      if (a.size[k] != b.size[k] || a.stride(k) != b.stride(k)) return false;
    return true;
  }
  // An output is written while the inputs are still read.
  status check_apart(const call& c, int output, const mutable_view& to) const {
    const footprint written = footprint_of(to);
    for (const id i : {x_, dy_})
      if (i >= 0 && overlap(written, footprint_of(c.data[i])))
        return fail("output '", g().output_name(output), "' overlaps tensor '", g().name(i),
                    "'; give it memory of its own");
    for (int k = 0; k < g().outs; ++k)
      if (const mutable_view& other = c.outputs[k]; other.data != nullptr)
        if (overlap(written, footprint_of(other)))
          return fail("output '", g().output_name(output), "' overlaps output '", g().output_name(k),
                      "'; give it memory of its own");
    return ok;
  }
  status check_places(const call& c) const {
    if constexpr (Engine::reads_host_memory) return check_ids(g(), c);
    return ok;  // what lies in device memory is the caller's promise, as in every kernel library
  }

  std::unique_ptr<typename Engine::bound> plan_;
  id x_ = none_id, dy_ = none_id;
  sequence<id> kept_;
  view like_x_{}, like_dy_{};  // of the last call, where it was good
  bool formed_ = false;
  capacity room_{};
};

}  // namespace graft
