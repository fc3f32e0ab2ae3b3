// SPDX-License-Identifier: Apache-2.0
// A block is a formula over activations; a model is a block many times between two ends. As a value it is its functions,
// and its graphs are plain functions of it: while compiling for a type, at load for what comes from a file.
//     embed   the rows of a call from their ids          run   one block          head   logits from the last rows
// An adapter's formula is inlined where its layer stands, so that a block is one graph.
#pragma once
#include <graft/derive/block_scope.h>
#include <graft/derive/grad.h>
#include <graft/derive/simplify.h>

namespace graft {

struct block_formula {
  const char* name = "";
  ex (*run)(block_scope, ex) = nullptr;
  bool takes_ids = false;  // else rows of activations
  bool loss = false;       // the result is the loss of each row against its label
};

// The model types: three formulas and the path of the blocks.
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

// adapted<llama, on<"*_proj", lora<16>>, on<"v_proj", dora<8>>>: a block type with rules.
template <class Block, class... Rules> struct adapted : Block {
  static constexpr adaption rules[sizeof...(Rules) + 1] = {
      {Rules::at.pattern, formula_of<typename Rules::adapter>()}..., {}};
  static constexpr adaptions adapters{rules, sizeof...(Rules)};
};

// Sizes of adapters that follow from those of their layer (LoKr's factors): a size lies in the path of the layer, or below.
[[gnu::cold]] constexpr void size_adapters(const graph& g, const adaptions& rules, size_values& s) {
  for (int k = 0; k < g.sizes.count; ++k) {
    const size_entry& e = g.sizes.e[k];
    if (e.index < 0 || s.v[e.index] != unknown) continue;
    for (int path = e.path; path > 0 && s.v[e.index] == unknown; path = g.paths().e[path].above) {
      const id w = g.find(g.paths().full(path, "weight").c_str());
      if (w < 0) continue;
      text layer = g.paths().full(path, "");
      layer.s[layer.n - 1] = '\0';  // without the last dot
      for (const adaption& a : rules.at(layer.c_str()))
        if (s.v[e.index] == unknown)
          s.v[e.index] = a.adapter.adapter_size(e.name, g.sizes.value(g[w].d[2], s), g.sizes.value(g[w].d[3], s));
    }
  }
}

// y of x, as the formula is written, with the adapters in their places.
[[gnu::cold]] constexpr builder capture(const block_formula& f, const block_options& how) {
  builder g;
  const block_scope m{&g, &how};
  const scope p = m.root();
  const ex x = f.takes_ids ? p.leaf(op::ids, "x", 1, 1, 1, 1, p.tokens())
                           : p.leaf(op::input, "x", 2, 1, 1, p.tokens(), m.size("hidden"));
  const ex y = f.run(m, x);
  g.give(f.loss ? m.cross_entropy(y).i : y.i, "y");
  return g;
}
[[gnu::cold]] constexpr builder capture_forward(const block_formula& f, const block_options& how) {
  return simplify(rewrite(capture(f, how), value_rule));
}
// dx and the gradient of every parameter from x and dy. Of a loss it gives y too: logits then exist a few rows at a time.
[[gnu::cold]] constexpr builder capture_backward(const block_formula& f, const block_options& how) {
  const builder forward = simplify(capture(f, how));
  builder back = grad(forward);
  if (f.loss) back.give(forward.result("y"), "y");
  return simplify(rewrite(back, value_rule));
}

}  // namespace graft
