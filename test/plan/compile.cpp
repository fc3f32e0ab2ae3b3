// SPDX-License-Identifier: Apache-2.0
// The facts that a user can assert of a layer type.
#include "../support/all_layers.h"
#include "../support/same_graph.h"
#include "../support/static_check.h"

using namespace test;

TEST_CASE("compile: kernels, breaks and merging of every method") {
  for_all_layers([](const char* name, auto tag) {
    using layer = typename decltype(tag)::type;
    using c = compile<layer, fullgraph, training>;
    static_assert(c::kernels == 1 && c::graph_breaks == 0 && c::mergeable);
    INFO(std::string(name));
    CHECK(c::kernels == 1);
    CHECK(mergeable<layer>);
  });
}

TEST_CASE("compile: a graph captured while compiling equals the one captured at run time, and so do its facts") {
  for_all_layers([](const char* name, auto tag) {
    using layer = typename decltype(tag)::type;
    using d = derived_of<layer>;
    const layer_formula f = formula_at_run_time<layer>();
    INFO(std::string(name));
    CHECK(first_difference(d::literal, capture_literal(f)) == "");
    CHECK(first_difference(d::forward, capture_forward(f)) == "");
    CHECK(first_difference(d::folded, capture_folded(f)) == "");
    CHECK(first_difference(d::backward, capture_backward(f)) == "");
    CHECK(first_difference(d::merge, capture_merge(f)) == "");
    CHECK(first_difference(d::unmerge_weight, capture_unmerge_weight(f)) == "");
    CHECK(d::unmerging.saved == unmerge_facts_of(f).saved);
    const builder forward = capture_forward(f), folded = capture_folded(f);
    const stated_facts stated = stated_at_run_time<layer>(forward, folded);
    CHECK(compile<layer>::kernels == stated.kernels);
    CHECK(compile<layer>::folded == stated.folded);
  });
}

TEST_CASE("compile: which methods can be unmerged from W' alone") {
  BOTH((unmergeable<linear<64, 48, float, lora<8>>>));
  BOTH((unmergeable<linear<64, 48, float, oft_neumann<8>>>));
  BOTH((unmergeable<linear<64, 48, float, boft<4, 2>>>));
  BOTH((!unmergeable<linear<64, 48, float, dora<8>>>));
  BOTH((compile<linear<64, 48, float, dora<8>>>::saved_for_unmerge == 1));
  BOTH((compile<linear<64, 48, float, lora<8>>>::saved_for_unmerge == 0));
  BOTH((!unmergeable<layer_norm<64, float, ln_tuning>>));
}

TEST_CASE("compile: options that weaken the requirements") {
  using broken = compile<linear<64, 48, float, erased>>;
  BOTH(broken::graph_breaks == 1);
  BOTH(compile<linear<64, 48, nf4<64>, lora<8>>>::kernels == 1);
  BOTH(compile<linear<dyn, dyn, float, lora<>>, fullgraph>::kernels == 1);
}

TEST_CASE("compile: the sizes that a type states") {
  BOTH((static_sizes_known<linear<64, 48, float, lora<8>>>()));
  BOTH((!static_sizes_known<linear<64, 48, float, lora<>>>()));
  BOTH((!static_sizes_known<linear<64, dyn, float, lora<8>>>()));
  BOTH((static_sizes_known<linear<64, 48, float, lokr<2>>>()));  // LoKr's factors follow from the layer's sizes
  using z = linear<64, 48, float, lokr<2>>;
  static constexpr graph g = derived_of<z>::literal;
  static constexpr size_values s = static_sizes<z>(g);
  BOTH(s.v[g.sizes.find("a")] == 8);
  BOTH(s.v[g.sizes.find("c")] == 6);
}

