// SPDX-License-Identifier: Apache-2.0
// A causal language model on an engine: base weights, named adapters (also one set per row: multi-LoRA), logits of
// tokens. Adding, activating, merging and removing adapters never writes the base weights.
//     auto model = io::hf::load_model<cpu::engine<float>>(folder);
//     io::hf::load_adapter(*model, "sql", adapter_folder);
//     model->activate({"sql"});
//     const sequence_chunk prompt{ids};
//     model->logits({&prompt, 1}, out);                      // out [tokens, vocabulary]
// Any thread may change the adapters while another one runs the model: a change waits for the end of the running call,
// and the next call (in generation the next token) sees the whole change. A model that was moved from may be assigned
// to or destroyed; any other call on it ends the program with a sentence.
#pragma once
#include <graft/core/splitmix64.h>
#include <graft/model/adapter_registry.h>
#include <graft/model/block_stack_cache.h>
#include <graft/model/merge.h>
#include <graft/model/tensor_parallel.h>

#include <mutex>
#include <set>

namespace graft {

struct model_options {
  // Longest sequence of a model with RoPE; 0: the model's positions, at most 4096, and with LongRoPE at most the
  // original ones, beyond which it has other angles.
  int context = 0;
  adapter_capacity adapters{};
  composition several = composition::peft;  // how several adapters act on one layer
  // How the scales of 4-bit weights are indexed; row_flat_block reproduces the numbers of bitsandbytes on a CPU with
  // AVX-512 (core/quant_format.h).
  scale_granularity blocks = scale_granularity::flat_block;
  std::shared_ptr<communicator> ranks{};  // tensor parallelism; null: this process computes alone
};

template <class Engine> class causal_lm {
 public:
  using real = typename Engine::real;
  using names = adapter_registry::names;

  causal_lm(causal_lm&&) noexcept = default;
  causal_lm& operator=(causal_lm&& o) noexcept {
    if (this == &o) return *this;  // the members' own assignments would empty a model that is assigned to itself
    std::destroy_at(this);
    std::construct_at(this, std::move(o));
    return *this;
  }

  static result<causal_lm> make(const model_config& config, model_weights weights, const model_options& options = {}) {
    if (status good = check_supported(config); !good) return good.failure();
    const int context = options.context > 0 && config.family->has_rope ? options.context : default_context(config);
    causal_lm m(config, std::move(weights), context);
    m.registry_.capacity = options.adapters, m.registry_.rule = options.several;
    if (status good = Engine::start(m.programs_->queue); !good) return good.failure();
    if (options.ranks != nullptr) {
      const result<shard_spec> sharding = sharding_for(config, *options.ranks);
      if (!sharding) return sharding.failure();
      m.programs_->sharding = *sharding;
      if (status good = Engine::set_collectives(m.programs_->queue, make_rank_reducer(options.ranks)); !good)
        return good.failure();
    }
    if (status good = m.apply_change(m.registry_); !good) return good.failure();
    return result<causal_lm>(std::move(m));
  }

  const model_config& config() const { return check_not_moved(), *config_; }
  int context() const { return context_; }
  const model_weights& weights() const { return check_not_moved(), *weights_; }
  block_programs<Engine>& programs() { return check_not_moved(), *programs_; }
  // Takes the lock that every call holds which runs the model or changes its adapters.
  std::unique_lock<std::mutex> lock() const { return check_not_moved(), std::unique_lock(*mutex_); }

  // Turns on autotuning, as step_mode::max_autotune does: the candidates of each kind of launch are timed once per size
  // class. `file`: where results are stored for later programs; empty: the user's cache folder. autotune_warning() says
  // what is wrong with that file, if anything.
  status enable_autotuning(const std::string& file = {}) {
    const auto guard = lock();
    return Engine::enable_autotuning(programs_->queue, file);
  }
  std::string autotune_warning() const { return Engine::autotune_warning(programs_->queue); }

  // ---- Adapters by name. A change that fails leaves the model unchanged.
  status add(const std::string& name, adapter_set adapter);      // the new adapter is not active
  status replace(const std::string& name, adapter_set adapter);  // the new adapter is active if the old one is
  status remove(const std::string& name);
  status rename(const std::string& from, const std::string& to);
  status activate(const names& which);  // in this order; an empty list activates the base alone
  names all_names() const;
  names active() const;
  shared_adapter find(const std::string& name) const;
  const adapter_set& adapters() const { return *combined_; }  // the active adapters composed into one set
  status set_adapters(adapter_set adapter);                   // replaces all adapters by this one, which is active
  status unload();                                            // removes all adapters
  // Must be called after the host memory of adapter tensors was written.
  status adapters_changed();

  void enable(bool on);
  bool enabled() const;
  class disabled_scope {
   public:
    explicit disabled_scope(causal_lm& m) : model_(&m), before_(m.enabled()) { m.enable(false); }
    disabled_scope(const disabled_scope&) = delete;
    disabled_scope& operator=(const disabled_scope&) = delete;
    ~disabled_scope() { model_->enable(before_); }

   private:
    causal_lm* model_;
    bool before_;
  };
  // Runs the base alone until the end of the scope.
  [[nodiscard]] disabled_scope disabled() { return disabled_scope(*this); }

  // ---- Merging. While any adapter is merged, the model is the merged weights alone, as in PEFT. Merged weights are
  // copies and the base is not written: unmerge() drops them, and the base has its original bits, also where it is
  // quantized.
  status merge(const names& which);
  status unmerge();
  names merged() const;
  long long merged_bytes() const;
  status merge_and_unload(const names& which);
  // Returns the weights of a stand-alone merged model. `as`: the format of merged weights whose base is quantized.
  result<model_weights> merged_weights(const names& which, merged_format as = merged_format::quantized);
  result<model_weights> merged_weights() { return merged_weights(active()); }
  // Returns by module the largest rounding error of quantizing the merged weight, relative to its largest element.
  std::map<std::string, double> merge_quantization_error() const;

  // Returns one line per set of adapters: whether rows with it run in the launches of the base (multi-LoRA batch), or
  // why they run as a group of their own.
  result<std::string> explain_multi_lora(std::span<const names> sets);

  // Computes logits [rows, vocabulary] of every row, or of the last row of each chunk. `chunk_adapters`: the adapters
  // of each chunk, an empty list for the base alone; not given: the active adapters for all chunks.
  status logits(std::span<const sequence_chunk> chunks, std::span<real> out, bool last_only = false,
                std::span<const names> chunk_adapters = {}) {
    const auto guard = lock();
    if (status s = check_chunks(chunks); !s) return s;
    long long n = 0;
    for (const sequence_chunk& r : chunks) n += last_only ? 1 : static_cast<long long>(r.tokens.size());
    if (out.size() != static_cast<std::size_t>(n * config_->vocabulary))
      return fail("the logits hold ", static_cast<long long>(out.size()), " numbers, expected ", n, " x ",
                  config_->vocabulary);
    if constexpr (Engine::reads_host_memory)
      return run_rows(stacks_, nullptr, chunks, chunk_adapters, view_into(out.data(), n, config_->vocabulary));
    else {
      if (status s = logits_.reserve(programs_->queue, n * config_->vocabulary); !s) return s;
      if (status s = run_rows(stacks_, nullptr, chunks, chunk_adapters, logits_.into(n, config_->vocabulary)); !s)
        return s;
      return Engine::fetch(programs_->queue, logits_.rows(n, config_->vocabulary), out.data());
    }
  }

  // ---- For generation and training, which have their own stacks and hold lock().
  // An adapter that is added incrementally, for multi-LoRA rows only, so that calls can run between blocks:
  // begin_add(), then continue_add() until it returns true. Its stack is then in `stacks`, and the model has the name.
  // Dropping the pending_add, or an error, leaves the model unchanged. Both functions take lock().
  class pending_add {
    friend causal_lm;
    std::string name_;
    shared_adapter adapter_, composed_;
    unsigned long long weights_version_ = 0;
    std::unique_ptr<block_stack<Engine>> made_;
    long long rows_ = 0;  // number of rows that the blocks are bound for
  };
  result<pending_add> begin_add(const std::string& name, adapter_set adapter);
  result<bool> continue_add(pending_add& pending, block_stack_cache<Engine>& stacks, kv_cache<Engine>& cache);
  // Writes logits to the engine's memory: of all rows, or of the last row of each chunk if `out` has one row per chunk.
  status run_rows(block_stack_cache<Engine>& stacks, kv_cache<Engine>* cache, std::span<const sequence_chunk> chunks,
                  std::span<const names> chunk_adapters, const mutable_view& out);
  // Does the first half of run_rows() for the active adapters: sets the rows, finds and binds the stack. run_chunks()
  // does the launches.
  result<block_stack<Engine>*> prepare(block_stack_cache<Engine>& stacks, kv_cache<Engine>* cache,
                                       std::span<const sequence_chunk> chunks);
  // Does what prepare() does for chunks with their own adapters. Null: some set of adapters cannot run in the launches
  // of the base, or there are more sets than slots; run_rows() then runs them by groups.
  result<block_stack<Engine>*> prepare_multi_lora(block_stack_cache<Engine>& stacks, kv_cache<Engine>* cache,
                                                  std::span<const sequence_chunk> chunks,
                                                  std::span<const names> chunk_adapters);
  // begin_multi_lora() binds the base stack whose launches the rows of a multi-LoRA batch share. multi_lora_slot()
  // gives the slot of a set of adapters: base_slot if the set is empty, no_slot if it cannot share those launches.
  static constexpr int base_slot = -1, no_slot = -2;
  result<block_stack<Engine>*> begin_multi_lora(block_stack_cache<Engine>& stacks, kv_cache<Engine>* cache,
                                                long long rows);
  result<int> multi_lora_slot(block_stack_cache<Engine>& stacks, kv_cache<Engine>* cache, long long rows,
                              const names& n, std::string* why = nullptr);
  static long long rows_of(std::span<const sequence_chunk> chunks) {
    long long rows = 0;
    for (const sequence_chunk& r : chunks) rows += static_cast<long long>(r.tokens.size());
    return rows;
  }
  status check_adapters(std::span<const sequence_chunk> chunks, std::span<const names> chunk_adapters) const;
  status run_chunks(block_stack<Engine>& in, pass_kind w, const mutable_view& out) {
    if (status s = upload_rows(); !s) return s;
    return run_uploaded(in, w, out);
  }
  // Does what run_chunks() does if the engine already has the numbers of the rows.
  status run_uploaded(block_stack<Engine>& in, pass_kind w, const mutable_view& out) {
    if (status s = forward(in, w); !s) return s;
    return head(in, out);
  }
  error has_no_parameters() const { return registry_.has_no_parameters(); }
  result<std::unique_ptr<block_stack<Engine>>> make_stack(bool loss, bool dropped) {
    return make_stack(active_adapters(), active_weights(), {loss, dropped});
  }
  result<std::unique_ptr<block_stack<Engine>>> make_stack(const names& which, bool loss, bool dropped);
  row_batch& rows() { return rows_; }
  // Sets the rows of the next call; the engine reads their numbers after upload_rows().
  status set_rows(std::span<const sequence_chunk> chunks, bool cached, std::span<const std::int64_t> adapters = {}) {
    rows_.set(chunks, config_->window, cached, adapters), ++rows_version_;
    const std::span<const std::int64_t> all = rows_.numbers();
    if (status s = row_numbers_.write(all.data(), static_cast<long long>(all.size_bytes())); !s) return s;
    return rows_.set_address(static_cast<const std::int64_t*>(row_numbers_.data())), status(ok);
  }
  status upload_rows() { return row_numbers_.send(programs_->queue); }
  // Counts calls of set_rows(), each of which overwrites the numbers of the one before.
  std::uint64_t rows_version() const { return rows_version_; }
  // Hashes the addresses of row numbers and hidden states, which a captured step depends on.
  std::uint64_t rows_address_hash() {
    std::uint64_t all = 0;
    for (const void* at :
         {rows_.ids().data, static_cast<const void*>(hidden(0).data()), static_cast<const void*>(hidden(1).data())})
      all = splitmix64(all ^ static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(at)));
    return all;
  }
  status forward(block_stack<Engine>& in, pass_kind w) {
    block_call c = call(0);
    c[call_input::x] = rows_.ids(), c.y = hidden(0).into(rows_.rows(), config_->hidden_size);
    if (status s = in.embed().run(pass_kind::forward, c); !s) return s;
    for (int l = 0; l < in.layers(); ++l) {
      c = call(l);
      c[call_input::attention_range] = rows_.attention_range_of(l);
      if (status s = in.layer(l).run(w, c); !s) return s;
    }
    return ok;
  }
  status head(block_stack<Engine>& in, const mutable_view& out) {
    const long long width = config_->hidden_size, n = out.size[0];
    device_rows<Engine>* h = &hidden(in.layers());
    if (n < rows_.rows()) {
      device_rows<Engine>& picked = hidden(in.layers() + 1);
      for (std::size_t k = 0; k < rows_.last().size(); ++k)
        if (status s = Engine::copy(programs_->queue, picked.row(static_cast<long long>(k), width),
                                    h->row(rows_.last()[k], width), width * bits_of(Engine::storage_type) / 8);
            !s)
          return s;
      h = &picked;
    }
    block_call c;
    c[call_input::x] = h->rows(n, width);
    c.y = out;
    return in.head().run(pass_kind::forward, c);
  }
  status check_chunks(std::span<const sequence_chunk> chunks) const {
    for (const sequence_chunk& r : chunks) {
      if (r.tokens.empty()) return fail("a sequence has no tokens, expected at least one");
      const long long end = r.position + static_cast<long long>(r.tokens.size());
      if (r.position < 0 || end > context_)
        return fail("a sequence reaches position ", end, ", the context length is ", context_);
      for (std::size_t t = 0; t < r.tokens.size(); ++t)
        if (r.tokens[t] < 0 || r.tokens[t] >= config_->vocabulary)
          return fail("id ", static_cast<long long>(r.tokens[t]), " at position ", static_cast<long long>(t),
                      " is outside the table of ", config_->vocabulary, " rows");
    }
    if (chunks.empty()) return fail("there is no sequence, expected at least one");
    return ok;
  }
  // Reserves hidden states for the rows of a call. Stacks share programs and their workspace, so each stack is bound
  // for the largest call of any.
  result<capacity> reserve(long long rows) {
    reserved_rows_ = std::max(reserved_rows_, rows);
    for (auto& h : hidden_)
      if (status s = h.reserve(programs_->queue, reserved_rows_ * config_->hidden_size); !s) return s.failure();
    return capacity{reserved_rows_};
  }
  long long reserved_rows() const { return reserved_rows_; }

