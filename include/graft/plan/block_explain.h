// SPDX-License-Identifier: Apache-2.0
// explain and draw for a block: the launches of both directions, with the layers by their paths.
#pragma once
#include <graft/plan/block_verdict.h>
#include <graft/plan/draw.h>

namespace graft {

template <block_type Block, const target& To = cpu_target, class Sink>
constexpr void explain_block(Sink&& line, long long tokens) {
  using facts = plan_of<Block, To>;
  text head;
  head << Block::name << " block " << name_of(storage<typename facts::element>::type) << ", " << tokens << " tokens, ";
  print_big(head, facts::kept_bytes(tokens)), head << "B kept for backward";
  line(head);
  auto pass = [&](const graph& g, const char* title, const cost& price) {
    const plan p = fuse(g, To);
    const int kernels = kernels_of(g, p, block_sizes_at<Block>(g, tokens), storage<typename facts::element>::type);
    explain_graph(g, p, title, kernels, &price, line);
  };
  pass(facts::d::forward, "forward", facts::forward_cost(tokens));
  pass(facts::d::backward, "backward", facts::backward_cost(tokens));
}
template <block_type Block, const target& To = cpu_target, class Sink>
constexpr void draw_block(drawing how, Sink&& line) {
  const graph& g = derived_block<Block>::forward;
  draw(g, fuse(g, To), how, line);
}

}  // namespace graft
