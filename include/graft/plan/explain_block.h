// SPDX-License-Identifier: Apache-2.0
// explain() of a transformer block type: the launches of forward and backward, with the paths of its layers.
#pragma once
#include <graft/plan/block_verdict.h>
#include <graft/plan/explain.h>

namespace graft::detail {

template <block_type Block, const target& To> struct explained<Block, To> {
  template <class Sink> static constexpr void write(Sink&& line, long long tokens) {
    using facts = plan_of<Block, To>;
    constexpr dtype stored = storage<typename facts::element>::type;
    const bool priced = tokens != dyn;
    text head;
    head << Block::name << " block " << name_of(stored);
    if (priced) {
      head << ", " << tokens << " tokens, ";
      print_si(head, facts::saved_bytes(tokens)), head << "B saved for backward";
    }
    line(head);
    auto pass = [&](const graph& g, const char* title, const cost& price) {
      const launch_plan p = fuse(g, To);
      size_values s = with_nominals(g, block_sizes<Block>(g));
      if (priced) g.sizes.set_tokens(s, tokens);
      explain_graph(g, p, title, kernel_count(g, p, s, stored), priced ? &price : nullptr, line);
    };
    pass(facts::d::forward, "forward", priced ? facts::forward_cost(tokens) : cost{});
    pass(facts::d::backward, "backward", priced ? facts::backward_cost(tokens) : cost{});
  }
};

}  // namespace graft::detail
