// SPDX-License-Identifier: Apache-2.0
// Counting without overflow: a number that no long long holds is the largest one. Sizes come from callers and files, and
// a product of them that wrapped around would pass for a small one.
#pragma once
#include <limits>

namespace graft {

inline constexpr long long uncountable = std::numeric_limits<long long>::max();

// Of numbers that are not negative; an unknown one, which is, does not count as large.
constexpr long long times(long long a, long long b) { return b > 0 && a > uncountable / b ? uncountable : a * b; }
constexpr long long plus(long long a, long long b) { return b > 0 && a > uncountable - b ? uncountable : a + b; }

}  // namespace graft
