// SPDX-License-Identifier: Apache-2.0
// The blocks of a model, each a formula with its tensors. Equal blocks share their programs, whatever the depth of the
// model: a formula with its adapters and sizes is captured, planned and given a workspace once.
//     block_programs<engine> programs;
//     bound_block<engine> b(programs, block_of<llama>(), how, "model.layers.0");
//     b.values.tensors["self_attn.q_proj.weight"] = …;      b.bind(way::forward, {.tokens = 512});      b.run(way::forward, call);
#pragma once
#include <graft/derive/block.h>
#include <graft/derive/keep.h>
#include <graft/run/block_program.h>
#include <graft/run/rank_share.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>

namespace graft {

// A formula with its adapters as a value that owns what it points to.
struct block_spec {
  block_formula formula{};
  std::vector<adaption> adapters;  // their texts outlive the spec
  std::vector<const char*> facts;
  bool dropped = false;  // in training
  op activation = op::detach;

  friend bool operator==(const block_spec& a, const block_spec& b) {
    auto same_rule = [](const adaption& p, const adaption& q) {
      return same_text(p.pattern, q.pattern) && same_text(p.name, q.name) && p.trains_bias == q.trains_bias &&
             p.drops == q.drops && p.adapter.weight == q.adapter.weight && p.adapter.weight_on == q.adapter.weight_on &&
             p.adapter.bias == q.adapter.bias && p.adapter.size == q.adapter.size;
    };
    return a.formula.run == b.formula.run && a.formula.takes_ids == b.formula.takes_ids &&
           a.formula.loss == b.formula.loss && a.dropped == b.dropped && a.activation == b.activation &&
           std::equal(a.adapters.begin(), a.adapters.end(), b.adapters.begin(), b.adapters.end(), same_rule) &&
           std::equal(a.facts.begin(), a.facts.end(), b.facts.begin(), b.facts.end(), same_text);
  }
};

// What a block is run for: rows that are all there; rows that go on where a cache ends; in training rows whose values are
// kept for the backward pass, and that pass; or rows of which nothing is kept, and the pass that computes everything again
// (checkpointing).
enum class way : unsigned char { forward, cached, keeping, backward, passing, recomputing };
inline constexpr std::size_t way_count = 6;

inline block_options options_of(const block_spec& what, way w) {
  block_options o;
  o.adapters = {what.adapters.data(), static_cast<int>(what.adapters.size())};
  o.facts = what.facts.data(), o.fact_count = static_cast<int>(what.facts.size());
  o.activation = what.activation, o.cached = w == way::cached;
  o.dropped = what.dropped && w != way::forward && w != way::cached;
  return o;
}

// Programs by what they compute and on which sizes: not on how many rows, nor how many places a cache has. Blocks keep
// those that they are bound to; of others the last few stay, for the next block that is equal.
template <class Engine> class block_programs {
 public:
  using program = block_program<Engine>;
  typename Engine::queue queue{};
  rank_share share{};  // set before the first program is made

  std::shared_ptr<program> of(const block_spec& what, way w, const named_values& from) {
    for (entry& e : all_)
      if (e.does == w && e.what == what && e.sizes == from.sizes && shapes(e.made->value(), from) == e.shapes) {
        e.used = ++uses_;
        return e.made;
      }
    forget_unused();
    entry e{what, w, from.sizes, {}, make(what, w, from), ++uses_};
    e.shapes = shapes(e.made->value(), from);
    all_.push_back(std::move(e));
    return all_.back().made;
  }
  int count() const { return static_cast<int>(all_.size()); }
  long long moves() const {
    long long n = forgotten_;
    for (const entry& e : all_) n += e.made->moves();
    return n;
  }
  const program& operator[](int k) const { return *all_[static_cast<std::size_t>(k)].made; }

 private:
  struct entry {
    block_spec what;
    way does;
    size_map sizes;
    std::vector<long long> shapes;
    std::shared_ptr<program> made;
    long long used = 0;
  };
  void forget_unused() {
    const auto free = [](const entry& e) { return e.made.use_count() == 1; };
    while (std::count_if(all_.begin(), all_.end(), free) > most_unused) {
      auto oldest = all_.end();
      for (auto e = all_.begin(); e != all_.end(); ++e)
        if (free(*e) && (oldest == all_.end() || e->used < oldest->used)) oldest = e;
      forgotten_ += oldest->made->moves() + 1;
      all_.erase(oldest);
    }
  }
  std::shared_ptr<program> make(const block_spec& what, way w, const named_values& from) const {
    const block_options how = options_of(what, w);
    auto mine = [&](builder whole) { return share.graph_of(std::move(whole), from, how.adapters); };
    const target& to = Engine::runs_on(queue);
    if (w == way::recomputing) return std::make_shared<program>(mine(capture_backward(what.formula, how)), to);
    if (w != way::keeping && w != way::backward)
      return std::make_shared<program>(mine(capture_forward(what.formula, how)), to);
    const builder forward = mine(capture_forward(what.formula, how));
    kept_pair pair = keep(forward, mine(capture_backward(what.formula, how)));
    if (w == way::backward)
      return std::make_shared<program>(std::move(pair.backward), to,
                                       typename program::kept_places{-1, pair.leaf, pair.attended});
    return std::make_shared<program>(std::move(pair.forward), to,
                                     typename program::kept_places{forward.out.size(), {}, pair.attended});
  }
  static std::vector<long long> shapes(const graph& g, const named_values& from) {
    std::vector<long long> all;
    for (id i = 0; i < g.size; ++i)
      if (const auto t = from.tensors.find(g.name(i).c_str());
          is_named(g[i].what) && row(g[i].what).known != stage::data && t != from.tensors.end())
        all.insert(all.end(), t->second.size, t->second.size + t->second.rank);
    return all;
  }
  static constexpr std::ptrdiff_t most_unused = 16;
  std::deque<entry> all_;
  long long uses_ = 0, forgotten_ = 0;
};

template <class Engine> class bound_block {
 public:
  bound_block(block_programs<Engine>& programs, block_spec what, std::string path)
      : programs_(&programs), what_(std::move(what)), path_(std::move(path)) {}

  named_values values;  // by name inside the block; complete when it is bound, and kept alive by their owner
  // Of a rank that shares the block: base tensors lie anywhere in host memory, and its part of one along an axis, or all of
  // it, is brought to where the engine reads it. Empty: the engine reads them where they are.
  std::function<result<view>(const std::string& name, const view& whole, int axis)> brings{};

  const std::string& path() const { return path_; }
  const block_spec& spec() const { return what_; }
  const block_program<Engine>* program(way w) const { return at(w).in.get(); }

  // Ready for calls with so many rows. For way::backward bind way::keeping first: the memory is the same.
  status bind(way w, const capacity& room) {
    if (w == way::keeping && room.tokens == 0) return of(fail("values are kept for a number of rows: state one"));
    const std::shared_ptr<block_program<Engine>> in = programs_->of(what_, w, values);
    block_program<Engine>& p = *in;
    const block_options how = options_of(what_, w);
    bound& b = at(w);
    const rank_share& share = programs_->share;
    if (share.shares()) {
      result<named_values> part = part_of(p.value());
      if (!part) return of(part.failure());
      b.part = std::move(*part);
    }
    const named_values& mine = share.shares() ? b.part : values;
    if (status s = p.bind(programs_->queue, mine, how.adapters, room, b.with); !s) return of(s);
    b.in = in;
    bound &ahead = at(way::keeping), &back = at(way::backward);
    if (ahead.in != nullptr) back.with.tokens = ahead.with.tokens;
    if (ahead.in != nullptr && back.in != nullptr) back.in->take_known(back.with, *ahead.in, ahead.with);
    if (w != way::keeping) return ok;
    memory_.clear(), kept_.clear(), held_ = 0;
    for (const long long n : p.kept_elements(mine, how.adapters, room.tokens)) {
      result<typename Engine::block> m = Engine::allocate(programs_->queue, n * bits_of(Engine::keeps) / 8);
      if (!m) return of(m.failure());
      held_ += n * bits_of(Engine::keeps) / 8;
      memory_.push_back(std::move(*m));
    }
    for (typename Engine::block& m : memory_) kept_.push_back(m.data());
    return ok;
  }
  // Bytes that calls with so many rows keep from way::keeping to way::backward, known before it is bound; and what it has
  // memory for now.
  result<long long> kept_bytes(long long tokens) {
    const std::shared_ptr<block_program<Engine>> in = programs_->of(what_, way::keeping, values);
    named_values part;
    if (programs_->share.shares()) {
      result<named_values> made = part_of(in->value());
      if (!made) return of(made.failure()).failure();
      part = std::move(*made);
    }
    const named_values& mine = programs_->share.shares() ? part : values;
    long long elements = 0;
    for (const long long n : in->kept_elements(mine, options_of(what_, way::keeping).adapters, tokens)) elements += n;
    return elements * bits_of(Engine::keeps) / 8;
  }
  long long held_bytes() const { return held_; }
  status run(way w, const block_call& now) {
    bound& b = at(w);
    if (b.in == nullptr) return of(fail("the block is not bound for this"));
    if (b.in->kept_count() > static_cast<int>(kept_.size()))
      return of(fail("the block is not bound for way::keeping, whose values the backward pass reads"));
    return of(b.in->run(programs_->queue, b.with, now, kept_.data()));
  }
  // Where the gradient of a parameter goes, from the next backward call on.
  status want(const char* parameter, const mutable_view& gradient) {
    bool found = false;
    for (const way w : {way::backward, way::recomputing}) {
      bound& b = at(w);
      if (b.in == nullptr) continue;
      if (status s = b.in->want(b.with, parameter, gradient); !s) return of(s);
      found = true;
    }
    return found ? status(ok) : of(fail("the block is not bound for training"));
  }
  // Tensors behind parameters, or numbers, were written.
  status parameters_changed() {
    for (bound& b : ways_)
      for (auto& [name, number] : b.part.scalars)
        if (const auto now = values.scalars.find(name); now != values.scalars.end()) number = now->second;
    for (bound& b : ways_)
      if (b.in != nullptr)
        if (status s = b.in->parameters_changed(programs_->queue, b.with); !s) return of(s);
    return ok;
  }
  // `next` reads what this one gives, bound for its own way.
  void followed_by(way w, const bound_block& next, way its) {
    if (at(w).in != nullptr && next.at(its).in != nullptr)
      block_program<Engine>::followed_by(at(w).with, *next.at(its).in, next.at(its).with);
  }
  // The tensors of one way, in its program; for engines that mix rows of several.
  typename Engine::bound::binding& binding(way w) { return at(w).with.values; }
  // What has a gradient, by name inside the block.
  std::vector<std::string> parameters() const {
    std::vector<std::string> all;
    const builder g = capture_forward(what_.formula, options_of(what_, way::forward));
    for (id i = 0; i < g.n.size(); ++i)
      if (g.n[i].what == op::param) all.emplace_back(graph(g).name(i).c_str());
    return all;
  }

 private:
  struct bound {
    std::shared_ptr<block_program<Engine>> in;
    typename block_program<Engine>::binding with;
    named_values part;  // of one rank of several; its numbers are read where they lie
  };
  // What a rank has of the tensors of a graph.
  result<named_values> part_of(const graph& g) {
    const rank_share& share = programs_->share;
    const auto here = [&](const std::string& name, const view& whole, int axis) -> result<view> {
      return brings ? brings(name, whole, axis) : share.part_of(whole, axis, coded_parts_[name]);
    };
    return share.values_of(g, values, here);
  }
  bound& at(way w) { return ways_[static_cast<std::size_t>(w)]; }
  const bound& at(way w) const { return ways_[static_cast<std::size_t>(w)]; }
  status of(const status& s) const { return s || path_.empty() ? s : status(fail(path_.c_str(), ": ", s.message())); }

  block_programs<Engine>* programs_;
  block_spec what_;
  std::string path_;
  std::array<bound, way_count> ways_{};
  std::map<std::string, code_part> coded_parts_;
  std::vector<typename Engine::block> memory_;  // kept from forward to backward
  std::vector<void*> kept_;
  long long held_ = 0;
};

}  // namespace graft
