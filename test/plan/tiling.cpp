// SPDX-License-Identifier: Apache-2.0
#include <graft/plan/tiling.h>

#include "../support/all_layers.h"
#include "../support/both.h"

using namespace test;

namespace {

// The graph lives as long as the program, the tiling with it.
template <class Kind, class Adapter> struct forward_of {
  static constexpr graph g = derived<Kind, Adapter, false>::forward;
  static constexpr tiling t = tile(g);
};
template <class Kind, class Adapter> struct backward_of {
  static constexpr graph g = derived<Kind, Adapter, false>::backward;
  static constexpr tiling t = tile(g);
};

}  // namespace

TEST_CASE("tiling: every layer can run a few tokens at a time, forward and backward") {
  for_all_layers([](const char* name, auto tag) {
    using d = derived_of<typename decltype(tag)::type>;
    INFO(name);
    CHECK(tile(d::forward).possible);
    CHECK(tile(d::folded).possible);
    CHECK(tile(d::backward).possible);
  });
}

TEST_CASE("tiling: gradients are sums over tokens, activations are not") {
  using b = backward_of<linear_kind, lora<>>;
  BOTH(b::t.sums[b::g.result("lora_A.weight")]);
  BOTH(!b::t.sums[b::g.result("dx")]);
  BOTH(!b::t.sums[b::g.find("dy")]);
  // lora_B's is scaled afterwards: what is summed is below it
  BOTH(!b::t.sums[b::g.result("lora_B.weight")]);
  BOTH(b::t.sums[b::g[b::g.result("lora_B.weight")].a]);
  BOTH(!forward_of<linear_kind, lora<>>::t.sums[forward_of<linear_kind, lora<>>::g.result("y")]);
}

TEST_CASE("tiling: what stays in memory between calls") {
  using f = forward_of<linear_kind, dora<>>;
  int kept = 0;
  for (int i = 0; i < f::g.size; ++i) kept += f::t.kept.in[i] && !is_leaf(f::g.n[i].what) ? 1 : 0;
  CHECK(kept == 3);  // the factor m / norm as a column and as a row, which is the same memory, and s B
  BOTH(f::t.kept[f::g.find("lora_A.weight")]);
  BOTH(!f::t.kept[f::g.find("lora_magnitude_vector")]);
}

TEST_CASE("tiling: a weight may stay as it is stored where only products and look-ups read it") {
  BOTH((forward_of<linear_kind, lora<>>::t.streamed[forward_of<linear_kind, lora<>>::g.find("weight")]));
  BOTH((backward_of<linear_kind, lora<>>::t.streamed[backward_of<linear_kind, lora<>>::g.find("weight")]));
  BOTH((forward_of<embedding_kind, none>::t.streamed[forward_of<embedding_kind, none>::g.find("weight")]));
  // HRA's gradient multiplies W from the other side, after the sums
  BOTH((!backward_of<linear_kind, hra<>>::t.streamed[backward_of<linear_kind, hra<>>::g.find("weight")]));
  BOTH((!forward_of<linear_kind, lora<>>::t.streamed[forward_of<linear_kind, lora<>>::g.find("lora_A.weight")]));
}

TEST_CASE("tiling: a graph whose tokens are not outermost is not cut") {
  static constexpr builder g = [] {
    builder b{};
    const scope p{&b};
    const ex x = p.leaf(op::input, "x", 2, 1, 1, p.size("tokens"), p.size("in"));
    b.give(t(x).i, "y");
    return b;
  }();
  BOTH(!tile(g).possible);
}
