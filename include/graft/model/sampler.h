// SPDX-License-Identifier: Apache-2.0
// Sampling of the next token from logits on the host, in the order of transformers' logits processors
// (generation/logits_process.py): repetition penalty, frequency and presence penalty; if a token is drawn, temperature,
// top-k (ties with the k-th stay), top-p (the least likely tokens are removed while their sum is at most 1 - p; of
// equal ones the highest id first), min-p, softmax, draw. The draw is a function of seed, sequence and position alone
// (counter-based, core/splitmix64.h), so a batch draws what its rows would draw one by one. Greedy sampling takes the
// largest logit, of equal ones the lowest id. Nothing is allocated per token.
#pragma once
#include <graft/core/result.h>
#include <graft/core/splitmix64.h>
#include <graft/model/generation_settings.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace graft {

// Returns a uniform number in [0, 1) that depends on the arguments alone.
inline double uniform_draw(std::uint64_t seed, std::uint64_t sequence, std::uint64_t position) {
  const std::uint64_t key = splitmix64(seed ^ splitmix64(sequence));
  return static_cast<double>(splitmix64(key ^ position) >> 11U) * 0x1p-53;
}

// Checks the settings. Temperature and penalty divide floats, and far outside these bounds the quotients overflow.
inline status check_sampling(const sampling_settings& s) {
  const auto written = [](double v) {
    char number[32];
    static_cast<void>(std::snprintf(number, sizeof number, "%g", v));
    return text(number);
  };
  const auto divides = [](double v) { return v >= 1e-6 && v <= 1e6; };
  if (s.temperature != 0 && !divides(s.temperature))
    return fail("temperature is ", written(s.temperature),
                ", expected a number from 1e-06 to 1e+06, or 0 for the most likely token");
  if (!divides(s.repetition_penalty))
    return fail("repetition_penalty is ", written(s.repetition_penalty),
                ", expected a number from 1e-06 to 1e+06, 1 for none");
  if (!(s.top_p >= 0 && s.top_p <= 1))
    return fail("top_p is ", written(s.top_p), ", expected a number from 0 to 1, 1 for all tokens");
  if (!(s.min_p >= 0 && s.min_p <= 1))
    return fail("min_p is ", written(s.min_p), ", expected a number from 0 to 1, 0 for all tokens");
  for (const auto& [name, value] :
       {std::pair{"presence_penalty", s.presence_penalty}, {"frequency_penalty", s.frequency_penalty}})
    if (!(value >= -1e6 && value <= 1e6))
      return fail(name, " is ", written(value), ", expected a number from -1e+06 to 1e+06, 0 for none");
  if (s.top_k < 0) return fail("top_k is ", s.top_k, ", expected 0 for all tokens, or how many");
  return ok;
}

// A sampler expects settings that check_sampling() accepts. A call leaves nothing for the next one, so that sequences
// with settings of their own can share a sampler.
class sampler {
 public:
  sampler(const sampling_settings& settings, int vocabulary)
      : settings_(settings),
        scores_(static_cast<std::size_t>(vocabulary)),
        order_(scores_.size()),
        seen_(scores_.size()),
        counts_(scores_.size()) {}

  void set(const sampling_settings& settings) { settings_ = settings; }

  // Samples a token. `history`: all tokens before this one, of which the first `prompt_tokens` are the prompt.
  result<int> next(std::span<const float> logits, std::span<const std::int64_t> history, std::uint64_t sequence,
                   std::size_t prompt_tokens) {
    if (logits.size() != scores_.size())
      return fail("there are ", static_cast<long long>(logits.size()), " logits, expected one for each of the ",
                  static_cast<long long>(scores_.size()), " tokens");
    std::copy(logits.begin(), logits.end(), scores_.begin());
    apply_repetition_penalty(history);
    apply_count_penalties(history.subspan(std::min(prompt_tokens, history.size())));
    const std::size_t best = largest();
    if (!std::isfinite(scores_[best])) return fail("the largest logit is not a finite number");
    if (!settings_.draws()) return static_cast<int>(best);
    if (settings_.temperature != 1)
      for (float& s : scores_) s = s / static_cast<float>(settings_.temperature);
    apply_top_k();
    apply_top_p(scores_[best]);
    apply_min_p(scores_[best]);
    return draw(scores_[best], uniform_draw(settings_.seed, sequence, history.size()));
  }

