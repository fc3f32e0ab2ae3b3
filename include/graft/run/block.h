// SPDX-License-Identifier: Apache-2.0
// Blocks of a model: each is a formula with its tensors. Equal blocks share their programs, whatever the depth of the
// model: a formula with its adapters and sizes is captured, planned and given a workspace once.
//     block_programs<engine> programs;
//     bound_block<engine> b(programs, {block_of<llama>()}, "model.layers.0");
//     b.values.tensors["self_attn.q_proj.weight"] = …;
//     b.bind(pass_kind::forward, {.tokens = 512});      b.run(pass_kind::forward, call);
#pragma once
#include <graft/backend/lru_cache.h>
#include <graft/derive/block.h>
#include <graft/derive/saved_tensors.h>
#include <graft/run/bind_by_name.h>
#include <graft/run/program.h>
#include <graft/run/sharding.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>

namespace graft {

// The formula of a block with its adapters and options, as a value that can be compared.
struct block_spec {
  block_formula formula{};
  std::vector<adapter_rule> adapters;  // the strings that they point to outlive the spec
  std::vector<const char*> facts;
  bool dropped = false;  // passes of training have dropout
  op activation = op::detach;
  double attention_soft_cap = 0;

  friend bool operator==(const block_spec& a, const block_spec& b) {
    auto same_rule = [](const adapter_rule& p, const adapter_rule& q) {
      return same_text(p.pattern, q.pattern) && same_text(p.name, q.name) && p.trains_bias == q.trains_bias &&
             p.drops == q.drops && p.adapter.weight == q.adapter.weight &&
             p.adapter.weight_with_base == q.adapter.weight_with_base && p.adapter.bias == q.adapter.bias &&
             p.adapter.size == q.adapter.size;
    };
    return a.formula.run == b.formula.run && a.formula.takes_ids == b.formula.takes_ids &&
           a.formula.loss == b.formula.loss && a.dropped == b.dropped && a.activation == b.activation &&
           a.attention_soft_cap == b.attention_soft_cap &&
           std::equal(a.adapters.begin(), a.adapters.end(), b.adapters.begin(), b.adapters.end(), same_rule) &&
           std::equal(a.facts.begin(), a.facts.end(), b.facts.begin(), b.facts.end(), same_text);
  }
};

// What a block is run for. forward has no KV cache, decode reads and extends one. In training forward_saved saves
// values for backward; with activation checkpointing forward_checkpointed saves none, and backward_recompute begins
// with the forward pass.
enum class pass_kind : unsigned char {
  forward,
  decode,
  forward_saved,
  backward,
  forward_checkpointed,
  backward_recompute
};
inline constexpr std::size_t pass_kind_count = 6;

inline block_options block_options_of(const block_spec& what, pass_kind w) {
  block_options o;
  o.adapters = {what.adapters.data(), static_cast<int>(what.adapters.size())};
  o.facts = what.facts.data(), o.fact_count = static_cast<int>(what.facts.size());
  o.activation = what.activation, o.attention_soft_cap = what.attention_soft_cap, o.cached = w == pass_kind::decode;
  o.dropped = what.dropped && w != pass_kind::forward && w != pass_kind::decode;
  return o;
}

// Finds programs by what they compute and on which sizes; the number of rows and of KV cache slots does not matter. A
// block owns the programs that it is bound to. Of other programs the last max_unused stay, for the next equal block.
template <class Engine> class block_programs {
 public:
  using program = graft::program<Engine>;
  typename Engine::queue queue{};
  shard_spec sharding{};  // set before the first program is made
  typename Engine::shared shared{};

  std::shared_ptr<program> of(const block_spec& what, pass_kind w, const named_values& from) {
    const auto same = [&](const entry& e) {
      return e.kind == w && e.what == what && e.sizes == from.sizes && shapes(e.made->value(), from) == e.shapes;
    };
    if (const entry* const e = all_.find(same)) return e->made;
    evict_unused();
    entry e{what, w, from.sizes, {}, make(what, w, from), ++made_};
    e.shapes = shapes(e.made->value(), from);
    return all_.add(std::move(e)).made;
  }
  int count() const { return static_cast<int>(all_.size()); }
  long long address_version() const {
    long long n = evicted_versions_;
    for (const entry& e : all_) n += e.made->address_version();
    return n;
  }
  // Programs are numbered in the order in which they were made.
  const program& operator[](int k) const {
    std::vector<const entry*> by_age;
    for (const entry& e : all_) by_age.push_back(&e);
    std::sort(by_age.begin(), by_age.end(), [](const entry* a, const entry* b) { return a->number < b->number; });
    return *by_age[static_cast<std::size_t>(k)]->made;
  }

 private:
  struct entry {
    block_spec what;
    pass_kind kind;
    size_map sizes;
    std::vector<long long> shapes;
    std::shared_ptr<program> made;
    long long number = 0;
  };
  void evict_unused() {
    const auto free = [](const entry& e) { return e.made.use_count() == 1; };
    while (std::count_if(all_.begin(), all_.end(), free) > max_unused)
      all_.evict([&](const entry& e) {
        if (free(e)) evicted_versions_ += e.made->address_version() + 1;
        return free(e);
      });
  }
  std::shared_ptr<program> make(const block_spec& what, pass_kind w, const named_values& from) const {
    const block_options options = block_options_of(what, w);
    auto mine = [&](builder whole) { return sharding.graph_of(std::move(whole), from, options.adapters); };
    const target& to = Engine::runs_on(queue);
    if (w == pass_kind::backward_recompute)
      return std::make_shared<program>(mine(capture_backward(what.formula, options)), to);
    if (w != pass_kind::forward_saved && w != pass_kind::backward)
      return std::make_shared<program>(mine(capture_forward(what.formula, options)), to);
    const builder forward = mine(capture_forward(what.formula, options));
    saved_pair pair = select_saved_tensors(forward, mine(capture_backward(what.formula, options)));
    if (w == pass_kind::backward)
      return std::make_shared<program>(std::move(pair.backward), to,
                                       saved_slots{-1, pair.leaf, pair.attention_out, pair.is_routing});
    return std::make_shared<program>(std::move(pair.forward), to,
                                     saved_slots{forward.out.size(), {}, pair.attention_out, pair.is_routing});
  }
  static std::vector<long long> shapes(const graph& g, const named_values& from) {
    std::vector<long long> all;
    for (id i = 0; i < g.size; ++i)
      if (const auto t = from.tensors.find(g.name(i).c_str());
          is_named(g[i].what) && traits_of(g[i].what).known_at != stage::call && t != from.tensors.end())
        all.insert(all.end(), t->second.size, t->second.size + t->second.rank);
    return all;
  }
  static constexpr std::ptrdiff_t max_unused = 16;
  lru_cache<entry> all_;
  long long made_ = 0, evicted_versions_ = 0;
};

template <class Engine> class bound_block {
 public:
  bound_block(block_programs<Engine>& programs, block_spec what, std::string path)
      : programs_(&programs), what_(std::move(what)), path_(std::move(path)) {}
  bound_block(const bound_block&) = delete;  // the bindings of its passes may point to each other
  bound_block& operator=(const bound_block&) = delete;

  named_values values;  // by name inside the block; complete when bind() is called, and kept alive by the caller
  // With tensor parallelism: copies the rank's shard of a base tensor along `axis`, or all of it if `axis` is negative,
  // from anywhere in host memory to where the engine reads it. Empty: the engine reads tensors where they are.
  std::function<result<view>(const std::string& name, const view& whole, int axis)> load_shard{};

  const std::string& path() const { return path_; }
  const block_spec& spec() const { return what_; }
  const graft::program<Engine>* program(pass_kind w) const { return at(w).in.get(); }

  // Prepares the block for calls of up to limits.tokens rows. Bind forward_saved before backward, which reads the
  // values that it saves.
  status bind(pass_kind w, const capacity& limits) {
    if (w == pass_kind::forward_saved && limits.tokens == 0)
      return of(fail("saving values for backward needs a number of rows: state one in the capacity"));
    const std::shared_ptr<graft::program<Engine>> in = programs_->of(what_, w, values);
    graft::program<Engine>& p = *in;
    block_pass& b = at(w);
    const shard_spec& sharding = programs_->sharding;
    if (sharding.is_sharded()) {
      result<named_values> shard_values = shard_of(p.value());
      if (!shard_values) return of(shard_values.failure());
      b.shard_values = std::move(*shard_values);
    }
    const named_values& mine = sharding.is_sharded() ? b.shard_values : values;
    result<bound_leaves> leaves = leaves_of(p, mine, block_options_of(what_, w).adapters);
    if (!leaves) return of(leaves.failure());
    if (status s = p.bind(programs_->queue, *leaves, limits, programs_->shared, b.with); !s) return of(s);
    b.in = in;
    if (p.kv_cache() >= 0) b.with.kv_cache = mine.tensors.find("kv_cache")->second;
    block_pass &forward_binding = at(pass_kind::forward_saved), &back = at(pass_kind::backward);
    if (forward_binding.in != nullptr) back.with.tokens = forward_binding.with.tokens;
    if (forward_binding.in != nullptr && back.in != nullptr)
      back.in->share_precomputed(back.with, *forward_binding.in, forward_binding.with);
    if (w != pass_kind::forward_saved) return ok;
    memory_.clear(), saved_.clear(), allocated_ = 0;
    for (const long long n : p.saved_elements(leaves->sizes, limits.tokens)) {
      result<typename Engine::memory> m = Engine::allocate(programs_->queue, n * bits_of(Engine::storage_type) / 8);
      if (!m) return of(m.failure());
      allocated_ += n * bits_of(Engine::storage_type) / 8;
      memory_.push_back(std::move(*m));
    }
    for (typename Engine::memory& m : memory_) saved_.push_back(m.data());
    return ok;
  }
  // Bytes that calls with so many rows save from forward_saved to backward; the block need not be bound.
  result<long long> saved_bytes(long long tokens) {
    const std::shared_ptr<graft::program<Engine>> in = programs_->of(what_, pass_kind::forward_saved, values);
    named_values shard_values;
    if (programs_->sharding.is_sharded()) {
      result<named_values> made = shard_of(in->value());
      if (!made) return of(made.failure()).failure();
      shard_values = std::move(*made);
    }
    const named_values& mine = programs_->sharding.is_sharded() ? shard_values : values;
    long long elements = 0;
    if (const auto b = bind_named(in->value(), mine, block_options_of(what_, pass_kind::forward_saved).adapters))
      for (const long long n : in->saved_elements(b->sizes, tokens)) elements += n;
    return elements * bits_of(Engine::storage_type) / 8;
  }
  // Bytes that are allocated for saved values.
  long long saved_allocation_bytes() const { return allocated_; }
  status run(pass_kind w, const block_call& inputs) {
    block_pass& b = at(w);
    if (b.in == nullptr) return of(fail("the block is not bound for this"));
    if (b.in->saved_count() > static_cast<int>(saved_.size()))
      return of(fail("the block is not bound for pass_kind::forward_saved, whose values the backward pass reads"));
    return of(b.in->run(programs_->queue, b.with, inputs, saved_.data()));
  }
  // Sets the memory that the gradient of a parameter is written to, from the next backward call on.
  status bind_gradient(const char* parameter, const mutable_view& gradient) {
    bool found = false;
    for (const pass_kind w : {pass_kind::backward, pass_kind::backward_recompute}) {
      block_pass& b = at(w);
      if (b.in == nullptr) continue;
      if (status s = b.in->bind_gradient(b.with, parameter, gradient); !s) return of(s);
      found = true;
    }
    return found ? status(ok) : of(fail("the block is not bound for training"));
  }
  // Recomputes what follows from parameters and scalars, after the caller changed them.
  status parameters_changed() {
    for (block_pass& b : bindings_)
      for (auto& [name, number] : b.shard_values.scalars)
        if (const auto inputs = values.scalars.find(name); inputs != values.scalars.end()) number = inputs->second;
    for (block_pass& b : bindings_)
      if (b.bound())
        if (status s = b.parameters_changed(programs_->queue); !s) return of(s);
    return ok;
  }
  // Computes what follows from the parameters now, where the engine would do so in the first call.
  void precompute(pass_kind w) {
    if constexpr (requires { Engine::precompute(programs_->queue, at(w).in->engine_program(), at(w).with.values); })
      Engine::precompute(programs_->queue, at(w).in->engine_program(), at(w).with.values);
  }
  // Returns the binding of one pass; multi-LoRA batches read those of several blocks.
  typename Engine::binding& binding(pass_kind w) { return at(w).with.values; }
  // The names of the parameters inside the block; each of them has a gradient.
  std::vector<std::string> parameters() const {
    std::vector<std::string> all;
    const builder g = capture_forward(what_.formula, block_options_of(what_, pass_kind::forward));
    for (id i = 0; i < g.n.size(); ++i)
      if (g.n[i].what == op::param) all.emplace_back(graph(g).name(i).c_str());
    return all;
  }

 private:
  struct block_pass : pass<Engine> {
    named_values shard_values;  // scalars of this rank, which calls read where they are
  };
  // Gathers the leaves of a graph that do not come with calls.
  static result<bound_leaves> leaves_of(const graft::program<Engine>& p, const named_values& mine,
                                        const adapter_rules& rules) {
    const graph& g = p.value();
    if (status s = check_graph(g); !s) return s.failure();
    result<bound_leaves> leaves = bind_named(g, mine, rules);
    if (!leaves || p.kv_cache() < 0) return leaves;
    const auto found = mine.tensors.find("kv_cache");
    if (found == mine.tensors.end())
      return fail("tensor 'kv_cache' is not set, expected ", expected_shape(g, p.kv_cache(), leaves->sizes));
    if (found->second.type != Engine::storage_type || !found->second.contiguous())
      return fail("tensor 'kv_cache' is written by calls, expected ", name_of(Engine::storage_type), ", row-major");
    if (status s = layer_state::bind_leaf(g, p.kv_cache(), found->second, leaves->sizes); !s) return s.failure();
    return leaves;
  }
  // Reports errors of the formula, which no tensors can repair.
  static status check_graph(const graph& g) {
    switch (g.bad.what) {
      case formula_error::none: return ok;
      case formula_error::too_many_sizes:
        return fail("the block names more than ", max_names, " sizes; use fewer adapters on it at the same time");
      case formula_error::name_is_taken:
        return fail("two tensors of the block are named '", g.bad.name, "' and differ");
      case formula_error::size_is_negative: return fail("size '", g.bad.name, "' is ", g.bad.number);
      case formula_error::not_on_experts:
        return fail("method '", g.bad.name,
                    "' does not exist on the experts of a mixture: its formula is not one of an ",
                    "expert's matrix alone", g.bad.at >= 0 ? " " : "", located(g, g.bad.at));
      case formula_error::not_differentiable:  // its node may be missing here, since no gradient goes through it
        return fail("no gradient for what stands in line ", g.bad.line, " of the formula ", located(g, g.bad.at));
    }
    return ok;
  }
  // Gives this rank's shards of the tensors of a graph.
  result<named_values> shard_of(const graph& g) {
    const shard_spec& sharding = programs_->sharding;
    const auto here = [&](const std::string& name, const view& whole, int axis) -> result<view> {
      return load_shard ? load_shard(name, whole, axis) : sharding.shard_of(whole, axis, quantized_shards_[name]);
    };
    return sharding.local_values(g, values, here);
  }
  block_pass& at(pass_kind w) { return bindings_[static_cast<std::size_t>(w)]; }
  const block_pass& at(pass_kind w) const { return bindings_[static_cast<std::size_t>(w)]; }
  status of(const status& s) const { return s || path_.empty() ? s : status(fail(path_.c_str(), ": ", s.message())); }

  block_programs<Engine>* programs_;
  block_spec what_;
  std::string path_;
  std::array<block_pass, pass_kind_count> bindings_{};
  std::map<std::string, quantized_shard> quantized_shards_;
  std::vector<typename Engine::memory> memory_;  // values saved from forward to backward
  std::vector<void*> saved_;
  long long allocated_ = 0;
};

}  // namespace graft
