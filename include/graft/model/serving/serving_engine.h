// SPDX-License-Identifier: Apache-2.0
// Serving engine: requests of many clients, each with its own adapters and sampling settings, in one batch on a model.
// Sequences join and leave between steps (scheduler.h); adapters are loaded and removed meanwhile (adapter_store.h).
// Any thread submits requests; one thread runs the steps.
//     auto served = serving_engine<engine>::make(model, {}, bytes_of_token, load_folder);
//     (*served)->adapters().add("sql", "adapters/sql");
//     std::thread loop([&] { (*served)->run(); });
//     auto sent = (*served)->submit({.prompt = ids, .adapters = {"sql"}, .max_tokens = 64});
//     while (auto e = sent.to->next(1s)) if (e->finished) break;
// Tokens are sampled on the host, because requests have settings of their own. On the CPU the logits of a sequence have
// the same bits whatever else is in the batch, however its prompt is cut into chunks and whatever of it was reused
// (serving_settings::batch_invariant); on a GPU sums over another number of rows may round otherwise.
#pragma once
#include <graft/model/generate.h>
#include <graft/model/serving/scheduler.h>

#include <array>

namespace graft::serving {

struct serving_settings {
  scheduler::limits batch{};
  int resident_adapters = 16;            // in memory at a time
  long long resident_adapter_bytes = 0;  // of their tensors; 0: any number
  int max_waiting = 256;                 // sequences that wait; more requests are refused
  step_mode steps = step_mode::standard;
  bool batch_invariant = true;  // on an engine that has such products; prompts then take longer
};

// The error text of requests that were running when the engine stopped.
inline constexpr const char* shutting_down = "the server is shutting down";

// What submit() returns: a response, or why there is none.
struct submission {
  enum class kind : std::uint8_t { accepted, bad_request, unknown_adapter, queue_full, stopping } what = kind::accepted;
  std::shared_ptr<response> to{};
  std::string message{};
};

struct serving_stats {
  long long requests = 0, refused = 0, prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0, steps = 0;
  std::array<long long, 5> finished{};  // sequences by finish_reason
  long long running = 0, waiting = 0, cache_slots = 0, cache_used = 0, cache_prefixes = 0;
  long long adapters_in_memory = 0, adapter_bytes = 0, adapters_loaded = 0, adapters_failed = 0, adapters_left = 0;
  long long rows_of_last_step = 0;
  double step_seconds = 0;  // seconds of all steps
  double longest_step = 0, longest_step_while_loading = 0;
};

// What the steps of every engine share: requests, their checks and their ends.
class serving_base {
 public:
  using token_bytes = std::function<std::string_view(std::int64_t)>;

  adapter_store& adapters() { return store_; }

  // Several requests may share a response, in which the choices of this one begin with number `first_choice`.
  submission submit(request submitted, std::shared_ptr<response> to = nullptr, int first_choice = 0) {
    using kind = submission::kind;
    if (status s = check(submitted); !s) return refuse(kind::bad_request, s.message());
    if (status s = store_.check(submitted.adapters); !s) return refuse(kind::unknown_adapter, s.message());
    auto state = std::make_shared<request_state>();
    state->to = to != nullptr ? std::move(to) : std::make_shared<response>(), state->first_choice = first_choice;
    state->since = store_.now(), state->open = submitted.choices;
    state->submitted = std::move(submitted);
    {
      const std::lock_guard guard(mutex_);
      if (stopping_) return refuse(kind::stopping, shutting_down);
      if (inbox_sequences_ + stats_.waiting + state->open > settings_.max_waiting)
        return refuse(kind::queue_full, "too many requests are waiting");
      inbox_sequences_ += state->open, state->number = ++requests_;
      inbox_.push_back(state);
    }
    wake();
    return {kind::accepted, state->to, {}};
  }
  // Accepts no further requests; run() returns when the last one has ended.
  void drain() {
    {
      const std::lock_guard guard(mutex_);
      stopping_ = true;
    }
    wake();
  }
  // Ends all requests before the next step; run() returns.
  void stop() {
    {
      const std::lock_guard guard(mutex_);
      stopping_ = aborting_ = true;
    }
    wake();
  }
  serving_stats stats() const {
    const std::lock_guard guard(mutex_);
    serving_stats s = stats_;
    s.requests = requests_, s.refused = refused_, s.waiting += inbox_sequences_;
    return s;
  }
  const serving_settings& settings() const { return settings_; }
  int context() const { return context_; }
  int vocabulary() const { return vocabulary_; }

