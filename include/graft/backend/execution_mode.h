// SPDX-License-Identifier: Apache-2.0
// How a layer or a model runs: fused or eager, captured or launch by launch, and the capacity that is allocated for it.
#pragma once

namespace graft {

// fused: the launches of the plan; eager: one operation after the other as the formula is written, the oracle.
enum class execution_mode : unsigned char { fused, eager };

// How the steps of a model run, in torch.compile's words: standard launches one by one, reduce_overhead captures a step
// once and replays it, max_autotune also chooses launches by timing candidates on this device instead of by heuristics.
enum class step_mode : unsigned char { standard, reduce_overhead, max_autotune };
constexpr bool is_captured(step_mode m) { return m != step_mode::standard; }

// What memory is reserved for. A larger call is an error, so that nothing is allocated below a captured graph.
struct capacity {
  long long tokens = 0;  // rows of a call; 0 on the CPU: the workspace grows with the largest call
  int rank = 0;          // sum of the ranks of active branches; 0: what the present adapters need
};

}  // namespace graft
