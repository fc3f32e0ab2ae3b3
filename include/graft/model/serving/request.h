// SPDX-License-Identifier: Apache-2.0
// A request to the serving engine, and its response: events that the step loop puts in and the client takes out in
// another thread.
#pragma once
#include <graft/model/generation_settings.h>
#include <graft/model/serving/token_logprobs.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace graft::serving {

using clock = std::chrono::steady_clock;

struct request {
  std::vector<std::int64_t> prompt{};
  std::vector<std::string> adapters{};  // names in the adapter store, in the order in which they act; empty: the base
  // Tokens that are drawn follow from the seed, the number of the choice and the position alone.
  sampling_settings sampling{};
  int max_tokens = 16;
  int choices = 1;
  std::vector<std::string> stop{};
  std::optional<int> logprobs{};                              // alternatives that are reported with each token
  std::vector<std::pair<std::int64_t, double>> logit_bias{};  // what is added to the logit of a token
  bool json_object = false;  // tokens that would not continue a JSON object are excluded
  bool ignore_eos = false;
  int priority = 0;  // a smaller number goes first, as in vLLM
  std::optional<clock::time_point> deadline{};
};

enum class finish_reason : std::uint8_t { stop, length, cancelled, deadline, failed };

// Why a request failed, for a server that has a status of its own for each: the engine ends; no adapter has the name,
// or none has it any more; the adapter cannot be read or does not fit the model; the memory for adapters is too small
// for it; the step failed.
enum class failure_cause : std::uint8_t {
  none,
  shutting_down,
  unknown_adapter,
  broken_adapter,
  no_memory,
  computation
};

struct event {
  int choice = 0;
  bool finished = false;
  // An event of a token has the token, the text that it releases (stop strings may hold text back) and its log
  // probability.
  std::int64_t token = -1;
  std::string text{};  // bytes; a character may be divided among tokens
  double logprob = 0;
  std::vector<token_logprob> top{};
  // The last event of a choice has these.
  finish_reason why = finish_reason::stop;
  failure_cause cause = failure_cause::none;  // of finish_reason::failed
  std::string message{};
};

class response {
 public:
  // Returns the next event, or none if there is none within the given time.
  std::optional<event> next(std::chrono::milliseconds patience) {
    std::unique_lock guard(mutex_);
    if (!changed_.wait_for(guard, patience, [&] { return !events_.empty(); })) return std::nullopt;
    event e = std::move(events_.front());
    events_.pop_front();
    return e;
  }
  // Ends the sequences of this request before the next step, whatever state they are in.
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  void put(event e) {
    {
      const std::lock_guard guard(mutex_);
      events_.push_back(std::move(e));
    }
    changed_.notify_all();
  }
  // Tokens of the prompt that were not computed, because an earlier sequence had begun with them.
  void set_reused_tokens(long long n) { reused_tokens_.store(n, std::memory_order_relaxed); }
  long long reused_tokens() const { return reused_tokens_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<event> events_;
  std::atomic<bool> cancelled_{false};
  std::atomic<long long> reused_tokens_{0};
};

}  // namespace graft::serving