 protected:
  serving_base(const serving_settings& settings, int vocabulary, int context, std::vector<int> eos, token_bytes bytes,
               adapter_store::load_function load)
      : settings_(settings),
        vocabulary_(vocabulary),
        context_(context),
        eos_tokens_(std::move(eos)),
        bytes_(std::move(bytes)),
        scheduler_(settings.batch),
        sampler_({}, vocabulary),
        store_({settings.resident_adapters, settings.resident_adapter_bytes}, std::move(load), [this] { wake(); }) {}

  void wake() {
    {
      const std::lock_guard guard(mutex_);
      awake_ = true;
    }
    changed_.notify_all();
  }
  // Waits until something may have happened. Returns false if the loop is to end.
  bool wait_for_work() {
    std::unique_lock guard(mutex_);
    const bool idle = inbox_.empty() && scheduler_.running().empty() && scheduler_.waiting().empty();
    if (stopping_ && idle) return false;
    changed_.wait_for(guard, std::chrono::milliseconds(100), [&] { return awake_; });
    awake_ = false;
    return true;
  }
  // Takes new requests and ends those that their clients gave up.
  void begin_step() {
    std::vector<std::shared_ptr<request_state>> fresh;
    bool all = false;
    {
      const std::lock_guard guard(mutex_);
      fresh.swap(inbox_), all = aborting_;
      stats_.waiting += std::exchange(inbox_sequences_, 0);
    }
    for (const auto& state : fresh)
      for (int choice = 0; choice < state->submitted.choices; ++choice) {
        auto s = std::make_unique<sequence>();
        s->of = state, s->choice = choice, s->prompt_tokens = state->submitted.prompt.size();
        s->tokens.reserve(s->prompt_tokens + static_cast<std::size_t>(state->submitted.max_tokens));
        s->tokens = state->submitted.prompt, s->stops = stop_strings(state->submitted.stop);
        scheduler_.add(std::move(s));
      }
    const auto now = clock::now();
    scheduler_.remove_if([&](sequence& s) {
      const request& submitted = s.of->submitted;
      if (all) return end(s, finish_reason::failed, shutting_down, failure_cause::shutting_down), true;
      if (s.of->to->cancelled()) return end(s, finish_reason::cancelled, ""), true;
      if (submitted.deadline && now > *submitted.deadline)
        return end(s, finish_reason::deadline, "the time for this request is over"), true;
      return false;
    });
  }
  const scheduler::step_plan& plan() {
    const auto ready = [&](request_state& r) {
      if (r.acquired) return scheduler::readiness::ready;
      adapter_store::acquired a = store_.acquire(r.submitted.adapters, r.open, r.since);
      if (a.what == adapter_store::acquired::kind::pending) return scheduler::readiness::pending;
      if (a.what == adapter_store::acquired::kind::failed)
        return failure_ = std::move(a.message), cause_ = a.cause, scheduler::readiness::failed;
      r.versions = std::move(a.versions), r.acquired = true;
      for (const shared_version& v : r.versions) r.ids.push_back(v->id);
      return scheduler::readiness::ready;
    };
    const scheduler::step_plan& made =
        scheduler_.plan(ready, [&](sequence& s) { end(s, finish_reason::failed, failure_, cause_); });
    long long reused = 0;
    for (const scheduler::row_copy& c : made.copies) reused += c.rows;
    for (const scheduler::chunk& c : made.chunks)
      if (c.of->cached > 0 && c.of->cached < static_cast<long long>(c.of->prompt_tokens) && c.of->choice == 0 &&
          c.of->of->to->reused_tokens() == 0)
        c.of->of->to->set_reused_tokens(c.of->cached);
    count([&](serving_stats& s) { s.reused_tokens += reused; });
    return made;
  }
  // Samples the next token of a sequence from its logits, which are overwritten. Returns false if the sequence ended.
  bool sample(sequence& s, std::span<float> logits) {
    const request& submitted = s.of->submitted;
    event e;
    e.choice = s.of->first_choice + s.choice;
    const double log_sum = submitted.logprobs ? log_sum_exp(logits) : 0;
    const std::vector<float> raw =
        submitted.logprobs ? std::vector<float>(logits.begin(), logits.end()) : std::vector<float>();
    for (const auto& [token, bias] : submitted.logit_bias)
      logits[static_cast<std::size_t>(token)] += static_cast<float>(bias);
    if (submitted.json_object && !exclude_all_but_json(s, logits))
      return end(s, finish_reason::failed, "no token of the vocabulary continues a JSON object"), false;
    sampler_.set(submitted.sampling);
    const result<int> next = sampler_.next(logits, s.tokens, static_cast<std::uint64_t>(s.choice), s.prompt_tokens);
    if (!next) return end(s, finish_reason::failed, next.message()), false;
    s.tokens.push_back(*next), e.token = *next;
    count([](serving_stats& all) { ++all.generated_tokens; });
    if (submitted.logprobs) {
      e.logprob = static_cast<double>(raw[static_cast<std::size_t>(*next)]) - log_sum;
      e.top = top_logprobs(raw, log_sum, static_cast<std::size_t>(*submitted.logprobs));
    }
    const bool is_eos =
        !submitted.ignore_eos && std::find(eos_tokens_.begin(), eos_tokens_.end(), *next) != eos_tokens_.end();
    bool stops = is_eos;
    if (bytes_ && !is_eos) {
      const std::string_view bytes = bytes_(*next);
      if (submitted.json_object) stops = s.json.feed(bytes) && s.json.complete();
      stop_strings::fed fed = s.stops.feed(bytes);
      e.text = std::move(fed.text), stops = stops || fed.stopped;
    }
    s.of->to->put(std::move(e));
    if (stops) return end(s, finish_reason::stop, ""), false;
    const auto made = static_cast<long long>(s.tokens.size() - s.prompt_tokens);
    if (made >= submitted.max_tokens) return end(s, finish_reason::length, ""), false;
    return true;
  }
  // Reports the end of a sequence, which the caller then removes from the scheduler.
  void end(sequence& s, finish_reason why, const std::string& message,
           failure_cause cause = failure_cause::computation) {
    request_state& r = *s.of;
    event e;
    e.choice = r.first_choice + s.choice, e.finished = true, e.why = why, e.message = message;
    e.cause = why == finish_reason::failed ? cause : failure_cause::none, e.text = s.stops.finish();
    count([&](serving_stats& all) { ++all.finished[static_cast<std::size_t>(why)]; });
    if (r.acquired) release(r);
    --r.open;
    r.to->put(std::move(e));
  }
  template <class Change> void count(Change change) {
    const std::lock_guard guard(mutex_);
    change(stats_);
  }
  void end_step(double seconds, long long rows, bool was_loading) {
    const auto& segments = scheduler_.segments();
    const long long prefixes = scheduler_.prefix_slots();
    const int in_memory = store_.in_memory();
    const long long bytes = store_.bytes_in_memory();
    count([&](serving_stats& s) {
      s.running = static_cast<long long>(scheduler_.running().size());
      s.waiting = static_cast<long long>(scheduler_.waiting().size());
      s.cache_slots = segments.slots(), s.cache_prefixes = prefixes;
      s.cache_used = segments.slots() - segments.free_slots() - prefixes;
      s.adapters_in_memory = in_memory, s.adapter_bytes = bytes, s.rows_of_last_step = rows;
      if (rows == 0) return;
      ++s.steps, s.step_seconds += seconds, s.longest_step = std::max(s.longest_step, seconds);
      if (was_loading) s.longest_step_while_loading = std::max(s.longest_step_while_loading, seconds);
    });
  }

