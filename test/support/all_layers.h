// SPDX-License-Identifier: Apache-2.0
// Every adapter on a layer of fixed sizes, for tests that check one property of all of them: on the types, while
// compiling, or on the graphs, captured at run time by the same functions (test/plan/compile.cpp compares the two).
#pragma once
#include <graft/graft.h>

namespace test {

using namespace graft;

// Calls f(name, tag) for each type, which the tag names.
template <class Layer> struct layer_tag { using type = Layer; };

template <class F> constexpr void for_matrix_adapters(F f) {
  for_each_adapter([&]<class A>(adapter_type<A>) {
    if constexpr (lists(A::kinds, "linear")) f(A::method, layer_tag<linear<1024, 1024, bf16, typename A::sample>>{});
  });
}
// Adds what only some kinds of layers have: a bias that a formula changes, and embeddings, convolutions and norms.
template <class F> constexpr void for_all_layers(F f) {
  for_matrix_adapters(f);
  f("lora, with bias", layer_tag<linear<1024, 1024, bf16, lora<16>, bias::yes>>{});
  f("dora, with bias", layer_tag<linear<1024, 1024, bf16, dora<16>, bias::yes>>{});
  for_each_adapter([&]<class A>(adapter_type<A>) {
    using sample = typename A::sample;
    if constexpr (!same_text(A::method, "none")) {
      if constexpr (changes_bias<A>() && lists(A::kinds, "linear"))
        f(A::method, layer_tag<linear<1024, 1024, bf16, sample, bias::yes>>{});
      if constexpr (lists(A::kinds, "embedding")) f(A::method, layer_tag<embedding<1024, 1024, bf16, sample>>{});
      if constexpr (lists(A::kinds, "conv2d")) f(A::method, layer_tag<conv2d<64, 64, 3, bf16, sample>>{});
      if constexpr (lists(A::kinds, "layer_norm") && allows(bias_rule<A>(), true))
        f(A::method, layer_tag<layer_norm<1024, bf16, sample>>{});
      if constexpr (lists(A::kinds, "rms_norm") && allows(bias_rule<A>(), false))
        f(A::method, layer_tag<rms_norm<1024, bf16, sample>>{});
    }
  });
}

// The facts of a layer type's forward call, computed at run time. test/plan/compile.cpp compares them with the
// constants of every type; other files compare runs with them, which need not evaluate the constants once more.
struct stated_facts {
  int kernels = 0;
  bool folded = false;
};
template <class Layer> stated_facts stated_at_run_time(const graph& forward, const graph& folded) {
  const bool copy = folds(cpu_target, forward, folded, static_sizes<Layer>(forward),
                          detail::element_traits<typename Layer::element>::stored);
  return {fuse(copy ? folded : forward, cpu_target).launches.size(), copy};
}

// The formula of a layer type, as a value that g++ cannot see through: it evaluates calls of constexpr functions with
// constant arguments while compiling, here the graphs of every layer, also where it then drops the result.
template <class Layer> layer_formula formula_at_run_time() {
  layer_formula (*volatile f)() = layer_of<typename Layer::kind, typename Layer::adapter, Layer::has_bias>;
  return f();
}

struct captured_graphs {
  builder forward, folded, backward;
};
inline captured_graphs captured_at_run_time(const layer_formula& f) {
  return {capture_forward(f), capture_folded(f), capture_backward(f)};
}
// Calls f(name, graphs) for each layer.
template <class F> void for_all_graphs(F f) {
  for_all_layers([&](const char* name, auto tag) {
    using layer = typename decltype(tag)::type;
    f(name, captured_at_run_time(formula_at_run_time<layer>()));
  });
}

}  // namespace test