 private:
  struct versioned_weights {
    const model_weights& of;
    unsigned long long number;
  };
  struct versioned_merge {
    merged_model model;
    std::vector<shared_adapter> of;
    unsigned long long number;
    versioned_weights versioned() const { return {model.weights, number}; }
  };
  struct stack_options {
    bool loss = false, dropped = false;
    kv_cache<Engine>* cache = nullptr;
  };

  causal_lm(const model_config& config, model_weights weights, int context)
      : mutex_(std::make_unique<std::mutex>()),
        config_(std::make_unique<model_config>(config)),
        weights_(std::make_unique<model_weights>(std::move(weights))),
        context_(context),
        programs_(std::make_unique<block_programs<Engine>>()),
        interned_(std::make_unique<std::set<std::string>>()) {
    if (!config.family->has_rope) return;
    rotary_ = rope_table(config.rope, rope_dim(config), context);
    if (config.sliding_rope) sliding_rotary_ = rope_table(*config.sliding_rope, rope_dim(config), context);
  }
  void check_not_moved() const {
    if (mutex_ == nullptr)
      detail::contract_violation("a model that was moved from was used; use the one that it was moved to");
  }
  template <class Edit> status change(Edit edit);
  status apply_change(adapter_registry next);
  status check_fits(const shared_adapter& adapter);
  result<merged_model> merge_of(std::span<const shared_adapter> adapters, merged_format as = merged_format::quantized);
  void evict_unused();
  std::vector<shared_adapter> adapters_named(const adapter_registry& in, const names& which) const;
  std::span<const shared_adapter> active_adapters() const {
    return registry_.enabled ? std::span<const shared_adapter>(active_) : std::span<const shared_adapter>();
  }
  versioned_weights active_weights() const {
    return merged_ != nullptr && registry_.enabled ? merged_->versioned() : base_weights();
  }
  versioned_weights base_weights() const { return {*weights_, weights_version_}; }
  // `adapters`: composed into one set, and null for the base alone.
  typename block_stack<Engine>::settings settings_of(const adapter_set* adapters, const versioned_weights& on,
                                                     const stack_options& options);
  result<std::unique_ptr<block_stack<Engine>>> make_stack(std::span<const shared_adapter> adapters,
                                                          const versioned_weights& on, const stack_options& options);
  result<block_stack<Engine>*> prepare(block_stack_cache<Engine>& stacks, kv_cache<Engine>* cache,
                                       std::span<const shared_adapter> adapters, const versioned_weights& on,
                                       std::span<const sequence_chunk> chunks);
  status upload(const adapter_set& adapter);
  device_rows<Engine>& hidden(int k) { return hidden_[k % 2]; }
  // Returns a call with input and output of a layer; hidden states are double-buffered.
  block_call call(int layer) {
    block_call c;
    c[call_input::x] = hidden(layer).rows(rows_.rows(), config_->hidden_size);
    c[call_input::positions] = rows_.positions();
    c.y = hidden(layer + 1).into(rows_.rows(), config_->hidden_size);
    return c;
  }

