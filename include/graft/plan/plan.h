// SPDX-License-Identifier: Apache-2.0
// plan: the call-stage nodes of a graph as a list of launches for a target. Backends execute exactly this list;
// explain(), drawings, facts, costs and errors read it too.
#pragma once
#include <graft/plan/dropout_branch.h>
#include <graft/plan/gemm.h>
#include <graft/plan/kronecker_chain.h>
#include <graft/plan/matrix_stack.h>
#include <graft/plan/row_flow.h>
#include <graft/plan/rowwise.h>

namespace graft {

// The kind of a launch, after the operation that it is built around.
enum class launch_kind : unsigned char {
  gemm,
  attention,
  gather,
  rotate,
  rowwise,
  elementwise,
  reduce,
  small,
  collective,
  host
};
// The role of a node in its launch: a slot of  y = epilogue(prologue(x) · dequantize(W)ᵀ + branch(x)),  part of a wgrad
// or another reduction, or an operation of its own.
enum class slot : unsigned char { none, prologue, mainloop, branch, epilogue, reduce, standalone };

constexpr const char* name_of(slot s) {
  constexpr const char* names[] = {"", "prologue", "mainloop", "low-rank branch", "epilogue", "reduce", ""};
  return names[static_cast<int>(s)];
}
constexpr const char* name_of(launch_kind f) {
  constexpr const char* names[] = {"GEMM",        "attention", "gather",         "rotation",   "rowwise",
                                   "elementwise", "reduce",    "small matrices", "collective", "host function"};
  return names[static_cast<int>(f)];
}

struct launch {
  launch_kind what = launch_kind::small;
  id anchor = none_id;             // the node it is built around
  bool by_rows = false;            // runs in chunks of rows; else every node runs on all rows
  int first = 0, count = 0;        // its nodes are [first, first + count) of plan::nodes
  int product = -1;                // GEMM: index in plan::products
  int grouped = 0;                 // grouped GEMM: number of further products after `product`
  id gated = none_id;              // the elementwise product of its two results, which is stored instead of them
  int norm = -1;                   // a norm of its result, possibly fused: index in plan::rowwise_launches
  int sum = -1;                    // wgrad: index in plan::sums
  int fused_wgrads[2] = {-1, -1};  // wgrads that run in the launch of its GEMM: indices in plan::sums
  id paired_root = none_id;        // expression: the second value that it computes from the operands of the first
  int gate_wgrads[2] = {-1, -1};   // column wgrads of these two values, possibly fused: indices in plan::sums
  int dropout_gemms = -1;          // narrow GEMM with dropout: index in plan::dropout_gemms
  int chains = -1;                 // products of small matrices per token: index in plan::chains
  int stack = -1;                  // products of stacks of small matrices: index in plan::stacks
  int rows = -1;                   // norm, or heads (of attention: its qkv): index in plan::rowwise_launches
};

struct plan {
  target to{};
  stages when{};
  node_set live{};
  row_flow rows{};
  sequence<launch> launches;
  sequence<id> nodes;  // the nodes of all launches, in order of computation
  sequence<gemm_slots> products;
  sequence<wgrad_sum> sums;
  sequence<rowwise_launch> rowwise_launches;
  sequence<dropout_gemm> dropout_gemms;
  sequence<matrix_chain> chains;
  sequence<matrix_stack> stacks;
  int input_norm = -1;  // the norm of the graph's input, which the previous graph can fuse: index in rowwise_launches
  sequence<int> launch_of;  // by node; -1: precomputed, or a leaf
  sequence<slot> slot_of;
  int breaks = 0;  // nodes that no launch can hold
  id first_break = none_id;
};

constexpr bool reads_by_chunk(const graph& g, const plan& p, id i, int k) {
  return detail::read_by_chunk(g, p.rows, i, k);
}
// True for a value that is stored for all rows, because another launch reads it or a reader needs all rows.
constexpr bool crosses_launches(const graph& g, const plan& p, id i) {
  for (id r = i + 1; r < g.size; ++r)
    for (int k = 0; p.live[r] && k < 3; ++k)
      if (g[r].operand(k) == i)
        if (p.launch_of[r] != p.launch_of[i] || (p.launches[p.launch_of[i]].by_rows && !reads_by_chunk(g, p, r, k)))
          return true;
  return false;
}

}  // namespace graft
