// SPDX-License-Identifier: Apache-2.0
// One call of a program: its sizes, its input tensors by node, and its outputs in the graph's order. The caller keeps
// it and fills it in anew, so that a call allocates nothing.
#pragma once
#include <graft/core/sequence.h>
#include <graft/core/view.h>
#include <graft/graph/graph.h>

namespace graft {

using leaf_views = sequence<view>;  // one per node; only leaves have data

// Returns true if one of the tensors is a quantized weight.
inline bool has_quantized(const leaf_views& leaves) {
  for (const view& v : leaves)
    if (v.quant != nullptr) return true;
  return false;
}

struct program_call {
  program_call() = default;
  explicit program_call(const graph& g) : data(g.size), outputs(g.outs) {}
  size_values sizes;
  leaf_views data;
  sequence<mutable_view> outputs;  // an output without data is not computed
  // The output of attention and its log-sum-exp [heads][rows], saved for backward on a GPU: a forward pass writes the
  // log-sum-exp, the backward pass reads both. They are null if they are not saved.
  const void* attention_out = nullptr;
  float* attention_lse = nullptr;

  // Begins a call with the sizes of a binding, to which those that its inputs bring are added.
  void begin(const size_values& bound) {
    sizes = bound;
    for (mutable_view& v : outputs) v = {};
  }
};

}  // namespace graft