  std::unique_ptr<std::mutex> mutex_;
  std::unique_ptr<model_config> config_;
  std::unique_ptr<model_weights> weights_;
  int context_ = 0;
  std::unique_ptr<block_programs<Engine>> programs_;
  std::unique_ptr<std::set<std::string>> interned_;
  std::vector<float> rotary_, sliding_rotary_;
  adapter_registry registry_;
  std::vector<shared_adapter> active_;
  shared_adapter combined_ = std::make_shared<const adapter_set>();
  std::unique_ptr<versioned_merge> merged_;
  unsigned long long last_version_ = 1, weights_version_ = 1;  // every new set of weights has a new number
  block_stack_cache<Engine> stacks_;
  long long reserved_rows_ = 0;
  row_batch rows_;
  std::uint64_t rows_version_ = 0;
  typename Engine::numbers row_numbers_;
  device_rows<Engine> hidden_[2], group_logits_;
  device_rows<Engine, dtype::f32> logits_;
  std::shared_ptr<device_tensors<Engine>> device_weights_ = std::make_shared<device_tensors<Engine>>(),
                                          device_adapters_ = std::make_shared<device_tensors<Engine>>();
};

// ---- Adapters. A change edits a copy of the registry, makes and binds the stack that would run, and takes effect only
// if all of that succeeds.

