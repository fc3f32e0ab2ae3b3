// SPDX-License-Identifier: Apache-2.0
// Sampling of the next tokens of a generation step, for both kinds of engine: on the host from logits in host memory
// (sampler.h), or by the engine's sampling kernel, so that only the tokens are read back.
#pragma once
#include <graft/model/device_tensors.h>
#include <graft/model/row_batch.h>
#include <graft/model/sampler.h>

namespace graft {

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

}  // namespace graft
