// SPDX-License-Identifier: Apache-2.0
// The bound of an array from a signed number, at least 1. Written as a function because g++ warns of -Wsign-conversion
// where a bound depends on a template's parameter.
#pragma once
#include <cstddef>

namespace graft {

constexpr std::size_t array_size(long long n) { return static_cast<std::size_t>(n > 0 ? n : 1); }

}  // namespace graft
