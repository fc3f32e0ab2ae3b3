// SPDX-License-Identifier: Apache-2.0
// Weighted combination of adapters (PEFT's add_weighted_adapter): tensors t_i with weights c_i become one, element by
// element, as in peft/utils/merge_utils.py:
//     linear             Σ c_i t_i
//     magnitude_prune    the density · count largest elements of each t_i stay; then Σ c_i t_i      (arXiv 2306.01708)
//     dare_linear        an element of t_i stays with probability `density` and is divided by it; then Σ c_i t_i
//                                                                                                   (arXiv 2311.03099)
//     ties, dare_ties    t_i are pruned by magnitude or by DARE; the sign of Σ t_i, or of Σ sign(t_i), is elected, and
//                        Σ c_i t_i over the elements of that sign is divided by their number
// Signs are elected from the t_i without their weights, so a negative weight does not reverse a vote.
#pragma once
#include <graft/core/result.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace graft {

enum class combination : unsigned char {
  linear,
  cat,
  svd,
  ties,
  ties_svd,
  dare_linear,
  dare_ties,
  dare_linear_svd,
  dare_ties_svd,
  magnitude_prune,
  magnitude_prune_svd
};
inline constexpr const char* combination_names[] = {"linear",
                                                    "cat",
                                                    "svd",
                                                    "ties",
                                                    "ties_svd",
                                                    "dare_linear",
                                                    "dare_ties",
                                                    "dare_linear_svd",
                                                    "dare_ties_svd",
                                                    "magnitude_prune",
                                                    "magnitude_prune_svd"};

// Which sign wins: that of the sum, or that of more adapters.
enum class majority : unsigned char { total, frequency };
// PEFT before 0.21 counts the scaling of an adapter twice in the types that end in svd, and all releases leave
// use_rslora on, which multiplies the result by the square root of its rank. `peft` does what the release that wrote
// the first adapter does; with `exact` every update counts as its weight says.
enum class scaling : unsigned char { peft, exact };

struct combination_settings {
  combination type = combination::svd;
  double density = 1;
  majority sign = majority::total;
  scaling scales = scaling::peft;
  int rank = 0;            // rank of the types that end in svd; 0: the largest rank of the adapters
  std::uint64_t seed = 0;  // seed of the masks of dare_*
};

inline bool by_svd(combination c) {
  return c == combination::svd || c == combination::ties_svd || c == combination::dare_linear_svd ||
         c == combination::dare_ties_svd || c == combination::magnitude_prune_svd;
}

namespace detail {

inline bool elects_sign(combination c) {
  return c == combination::ties || c == combination::ties_svd || c == combination::dare_ties ||
         c == combination::dare_ties_svd;
}
inline bool drops(combination c) {
  return c == combination::dare_linear || c == combination::dare_ties || c == combination::dare_linear_svd ||
         c == combination::dare_ties_svd;
}
inline bool prunes(combination c) {
  return c == combination::ties || c == combination::ties_svd || c == combination::magnitude_prune ||
         c == combination::magnitude_prune_svd;
}

inline void prune_to_largest(std::vector<float>& t, double density) {
  if (density >= 1) return;
  const auto keep = static_cast<std::ptrdiff_t>(density * static_cast<double>(t.size()));
  std::vector<std::size_t> order(t.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::nth_element(order.begin(), order.begin() + keep, order.end(),
                   [&](std::size_t a, std::size_t b) { return std::abs(t[a]) > std::abs(t[b]); });
  for (auto at = order.begin() + keep; at != order.end(); ++at) t[*at] = 0;
}
// `unit` draws uniformly from [0, 1).
template <class Unit> void drop_randomly(std::vector<float>& t, double density, Unit unit) {
  if (density >= 1) return;
  for (float& v : t) v = unit() < density ? v / static_cast<float>(density) : 0.0F;
}

}  // namespace detail

// Combines tensors of equal size.
template <class Unit>
std::vector<float> combined(std::vector<std::vector<float>> tensors, std::span<const double> weights,
                            const combination_settings& settings, Unit unit) {
  for (std::vector<float>& t : tensors) {
    if (detail::prunes(settings.type)) detail::prune_to_largest(t, settings.density);
    if (detail::drops(settings.type)) detail::drop_randomly(t, settings.density, unit);
  }
  std::vector<float> out(tensors.empty() ? 0 : tensors[0].size());
  for (std::size_t e = 0; e < out.size(); ++e) {
    float vote = 0, sum = 0;
    int count = 0;
    for (const std::vector<float>& t : tensors)
      vote += settings.sign == majority::total ? t[e] : static_cast<float>((t[e] > 0) - (t[e] < 0));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const bool counts = !detail::elects_sign(settings.type) || (vote >= 0 ? tensors[i][e] > 0 : tensors[i][e] < 0);
      if (counts) sum += tensors[i][e] * static_cast<float>(weights[i]), ++count;
    }
    out[e] = detail::elects_sign(settings.type) ? sum / static_cast<float>(std::max(1, count)) : sum;
  }
  return out;
}

}  // namespace graft
