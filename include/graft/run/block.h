// SPDX-License-Identifier: Apache-2.0
// The blocks of a model, each a formula with its tensors. Equal blocks share their programs, whatever the depth of the
// model: a formula with its adapters and sizes is captured, planned and given a workspace once.
//     block_programs<engine> programs;
//     bound_block<engine> b(programs, block_of<llama>(), how, "model.layers.0");
//     b.values.tensors["self_attn.q_proj.weight"] = …;      b.bind({.tokens = 512});      b.forward(call);
#pragma once
#include <graft/derive/block.h>
#include <graft/run/block_program.h>

#include <deque>
#include <memory>

namespace graft {

// A formula with its adapters as a value that owns what it points to.
struct block_spec {
  block_formula formula{};
  std::vector<adaption> adapters;  // their texts outlive the spec
  std::vector<const char*> facts;
  bool cached = false, dropped = false;
  op activation = op::detach;

  block_options options() const {
    block_options o;
    o.adapters = {adapters.data(), static_cast<int>(adapters.size())};
    o.facts = facts.data(), o.fact_count = static_cast<int>(facts.size());
    o.cached = cached, o.dropped = dropped, o.activation = activation;
    return o;
  }
  friend bool operator==(const block_spec& a, const block_spec& b) {
    auto same_rule = [](const adaption& p, const adaption& q) {
      return same_text(p.pattern, q.pattern) && same_text(p.name, q.name) && p.trains_bias == q.trains_bias &&
             p.adapter.weight == q.adapter.weight && p.adapter.bias == q.adapter.bias &&
             p.adapter.size == q.adapter.size;
    };
    return a.formula.run == b.formula.run && a.formula.takes_ids == b.formula.takes_ids &&
           a.formula.loss == b.formula.loss && a.cached == b.cached && a.dropped == b.dropped &&
           a.activation == b.activation &&
           std::equal(a.adapters.begin(), a.adapters.end(), b.adapters.begin(), b.adapters.end(), same_rule) &&
           std::equal(a.facts.begin(), a.facts.end(), b.facts.begin(), b.facts.end(), same_text);
  }
};
enum class direction : unsigned char { forward, backward };

// Programs by what they compute and on which sizes.
template <class Engine> class block_programs {
 public:
  using program = block_program<Engine>;
  typename Engine::queue queue{};

  // The program of a block with these sizes; they are those of its leaves, in the graph's order.
  program& of(const block_spec& what, direction way, const named_values& from) {
    for (entry& e : all_)
      if (e.way == way && e.what == what && e.sizes == from.sizes && shapes(e.made->value(), from) == e.shapes)
        return *e.made;
    const block_options how = what.options();
    builder made = way == direction::forward ? capture_forward(what.formula, how) : capture_backward(what.formula, how);
    entry e{what, way, from.sizes, {}, std::make_unique<program>(std::move(made), Engine::runs_on(queue))};
    e.shapes = shapes(e.made->value(), from);
    all_.push_back(std::move(e));
    return *all_.back().made;
  }
  int count() const { return static_cast<int>(all_.size()); }
  const program& operator[](int k) const { return *all_[static_cast<std::size_t>(k)].made; }

 private:
  struct entry {
    block_spec what;
    direction way;
    size_map sizes;
    std::vector<long long> shapes;
    std::unique_ptr<program> made;
  };
  static std::vector<long long> shapes(const graph& g, const named_values& from) {
    std::vector<long long> all;
    for (id i = 0; i < g.size; ++i)
      if (const auto t = from.tensors.find(g.name(i).c_str()); is_named(g[i].what) && t != from.tensors.end())
        all.insert(all.end(), t->second.size, t->second.size + t->second.rank);
    return all;
  }
  std::deque<entry> all_;
};

template <class Engine> class bound_block {
 public:
  bound_block(block_programs<Engine>& programs, block_spec what, std::string path)
      : programs_(&programs), what_(std::move(what)), path_(std::move(path)) {}

  named_values values;  // by name inside the block; to be complete when it is bound, and kept alive by their owner

  const std::string& path() const { return path_; }
  const block_spec& spec() const { return what_; }

  // Ready for calls with so many rows, forward and, where it is trained, backward.
  status bind(const capacity& room, bool trained = false) {
    if (status s = bind(ways_[0], direction::forward, room); !s) return s;
    return trained ? bind(ways_[1], direction::backward, room) : status(ok);
  }
  status bind_backward(const capacity& room) { return bind(ways_[1], direction::backward, room); }
  // The parameters: what has a gradient, by name inside the block.
  std::vector<std::string> parameters() const {
    std::vector<std::string> all;
    const builder g = capture_forward(what_.formula, what_.options());
    for (const node& v : g.n)
      if (v.what == op::param) all.emplace_back(graph(g).paths().full(v.path, v.name).c_str());
    return all;
  }
  status want(const char* parameter, const mutable_view& gradient) {
    if (ways_[1].in == nullptr) return of(fail("the block is not bound for training"));
    return of(ways_[1].in->want(ways_[1].with, parameter, gradient));
  }
  // Tensors behind parameters were written.
  status parameters_changed() {
    for (way& w : ways_)
      if (w.in != nullptr)
        if (status s = w.in->parameters_changed(programs_->queue, w.with); !s) return of(s);
    return ok;
  }
  status forward(const block_call& now) { return run(ways_[0], now); }
  // dx and the gradients that are wanted, from x and dy; of a loss also y.
  status backward(const block_call& now) { return run(ways_[1], now); }

  const block_program<Engine>* program(direction d) const { return ways_[static_cast<std::size_t>(d)].in; }

 private:
  struct way {
    block_program<Engine>* in = nullptr;
    typename block_program<Engine>::binding with;
  };
  status of(const status& s) const { return s || path_.empty() ? s : status(fail(path_.c_str(), ": ", s.message())); }
  status bind(way& w, direction d, const capacity& room) {
    block_program<Engine>& p = programs_->of(what_, d, values);
    const block_options how = what_.options();
    if (status s = p.bind(programs_->queue, values, how.adapters, room, w.with); !s) return of(s);
    w.in = &p;
    return ok;
  }
  status run(way& w, const block_call& now) {
    if (w.in == nullptr) return of(fail("the block is not bound"));
    return of(w.in->run(programs_->queue, w.with, now));
  }

  block_programs<Engine>* programs_;
  block_spec what_;
  std::string path_;
  std::array<way, 2> ways_{};
};

}  // namespace graft
