// SPDX-License-Identifier: Apache-2.0
// The passes of a layer: bind_pass() binds one to the layer's tensors, once after a change. backward_passes holds the
// backward passes of one graph, one per set of requested outputs.
#pragma once
#include <graft/run/program.h>

#include <cstdint>
#include <memory>

namespace graft {

// Binds a pass for a graph of a layer. `known_sizes` are sizes already solved on a larger graph of the layer, from
// tensors that this graph may not have. `planned` is the plan of the graph for this target where the caller has made it
// already, which is moved from.
template <class Engine>
[[gnu::cold]] status bind_pass(pass<Engine>& p, typename Engine::queue& q, const layer_state& state, const graph& made,
                               const target& to, const capacity& limits, typename Engine::shared& shared,
                               const size_values* known_sizes = nullptr, launch_plan* planned = nullptr) {
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
  pass<Engine> fresh{std::make_shared<program<Engine>>(made, planned != nullptr ? std::move(*planned) : fuse(made, to)),
                     {}};
  if (status s = fresh.in->bind(q, *b, limits, shared, fresh.with); !s) return s;
  return p = std::move(fresh), status(ok);
}

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
