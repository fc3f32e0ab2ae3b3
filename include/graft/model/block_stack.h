// SPDX-License-Identifier: Apache-2.0
// A model as a stack of bound blocks: embedding, decoder layers, head, each with its tensors. A stack is one
// configuration: certain adapters or none, with or without KV cache, loss and dropout. All stacks of a model share
// their programs.
#pragma once
#include <graft/model/adapter_set.h>
#include <graft/model/architectures.h>
#include <graft/model/device_tensors.h>
#include <graft/model/row_batch.h>
#include <graft/run/block.h>

#include <atomic>
#include <deque>
#include <set>

namespace graft {

// The base weights of a model in host memory, which `owner` keeps alive.
struct model_weights {
  std::map<std::string, view, std::less<>> tensors;  // by full name
  std::shared_ptr<const void> owner;
};

// KV cache (contiguous slots, not paged): for each decoder layer a matrix [slots, K and V of all KV heads]. Stacks that
// continue each other's sequences, such as those of different adapters, share one.
template <class Engine> struct kv_cache {
  long long slots = 0;
  std::deque<device_rows<Engine>> layers;
};

template <class Engine> class block_stack {
 public:
  struct settings {
    const model_config& config;
    const model_weights& weights;
    std::set<std::string>& interned;  // owns the paths that programs point to; must outlive the stack
    const adapter_set* adapters = nullptr;
    bool loss = false, dropped = false;
    int context = 0;
    view rotary{}, sliding_rotary{};  // tables of RoPE; the second for layers with a sliding window
    kv_cache<Engine>* cache = nullptr;
    std::shared_ptr<device_tensors<Engine>> device_weights{}, device_adapters{};
  };

  static result<std::unique_ptr<block_stack>> make(block_programs<Engine>& programs, const settings& s) {
    std::unique_ptr<block_stack> made = begin(s);
    while (!made->is_built(s))
      if (status good = made->build_next(programs, s); !good) return good.failure();
    result<std::unique_ptr<block_stack>> out(std::move(made));
    return out;
  }
  // What make() does in parts, for a caller that does something else between two of them: begin(), then build_next()
  // for each block, with the same settings.
  static std::unique_ptr<block_stack> begin(const settings& s) {
    std::unique_ptr<block_stack> made(new block_stack);
    if (s.adapters != nullptr) made->adapters_ = *s.adapters;
    made->device_weights_ = s.device_weights, made->device_adapters_ = s.device_adapters;
    made->weights_ = s.weights.owner;
    return made;
  }
  bool is_built(const settings& s) const { return static_cast<int>(blocks_.size()) == s.config.layers + 2; }
  status build_next(block_programs<Engine>& programs, const settings& s) {
    const architecture& a = s.config.family->formulas;
    if (blocks_.empty()) return add(programs, s, a.embed, "", ends_of_model);
    const int l = static_cast<int>(blocks_.size()) - 1;
    if (l < s.config.layers) return add(programs, s, a.block, std::string(a.layers) + "." + std::to_string(l), l);
    return add(programs, s, s.loss ? with_loss(a.head) : a.head, "", ends_of_model);
  }
  // Binds the decoder layers for pass w. Embedding and head have no cache: where layers decode they run forward.
  status bind(pass_kind w, const capacity& limits) {
    for (bound_block<Engine>& b : blocks_)
      if (status s = bind_block(b, w, limits); !s) return s;
    mark_bound();
    return ok;
  }
  // What bind() does in parts: bind_block() for each block, then mark_bound().
  status bind_block(bound_block<Engine>& b, pass_kind w, const capacity& limits) {
    return b.bind(kind_of(b, w), limits);
  }
  void mark_bound() { number_ = next_number(); }
  static pass_kind kind_of(const bound_block<Engine>& b, pass_kind w) {
    return b.path().empty() && w == pass_kind::decode ? pass_kind::forward : w;
  }
  bound_block<Engine>& embed() { return blocks_.front(); }
  bound_block<Engine>& layer(int l) { return blocks_[static_cast<std::size_t>(l) + 1]; }
  bound_block<Engine>& head() { return blocks_.back(); }
  std::deque<bound_block<Engine>>& blocks() { return blocks_; }
  int layers() const { return static_cast<int>(blocks_.size()) - 2; }

  // Returns a process-wide unique number of this stack's current binding.
  std::uint64_t number() const { return number_; }
  static std::uint64_t next_number() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
  // Counts changes of the addresses that the launches of pass w use.
  long long address_version(pass_kind w) const {
    long long n = 0;
    for (const bound_block<Engine>& b : blocks_)
      n += b.program(b.path().empty() ? pass_kind::forward : w)->address_version();
    return n;
  }
  // Returns the host memory that an adapter's device tensor was copied from.
  const void* original(const void* on_device) const {
    const void* found = on_device;
    device_adapters_->each([&](const view& host, const view& there) {
      if (there.data == on_device) found = host.data;
    });
    return found;
  }
  // Returns the full name of a tensor of a block.
  static std::string full_name(const bound_block<Engine>& b, std::string_view inside) {
    return b.path().empty() ? std::string(inside) : b.path() + "." + std::string(inside);
  }

 private:
  block_stack() = default;

  status add(block_programs<Engine>& programs, const settings& s, const block_formula& f, const std::string& path,
             int layer) {
    block_spec spec{
        f, {}, facts_of(s.config, layer), s.dropped, operation_of(s.config.activation), s.config.attention_soft_cap};
    if (s.loss && s.config.router_loss > 0 && has_experts(s.config, layer)) spec.facts.push_back("router_loss");
    if (s.adapters != nullptr)
      for (const module_adapter& m : s.adapters->modules)
        if (belongs(f, path, m.module, s.config))
          spec.adapters.push_back({s.interned.insert(inside(path, m.module)).first->c_str(), m.of,
                                   s.interned.insert(m.adapter_name).first->c_str(), m.trains_bias,
                                   s.dropped ? m.drops() : dropout_kinds{}});
    blocks_.emplace_back(programs, spec, path);
    bound_block<Engine>& b = blocks_.back();
    b.values = values_of(s.config, s.context);
    b.values.scalars["dropout"] = f.takes_ids ? s.config.embedding_dropout : s.config.residual_dropout;
    if (!path.empty()) b.values.scalars["attention_factor"] = attention_factor(s.config, layer);
    const builder g = capture_forward(f, block_options_of(spec, pass_kind::forward));
    std::map<std::string, source> cut;
    for (id i = 0; i < g.n.size(); ++i) {
      if (!is_named(g.n[i].what) || traits_of(g.n[i].what).known_at == stage::call) continue;
      const std::string name = graph(g).name(i).c_str();
      const source from = host_tensor_of(s, b, name, layer);
      if (from.host.data == nullptr) continue;
      const bool is_sharded_base =
          !Engine::reads_host_memory && programs.sharding.is_sharded() && g.n[i].what == op::base;
      const result<view> t = is_sharded_base ? from.host : from.at->of(programs.queue, from.host, from.as, from.owner);
      if (!t) return fail(full_name(b, name).c_str(), ": ", t.message());
      b.values.tensors[name] = *t;
      if (is_sharded_base) cut[name] = from;
    }
    if (!cut.empty())
      b.load_shard = [&programs, cut = std::move(cut)](const std::string& name, const view& whole, int axis) {
        const source& from = cut.at(name);
        return from.at->shard_of(programs.queue, whole, from.as, from.owner, programs.sharding, axis);
      };
    if (s.cache != nullptr && !path.empty()) {
      const long long heads = s.config.kv_heads / (programs.sharding.divides("kv_heads") ? programs.sharding.ranks : 1);
      const long long width = 2LL * heads * s.config.head_dim;
      const auto at = static_cast<std::size_t>(layer);
      if (s.cache->layers.size() == at) {
        s.cache->layers.emplace_back();
        device_rows<Engine>& rows = s.cache->layers.back();
        if (status good = rows.reserve(programs.queue, s.cache->slots * width); !good) return good;
        // Attention kernels multiply slots outside the attention range by 0, so the cache must be free of NaN.
        if constexpr (!Engine::reads_host_memory)
          if (status good = Engine::clear(programs.queue, rows.data(),
                                          s.cache->slots * width * bits_of(Engine::storage_type) / 8);
              !good)
            return good;
      }
      b.values.tensors["kv_cache"] = s.cache->layers[at].rows(s.cache->slots, width);
    }
    for (const adapter_rule& of : spec.adapters)
      if (status good = give(programs.queue, s, b, of); !good) return good;
    return ok;
  }
  // Returns whether a module is part of this block. Embedding and head have an empty path and name their modules in
  // full.
  static bool belongs(const block_formula& f, const std::string& path, const std::string& module,
                      const model_config& c) {
    if (!path.empty()) return module.starts_with(path + ".");
    return !is_in_layers(c, module) && f.takes_ids == is_embedding(module, c);
  }
  static bool is_embedding(const std::string& module, const model_config& c) {
    for (const char* name : {"embed_tokens", "embed_positions", "project_in", "wte", "wpe"})
      if (module.ends_with(name)) return true;
    return module + ".weight" == c.family->token_embedding;
  }
  static std::string inside(const std::string& path, const std::string& module) {
    return path.empty() ? module : module.substr(path.size() + 1);
  }
  struct source {
    view host{};
    dtype as = Engine::storage_type;
    device_tensors<Engine>* at = nullptr;
    std::shared_ptr<const void> owner{};
  };
  // Returns the host tensor of a leaf: matrices are copied in the engine's storage type, RoPE tables and vectors in
  // their own type. No data: the model has no such tensor.
  source host_tensor_of(const settings& s, const bound_block<Engine>& b, const std::string& name, int layer) const {
    if (name == "rotary") {
      const bool slides = layer >= 0 && s.config.window[static_cast<std::size_t>(layer)] > 0;
      const view& table = slides ? s.sliding_rotary : s.rotary;
      return {table, table.type, device_weights_.get()};
    }
    const std::string whole = full_name(b, name);
    if (s.adapters != nullptr) {
      const std::size_t dot = whole.rfind('.');
      if (const adapter_tensor* t = s.adapters->replaced(whole.substr(0, dot), whole.substr(dot + 1)))
        return {t->value(), dtype::f32, device_adapters_.get(), t->owner()};
    }
    auto at = s.weights.tensors.find(whole);
    if (at == s.weights.tensors.end() && whole == "lm_head.weight" && s.config.tied)
      at = s.weights.tensors.find(s.config.family->token_embedding);
    if (at == s.weights.tensors.end()) return {};
    const view& t = at->second;
    const dtype as = t.rank > 1 ? Engine::storage_type : t.type == dtype::f64 ? dtype::f32 : t.type;
    return {t, as, device_weights_.get(), s.weights.owner};
  }
  status give(typename Engine::queue& q, const settings& s, bound_block<Engine>& b, const adapter_rule& of) {
    const std::string module = of.pattern, adapter_name = of.name;
    const module_adapter* m = s.adapters->find(full_name(b, module), adapter_name);
    const std::string prefix = module + (adapter_name.empty() ? "." : "." + adapter_name + ".");
    for (const auto& [name, t] : m->tensors) {
      const result<view> on_device = device_adapters_->of(q, t.value(), dtype::f32, t.owner());
      if (!on_device) return on_device.failure();
      b.values.tensors[prefix + name] = *on_device;
    }
    for (const auto& [name, v] : m->scalars) b.values.scalars[prefix + name] = v;
    for (const auto& [name, rate] : {std::pair{"dropout", m->dropout},
                                     {"rank_dropout", m->rank_dropout},
                                     {"module_dropout", m->module_dropout},
                                     {"block_dropout", m->block_dropout}})
      b.values.scalars[prefix + name] = rate;
    for (const auto& [name, n] : m->sizes) b.values.sizes[prefix + name] = n;
    return ok;
  }

  adapter_set adapters_;  // keeps the adapters' tensors alive
  std::deque<bound_block<Engine>> blocks_;
  std::shared_ptr<device_tensors<Engine>> device_weights_, device_adapters_;
  std::shared_ptr<const void> weights_;  // keeps the base weights alive
  std::uint64_t number_ = 0;
};

}  // namespace graft
