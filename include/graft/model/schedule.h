// SPDX-License-Identifier: Apache-2.0
// The learning rate as a factor of its largest value, for step 0, 1, .. (transformers, optimization.py): it grows evenly
// over the warm-up, and then
//     constant   stays
//     linear     falls evenly to 0 at the last step
//     cosine     falls to 0 as (1 + cos(pi t)) / 2
// The first step of a warm-up has the factor 0, as it has there.
#pragma once
#include <algorithm>
#include <cmath>
#include <numbers>

namespace graft {

enum class schedule_kind : unsigned char { constant, linear, cosine };

struct rate_schedule {
  schedule_kind kind = schedule_kind::constant;
  long long warm_up = 0, steps = 0;  // steps: of the whole training, with the warm-up

  double factor(long long step) const {
    if (step < warm_up) return static_cast<double>(step) / static_cast<double>(std::max(1LL, warm_up));
    const auto falling = static_cast<double>(std::max(1LL, steps - warm_up));
    switch (kind) {
      case schedule_kind::constant: return 1;
      case schedule_kind::linear: return std::max(0.0, static_cast<double>(steps - step) / falling);
      case schedule_kind::cosine: {
        const double progress = static_cast<double>(step - warm_up) / falling;
        return std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * progress)));
      }
    }
    return 1;
  }
};

}  // namespace graft