template <class Engine> template <class Edit> status causal_lm<Engine>::change(Edit edit) {
  const auto guard = lock();
  adapter_registry next = registry_;
  status s = edit(next);
  if (s) s = apply_change(std::move(next));
  evict_unused();
  return s;
}
template <class Engine> status causal_lm<Engine>::apply_change(adapter_registry next) {
  const std::vector<shared_adapter> merge = adapters_named(next, next.merged());
  std::vector<shared_adapter> run = adapters_named(next, merge.empty() ? next.active() : names{});
  const result<shared_adapter> combined = compose_adapters(run, next.rule);
  if (!combined) return combined.failure();
  std::unique_ptr<versioned_merge> made;
  if (!merge.empty() && (merged_ == nullptr || merged_->of != merge)) {
    result<merged_model> with = merge_of(merge);
    if (!with) return with.failure();
    made = std::make_unique<versioned_merge>(versioned_merge{std::move(*with), merge, ++last_version_});
  }
  const versioned_merge* const merged = merge.empty() ? nullptr : made != nullptr ? made.get() : merged_.get();
  const versioned_weights on = merged != nullptr ? merged->versioned() : base_weights();
  const auto stack = stacks_.of(run, on.number, [&] { return make_stack(run, on, {}); });
  if (!stack) return stack.failure();
  const result<capacity> one = reserve(1);
  if (!one) return one.failure();
  if (status s = (*stack)->ensure_bound(pass_kind::forward, 1, *one); !s) return s;
  if (made != nullptr || merge.empty()) merged_ = std::move(made);
  registry_ = std::move(next), active_ = std::move(run), combined_ = *combined;
  return ok;
}
// Makes and binds the stack that would run with this adapter alone, so that add() reports what does not fit.
template <class Engine> status causal_lm<Engine>::check_fits(const shared_adapter& adapter) {
  const versioned_weights on = base_weights();
  const std::span<const shared_adapter> one(&adapter, 1);
  const auto stack = stacks_.of(one, on.number, [&] { return make_stack(one, on, {}); });
  if (!stack) return stack.failure();
  const result<capacity> limits = reserve(1);
  if (!limits) return limits.failure();
  status s = (*stack)->ensure_bound(pass_kind::forward, 1, *limits);
  if (!s) stacks_.retain([&](const auto& e) { return e.of.size() != 1 || e.of[0] != adapter; });
  return s;
}
template <class Engine> void causal_lm<Engine>::evict_unused() {
  stacks_.retain([&](const typename block_stack_cache<Engine>::entry& e) {
    if (e.weights_version != weights_version_ && (merged_ == nullptr || e.weights_version != merged_->number))
      return false;
    return std::all_of(e.of.begin(), e.of.end(), [&](const shared_adapter& a) { return registry_.has(a); });
  });
  device_weights_->evict_unused(), device_adapters_->evict_unused();
}
// Refreshes device copies of an adapter's tensors, if earlier values of the same host memory were copied.
template <class Engine> status causal_lm<Engine>::upload(const adapter_set& adapter) {
  for (const module_adapter& m : adapter.modules)
    for (const auto* tensors : {&m.tensors, &m.base})
      for (const auto& [name, t] : *tensors)
        if (status s = device_adapters_->upload(programs_->queue, t.value()); !s) return s;
  return ok;
}
template <class Engine>
std::vector<shared_adapter> causal_lm<Engine>::adapters_named(const adapter_registry& in, const names& which) const {
  std::vector<shared_adapter> list;
  for (const std::string& n : which) list.push_back(*in.find(n));
  return list;
}

