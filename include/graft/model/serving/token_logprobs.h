// SPDX-License-Identifier: Apache-2.0
// Log probabilities of tokens as OpenAI's API reports them: of the model itself, before temperature, penalties and
// excluded tokens (vLLM: raw_logprobs).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace graft::serving {

struct token_logprob {
  std::int64_t token = -1;
  double logprob = 0;
};

// The logarithm of the sum of exp(logit).
inline double log_sum_exp(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v) - most);
  return most + std::log(sum);
}

// Returns the n most likely tokens, of equal ones the lowest first.
inline std::vector<token_logprob> top_logprobs(std::span<const float> logits, double log_sum, std::size_t n) {
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto score = [&](std::int64_t t) { return logits[static_cast<std::size_t>(t)]; };
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(std::min(n, order.size()));
  std::partial_sort(order.begin(), middle, order.end(),
                    [&](std::int64_t a, std::int64_t b) { return score(a) != score(b) ? score(a) > score(b) : a < b; });
  std::vector<token_logprob> top;
  for (auto at = order.begin(); at != middle; ++at) top.push_back({*at, static_cast<double>(score(*at)) - log_sum});
  return top;
}

}  // namespace graft::serving
