// SPDX-License-Identifier: Apache-2.0
// How a layer runs: by the launches of its target's plan, or one operation after the other as the formula is written.
// And how much it must be ready for: beyond that a call is refused, so that nothing is allocated below a captured graph.
#pragma once

namespace graft {

enum class mode : unsigned char { fused, eager };

// How the steps of a model run: launch by launch, or captured once and replayed; and that with launches that were timed
// on this device against others that do the same, where rules choose them otherwise.
enum class step_mode : unsigned char { standard, reduce_overhead, max_autotune };
constexpr bool is_captured(step_mode m) { return m != step_mode::standard; }

struct capacity {
  long long tokens = 0;  // rows of a call; 0 on the CPU: as many as come, growing with the largest
  int rank = 0;          // of all side branches that are active together; 0: what the adapters at hand need
};

}  // namespace graft
