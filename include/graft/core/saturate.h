// SPDX-License-Identifier: Apache-2.0
// Saturating arithmetic on counts: a product or sum that exceeds long long becomes the largest one. Sizes come from
// callers and files, and a product that wrapped around would pass every size check.
#pragma once
#include <limits>

namespace graft {

inline constexpr long long saturated = std::numeric_limits<long long>::max();

// The operands are counts, or unknown (-1), which never saturates.
constexpr long long saturating_multiply(long long a, long long b) {
  return b > 0 && a > saturated / b ? saturated : a * b;
}
constexpr long long saturating_add(long long a, long long b) { return b > 0 && a > saturated - b ? saturated : a + b; }

}  // namespace graft
