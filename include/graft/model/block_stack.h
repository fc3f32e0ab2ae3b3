// SPDX-License-Identifier: Apache-2.0
// A model as a stack of bound blocks: embedding, layers, head, each with the tensors that belong to it. One stack is one
// way to run it: with the adapters or without, with a cache or without. All stacks of a model share their programs.
#pragma once
#include <graft/model/adapter_set.h>
#include <graft/model/families.h>
#include <graft/model/placed.h>
#include <graft/model/rows.h>
#include <graft/run/block.h>

#include <atomic>
#include <set>

namespace graft {

// Where the numbers of a model are; whoever made it keeps them alive.
struct model_weights {
  std::map<std::string, view, std::less<>> tensors;  // by whole name
  std::shared_ptr<const void> owner;
};

// Keys and values of each layer, for stacks that go on with each other's sequences.
template <class Engine> struct kept_rows {
  long long places = 0;
  std::deque<engine_rows<Engine>> layers;
};

template <class Engine> class block_stack {
 public:
  struct settings {
    const model_config& config;
    const model_weights& weights;
    std::set<std::string>& texts;  // paths that programs are kept by; they outlive the stack
    const adapter_set* adapters = nullptr;
    bool loss = false, dropped = false;
    int context = 0;
    view rotary{};
    kept_rows<Engine>* cache = nullptr;
    std::shared_ptr<placed_tensors<Engine>> weights_at{}, adapters_at{};
  };

  static result<std::unique_ptr<block_stack>> make(block_programs<Engine>& programs, const settings& s) {
    std::unique_ptr<block_stack> made(new block_stack);
    if (status good = made->build(programs, s); !good) return good.failure();
    result<std::unique_ptr<block_stack>> out(std::move(made));
    return out;
  }
  // Layers for this way; embedding and head know no cache.
  status bind(way w, const capacity& room) {
    number_ = next_number();
    const way ends = w == way::cached ? way::forward : w;
    const auto way_of = [&](const bound_block<Engine>& b) { return b.path().empty() ? ends : w; };
    for (bound_block<Engine>& b : blocks_)
      if (status s = b.bind(way_of(b), room); !s) return s;
    for (std::size_t k = 1; (w == way::cached || w == way::forward) && k < blocks_.size(); ++k)
      blocks_[k - 1].followed_by(way_of(blocks_[k - 1]), blocks_[k], way_of(blocks_[k]));
    return ok;
  }
  bound_block<Engine>& embed() { return blocks_.front(); }
  bound_block<Engine>& layer(int l) { return blocks_[static_cast<std::size_t>(l) + 1]; }
  bound_block<Engine>& head() { return blocks_.back(); }
  std::deque<bound_block<Engine>>& blocks() { return blocks_; }
  int layers() const { return static_cast<int>(blocks_.size()) - 2; }

  // Of this stack as it is bound now; no other one has had it.
  std::uint64_t number() const { return number_; }
  static std::uint64_t next_number() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
  // How often addresses that its launches use have changed.
  long long moves(way w) const {
    long long n = 0;
    for (const bound_block<Engine>& b : blocks_) n += b.program(b.path().empty() ? way::forward : w)->moves();
    return n;
  }
  // Where the numbers of a tensor of an adapter are in host memory.
  const void* original(const void* placed) const {
    const void* found = placed;
    adapters_at_->each([&](const view& host, const view& there) {
      if (there.data == placed) found = host.data;
    });
    return found;
  }
  // The whole name of a tensor of a block.
  static std::string whole_name(const bound_block<Engine>& b, std::string_view inside) {
    return b.path().empty() ? std::string(inside) : b.path() + "." + std::string(inside);
  }

 private:
  block_stack() = default;

  status build(block_programs<Engine>& programs, const settings& s) {
    if (s.adapters != nullptr) adapters_ = *s.adapters;
    const architecture a = architecture_for(s.config.family);
    weights_at_ = s.weights_at, adapters_at_ = s.adapters_at, weights_ = s.weights.owner;
    if (status good = add(programs, s, a.embed, ""); !good) return good;
    for (int l = 0; l < s.config.layers; ++l)
      if (status good = add(programs, s, a.block, std::string(a.layers) + "." + std::to_string(l)); !good) return good;
    return add(programs, s, s.loss ? with_loss(a.head) : a.head, "");
  }

  status add(block_programs<Engine>& programs, const settings& s, const block_formula& f, const std::string& path) {
    block_spec spec{f, {}, facts_of(s.config), s.dropped, operation_of(s.config.activation)};
    if (s.adapters != nullptr)
      for (const module_adapter& m : s.adapters->modules)
        if (belongs(f, path, m.module, s.config))
          spec.adapters.push_back({s.texts.insert(inside(path, m.module)).first->c_str(), m.of,
                                   s.texts.insert(m.among).first->c_str(), m.trains_bias,
                                   s.dropped ? m.drops() : left_out{}});
    blocks_.emplace_back(programs, spec, path);
    bound_block<Engine>& b = blocks_.back();
    b.values = values_of(s.config, s.context);
    b.values.scalars["dropout"] = f.takes_ids ? s.config.embedding_dropout : s.config.residual_dropout;
    if (!path.empty())
      b.values.scalars["attention_factor"] = attention_factor(s.config, static_cast<int>(blocks_.size()) - 2);
    const builder g = capture_forward(f, options_of(spec, way::forward));
    std::map<std::string, source> cut;
    for (id i = 0; i < g.n.size(); ++i) {
      if (!is_named(g.n[i].what) || row(g.n[i].what).known == stage::data) continue;
      const std::string name = graph(g).name(i).c_str();
      const source from = source_of(s, b, name);
      if (from.host.data == nullptr) continue;
      const bool in_parts = !Engine::reads_host_memory && programs.share.shares() && g.n[i].what == op::base;
      const result<view> t = in_parts ? from.host : from.at->of(programs.queue, from.host, from.as, from.owner);
      if (!t) return fail(whole_name(b, name).c_str(), ": ", t.message());
      b.values.tensors[name] = *t;
      if (in_parts) cut[name] = from;
    }
    if (!cut.empty())
      b.brings = [&programs, cut = std::move(cut)](const std::string& name, const view& whole, int axis) {
        const source& from = cut.at(name);
        return from.at->part_of(programs.queue, whole, from.as, from.owner, programs.share, axis);
      };
    if (s.cache != nullptr && !path.empty()) {
      const long long heads = s.config.key_heads / (programs.share.divides("kv_heads") ? programs.share.ranks : 1);
      const long long width = 2LL * heads * s.config.head_size;
      const std::size_t layer = blocks_.size() - 2;
      if (s.cache->layers.size() == layer) {
        s.cache->layers.emplace_back();
        engine_rows<Engine>& rows = s.cache->layers.back();
        if (status good = rows.reserve(programs.queue, s.cache->places * width); !good) return good;
        // Kernels multiply places that no row looks at by 0: numbers must lie there.
        if constexpr (!Engine::reads_host_memory)
          if (status good =
                  Engine::clear(programs.queue, rows.data(), s.cache->places * width * bits_of(Engine::keeps) / 8);
              !good)
            return good;
      }
      b.values.tensors["cache"] = s.cache->layers[layer].rows(s.cache->places, width);
    }
    for (const adaption& of : spec.adapters)
      if (status good = give(programs.queue, s, b, of); !good) return good;
    return ok;
  }
  // Embedding and head name their modules in full; each module is in one of the three.
  static bool belongs(const block_formula& f, const std::string& path, const std::string& module,
                      const model_config& c) {
    const architecture a = architecture_for(c.family);
    const bool in_layers = module.starts_with(std::string(a.layers) + ".");
    if (!path.empty()) return module.starts_with(path + ".");
    return !in_layers && f.takes_ids == is_embedding(module, c);
  }
  static bool is_embedding(const std::string& module, const model_config& c) {
    for (const char* name : {"embed_tokens", "embed_positions", "project_in", "wte", "wpe"})
      if (module.ends_with(name)) return true;
    return module + ".weight" == token_table(c.family);
  }
  static std::string inside(const std::string& path, const std::string& module) {
    return path.empty() ? module : module.substr(path.size() + 1);
  }
  struct source {
    view host{};
    dtype as = Engine::keeps;
    placed_tensors<Engine>* at = nullptr;
    std::shared_ptr<const void> owner{};
  };
  // Matrices in the type that the engine keeps, tables of positions and vectors as they are. No data: there is no such one.
  source source_of(const settings& s, const bound_block<Engine>& b, const std::string& name) const {
    if (name == "rotary") return {s.rotary, s.rotary.type, weights_at_.get()};
    const std::string whole = whole_name(b, name);
    if (s.adapters != nullptr) {
      const std::size_t dot = whole.rfind('.');
      if (const adapter_tensor* t = s.adapters->replaced(whole.substr(0, dot), whole.substr(dot + 1)))
        return {t->value(), dtype::f32, adapters_at_.get(), t->owner()};
    }
    auto at = s.weights.tensors.find(whole);
    if (at == s.weights.tensors.end() && whole == "lm_head.weight" && s.config.tied)
      at = s.weights.tensors.find(token_table(s.config.family));
    if (at == s.weights.tensors.end()) return {};
    const view& t = at->second;
    const dtype as = t.rank > 1 ? Engine::keeps : t.type == dtype::f64 ? dtype::f32 : t.type;
    return {t, as, weights_at_.get(), s.weights.owner};
  }
  status give(typename Engine::queue& q, const settings& s, bound_block<Engine>& b, const adaption& of) {
    const std::string module = of.pattern, among = of.name;
    const module_adapter* m = s.adapters->find(whole_name(b, module), among);
    const std::string prefix = module + (among.empty() ? "." : "." + among + ".");
    for (const auto& [name, t] : m->tensors) {
      const result<view> placed = adapters_at_->of(q, t.value(), dtype::f32, t.owner());
      if (!placed) return placed.failure();
      b.values.tensors[prefix + name] = *placed;
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

  adapter_set adapters_;  // keeps the tensors alive
  std::deque<bound_block<Engine>> blocks_;
  std::shared_ptr<placed_tensors<Engine>> weights_at_, adapters_at_;
  std::shared_ptr<const void> weights_;  // kept alive
  std::uint64_t number_ = 0;
};

}  // namespace graft
