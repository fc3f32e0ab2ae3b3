// SPDX-License-Identifier: Apache-2.0
// layer_graphs: all graphs of a layer as a value, so that executors are compiled once and not for each layer. The
// graphs are captured while compiling (graphs_of), or at run time by the same functions (capture_graphs) for a formula
// that a program reads from a file; then `owner` keeps them alive.
#pragma once
#include <graft/core/library.h>
#include <graft/derive/derived.h>

#include <memory>

namespace graft {

struct layer_graphs {
  const char* kind = "";
  bool has_bias = false;
  layer_formula from{};  // empty unless it is needed, because naming a formula compiles every pass over it
  graph literal{}, literal_backward{};
  graph forward{}, folded{}, backward{};
  graph base_forward{}, base_backward{};  // without the adapter
  graph merge{}, unmerge_weight{}, unmerge_bias{};
  unmerge_facts unmerging{};
  std::shared_ptr<const void> owner;  // null: the graphs are constants of the program
  bool exists() const { return forward.size > 0; }
};

template <class Kind, class Adapter, bool Bias> layer_graphs graphs_of() {
  using d = derived<Kind, Adapter, Bias>;
  using base = derived<Kind, none, Bias>;
  return {.kind = Kind::name,
          .has_bias = Bias,
          .from = {},
          .literal = d::literal,
          .literal_backward = d::literal_backward,
          .forward = d::forward,
          .folded = d::folded,
          .backward = d::backward,
          .base_forward = base::forward,
          .base_backward = base::backward,
          .merge = d::merge,
          .unmerge_weight = d::unmerge_weight,
          .unmerge_bias = d::unmerge_bias,
          .unmerging = d::unmerging,
          .owner = nullptr};
}

// `with` keeps alive what the formula points to.
GRAFT_LIBRARY layer_graphs capture_graphs(const layer_formula& f, std::shared_ptr<const void> with = nullptr);

#if GRAFT_BODIES
GRAFT_LIBRARY layer_graphs capture_graphs(const layer_formula& f, std::shared_ptr<const void> with) {
  struct made {
    std::shared_ptr<const void> with;
    builder literal, literal_backward, forward, folded, backward, base_forward, base_backward, merge, weight, bias;
  };
  const layer_formula base = without_adapter(f);
  const auto all = std::make_shared<const made>(made{std::move(with), capture_literal(f), capture_literal_backward(f),
                                                     capture_forward(f), capture_folded(f), capture_backward(f),
                                                     capture_forward(base), capture_backward(base), capture_merge(f),
                                                     capture_unmerge_weight(f), capture_unmerge_bias(f)});
  return {.kind = f.kind.name,
          .has_bias = f.has_bias,
          .from = f,
          .literal = all->literal,
          .literal_backward = all->literal_backward,
          .forward = all->forward,
          .folded = all->folded,
          .backward = all->backward,
          .base_forward = all->base_forward,
          .base_backward = all->base_backward,
          .merge = all->merge,
          .unmerge_weight = all->weight,
          .unmerge_bias = all->bias,
          .unmerging = unmerge_facts_of(f),
          .owner = all};
}
#endif

}  // namespace graft