template <class Engine> status causal_lm<Engine>::add(const std::string& name, adapter_set adapter) {
  return change([&](adapter_registry& next) -> status {
    auto shared = std::make_shared<const adapter_set>(std::move(adapter));
    if (status s = next.add(name, shared); !s) return s;
    if (status s = upload(*shared); !s) return s;
    return check_fits(shared);
  });
}
template <class Engine>
auto causal_lm<Engine>::begin_add(const std::string& name, adapter_set adapter) -> result<pending_add> {
  const auto guard = lock();
  pending_add p;
  p.name_ = name, p.adapter_ = std::make_shared<const adapter_set>(std::move(adapter));
  if (status s = adapter_registry(registry_).add(name, p.adapter_); !s) return s.failure();
  if (status s = upload(*p.adapter_); !s) return s.failure();
  result<shared_adapter> composed = compose_adapters(std::span<const shared_adapter>(&p.adapter_, 1), registry_.rule);
  if (!composed) return composed.failure();
  p.composed_ = std::move(*composed), p.weights_version_ = weights_version_;
  return result<pending_add>(std::move(p));
}
// A part is a block: its formula, its tensors, and the values that follow from the adapter's parameters. The last part
// also gives the adapter its slot among those of multi-LoRA batches.
template <class Engine>
result<bool> causal_lm<Engine>::continue_add(pending_add& pending, block_stack_cache<Engine>& stacks,
                                             kv_cache<Engine>& cache) {
  const auto guard = lock();
  const versioned_weights on = base_weights();
  const typename block_stack<Engine>::settings s =
      settings_of(pending.composed_.get(), on, stack_options{false, false, &cache});
  const result<capacity> limits = reserve(1);
  if (!limits) return limits.failure();
  if (pending.made_ == nullptr || pending.weights_version_ != on.number || pending.rows_ != limits->tokens)
    pending.made_ = block_stack<Engine>::begin(s), pending.weights_version_ = on.number, pending.rows_ = limits->tokens;
  block_stack<Engine>& made = *pending.made_;
  if (status good = made.build_next(*programs_, s); !good) return good.failure();
  bound_block<Engine>& fresh = made.blocks().back();
  if (status good = made.bind_block(fresh, pass_kind::decode, *limits); !good) return good.failure();
  fresh.precompute(made.kind_of(fresh, pass_kind::decode));
  if (!made.is_built(s)) return false;
  made.mark_bound();
  adapter_registry next = registry_;
  if (status good = next.add(pending.name_, pending.adapter_); !good) return good.failure();
  registry_ = std::move(next);
  stacks.add(std::span<const shared_adapter>(&pending.adapter_, 1), on.number, std::move(pending.made_), pending.rows_);
  status good = ok;
  if (const auto base = begin_multi_lora(stacks, &cache, 1); !base) good = base.failure();
  if (good)
    if (const auto slot = multi_lora_slot(stacks, &cache, 1, {pending.name_}); !slot) good = slot.failure();
  if (good) return true;
  static_cast<void>(registry_.remove(pending.name_));
  stacks.retain([&](const auto& e) { return e.of.size() != 1 || e.of[0] != pending.adapter_; });
  return good.failure();
}
template <class Engine> status causal_lm<Engine>::replace(const std::string& name, adapter_set adapter) {
  return change([&](adapter_registry& next) -> status {
    auto shared = std::make_shared<const adapter_set>(std::move(adapter));
    if (status s = next.replace(name, shared); !s) return s;
    if (status s = upload(*shared); !s) return s;
    return check_fits(shared);
  });
}
template <class Engine> status causal_lm<Engine>::set_adapters(adapter_set adapter) {
  return change([&](adapter_registry& next) -> status {
    next.clear();
    if (status s = upload(adapter); !s) return s;
    if (status s = next.add("default", std::make_shared<const adapter_set>(std::move(adapter))); !s) return s;
    return next.activate({"default"});
  });
}
template <class Engine> status causal_lm<Engine>::remove(const std::string& name) {
  return change([&](adapter_registry& next) { return next.remove(name); });
}
template <class Engine> status causal_lm<Engine>::rename(const std::string& from, const std::string& to) {
  return change([&](adapter_registry& next) { return next.rename(from, to); });
}
template <class Engine> status causal_lm<Engine>::activate(const names& which) {
  return change([&](adapter_registry& next) { return next.activate(which); });
}
template <class Engine> status causal_lm<Engine>::unload() {
  return change([](adapter_registry& next) -> status { return next.clear(), ok; });
}
template <class Engine> status causal_lm<Engine>::adapters_changed() {
  const auto guard = lock();
  if (status s = device_adapters_->upload_all(programs_->queue); !s) return s;
  return stacks_.parameters_changed();
}
template <class Engine> auto causal_lm<Engine>::all_names() const -> names {
  const auto guard = lock();
  return registry_.all();
}
template <class Engine> auto causal_lm<Engine>::active() const -> names {
  const auto guard = lock();
  return registry_.active();
}
template <class Engine> shared_adapter causal_lm<Engine>::find(const std::string& name) const {
  const auto guard = lock();
  const shared_adapter* const at = registry_.find(name);
  return at != nullptr ? *at : nullptr;
}
template <class Engine> void causal_lm<Engine>::enable(bool on) {
  const auto guard = lock();
  registry_.enabled = on;
}
template <class Engine> bool causal_lm<Engine>::enabled() const {
  const auto guard = lock();
  return registry_.enabled;
}