  // Returns the logits of the last call after all settings were applied; -inf for excluded tokens.
  std::span<const float> scores() const { return scores_; }

 private:
  static constexpr float excluded = -std::numeric_limits<float>::infinity();

  // NaN counts as the largest value, as in PyTorch, so that next() reports it.
  std::size_t largest() const {
    std::size_t best = 0;
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      if (std::isnan(scores_[i])) return i;
      if (scores_[i] > scores_[best]) best = i;
    }
    return best;
  }
  void apply_repetition_penalty(std::span<const std::int64_t> history) {
    const auto penalty = static_cast<float>(settings_.repetition_penalty);
    if (penalty == 1) return;
    ++round_;
    for (const std::int64_t token : history) {
      const auto i = static_cast<std::size_t>(token);
      if (i >= scores_.size() || seen_[i] == round_) continue;
      seen_[i] = round_;
      scores_[i] = scores_[i] < 0 ? scores_[i] * penalty : scores_[i] / penalty;
    }
  }
  void apply_count_penalties(std::span<const std::int64_t> answer) {
    if (settings_.presence_penalty == 0 && settings_.frequency_penalty == 0) return;
    for (const std::int64_t token : answer)
      if (const auto i = static_cast<std::size_t>(token); i < counts_.size()) ++counts_[i];
    for (const std::int64_t token : answer) {
      const auto i = static_cast<std::size_t>(token);
      if (i >= counts_.size() || counts_[i] == 0) continue;
      scores_[i] -= static_cast<float>(settings_.frequency_penalty * counts_[i] + settings_.presence_penalty);
      counts_[i] = 0;
    }
  }
  void apply_top_k() {
    const auto k = static_cast<std::size_t>(settings_.top_k);
    if (k == 0 || k >= scores_.size()) return;
    sorted_ = scores_;
    std::nth_element(sorted_.begin(), sorted_.begin() + static_cast<std::ptrdiff_t>(k - 1), sorted_.end(),
                     std::greater<>());
    const float least = sorted_[k - 1];
    for (float& s : scores_)
      if (s < least) s = excluded;
  }
  void apply_top_p(float best) {
    if (settings_.top_p >= 1) return;
    std::size_t n = 0;
    double sum = 0;
    for (std::size_t i = 0; i < scores_.size(); ++i)
      if (scores_[i] != excluded)
        order_[n++] = static_cast<int>(i), sum += std::exp(static_cast<double>(scores_[i] - best));
    const auto score = [&](int i) { return scores_[static_cast<std::size_t>(i)]; };
    std::sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(n),
              [&](int a, int b) { return score(a) != score(b) ? score(a) < score(b) : a > b; });
    double below = 0;
    for (std::size_t i = 0; i + 1 < n; ++i) {
      below += std::exp(static_cast<double>(score(order_[i]) - best)) / sum;
      if (below > 1 - settings_.top_p) break;
      scores_[static_cast<std::size_t>(order_[i])] = excluded;
    }
  }
  void apply_min_p(float best) {
    if (settings_.min_p <= 0) return;
    for (float& s : scores_)
      if (std::exp(static_cast<double>(s - best)) < settings_.min_p) s = excluded;
  }
  int draw(float best, double number) const {
    double sum = 0, reached = 0;
    for (const float s : scores_) sum += std::exp(static_cast<double>(s - best));
    int last = 0;
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      if (scores_[i] == excluded) continue;
      last = static_cast<int>(i);
      reached += std::exp(static_cast<double>(scores_[i] - best));
      if (reached > number * sum) break;
    }
    return last;
  }

  sampling_settings settings_;
  std::vector<float> scores_, sorted_ = scores_;
  std::vector<int> order_;
  std::vector<std::uint64_t> seen_;
  std::vector<int> counts_;  // counts of the tokens of an answer; 0 between calls
  std::uint64_t round_ = 0;
};

}  // namespace graft
