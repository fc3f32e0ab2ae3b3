// SPDX-License-Identifier: Apache-2.0
// Who chooses the next tokens of a step: the sampler in host memory, from logits that the engine wrote there, or a kernel of
// the engine, which leaves nothing to read but the tokens.
#pragma once
#include <graft/model/placed.h>
#include <graft/model/rows.h>
#include <graft/model/sampling.h>

namespace graft {

template <class Engine, bool OnEngine = !Engine::reads_host_memory> class next_tokens {
 public:
  next_tokens(const sampling_settings& how, int vocabulary, int)
      : sampler_(how, vocabulary), vocabulary_(static_cast<std::size_t>(vocabulary)) {}

  status begin(typename Engine::queue&, std::span<const std::vector<std::int64_t>> prompts) {
    logits_.resize(prompts.size() * vocabulary_);
    return ok;
  }
  // Where the logits of n rows go.
  result<mutable_view> logits(typename Engine::queue&, long long n) {
    return view_into(logits_.data(), n, vocabulary_);
  }
  status choose(typename Engine::queue&, const row_batch&, bool) { return ok; }
  // Steps that are queued before the one ahead of them was read; here everything is done when it is called.
  static bool can_go_on(const row_batch&) { return false; }
  status note(typename Engine::queue&, int) { return ok; }
  status wait(int) { return ok; }
  result<int> token(std::size_t k, std::span<const std::int64_t> history, std::size_t sequence) {
    return sampler_.next(std::span(logits_).subspan(k * vocabulary_, vocabulary_), history, sequence);
  }

 private:
  sampler sampler_;
  std::size_t vocabulary_;
  std::vector<typename Engine::real> logits_;
};

template <class Engine> class next_tokens<Engine, true> {
 public:
  // `length`: places of a sequence in the cache.
  next_tokens(const sampling_settings& how, int vocabulary, int length)
      : how_(how), vocabulary_(vocabulary), length_(length) {}

  status begin(typename Engine::queue& q, std::span<const std::vector<std::int64_t>> prompts) {
    if (status s = sampler_.reserve(q, how_, vocabulary_, static_cast<long long>(prompts.size())); !s) return s;
    for (std::size_t i = 0; i < prompts.size(); ++i)
      if (status s = sampler_.begin(q, static_cast<long long>(i), prompts[i]); !s) return s;
    return ok;
  }
  result<mutable_view> logits(typename Engine::queue& q, long long n) {
    if (status s = logits_.reserve(q, n * vocabulary_); !s) return s.failure();
    return logits_.into(n, vocabulary_);
  }
  // `goes_on`: and the rows of the step behind this one, from the tokens.
  status choose(typename Engine::queue& q, const row_batch& rows, bool goes_on) {
    return sampler_.choose(q, logits_.data(), rows, length_, goes_on && can_go_on(rows));
  }
  // What a penalty has seen is written by every step, also by one that was queued in vain.
  bool can_go_on(const row_batch& rows) const {
    return how_.repetition_penalty == 1 && Engine::sampler::can_go_on(rows.window_kinds().size());
  }
  // A step that is queued, the even ones and the odd ones apart; and when its tokens are there.
  status note(typename Engine::queue& q, int which) { return queued_[which % 2].note(q); }
  status wait(int which) { return queued_[which % 2].wait(); }
  result<int> token(std::size_t k, std::span<const std::int64_t> history, std::size_t) {
    const std::int64_t chosen = sampler_.token(k, static_cast<long long>(history.size()) - 1);
    if (chosen < 0) return fail("the largest logit is not a finite number");
    return static_cast<int>(chosen);
  }

 private:
  sampling_settings how_;
  long long vocabulary_, length_;
  typename Engine::sampler sampler_;
  engine_rows<Engine> logits_;
  typename Engine::moment queued_[2];
};

}  // namespace graft