// ---- Merging. Merged weights are copies next to the base; merge_and_unload() makes them the base.

template <class Engine>
result<merged_model> causal_lm<Engine>::merge_of(std::span<const shared_adapter> adapters, merged_format as) {
  const result<shared_adapter> all = compose_adapters(adapters, registry_.rule, true);
  if (!all) return all.failure();
  return merge_adapters<Engine>(programs_->queue, *config_, *weights_, **all, as);
}
template <class Engine> status causal_lm<Engine>::merge(const names& which) {
  return change([&](adapter_registry& next) { return next.merge(which); });
}
template <class Engine> status causal_lm<Engine>::unmerge() {
  return change([](adapter_registry& next) -> status { return next.unmerge(), ok; });
}
template <class Engine> auto causal_lm<Engine>::merged() const -> names {
  const auto guard = lock();
  return registry_.merged();
}
template <class Engine> long long causal_lm<Engine>::merged_bytes() const {
  const auto guard = lock();
  return merged_ != nullptr ? merged_->model.bytes : 0;
}
template <class Engine> std::map<std::string, double> causal_lm<Engine>::merge_quantization_error() const {
  const auto guard = lock();
  return merged_ != nullptr ? merged_->model.rounding : std::map<std::string, double>();
}
template <class Engine> result<model_weights> causal_lm<Engine>::merged_weights(const names& which, merged_format as) {
  const auto guard = lock();
  if (status s = registry_.check_names(which); !s) return s.failure();
  result<merged_model> made = merge_of(adapters_named(registry_, which), as);
  if (!made) return made.failure();
  return std::move(made->weights);
}
template <class Engine> status causal_lm<Engine>::merge_and_unload(const names& which) {
  const auto guard = lock();
  if (status s = registry_.check_names(which); !s) return s;
  result<merged_model> made = merge_of(adapters_named(registry_, which));
  if (!made) return made.failure();
  auto base = std::exchange(weights_, std::make_unique<model_weights>(std::move(made->weights)));
  const unsigned long long number = std::exchange(weights_version_, ++last_version_);
  adapter_registry none = registry_;
  none.clear();
  status s = apply_change(std::move(none));
  if (!s) weights_ = std::move(base), weights_version_ = number;
  evict_unused();
  return s;
}

// ---- Calls: which stack runs them. Rows with their own adapters run in the launches of the base where those fit
// (multi-LoRA batch), else by groups of equal adapters.

