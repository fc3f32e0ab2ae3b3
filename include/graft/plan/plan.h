// SPDX-License-Identifier: Apache-2.0
// The plan: the data-time nodes of a graph as a list of launches for a target. Backends execute exactly this list;
// explain, drawings, facts, costs and errors read the same one.
#pragma once
#include <graft/plan/chained.h>
#include <graft/plan/dropped.h>
#include <graft/plan/product.h>
#include <graft/plan/row_launch.h>
#include <graft/plan/rows.h>
#include <graft/plan/small_stacks.h>

namespace graft {

// What a launch is: named after the work that it is built around.
enum class family : unsigned char {
  product,
  attention,
  lookup,
  rotate,
  rowwise,
  pointwise,
  reduce,
  small,
  exchange,
  host
};
// Where a node stands in its launch: around the product of  y = post ⊙ (pre(x) · decode(W)ᵀ + side(x)) + bias,  in a sum
// over tokens, or alone.
enum class slot : unsigned char { none, pre, product, side, post, reduce, alone };

constexpr const char* name_of(slot s) {
  constexpr const char* names[] = {"", "pre", "product", "side", "post", "reduce", "alone"};
  return names[static_cast<int>(s)];
}
constexpr const char* name_of(family f) {
  constexpr const char* names[] = {"product",   "attention", "lookup", "rotate",   "rowwise",
                                   "pointwise", "reduce",    "small",  "exchange", "host"};
  return names[static_cast<int>(f)];
}

struct launch {
  family what = family::small;
  id anchor = none_id;       // the node it is built around
  bool by_rows = false;      // a few rows at a time; else all nodes on all rows, one after the other
  int first = 0, count = 0;  // its nodes: [first, first + count) of plan::nodes
  int product = -1;          // its slots: one of plan::products
  int together = 0;          // and so many of those behind it, which read the same input
  id gated = none_id;        // the product of its two results, element by element: what the launch stores
  int norm = -1;             // a norm of its result, which its kernel may have inside: one of plan::row_launches
  int sum = -1;              // a product over the tokens: one of plan::sums
  int beside[2] = {-1, -1};  // and those that may run beside its product
  id also = none_id;         // of an expression: a second value that it computes, from the same operands
  int summed[2] = {-1, -1};  // and what is read of the two: sums over the tokens, which may be made on the way
  int dropped = -1;          // a narrow product with dropout in it: one of plan::dropped
  int chained = -1;          // small products of every token: one of plan::chained
  int stack = -1;            // products of stacks of small matrices: one of plan::stacks
  int rows = -1;             // a norm with its factors, or heads side by side: one of plan::row_launches. Of attention:
                             // the heads that it reads, which it may take as they are
};

struct plan {
  target to{};
  stages when{};
  node_set live{};
  row_flow rows{};
  sequence<launch> launches;
  sequence<id> nodes;  // of all launches, in the order in which they are computed
  sequence<product_slots> products;
  sequence<token_sum> sums;
  sequence<row_launch> row_launches;
  sequence<dropped_product> dropped;
  sequence<chained_product> chained;
  sequence<small_stack> stacks;
  int norm_of_input = -1;   // the row launch that whoever wrote the input may have done
  sequence<int> launch_of;  // by node; -1: computed before the data, or a leaf
  sequence<slot> place;
  int breaks = 0;  // nodes that no launch can hold
  id first_break = none_id;
};

constexpr bool reads_by_piece(const graph& g, const plan& p, id i, int k) {
  return detail::read_by_piece(g, p.rows, i, k);
}
// A value that is read by a later launch, or as a whole: it is stored for all rows.
constexpr bool crosses_launches(const graph& g, const plan& p, id i) {
  for (id r = i + 1; r < g.size; ++r)
    for (int k = 0; p.live[r] && k < 3; ++k)
      if (g[r].operand(k) == i)
        if (p.launch_of[r] != p.launch_of[i] || (p.launches[p.launch_of[i]].by_rows && !reads_by_piece(g, p, r, k)))
          return true;
  return false;
}

}  // namespace graft