TEST_CASE("compile: costs of a layer type") {
  using layer = linear<1024, 1024, bf16, lora<16>>;
  constexpr long long T = 512, n = 1024, r = 16;
  BOTH(forward_cost<layer>(T).flops == 2 * T * n * n + 2 * T * r * 2 * n + T * n);
  BOTH(forward_cost<layer>(T).bytes == 2 * (T * n + n * n + 2 * r * n + T * n));
  BOTH(backward_cost<layer>(T).flops > forward_cost<layer>(T).flops);
  BOTH((forward_cost<linear<1024, 1024, nf4<64>, none>>(T).bytes == n * n / 2 + n * n / 64 * 4 + 2 * 2 * T * n));
  BOTH((forward_cost<linear<1024, 1024, double, none>>(T).bytes == 8 * (n * n + 2 * T * n)));
}

TEST_CASE("compile: a quantized weight stays quantized, and an adapter is never folded into it") {
  using four = linear<4096, 4096, nf4<64>, lora<16>>;
  BOTH((compile<four, fullgraph>::kernels == 1));
  BOTH((compile<four, fullgraph>::is_quantized));
  BOTH((!compile<linear<4096, 4096, bf16, lora<16>>>::is_quantized));
  using wide = linear<1024, 1024, bf16, lora<1024>>;
  using wide_quantized = linear<1024, 1024, nf4<64>, lora<1024>>;
  BOTH((compile<wide>::folded));
  BOTH((compile<wide_quantized>::prefers_folding));
  BOTH((!compile<wide_quantized>::folded));
  BOTH((forward_cost<wide_quantized>(1).flops > forward_cost<wide>(1).flops));
  BOTH((forward_cost<linear<1024, 1024, int8, none>>(1).bytes == 1024 * 1024 + 4 * 1024 + 2 * 2 * 1024));
}

TEST_CASE("compile: a branch of more than a twentieth of the layer is folded into a weight of floats") {
  BOTH((!plan_of<linear<1024, 1024, float, lora<25>>>::folded));
  BOTH((plan_of<linear<1024, 1024, float, lora<26>>>::folded));
  BOTH((plan_of<linear<1024, 1024, float, loha<8>>>::folded));
  BOTH((!plan_of<linear<1024, 1024, bf16, loha<8>>>::folded));
  BOTH((plan_of<linear<1024, 1024, float, lokr<8>>>::folded));
  BOTH((!plan_of<linear<1024, 1024, bf16, lokr<8>>>::folded));
}
TEST_CASE("compile: a branch of more than a quarter of the layer is folded into a copy that is wider") {
  BOTH((!plan_of<linear<1024, 1024, bf16, lora<16>>>::folded));
  BOTH((!plan_of<linear<1024, 1024, bf16, lora<127>>>::folded));
  BOTH((plan_of<linear<1024, 1024, bf16, lora<128>>>::folded));
  BOTH((plan_of<linear<1024, 1024, bf16, loha<16>>>::folded));
  BOTH((!plan_of<linear<4096, 4096, bf16, loha<16>>>::folded));
  BOTH((!plan_of<linear<1024, 1024, bf16, none>>::folded));
  BOTH((!plan_of<linear<1024, 1024, bf16, dora<16>>>::folded));
  // The reported cost is that of the form that runs.
  BOTH((forward_cost<linear<1024, 1024, bf16, loha<16>>>(512).flops == 2LL * 512 * 1024 * 1024));
  BOTH((forward_cost<linear<1024, 1024, bf16, loha<16>>>(512).largest_precomputed == 1024 * 1024));
}

TEST_CASE("compile: no method moves or computes much more than the base layer") {
  for_matrix_adapters([](const char* name, auto tag) {
    using layer = typename decltype(tag)::type;
    if constexpr (static_sizes_known<layer>()) {
      constexpr cost c = forward_cost<layer>(512), base = forward_cost<linear<1024, 1024, bf16, none>>(512);
      static_assert(4 * c.flops <= 5 * base.flops && 4 * c.bytes <= 5 * base.bytes);
      INFO(std::string(name));
      CHECK(4 * c.flops <= 5 * base.flops);
    }
  });
}