template <class Engine>
result<std::unique_ptr<block_stack<Engine>>> causal_lm<Engine>::make_stack(std::span<const shared_adapter> adapters,
                                                                           const versioned_weights& on,
                                                                           const stack_options& options) {
  const result<shared_adapter> all = compose_adapters(adapters, registry_.rule);
  if (!all) return all.failure();
  return block_stack<Engine>::make(*programs_, settings_of(adapters.empty() ? nullptr : all->get(), on, options));
}
template <class Engine>
auto causal_lm<Engine>::settings_of(const adapter_set* adapters, const versioned_weights& on,
                                    const stack_options& options) -> typename block_stack<Engine>::settings {
  const auto table = [&](const std::vector<float>& of) { return view_of(of.data(), context_, rotary_dim(*config_)); };
  return {*config_,      on.of,           *interned_,
          adapters,      options.loss,    options.dropped,
          context_,      table(rotary_),  table(sliding_rotary_.empty() ? rotary_ : sliding_rotary_),
          options.cache, device_weights_, device_adapters_};
}
template <class Engine>
result<std::unique_ptr<block_stack<Engine>>> causal_lm<Engine>::make_stack(const names& which, bool loss,
                                                                           bool dropped) {
  if (status s = registry_.check_names(which); !s) return s.failure();
  return make_stack(adapters_named(registry_, which), base_weights(), {loss, dropped});
}

template <class Engine>
result<block_stack<Engine>*> causal_lm<Engine>::prepare(block_stack_cache<Engine>& stacks, kv_cache<Engine>* cache,
                                                        std::span<const shared_adapter> adapters,
                                                        const versioned_weights& on,
                                                        std::span<const sequence_chunk> chunks) {
  const pass_kind w = cache != nullptr ? pass_kind::decode : pass_kind::forward;
  if (status s = set_rows(chunks, cache != nullptr); !s) return s.failure();
  const auto found = stacks.of(adapters, on.number, [&] { return make_stack(adapters, on, {false, false, cache}); });
  if (!found) return found.failure();
  const result<capacity> limits = reserve(rows_.rows());
  if (!limits) return limits.failure();
  if (status s = (*found)->ensure_bound(w, rows_.rows(), *limits); !s) return s.failure();
  return (*found)->made.get();
}
template <class Engine>
result<block_stack<Engine>*> causal_lm<Engine>::prepare(block_stack_cache<Engine>& stacks, kv_cache<Engine>* cache,
                                                        std::span<const sequence_chunk> chunks) {
  if (status s = check_chunks(chunks); !s) return s.failure();
  return prepare(stacks, cache, active_adapters(), active_weights(), chunks);
}

template <class Engine>
status causal_lm<Engine>::check_adapters(std::span<const sequence_chunk> chunks,
                                         std::span<const names> chunk_adapters) const {
  if (status s = check_chunks(chunks); !s) return s;
  if (chunk_adapters.size() != chunks.size())
    return fail("adapters are named for ", static_cast<long long>(chunk_adapters.size()), " sequences, and there are ",
                static_cast<long long>(chunks.size()));
  if (merged_ != nullptr) return fail("adapters are merged into the weights; unmerge() to run rows with others");
  for (const names& n : chunk_adapters)
    if (status s = registry_.check_names(n); !s) return s;
  return ok;
}
template <class Engine>
result<block_stack<Engine>*> causal_lm<Engine>::prepare_multi_lora(block_stack_cache<Engine>& stacks,
                                                                   kv_cache<Engine>* cache,
                                                                   std::span<const sequence_chunk> chunks,
                                                                   std::span<const names> chunk_adapters) {
  block_stack<Engine>* const by_groups = nullptr;
  if (status s = check_adapters(chunks, chunk_adapters); !s) return s.failure();
  const long long rows = rows_of(chunks);
  const auto base = begin_multi_lora(stacks, cache, rows);
  if (!base) return base.failure();
  std::set<names> sets(chunk_adapters.begin(), chunk_adapters.end());
  sets.erase(names{});
  if (sets.size() > multi_lora_rows<Engine>::slots) return by_groups;
  std::vector<std::int64_t> slots;
  for (const names& n : chunk_adapters) {
    const result<int> slot = multi_lora_slot(stacks, cache, rows, n);
    if (!slot) return slot.failure();
    if (*slot == no_slot) return by_groups;
    slots.push_back(*slot);
  }
  if (status s = set_rows(chunks, cache != nullptr, slots); !s) return s.failure();
  if (status s = stacks.multi_lora().send(programs_->queue, rows_.adapters(), rows_.host_adapters()); !s)
    return s.failure();
  return *base;
}
template <class Engine>
result<block_stack<Engine>*> causal_lm<Engine>::begin_multi_lora(block_stack_cache<Engine>& stacks,
                                                                 kv_cache<Engine>* cache, long long rows) {
  const pass_kind w = cache != nullptr ? pass_kind::decode : pass_kind::forward;
  const versioned_weights on = base_weights();
  const result<capacity> limits = reserve(rows);
  if (!limits) return limits.failure();
  const auto base = stacks.multi_lora_base(on.number, [&] { return make_stack({}, on, {false, false, cache}); });
  if (!base) return base.failure();
  if (status s = (*base)->ensure_bound(w, rows, *limits); !s) return s.failure();
  if (status s = stacks.multi_lora().begin(programs_->queue, w, *(*base)->made, limits->tokens); !s) return s.failure();
  return (*base)->made.get();
}
template <class Engine>
result<int> causal_lm<Engine>::multi_lora_slot(block_stack_cache<Engine>& stacks, kv_cache<Engine>* cache,
                                               long long rows, const names& n, std::string* why) {
  if (n.empty()) return base_slot;
  const pass_kind w = cache != nullptr ? pass_kind::decode : pass_kind::forward;
  const versioned_weights on = base_weights();
  const result<capacity> limits = reserve(rows);
  if (!limits) return limits.failure();
  const std::vector<shared_adapter> adapters = adapters_named(registry_, n);
  const auto with = stacks.of(adapters, on.number, [&] { return make_stack(adapters, on, {false, false, cache}); });
  if (!with) return with.failure();
  if (status s = (*with)->ensure_bound(w, rows, *limits); !s) return s.failure();
  const result<int> slot = stacks.multi_lora().slot_of(w, *(*with)->made);
  if (!slot && why != nullptr) *why = slot.message();
  return slot ? *slot : no_slot;
}
template <class Engine> result<std::string> causal_lm<Engine>::explain_multi_lora(std::span<const names> sets) {
  const auto guard = lock();
  std::string all;
  for (const names& n : sets) {
    if (status s = registry_.check_names(n); !s) return s.failure();
    for (const std::string& name : n) all += (&name == n.data() ? "" : ", ") + name;
    if (const auto base = begin_multi_lora(stacks_, nullptr, 1); !base) return base.failure();
    std::string why = "fused into the base's launches (multi-LoRA batch)";
    if (const result<int> slot = multi_lora_slot(stacks_, nullptr, 1, n, &why); !slot) return slot.failure();
    all += ": " + why;
    all += "\n";
  }
  return all;
}

