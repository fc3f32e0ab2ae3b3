// SPDX-License-Identifier: Apache-2.0
// Blocks (decoder layers) and architectures as formulas over activations, and their forward and backward graphs. As a
// value a block is its functions, and its graphs are plain functions of it, evaluated while compiling for a type and at
// load for what comes from a file. A model has three formulas:
//     embed   rows from token ids          run   one block          head   logits from the last block's rows
// The formula of an adapter is inlined at its layer, so that a block is one graph.
#pragma once
#include <graft/derive/block_scope.h>
#include <graft/derive/grad.h>
#include <graft/derive/simplify.h>

namespace graft {

struct block_formula {
  const char* name = "";
  ex (*run)(block_scope, ex) = nullptr;
  bool takes_ids = false;  // x is token ids; else rows of activations
  bool loss = false;       // the result is the cross entropy of each row against its label
};

// A model type: its three formulas and the path of its blocks.
struct architecture {
  const char* name = "";
  const char* layers = "";
  block_formula embed, block, head;
};
template <class Model> constexpr block_formula block_of() { return {Model::name, &Model::run}; }
template <class Model> constexpr architecture architecture_of() {
  return {
      Model::name, Model::layers, {Model::name, &Model::embed, true}, block_of<Model>(), {Model::name, &Model::head}};
}
constexpr block_formula with_loss(block_formula f) {
  f.loss = true;
  return f;
}

// A block type with adapter rules:
//     adapted<llama, target_modules<"*_proj", lora<16>>, target_modules<"v_proj", dora<8>>>
template <class Block, class... Rules> struct adapted : Block {
  static constexpr adapter_rule rules[sizeof...(Rules) + 1] = {Rules::rule()..., {}};
  static constexpr adapter_rules adapters{rules, sizeof...(Rules)};
};

// Computes the sizes of adapters that follow from those of their layer (LoKr's factors). Such a size has the path of
// the layer, or a path below it.
[[gnu::cold]] constexpr void infer_adapter_sizes(const graph& g, const adapter_rules& rules, size_values& s) {
  for (int k = 0; k < g.sizes.count; ++k) {
    const size_entry& e = g.sizes.e[k];
    if (e.index < 0 || s.v[e.index] != unknown) continue;
    for (int path = e.path; path > 0 && s.v[e.index] == unknown; path = g.paths().e[path].above) {
      const id w = g.find(g.paths().full(path, "weight").c_str());
      if (w < 0) continue;
      text layer = g.paths().full(path, "");
      layer.s[layer.n - 1] = '\0';  // removes the last dot
      for (const adapter_rule& a : rules.at(layer.c_str()))
        if (s.v[e.index] == unknown)
          s.v[e.index] = a.adapter.adapter_size(e.name, g.sizes.value(g[w].d[2], s), g.sizes.value(g[w].d[3], s));
    }
  }
}

// Captures y of x as the formula is written, with the adapters inlined.
[[gnu::cold]] constexpr builder capture(const block_formula& f, const block_options& options) {
  builder g;
  const block_scope m{&g, &options};
  const scope p = m.root();
  const ex x = f.takes_ids ? p.leaf(op::ids, "x", 1, 1, 1, 1, p.tokens())
                           : p.leaf(op::input, "x", 2, 1, 1, p.tokens(), m.size("hidden"));
  const ex y = f.run(m, x);
  g.add_output(f.loss ? m.cross_entropy(y).i : y.i, "y");
  return g;
}
[[gnu::cold]] constexpr builder capture_forward(const block_formula& f, const block_options& options) {
  return simplify(rewrite(capture(f, options), value_rule));
}
// Captures dx and the gradient of every parameter from x and dy. The backward graph of a loss gives y too, so that
// forward and backward of the head run on a few rows at a time and the logits of a batch never exist as a whole.
[[gnu::cold]] constexpr builder capture_backward(const block_formula& f, const block_options& options) {
  const builder forward = simplify(capture(f, options));
  builder back = grad(forward);
  if (f.loss) back.add_output(forward.result("y"), "y");
  return simplify(rewrite(back, value_rule));
}

}  // namespace graft
