// SPDX-License-Identifier: Apache-2.0
// Learning rate schedules as a factor on the largest rate, for step 0, 1, … (transformers, optimization.py). The factor
// grows linearly over the warm-up, and then
//     constant   stays 1
//     linear     falls linearly to 0 at the last step
//     cosine     falls to 0 as (1 + cos(pi t)) / 2
// The first step of a warm-up has the factor 0, as in transformers.
#pragma once
#include <algorithm>
#include <cmath>
#include <numbers>

namespace graft {

enum class schedule_kind : unsigned char { constant, linear, cosine };

struct lr_schedule {
  schedule_kind kind = schedule_kind::constant;
  long long warmup_steps = 0, steps = 0;  // steps: of the whole training, warm-up included

  double factor(long long step) const {
    if (step < warmup_steps) return static_cast<double>(step) / static_cast<double>(std::max(1LL, warmup_steps));
    const auto decay_steps = static_cast<double>(std::max(1LL, steps - warmup_steps));
    switch (kind) {
      case schedule_kind::constant: return 1;
      case schedule_kind::linear: return std::max(0.0, static_cast<double>(steps - step) / decay_steps);
      case schedule_kind::cosine: {
        const double progress = static_cast<double>(step - warmup_steps) / decay_steps;
        return std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * progress)));
      }
    }
    return 1;
  }
};

}  // namespace graft