// Chunks whose adapters fit the launches of the base are one group, or several where there are more sets than slots,
// and every other set of adapters is a group of its own. Groups are independent, because a token attends to its own
// sequence only and a sequence has one set of adapters.
template <class Engine>
status causal_lm<Engine>::run_rows(block_stack_cache<Engine>& stacks, kv_cache<Engine>* cache,
                                   std::span<const sequence_chunk> chunks, std::span<const names> chunk_adapters,
                                   const mutable_view& out) {
  const pass_kind w = cache != nullptr ? pass_kind::decode : pass_kind::forward;
  if (chunk_adapters.empty()) {
    const auto stack = prepare(stacks, cache, chunks);
    if (!stack) return stack.failure();
    return run_chunks(**stack, w, out);
  }
  const auto batched = prepare_multi_lora(stacks, cache, chunks, chunk_adapters);
  if (!batched) return batched.failure();
  if (*batched != nullptr) return run_chunks(**batched, w, out);
  const long long width = config_->vocabulary, bytes = width * bits_of(out.type) / 8;
  const bool last_only = out.size[0] == static_cast<long long>(chunks.size());
  std::vector<long long> first{0};  // first row of `out` for each chunk
  for (const sequence_chunk& r : chunks)
    first.push_back(first.back() + (last_only ? 1 : static_cast<long long>(r.tokens.size())));
  if (status s = group_logits_.reserve(programs_->queue,
                                       first.back() * width * bits_of(out.type) / bits_of(Engine::storage_type));
      !s)
    return s;
  struct group {
    bool is_batched;
    std::vector<names> sets{};
    bool has(const names& n) const { return std::find(sets.begin(), sets.end(), n) != sets.end(); }
  };
  std::vector<group> groups;
  std::vector<std::size_t> group_index;  // group of each chunk
  for (const names& n : chunk_adapters) {
    auto at = std::find_if(groups.begin(), groups.end(), [&](const group& g) { return g.has(n); });
    if (at == groups.end()) {
      const result<int> slot = multi_lora_slot(stacks, cache, rows_of(chunks), n);
      if (!slot) return slot.failure();
      const bool is_batched = *slot != no_slot;
      at = std::find_if(groups.begin(), groups.end(), [&](const group& g) {
        return is_batched && g.is_batched && g.sets.size() < multi_lora_rows<Engine>::slots;
      });
      if (at == groups.end()) at = groups.insert(at, {is_batched});
      at->sets.push_back(n);
    }
    group_index.push_back(static_cast<std::size_t>(at - groups.begin()));
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<sequence_chunk> members;
    std::vector<names> of_group;
    long long rows = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i)
      if (group_index[i] == g)
        members.push_back(chunks[i]), of_group.push_back(chunk_adapters[i]), rows += first[i + 1] - first[i];
    const auto stack = groups[g].is_batched
                           ? prepare_multi_lora(stacks, cache, members, of_group)
                           : prepare(stacks, cache, adapters_named(registry_, of_group[0]), base_weights(), members);
    if (!stack) return stack.failure();
    if (status s = run_chunks(**stack, w, {group_logits_.data(), out.type, {rows, width, 1, 1}, 2}); !s) return s;
    const char* from = static_cast<const char*>(group_logits_.data());
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (group_index[i] != g) continue;
      const long long count = (first[i + 1] - first[i]) * bytes;
      if (status s = Engine::copy(programs_->queue, static_cast<char*>(out.data) + first[i] * bytes, from, count); !s)
        return s;
      from += count;
    }
  }
  return ok;
}

}  // namespace graft
