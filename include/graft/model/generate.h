// SPDX-License-Identifier: Apache-2.0
// Text generation with a KV cache (contiguous slots, not paged): prefill of the prompts, long ones in chunks, then one
// decode step per token. Sequences of a call may have any lengths; rows are not padded, so a batch gives the tokens
// that its sequences would give one by one. The size of the cache is fixed, and a sequence that fills it ends.
// Captured steps on a GPU run one step ahead: a replayed step writes the row numbers of the next one, which is queued
// before the host has read the tokens of this one. If it turns out that something else should have run, its tokens are
// ignored.
//     auto g = generator<engine>::make(model, settings, 8, 512);
//     g->run(prompts, [&](std::size_t sequence, std::int64_t token) { …; return true; });
#pragma once
#include <graft/backend/lru_cache.h>
#include <graft/core/splitmix64.h>
#include <graft/model/causal_lm.h>
#include <graft/model/device_tensors.h>
#include <graft/model/row_batch.h>
#include <graft/model/sampler.h>

#include <cstddef>
#include <cstdint>

namespace graft {

// Sampling of the next tokens of a generation step, for both kinds of engine: on the host from logits in host memory
// (sampler.h), or by the engine's sampling kernel, so that only the tokens are read back.
template <class Engine, bool OnEngine = !Engine::reads_host_memory> class step_sampler {
 public:
  // Returns an error that names the setting if this sampler cannot choose tokens by the settings.
  static status check(const sampling_settings& s) { return check_sampling(s); }

  step_sampler(const sampling_settings& settings, int vocabulary, int)
      : sampler_(settings, vocabulary), vocabulary_(static_cast<std::size_t>(vocabulary)) {}

  status begin(typename Engine::queue&, std::span<const std::vector<std::int64_t>> prompts) {
    logits_.resize(prompts.size() * vocabulary_);
    return ok;
  }
  // Returns the memory for the logits of n rows.
  result<mutable_view> logits(typename Engine::queue&, long long n) {
    return view_into(logits_.data(), n, vocabulary_);
  }
  status choose(typename Engine::queue&, const row_batch&, bool) { return ok; }
  // Returns whether a step may be queued before the tokens of the previous one are read. Sampling on the host needs
  // those tokens.
  static bool can_run_ahead(const row_batch&) { return false; }
  status record_step(typename Engine::queue&, int) { return ok; }
  status wait(int) { return ok; }
  result<int> token(std::size_t k, std::span<const std::int64_t> history, std::size_t sequence,
                    std::size_t prompt_tokens) {
    return sampler_.next(std::span(logits_).subspan(k * vocabulary_, vocabulary_), history, sequence, prompt_tokens);
  }

 private:
  sampler sampler_;
  std::size_t vocabulary_;
  std::vector<typename Engine::real> logits_;
};

template <class Engine> class step_sampler<Engine, true> {
 public:
  static status check(const sampling_settings& s) {
    for (const auto& [name, value] : {std::pair{"min_p", s.min_p},
                                      {"presence_penalty", s.presence_penalty},
                                      {"frequency_penalty", s.frequency_penalty}})
      if (value != 0)
        return fail(name, " is set, and the engine's sampling kernel does not have it; leave it at 0, or generate on ",
                    "the CPU");
    return check_sampling(s);
  }

  // `length` is the number of KV cache slots of a sequence.
  step_sampler(const sampling_settings& settings, int vocabulary, int length)
      : settings_(settings), vocabulary_(vocabulary), length_(length) {}

  status begin(typename Engine::queue& q, std::span<const std::vector<std::int64_t>> prompts) {
    if (status s = sampler_.reserve(q, settings_, vocabulary_, static_cast<long long>(prompts.size())); !s) return s;
    for (std::size_t i = 0; i < prompts.size(); ++i)
      if (status s = sampler_.begin(q, static_cast<long long>(i), prompts[i]); !s) return s;
    return ok;
  }
  result<mutable_view> logits(typename Engine::queue& q, long long n) {
    if (status s = logits_.reserve(q, n * vocabulary_); !s) return s.failure();
    return logits_.into(n, vocabulary_);
  }
  // Samples the tokens; with `run_ahead` the kernel also writes the row numbers of the next step from them.
  status choose(typename Engine::queue& q, const row_batch& rows, bool run_ahead) {
    return sampler_.choose(q, logits_.data(), rows, length_, run_ahead && can_run_ahead(rows));
  }
  // The repetition penalty rules running ahead out, since each step marks its tokens as seen, also a step whose tokens
  // are then ignored.
  bool can_run_ahead(const row_batch& rows) const {
    return settings_.repetition_penalty == 1 && Engine::sampler::can_run_ahead(rows.distinct_windows().size());
  }
  // Records an event after the queued step, one for even and one for odd steps; wait() waits for the step's tokens.
  status record_step(typename Engine::queue& q, int which) { return queued_[which % 2].note(q); }
  status wait(int which) { return queued_[which % 2].wait(); }
  result<int> token(std::size_t k, std::span<const std::int64_t> history, std::size_t, std::size_t) {
    const std::int64_t chosen = sampler_.token(k, static_cast<long long>(history.size()) - 1);
    if (chosen < 0) return fail("the largest logit is not a finite number");
    return static_cast<int>(chosen);
  }

 private:
  sampling_settings settings_;
  long long vocabulary_, length_;
  typename Engine::sampler sampler_;
  device_rows<Engine> logits_;
  typename Engine::stream_event queued_[2];
};

// A generator's captured steps (CUDA graphs), by number of rows and stack: switching back to earlier adapters replays
// what was captured for them.
template <class Engine> class captured_steps {
 public:
  typename Engine::captured& of(std::size_t rows, std::uint64_t stack) {
    if (captured_step* const k = all_.find([&](const captured_step& e) { return e.rows == rows && e.stack == stack; }))
      return k->work;
    return all_.add({rows, stack, {}}, max_graphs).work;
  }
  // Returns how many steps are captured and can be replayed.
  int captured() const {
    int n = 0;
    for (const captured_step& k : all_) n += k.work.ready() ? 1 : 0;
    return n;
  }

 private:
  static constexpr std::size_t max_graphs = 128;
  struct captured_step {
    std::size_t rows;
    std::uint64_t stack;
    typename Engine::captured work;
  };
  lru_cache<captured_step> all_;
};

enum class stop_reason : unsigned char { running, eos_token, max_new_tokens, cache_full, caller };

struct generated_sequence {
  std::vector<std::int64_t> tokens;  // with the prompt
  stop_reason why = stop_reason::running;
};

template <class Engine> class generator {
 public:
  // Reserves a KV cache for `sequences` sequences of `length` tokens each, prompts included.
  static result<generator> make(causal_lm<Engine>& model, const generation_settings& settings, int sequences,
                                int length, step_mode steps = step_mode::standard) {
    if (sequences < 1 || length < 1) return fail("expected a capacity of at least one sequence and one token");
    if (length > model.context()) return does_not_fit(length, model);
    if (status good = step_sampler<Engine>::check(settings.sampling); !good) return good.failure();
    if (settings.max_new_tokens && *settings.max_new_tokens < 0)
      return fail("max_new_tokens is ", *settings.max_new_tokens, ", expected at least 0");
    if (settings.max_length && *settings.max_length < 0)
      return fail("max_length is ", *settings.max_length, ", expected at least 0");
    if (settings.prefill_chunk_size && *settings.prefill_chunk_size < 1)
      return fail("prefill_chunk_size is ", *settings.prefill_chunk_size, ", expected at least 1");
    if (steps == step_mode::max_autotune)
      if (status s = model.enable_autotuning(); !s) return s.failure();
    generator made(model, settings, sequences, length);
    made.steps_ = steps;
    return result<generator>(std::move(made));
  }

  // Calls token(sequence, new token) for every token; a sequence ends when it returns false. `adapters`: those of each
  // prompt; not given: the model's adapters that are active at each token.
  template <class OnToken>
  result<std::vector<generated_sequence>> run(std::span<const std::vector<std::int64_t>> prompts, OnToken token,
                                              std::span<const adapter_registry::names> adapters = {}) {
    std::vector<generated_sequence> all(prompts.size());
    if (!adapters.empty() && adapters.size() != prompts.size())
      return fail("adapters are named for ", static_cast<long long>(adapters.size()), " prompts, and there are ",
                  static_cast<long long>(prompts.size()));
    adapters_ = adapters;
    if (status s = start(prompts, all); !s) return s.failure();
    const drain_queue at_the_end{*this};
    for (bool more = !settings_.max_new_tokens || *settings_.max_new_tokens > 0; more;) {
      if (status s = prefill_chunked(all); !s) return s.failure();
      if (status s = step(all); !s) return s.failure();
      more = false;
      for (const std::size_t i : active_) {
        const auto row = std::find(step_sequences_.begin(), step_sequences_.end(), i) - step_sequences_.begin();
        const result<int> next = sampler_.token(static_cast<std::size_t>(row), all[i].tokens, i, prompts[i].size());
        if (!next) return next.failure();
        all[i].tokens.push_back(*next);
        if (!token(i, static_cast<std::int64_t>(*next))) all[i].why = stop_reason::caller;
        const auto made = all[i].tokens.size() - prompts[i].size();
        if (all[i].why == stop_reason::running) all[i].why = reason(*next, made, all[i].tokens.size());
        more = more || all[i].why == stop_reason::running;
      }
      std::erase_if(active_, [&](std::size_t i) { return all[i].why != stop_reason::running; });
    }
    return all;
  }
  result<std::vector<generated_sequence>> run(std::span<const std::vector<std::int64_t>> prompts) {
    return run(prompts, [](std::size_t, std::int64_t) { return true; });
  }
  // Returns how many steps are captured, one for each number of rows and each stack that ran.
  int captured() const { return captured_.captured(); }

 private:
  // A model with RoPE may be loaded with fewer positions than it was trained for.
  static error does_not_fit(int length, const causal_lm<Engine>& model) {
    if (model.config().positions < length)
      return fail("sequences of ", length, " tokens do not fit the ", model.config().positions,
                  " positions of the model");
    return fail("sequences of ", length, " tokens do not fit the ", model.context(),
                " positions that the model was loaded with; load it with model_options::context = ", length);
  }
  generator(causal_lm<Engine>& model, const generation_settings& settings, int sequences, int length)
      : model_(&model),
        settings_(settings),
        eos_tokens_(settings.eos_tokens ? *settings.eos_tokens : model.config().tokens.eos_tokens),
        sequences_(static_cast<std::size_t>(sequences)),
        length_(length),
        kv_cache_(std::make_unique<kv_cache<Engine>>()),
        sampler_(settings.sampling, model.config().vocabulary, length) {
    kv_cache_->slots = static_cast<long long>(sequences) * length;
  }

  status start(std::span<const std::vector<std::int64_t>> prompts, std::vector<generated_sequence>& all) {
    if (prompts.empty() || prompts.size() > sequences_)
      return fail("there are ", static_cast<long long>(prompts.size()), " prompts, expected 1 to ",
                  static_cast<long long>(sequences_));
    active_.clear(), cached_tokens_.assign(prompts.size(), 0), chunks_.clear(), chunks_.reserve(prompts.size());
    prompt_tokens_.clear();
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto n = static_cast<long long>(prompts[i].size());
      if (n < 1 || n > length_)
        return fail("prompt ", static_cast<long long>(i), " has ", n, " tokens, expected 1 to ", length_);
      all[i].tokens.reserve(static_cast<std::size_t>(length_) + 1);
      all[i].tokens = prompts[i];
      active_.push_back(i), prompt_tokens_.push_back(n);
    }
    if (status s = sampler_.begin(queue(), prompts); !s) return s;
    return ok;
  }
  // Does chunked prefill: if more tokens are pending than one chunk holds, all but the last token of each sequence go
  // into the cache chunk by chunk.
  status prefill_chunked(const std::vector<generated_sequence>& all) {
    const long long chunk_size = settings_.prefill_chunk_size.value_or(4096);
    long long pending = 0;
    for (const std::size_t i : active_) pending += static_cast<long long>(all[i].tokens.size()) - cached_tokens_[i];
    if (pending <= std::max(chunk_size, static_cast<long long>(active_.size()))) return ok;
    for (std::size_t k = 0; k < active_.size();) {
      chunks_.clear(), names_.clear();
      for (long long budget = chunk_size; budget > 0 && k < active_.size();) {
        const std::size_t i = active_[k];
        const long long left = static_cast<long long>(all[i].tokens.size()) - 1 - cached_tokens_[i],
                        n = std::min(left, budget);
        if (n > 0) {
          const auto from = static_cast<std::size_t>(cached_tokens_[i]);
          chunks_.push_back({std::span(all[i].tokens).subspan(from, static_cast<std::size_t>(n)), cached_tokens_[i],
                             static_cast<long long>(i) * length_});
          if (!adapters_.empty()) names_.push_back(adapters_[i]);
          cached_tokens_[i] += n, budget -= n;
        }
        if (n == left) ++k;
      }
      if (chunks_.empty()) continue;
      const auto guard = model_->lock();
      const result<mutable_view> logits = sampler_.logits(queue(), static_cast<long long>(chunks_.size()));
      if (!logits) return logits.failure();
      if (status s = model_->run_rows(stacks_, kv_cache_.get(), chunks_, names_, *logits); !s) return s;
    }
    return ok;
  }
  // Runs the tokens of the active sequences that are not in the cache yet: the prompts, or one token each.
  status step(const std::vector<generated_sequence>& all) {
    chunks_.clear(), names_.clear();
    for (const std::size_t i : active_) {
      const auto done = static_cast<std::size_t>(cached_tokens_[i]);
      chunks_.push_back(
          {std::span(all[i].tokens).subspan(done), cached_tokens_[i], static_cast<long long>(i) * length_});
      if (!adapters_.empty()) names_.push_back(adapters_[i]);
      cached_tokens_[i] = static_cast<long long>(all[i].tokens.size());
    }
    const auto guard = model_->lock();
    // True if no other call has set rows since this generator's last step; its queued step reads them from that memory.
    const bool rows_unchanged = model_->rows_version() == rows_version_;
    const auto n = static_cast<long long>(active_.size());
    const result<mutable_view> logits = sampler_.logits(queue(), n);
    if (!logits) return logits.failure();
    const auto stack = names_.empty() ? model_->prepare(stacks_, kv_cache_.get(), chunks_)
                                      : model_->prepare_multi_lora(stacks_, kv_cache_.get(), chunks_, names_);
    if (!stack) return stack.failure();
    const bool was_queued = std::exchange(next_queued_, false);
    if (*stack == nullptr) {
      step_sequences_ = active_;
      if (status s = model_->run_rows(stacks_, kv_cache_.get(), chunks_, names_, *logits); !s) return s;
      if (status s = model_->set_rows(chunks_, true); !s) return s;
      if (status s = model_->upload_rows(); !s) return s;
      if (status s = sampler_.choose(queue(), model_->rows(), false); !s) return s;
      if (status s = sampler_.record_step(queue(), ++steps_queued_); !s) return s;
      return sampler_.wait(steps_queued_);
    }
    const bool replays = is_captured(steps_) && model_->rows().rows() == n;
    const auto work = [&]() -> status {
      if (status s = model_->run_uploaded(**stack, pass_kind::decode, *logits); !s) return s;
      return sampler_.choose(queue(), model_->rows(), replays);
    };
    const std::uint64_t graph_version = version_hash(**stack, *logits);
    const auto queue_step = [&]() -> status {
      typename Engine::captured* const graph = replays ? &captured_.of(active_.size(), (*stack)->number()) : nullptr;
      if (status s = replays ? graph->run(queue(), graph_version, work) : work(); !s) return s;
      return sampler_.record_step(queue(), ++steps_queued_);
    };
    const std::uint64_t step_version = splitmix64(graph_version ^ adapters_hash());
    const bool is_queued = was_queued && queued_version_ == step_version;
    if (!is_queued) {
      step_sequences_ = active_;
      if (status s = model_->upload_rows(); !s) return s;
      if (status s = queue_step(); !s) return s;
    }
    const int this_step = steps_queued_;
    rows_version_ = model_->rows_version();
    // While adapters change from token to token no step is queued ahead, since it would run the wrong ones.
    const bool adapters_unchanged = std::exchange(last_version_, step_version) == step_version;
    if (replays && adapters_unchanged && step_sequences_ == active_ && (rows_unchanged || !is_queued) &&
        can_queue_next(all)) {
      if (status s = queue_step(); !s) return s;
      next_queued_ = true, queued_version_ = step_version;
    }
    return sampler_.wait(this_step);
  }
  // Returns whether every sequence takes the token of this step and one more, unless an end token or the caller ends
  // it.
  bool can_queue_next(const std::vector<generated_sequence>& all) const {
    bool every = sampler_.can_run_ahead(model_->rows());
    for (const std::size_t i : active_) {
      const auto length = static_cast<long long>(all[i].tokens.size()) + 1, made = length - prompt_tokens_[i];
      every = every && length < length_ && (!settings_.max_new_tokens || made < *settings_.max_new_tokens) &&
              (settings_.max_new_tokens || !settings_.max_length || length < *settings_.max_length);
    }
    return every;
  }
  // Waits for a step that was queued ahead and is not needed, before run() returns and its memory may be released.
  struct drain_queue {
    generator& of;
    ~drain_queue() {
      if (std::exchange(of.next_queued_, false)) static_cast<void>(of.sampler_.wait(of.steps_queued_));
    }
  };
  typename Engine::queue& queue() { return model_->programs().queue; }
  // Hashes what a captured step depends on: addresses, stack and launches. A graph is valid only for an equal hash.
  std::uint64_t version_hash(const block_stack<Engine>& stack, const mutable_view& logits) {
    std::uint64_t all = model_->rows_address_hash();
    for (const std::uint64_t part :
         {static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(logits.data)), stack.number(),
          static_cast<std::uint64_t>(stack.address_version(pass_kind::decode)),
          names_.empty() ? 0 : stacks_.multi_lora().number()})
      all = splitmix64(all ^ part);
    return all;
  }
  // Hashes the adapter slots of a multi-LoRA batch. A captured step reads the slots from memory, so version_hash()
  // does not cover them.
  std::uint64_t adapters_hash() {
    if (names_.empty()) return 0;
    std::uint64_t all = stacks_.multi_lora().changes();
    for (const std::int64_t slot : model_->rows().host_adapters())
      all = splitmix64(all ^ static_cast<std::uint64_t>(slot));
    return all;
  }
  stop_reason reason(int token, std::size_t made, std::size_t length) const {
    if (std::find(eos_tokens_.begin(), eos_tokens_.end(), token) != eos_tokens_.end()) return stop_reason::eos_token;
    if (settings_.max_new_tokens && made >= static_cast<std::size_t>(*settings_.max_new_tokens))
      return stop_reason::max_new_tokens;
    if (!settings_.max_new_tokens && settings_.max_length && length >= static_cast<std::size_t>(*settings_.max_length))
      return stop_reason::max_new_tokens;
    return length >= static_cast<std::size_t>(length_) ? stop_reason::cache_full : stop_reason::running;
  }

  causal_lm<Engine>* model_;
  generation_settings settings_;
  std::vector<int> eos_tokens_;
  std::size_t sequences_;
  int length_;
  std::unique_ptr<kv_cache<Engine>> kv_cache_;
  block_stack_cache<Engine> stacks_;
  std::span<const adapter_registry::names> adapters_;
  step_sampler<Engine> sampler_;
  step_mode steps_ = step_mode::standard;
  captured_steps<Engine> captured_;
  std::vector<std::size_t> active_, step_sequences_;  // step_sequences_: sequence of each row of the step to be read
  std::vector<long long> cached_tokens_, prompt_tokens_;  // per sequence: tokens in the KV cache, tokens of the prompt
  int steps_queued_ = 0;
  bool next_queued_ = false;  // the step after the one that was read last is queued already
  std::uint64_t queued_version_ = 0, last_version_ = 0, rows_version_ = 0;
  std::vector<sequence_chunk> chunks_;
  std::vector<adapter_registry::names> names_;
};

}  // namespace graft
