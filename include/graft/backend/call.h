// SPDX-License-Identifier: Apache-2.0
// One call of a bound plan: its sizes, the tensors it brings by node, its outputs in the graph's order. It lies in the
// plan and is filled in again for every call, so that a call allocates nothing.
#pragma once
#include <graft/core/sequence.h>
#include <graft/core/view.h>
#include <graft/graph/graph.h>

namespace graft {

using leaf_views = sequence<view>;  // one per node; only leaves have data

// Is one of the tensors codes of an encoding?
inline bool has_codes(const leaf_views& leaves) {
  for (const view& v : leaves)
    if (v.beside != nullptr) return true;
  return false;
}

struct call {
  size_values sizes;
  leaf_views data;
  sequence<mutable_view> outputs;  // one without data is not wanted
  // What attention gives in a forward pass, and gave where this is the backward one, with memory for the sums of its rows
  // (log Σ exp, [heads][rows]); null where nobody keeps them.
  const void* attended = nullptr;
  float* attention_sums = nullptr;
};

}  // namespace graft
