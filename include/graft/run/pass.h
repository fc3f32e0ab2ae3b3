// SPDX-License-Identifier: Apache-2.0
// pass: a graph of a layer as a program, bound to the layer's tensors, with its call; the caller fills in the call's
// tensors and runs it. It is bound once after a change. backward_passes holds the backward passes of one graph, one per set of requested outputs.
#pragma once
#include <graft/backend/call.h>
#include <graft/backend/mode.h>
#include <graft/derive/saved_tensors.h>
#include <graft/plan/fuse.h>
#include <graft/run/check_ids.h>
#include <graft/run/layer_state.h>

#include <cstdint>
#include <memory>

namespace graft {

template <class Engine> class pass {
 public:
  using queue = typename Engine::queue;

  bool bound() const { return runs_ != nullptr; }
  void unbind() { runs_ = nullptr; }
  const typename Engine::program& program() const { return runs_->program; }
  typename Engine::binding& binding() { return runs_->binding; }
  const typename Engine::binding& binding() const { return runs_->binding; }
  const call& this_call() const { return runs_->now; }
  const graph& g() const { return runs_->program.value(); }

  // `known_sizes` are sizes of a larger graph, from tensors that this graph may not have. `planned` is the plan of the
  // graph for this target where the caller has made it already, which is moved from.
  [[gnu::cold]] status bind(queue& q, const layer_state& state, const graph& made, const target& to,
                            const capacity& limits, typename Engine::shared& shared,
                            const size_values* known_sizes = nullptr, plan* planned = nullptr) {
    if (made.size == 0) return fail("this method does not exist for this kind of layer");
    for (id i = 0; i < made.size; ++i)
      if (const text name = made.name(i); layer_state::is_call_input(made[i]))
        if (!same_text(name.c_str(), "x") && !same_text(name.c_str(), "dy") && !same_text(made[i].name, "saved"))
          return fail("the kind of layer has an input '", name, "', a call brings only x; give it as a frozen tensor");
    result<bound_leaves> b = state.bind(made);
    if (!b) return b.failure();
    for (int i = 0; known_sizes != nullptr && i < made.sizes.count; ++i)
      if (const int index = made.sizes.e[i].index; index >= 0 && b->sizes.v[index] == unknown)
        b->sizes.v[index] = known_sizes->v[index];
    if (size_values largest = b->sizes; limits.tokens > 0) {
      made.sizes.set_tokens(largest, limits.tokens);
      if (!layer_state::fits_memory(made, largest))
        return fail("a capacity of ", limits.tokens, " tokens is more than any memory holds");
    }
    if constexpr (Engine::reads_host_memory)
      if (status s = check_index(made, b->sizes, b->leaf); !s) return s;
    auto fresh = std::make_unique<bound_program>(made, planned != nullptr ? std::move(*planned) : fuse(made, to));
    if (status s = Engine::bind(q, fresh->program, fresh->binding, b->sizes, b->leaf, limits, shared); !s) return s;
    fresh->sizes = b->sizes;
    runs_ = std::move(fresh);
    x_ = made.find("x"), dy_ = made.find("dy");
    saved_.clear();
    for (id at; (at = made.find(saved_name(saved_.size()).c_str())) >= 0;) saved_.push(at);
    has_layout_ = false;
    limits_ = limits;
    return ok;
  }

  // Begins a call with x, and for a backward pass with dy and the values that forward saved, as many as the graph
  // reads. A call whose shapes are those of the last one only sets addresses.
  status begin(const view& x, const view& dy = {}, const leaf_views& saved = {}) {
    if (has_layout_ && same_layout(x, last_x_) && same_layout(dy, last_dy_)) {
      call& c = runs_->now;
      for (mutable_view& v : c.outputs) v = {};
      for (int k = 0; k < saved_.size(); ++k) c.data[saved_[k]] = saved[k];
      if (x_ >= 0) c.data[x_] = x;
      if (dy_ >= 0) c.data[dy_] = dy;
      return check_indices(c);
    }
    has_layout_ = false;
    call& c = runs_->now;
    c.begin(runs_->sizes);
    for (const auto& [at, v] : {std::pair{x_, &x}, std::pair{dy_, &dy}}) {
      if (at < 0) continue;
      if (status s = layer_state::bind_leaf(g(), at, *v, c.sizes); !s) return s;
      c.data[at] = *v;
    }
    for (int k = 0; k < saved_.size(); ++k) {
      if (status s = layer_state::bind_leaf(g(), saved_[k], saved[k], c.sizes); !s) return s;
      c.data[saved_[k]] = saved[k];
    }
    if (status s = layer_state::check_sizes(g(), c.sizes); !s) return s;
    if (const long long n = g().sizes.tokens(c.sizes); limits_.tokens > 0 && n > limits_.tokens)
      return fail("x has ", n, " rows, the layer was bound for ", limits_.tokens, "; bind() it with a larger capacity");
    if (x.count() > large_input && !layer_state::fits_memory(g(), c.sizes))
      return fail("x has ", g().sizes.tokens(c.sizes),
                  " rows, with which a value of this layer is more than any memory holds");
    last_x_ = x, last_dy_ = dy, has_layout_ = true;
    return check_indices(c);
  }
  // Counts the elements of an output of this call.
  long long elements(int output) const { return count(g(), g().out[output].at, runs_->now.sizes); }
  status request_output(int output, const mutable_view& to) {
    if (to.data == nullptr) return ok;
    if (!is_valid(to)) return invalid_view("output ", g().output_name(output), to);
    if (!is_floating(to.type))
      return fail("output '", g().output_name(output), "' is ", name_of(to.type), ", expected f32, f64, bf16 or f16");
    if (const long long n = elements(output); to.count() != n)
      return fail("output '", g().output_name(output), "' has ", to.count(), " elements, expected ", n);
    call& c = runs_->now;
    if (const output_axes expected = axes_of(output, c.sizes); !expected.may_be_listed_as(to))
      return fail("output '", g().output_name(output), "' has shape ", shape_of(to), ", expected ", expected.words());
    if (c.outputs[output].data != nullptr)
      return fail("the gradient of '", g().output_name(output), "' was asked for twice");
    if (status s = check_no_overlap(c, output, to); !s) return s;
    c.outputs[output] = to;
    return ok;
  }
  error no_memory_error(int output) const {
    return fail("output '", g().output_name(output), "' has no data; give it memory for ", elements(output),
                " elements");
  }
  // Computes a requested output into other memory instead.
  void redirect_output(int output, const mutable_view& to) { runs_->now.outputs[output] = to; }
  // Reads values that follow from parameters from `from`, a pass of the same layer that runs before.
  void share_precomputed(const pass& from) {
    Engine::share_precomputed(runs_->program, runs_->binding, from.program(), from.binding());
  }
  status parameters_changed(queue& q) { return Engine::parameters_changed(q, runs_->program, runs_->binding); }
  status weight_changed(queue& q) { return Engine::weight_changed(q, runs_->program, runs_->binding); }
  status run(queue& q) { return Engine::run(q, runs_->program, runs_->binding, runs_->now); }

 private:
  // The axes of an output that have more than one element.
  struct output_axes {
    long long size[4];
    int count = 0;
    // Whether a view with the right number of elements lists them in this order. Leading axes may be merged or divided:
    // [tokens, out] may be [batch, length, out] or flat, but not [out, tokens].
    bool may_be_listed_as(const mutable_view& v) const {
      output_axes given;
      for (int k = 0; k < v.rank; ++k)
        if (v.size[k] != 1) given.size[given.count++] = v.size[k];
      int mine = count;
      while (mine > 1 && given.count > 1 && size[mine - 1] == given.size[given.count - 1]) --mine, --given.count;
      return mine <= 1 || given.count <= 1;
    }
    text words() const {
      text t;
      t << '[';
      for (int k = 0; k < count; ++k) t << (k > 0 ? ", " : "") << size[k];
      t << ']';
      return t;
    }
  };
  output_axes axes_of(int output, const size_values& s) const {
    output_axes a;
    for (const dim d : g()[g().out[output].at].d)
      if (const long long n = g().sizes.value(d, s); n != 1) a.size[a.count++] = n;
    return a;
  }

  // With fewer elements of x no value of a layer is too large for any memory.
  static constexpr long long large_input = 1LL << 24;

  [[gnu::noinline]] static bool same_layout(const view& a, const view& b) {
    if (a.data == nullptr || b.data == nullptr || a.type != b.type || a.rank != b.rank)
      return a.rank == 0 && b.rank == 0;
    for (int k = 0; k < a.rank; ++k)
      if (a.size[k] != b.size[k] || a.stride(k) != b.stride(k)) return false;
    return true;
  }
  // Outputs may not overlap inputs or each other, because they are written while inputs are still read.
  status check_no_overlap(const call& c, int output, const mutable_view& to) const {
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
  status check_indices(const call& c) const {
    if constexpr (Engine::reads_host_memory) return check_ids(g(), c);
    return ok;  // indices in device memory are not checked, as in other kernel libraries
  }

  struct bound_program {
    bound_program(const graph& g, plan p) : program(g, std::move(p)), now(g) {}
    [[gnu::cold, gnu::noinline]] ~bound_program() = default;  // compiled once, not at every point of destruction
    typename Engine::program program;
    typename Engine::binding binding{};
    call now;
    size_values sizes{};  // without those that calls bring
  };

  std::unique_ptr<bound_program> runs_;
  id x_ = none_id, dy_ = none_id;
  sequence<id> saved_;
  view last_x_{}, last_dy_{};  // of the last call, if it was valid
  bool has_layout_ = false;
  capacity limits_{};
};

// A set of outputs by number. Outputs from number 64 on, which layers do not have, count as requested.
class output_set {
 public:
  void add(int k) { bits_ |= k < 64 ? std::uint64_t{1} << k : 0; }
  bool operator[](int k) const { return k >= 64 || (bits_ >> k & 1) != 0; }
  bool operator==(const output_set& o) const { return bits_ == o.bits_; }

 private:
  std::uint64_t bits_ = 0;
};

// The backward passes of one graph: one per set of requested outputs, made at the first request, so that gradients that
// nobody requests are not computed.
template <class Engine> class backward_passes {
 public:
  // Finds or makes the pass for these outputs of a graph; `bind` binds one that is not bound.
  template <class Bind> result<pass<Engine>*> find(const graph& from, const output_set& requested, Bind bind) {
    for (auto& e : all_)
      if (e->requested == requested) return bound(*e, bind);
    sequence<bool> requested_mask;
    for (int k = 0; k < from.outs; ++k) requested_mask.push(requested[k]);
    all_.extend() = std::make_unique<entry>(entry{requested, requested_outputs(from, requested_mask), {}});
    return bound(*all_.back(), bind);
  }
  void unbind() { all_ = {}, last_ = nullptr; }
  // The pass that find() returned last.
  const pass<Engine>* last() const { return last_; }
  void list(sequence<pass<Engine>*>& to) {
    for (auto& e : all_) to.push(&e->runs);
  }

 private:
  struct entry {
    output_set requested;
    builder made;
    pass<Engine> runs;
  };
  template <class Bind> result<pass<Engine>*> bound(entry& e, Bind bind) {
    if (!e.runs.bound())
      if (status s = bind(e.runs, graph(e.made)); !s) return s.failure();
    return last_ = &e.runs;
  }

  sequence<std::unique_ptr<entry>> all_;
  pass<Engine>* last_ = nullptr;
};

}  // namespace graft
