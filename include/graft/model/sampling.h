// SPDX-License-Identifier: Apache-2.0
// The next token from logits, in the order of transformers (generation/logits_process.py): repetition penalty; and where
// a token is drawn: temperature, top-k (equals of the k-th stay), top-p (the least likely tokens go while their sum is
// at most 1 - p; of equals the one with the higher number goes first), softmax, draw. The draw is a function of seed,
// sequence and position alone: the counter generator of core/mixed_bits.h, so a batch draws what its rows would draw
// one by one. Without drawing the largest logit wins, of equals the lowest token. Nothing is allocated per token.
#pragma once
#include <graft/core/mixed_bits.h>
#include <graft/core/result.h>
#include <graft/model/generation_settings.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

namespace graft {

// A number from 0 up to 1, the same wherever and whenever it is asked for.
inline double drawn_number(std::uint64_t seed, std::uint64_t sequence, std::uint64_t position) {
  const std::uint64_t key = mixed_bits(seed ^ mixed_bits(sequence));
  return static_cast<double>(mixed_bits(key ^ position) >> 11U) * 0x1p-53;
}

class sampler {
 public:
  sampler(const sampling_settings& settings, int vocabulary)
      : settings_(settings),
        scores_(static_cast<std::size_t>(vocabulary)),
        order_(scores_.size()),
        seen_(scores_.size()) {}

  // `history`: all tokens before this one, with the prompt.
  result<int> next(std::span<const float> logits, std::span<const std::int64_t> history, std::uint64_t sequence) {
    if (logits.size() != scores_.size())
      return fail("there are ", static_cast<long long>(logits.size()), " logits, expected one for each of the ",
                  static_cast<long long>(scores_.size()), " tokens");
    std::copy(logits.begin(), logits.end(), scores_.begin());
    penalise(history);
    const std::size_t best = largest();
    if (!std::isfinite(scores_[best])) return fail("the largest logit is not a finite number");
    if (!settings_.sample) return static_cast<int>(best);
    if (settings_.temperature != 1)
      for (float& s : scores_) s = s / static_cast<float>(settings_.temperature);
    keep_top_k();
    keep_top_p(scores_[best]);
    return draw(scores_[best], drawn_number(settings_.seed, sequence, history.size()));
  }

  // The logits of the last call as the settings left them; -inf for tokens that could not be chosen.
  std::span<const float> scores() const { return scores_; }

 private:
  static constexpr float gone = -std::numeric_limits<float>::infinity();

  // NaN is larger than everything, as in PyTorch, so that it is found.
  std::size_t largest() const {
    std::size_t best = 0;
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      if (std::isnan(scores_[i])) return i;
      if (scores_[i] > scores_[best]) best = i;
    }
    return best;
  }
  void penalise(std::span<const std::int64_t> history) {
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
  void keep_top_k() {
    const auto k = static_cast<std::size_t>(settings_.top_k);
    if (k == 0 || k >= scores_.size()) return;
    sorted_ = scores_;
    std::nth_element(sorted_.begin(), sorted_.begin() + static_cast<std::ptrdiff_t>(k - 1), sorted_.end(),
                     std::greater<>());
    const float least = sorted_[k - 1];
    for (float& s : scores_)
      if (s < least) s = gone;
  }
  void keep_top_p(float best) {
    if (settings_.top_p >= 1) return;
    std::size_t n = 0;
    double sum = 0;
    for (std::size_t i = 0; i < scores_.size(); ++i)
      if (scores_[i] != gone)
        order_[n++] = static_cast<int>(i), sum += std::exp(static_cast<double>(scores_[i] - best));
    const auto score = [&](int i) { return scores_[static_cast<std::size_t>(i)]; };
    std::sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(n),
              [&](int a, int b) { return score(a) != score(b) ? score(a) < score(b) : a > b; });
    double below = 0;
    for (std::size_t i = 0; i + 1 < n; ++i) {
      below += std::exp(static_cast<double>(score(order_[i]) - best)) / sum;
      if (below > 1 - settings_.top_p) break;
      scores_[static_cast<std::size_t>(order_[i])] = gone;
    }
  }
  int draw(float best, double number) const {
    double sum = 0, reached = 0;
    for (const float s : scores_) sum += std::exp(static_cast<double>(s - best));
    int last = 0;
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      if (scores_[i] == gone) continue;
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
  std::uint64_t round_ = 0;
};

}  // namespace graft