  serving_settings settings_;
  const int vocabulary_, context_;
  std::vector<int> eos_tokens_;
  token_bytes bytes_;
  scheduler scheduler_;  // used by the step thread only, as all members above the mutex
  sampler sampler_;
  std::string failure_;  // why the adapters of a request cannot be acquired
  failure_cause cause_ = failure_cause::none;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<request_state>> inbox_;
  serving_stats stats_;
  long long requests_ = 0, refused_ = 0, inbox_sequences_ = 0;
  bool stopping_ = false, aborting_ = false, awake_ = false;
  adapter_store store_;  // last: its thread wakes the loop

 private:
  submission refuse(submission::kind why, const std::string& message) {
    if (why == submission::kind::queue_full || why == submission::kind::stopping)
      ++refused_;  // the caller holds the mutex
    return {why, {}, message};
  }
  void release(request_state& r) { store_.release(r.versions); }
  status check(const request& r) const {
    const auto prompt = static_cast<long long>(r.prompt.size());
    if (prompt == 0) return fail("the prompt has no tokens");
    for (const std::int64_t id : r.prompt)
      if (id < 0 || id >= vocabulary_)
        return fail("token ", static_cast<long long>(id), " is none of this model, which has ", vocabulary_);
    if (r.max_tokens < 1) return fail("max_tokens is ", r.max_tokens, ", expected at least 1");
    const long long longest = std::min<long long>(context_, settings_.batch.slots);
    if (prompt + r.max_tokens > longest)
      return fail("the prompt has ", prompt, " tokens and max_tokens is ", r.max_tokens, ", together more than the ",
                  longest, " of the context; shorten the prompt or ask for fewer tokens");
    if (r.choices < 1 || r.choices > settings_.max_waiting)
      return fail("n is ", r.choices, ", expected 1 to ", settings_.max_waiting);
    if (r.logprobs && (*r.logprobs < 0 || *r.logprobs > 20))
      return fail("logprobs is ", *r.logprobs, ", expected 0 to 20");
    for (const auto& [token, bias] : r.logit_bias)
      if (token < 0 || token >= vocabulary_ || !(bias >= -100 && bias <= 100))
        return fail("logit_bias has token ", static_cast<long long>(token),
                    ", expected tokens of the model, and numbers ", "from -100 to 100");
    if (!bytes_ && (!r.stop.empty() || r.json_object))
      return fail(r.json_object ? "JSON mode" : "stop", " needs the model's tokenizer, and it has none");
    return check_sampling(r.sampling);
  }
  bool exclude_all_but_json(const sequence& s, std::span<float> logits) {
    bool any = false;
    for (std::size_t t = 0; t < logits.size(); ++t) {
      const std::string_view bytes = bytes_(static_cast<std::int64_t>(t));
      json_object_prefix next = s.json;
      if (!bytes.empty() && next.feed(bytes))
        any = true;
      else
        logits[t] = -std::numeric_limits<float>::infinity();
    }
    return any;
  }
};

template <class Engine> class serving_engine : public serving_base {
 public:
  // `bytes`: what a token adds to a text; null for a model without a tokenizer, whose requests have no stop strings and
  // no JSON mode. `load` reads an adapter's folder, in another thread.
  static result<std::unique_ptr<serving_engine>> make(causal_lm<Engine>& model, const serving_settings& settings,
                                                      token_bytes bytes, adapter_store::load_function load) {
    const scheduler::limits& batch = settings.batch;
    if (batch.sequences < 1 || batch.tokens_per_step < batch.sequences)
      return fail("a step has ", batch.tokens_per_step, " tokens and ", batch.sequences,
                  " sequences, expected at least one sequence and a token for each");
    if (batch.slots < 2) return fail("the KV cache has ", batch.slots, " slots, expected at least 2");
    if (settings.resident_adapters < 1 || settings.max_waiting < 1)
      return fail("expected memory for at least one adapter, and a queue for at least one request");
    if (settings.steps == step_mode::max_autotune)
      if (status s = model.enable_autotuning(); !s) return s.failure();
    std::unique_ptr<serving_engine> made(new serving_engine(model, settings, std::move(bytes), std::move(load)));
    const auto guard = model.lock();
    if (const auto reserved = model.reserve(batch.tokens_per_step); !reserved) return reserved.failure();
    return result<std::unique_ptr<serving_engine>>(std::move(made));
  }

  // Runs a step. Returns false if there was nothing to compute.
  bool step() {
    const auto begin = clock::now();
    const bool was_loading = store_.loading() || installing_;
    exchange_adapters();
    begin_step();
    const scheduler::step_plan& now = plan();
    long long rows = 0;
    for (const scheduler::chunk& c : now.chunks) rows += c.tokens;
    if (rows > 0) compute(now);
    end_step(std::chrono::duration<double>(clock::now() - begin).count(), rows, was_loading);
    return rows > 0;
  }
  // Runs steps until drain() or stop().
  void run() {
    for (;;)
      if (!step() && !wait_for_work()) return;
  }

 private:
  serving_engine(causal_lm<Engine>& model, const serving_settings& settings, token_bytes bytes,
                 adapter_store::load_function load)
      : serving_base(settings, model.config().vocabulary, model.context(), model.config().tokens.eos_tokens,
                     std::move(bytes), std::move(load)),
        model_(&model) {
    cache_.slots = settings.batch.slots;
  }
  typename Engine::queue& queue() { return model_->programs().queue; }

  // An adapter that was read and is added block by block.
  struct installation {
    adapter_store::loaded_files files;
    typename causal_lm<Engine>::pending_add pending;
  };
  // Between two steps so much of an adapter is added as takes a quarter of a step, and at least one block; while
  // nothing runs, all of it.
  static constexpr double installing_share = 0.25;

  // Removes the adapters that leave, and adds those that were loaded.
  void exchange_adapters() {
    std::vector<shared_adapter> gone;
    for (const shared_version& v : store_.leaving()) {
      gone.push_back(model_->find(v->id));
      static_cast<void>(model_->remove(v->id));
      scheduler_.forget(v->id);
    }
    if (!gone.empty()) {
      const auto guard = model_->lock();
      stacks_.retain([&](const typename block_stack_cache<Engine>::entry& e) {
        return std::none_of(e.of.begin(), e.of.end(),
                            [&](const auto& a) { return std::find(gone.begin(), gone.end(), a) != gone.end(); });
      });
    }
    install_adapters();
    count([&](serving_stats& s) { s.adapters_left += static_cast<long long>(gone.size()); });
  }
  void install_adapters() {
    const auto begin = clock::now();
    const serving_stats now = stats();
    const double usual_step = now.steps > 0 ? now.step_seconds / static_cast<double>(now.steps) : 0;
    const auto is_over = [&] {
      return !scheduler_.running().empty() &&
             std::chrono::duration<double>(clock::now() - begin).count() >= installing_share * usual_step;
    };
    do {
      if (!installing_) {
        auto files = store_.loaded();
        if (!files) return;
        if (!files->adapter) {
          install(*files, files->adapter.failure());
          continue;
        }
        auto pending = model_->begin_add(adapter_store::id_of(*files), std::move(*files->adapter));
        if (!pending) {
          install(*files, fail(files->folder.c_str(), ": ", pending.message()));
          continue;
        }
        installing_.emplace(installation{std::move(*files), std::move(*pending)});
      }
      const result<bool> added = model_->continue_add(installing_->pending, stacks_, cache_);
      if (added && !*added) continue;
      const installation done = std::move(*std::exchange(installing_, std::nullopt));
      install(done.files, added ? status(ok) : status(fail(done.files.folder.c_str(), ": ", added.message())));
    } while (!is_over());
  }
  void install(const adapter_store::loaded_files& files, const status& done) {
    store_.installed(files, done);
    count([&](serving_stats& s) { ++(done ? s.adapters_loaded : s.adapters_failed); });
  }
  void compute(const scheduler::step_plan& now) {
    chunks_.clear(), names_.clear(), ended_.clear();
    for (const scheduler::chunk& c : now.chunks) {
      const auto from = static_cast<std::size_t>(c.of->cached), n = static_cast<std::size_t>(c.tokens);
      chunks_.push_back({std::span(c.of->tokens).subspan(from, n), c.of->cached, c.of->segment});
      names_.push_back(c.of->of->ids);
    }
    const status done = run_chunks(now);
    for (std::size_t k = 0; k < now.chunks.size(); ++k) {
      sequence& s = *now.chunks[k].of;
      bool goes_on = true;
      if (!done) {
        end(s, finish_reason::failed, done.message()), goes_on = false;
      } else {
        const long long in_prompt = static_cast<long long>(s.prompt_tokens) - s.cached;
        if (in_prompt > 0)
          count([&](serving_stats& all) { all.prompt_tokens += std::min(in_prompt, now.chunks[k].tokens); });
        s.cached += now.chunks[k].tokens;
        const auto width = static_cast<std::size_t>(vocabulary_);
        if (s.pending() == 0) goes_on = sample(s, std::span(host_logits_).subspan(k * width, width));
      }
      if (!goes_on) ended_.push_back(&s);
    }
    if (!ended_.empty())
      scheduler_.remove_if([&](sequence& s) { return std::find(ended_.begin(), ended_.end(), &s) != ended_.end(); });
  }
  // Writes the logits of the last token of each chunk to host_logits_.
  status run_chunks(const scheduler::step_plan& now) {
    const auto guard = model_->lock();
    if constexpr (requires { queue().batch_invariant; }) {
      bool& of_queue = queue().batch_invariant;
      const bool before = std::exchange(of_queue, settings_.batch_invariant);
      status s = run_locked(now);
      of_queue = before;
      return s;
    } else {
      return run_locked(now);
    }
  }
  status run_locked(const scheduler::step_plan& now) {
    for (const scheduler::row_copy& c : now.copies)
      for (device_rows<Engine>& layer : cache_.layers) {
        const long long row = layer.bytes() / cache_.slots;
        char* const rows = static_cast<char*>(layer.data());
        if (status s = Engine::copy(queue(), rows + c.to * row, rows + c.from * row, c.rows * row); !s) return s;
      }
    const auto n = static_cast<long long>(chunks_.size());
    host_logits_.resize(static_cast<std::size_t>(n * vocabulary_));
    if constexpr (Engine::reads_host_memory) {
      static_assert(std::is_same_v<typename Engine::real, float>, "tokens are sampled from float logits");
      return model_->run_rows(stacks_, &cache_, chunks_, names_, view_into(host_logits_.data(), n, vocabulary_));
    } else {
      if (status s = logits_.reserve(queue(), n * vocabulary_); !s) return s;
      if (status s = run_on_device(logits_.into(n, vocabulary_)); !s) return s;
      return Engine::fetch(queue(), logits_.rows(n, vocabulary_), host_logits_.data());
    }
  }
  // A step in which every sequence decodes is captured once for each number of sequences, whatever their adapters are,
  // and replayed.
  status run_on_device(const mutable_view& out) {
    const bool decodes =
        std::all_of(chunks_.begin(), chunks_.end(), [](const auto& c) { return c.tokens.size() == 1; });
    if (!decodes || !is_captured(settings_.steps)) return model_->run_rows(stacks_, &cache_, chunks_, names_, out);
    const auto stack = model_->prepare_multi_lora(stacks_, &cache_, chunks_, names_);
    if (!stack) return stack.failure();
    if (*stack == nullptr) return model_->run_rows(stacks_, &cache_, chunks_, names_, out);
    if (status s = model_->upload_rows(); !s) return s;
    std::uint64_t version = model_->rows_address_hash();
    for (const std::uint64_t part :
         {static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(out.data)), (*stack)->number(),
          static_cast<std::uint64_t>((*stack)->address_version(pass_kind::decode)), stacks_.multi_lora().number()})
      version = splitmix64(version ^ part);
    return captured_.of(chunks_.size(), (*stack)->number()).run(queue(), version, [&] {
      return model_->run_uploaded(**stack, pass_kind::decode, out);
    });
  }

  causal_lm<Engine>* model_;
  kv_cache<Engine> cache_;
  block_stack_cache<Engine> stacks_;
  captured_steps<Engine> captured_;
  device_rows<Engine, dtype::f32> logits_;
  std::vector<float> host_logits_;
  std::vector<sequence_chunk> chunks_;
  std::vector<adapter_registry::names> names_;
  std::vector<sequence*> ended_;
  std::optional<installation> installing_;
};

}  // namespace graft::serving
