// SPDX-License-Identifier: Apache-2.0
// Several adapters on one layer: switching, also below a captured graph; adding up; and refused operations.
#include "gpu.h"

using namespace test;

namespace {

const layer_graphs lora_graphs = graphs_for("linear", "lora", true);

// Two adapters of one base: the adapter tensors of the second layer have number 1.
struct pair_of_adapters {
  random_layer<float> first, second;
  explicit pair_of_adapters(long long tokens, long long r0, long long r1)
      : first(representable(lora_graphs, shape(tokens, r0), dtype::bf16, 1)),
        second(representable(lora_graphs, shape(tokens, r1), dtype::bf16, 2)) {
    for (const char* name : {"weight", "bias", "x"}) second.data.at(name) = first.data.at(name);
    for (const char* name : {"weight", "bias", "x"}) second.views.at(name).data = second.data.at(name).data();
  }
  static sizes shape(long long tokens, long long r) {
    return with(usual_sizes(), {{"tokens", tokens}, {"out", 512}, {"in", 264}, {"r", r}});
  }
  gpu_layer bound() const {
    gpu_layer g(lora_graphs, dtype::bf16, execution_mode::fused);
    {
      const result<int> added = g.add(lora_graphs);
      REQUIRE(bool(added));
      REQUIRE(*added == 1);
    }
    REQUIRE(bool(first.bind(g)));
    for (const char* name : {"lora_A.weight", "lora_B.weight"}) REQUIRE(bool(g.set(name, second.views.at(name), 1)));
    REQUIRE(bool(g.set("scaling", 0.7, 1)));
    return g;
  }
};

}  // namespace

TEST_CASE("gpu: an adapter is switched, disabled and replaced, also below a captured graph") {
  if (no_gpu()) return;
  for (const long long tokens : {6, 300}) {
    INFO(tokens, " tokens");
    const pair_of_adapters p(tokens, 16, 5);
    gpu_layer g = p.bound();
    REQUIRE(bool(g.bind({tokens})));
    std::vector<float> y = p.first.buffer_for("y", lora_graphs.forward);
    REQUIRE(bool(g.forward(p.first.x(), into(y))));
    CHECK(distance(y, reference(p.first)) < 5e-3);
    REQUIRE(bool(g.activate({1})));
    REQUIRE(bool(g.forward(p.first.x(), into(y))));
    CHECK(distance(y, reference(p.second)) < 5e-3);
    const random_layer<float> third = representable(lora_graphs, pair_of_adapters::shape(tokens, 12), dtype::bf16, 3);
    random_layer<float> with_third = third;
    for (const char* name : {"weight", "bias", "x"}) with_third.data.at(name) = p.first.data.at(name);
    const named_values other{
        {{"lora_A.weight", third.views.at("lora_A.weight")}, {"lora_B.weight", third.views.at("lora_B.weight")}},
        {{"scaling", 0.7}}};
    struct change {
      const char* what;
      std::function<status()> happens;
      std::vector<double> expected;
    };
    for (const change& c : {change{"activate", [&] { return g.activate({1}); }, reference(p.second)},
                            change{"enable(false)", [&] { return g.enable(false); }, reference(p.first, false)},
                            change{"replace", [&] { return g.replace(0, other); }, reference(with_third)}}) {
      INFO(std::string(c.what));
      REQUIRE(bool(g.enable(true)));
      REQUIRE(bool(g.activate({0})));
      const status s = g.replay(p.first.x(), into(y), c.happens);
      INFO(std::string(s.message()));
      REQUIRE(bool(s));
      CHECK(distance(y, c.expected) < 5e-3);
    }
  }
}
TEST_CASE("gpu: written parameters take effect after parameters_changed, also below a captured graph") {
  if (no_gpu()) return;
  for (const char* name : {"lora", "dora", "loha"}) {
    INFO(std::string(name));
    const layer_graphs graphs = graphs_for("linear", name, false);
    const random_layer<float> before = representable(graphs, pair_of_adapters::shape(40, 8), dtype::bf16, 1);
    random_layer<float> after = representable(graphs, pair_of_adapters::shape(40, 8), dtype::bf16, 2);
    for (const char* same : {"weight", "x"}) after.data.at(same) = before.data.at(same);
    gpu_layer g(graphs, dtype::bf16, execution_mode::fused);
    REQUIRE(bool(before.bind(g)));
    REQUIRE(bool(g.bind({40})));
    std::vector<float> y = before.buffer_for("y", graphs.forward);
    const status s = g.replay(before.x(), into(y), [&]() -> status {
      for (const std::string& p : before.parameters())
        if (status w = g.overwrite(p.c_str(), after.views.at(p)); !w) return w;
      return g.parameters_changed();
    });
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
    CHECK(distance(y, reference(after)) < 6e-3);
  }
}
TEST_CASE("gpu: factors of the input are switched, also together with a low-rank branch") {
  if (no_gpu()) return;
  const layer_graphs factor = graphs_for("linear", "ia3_feedforward", true);
  for (const long long tokens : {6, 300})
    for (const bool branch : {false, true}) {
      INFO(tokens, " tokens, ", std::string(branch ? "LoRA" : "IA3"), " with IA3");
      const layer_graphs& other = branch ? lora_graphs : factor;
      const sizes shape = pair_of_adapters::shape(tokens, 16);
      const random_layer<float> first = representable(factor, shape, dtype::bf16, 1);
      random_layer<float> second = representable(other, shape, dtype::bf16, 2);
      for (const char* name : {"weight", "bias", "x"}) second.data.at(name) = first.data.at(name);
      gpu_layer g(factor, dtype::bf16, execution_mode::fused);
      REQUIRE(bool(first.bind(g)));
      const result<int> added = g.add(other);
      REQUIRE(bool(added));
      for (const auto& [name, v] : second.views)
        if (name != "weight" && name != "bias" && name != "x" && name != "dy")
          REQUIRE(bool(g.set(name.c_str(), v, *added)));
      if (branch) REQUIRE(bool(g.set("scaling", second.scalars.at("scaling"), *added)));
      REQUIRE(bool(g.bind({tokens})));
      std::vector<float> y = first.buffer_for("y", factor.forward);
      for (const int which : {0, 1, 0}) {
        const status s = g.activate({which});
        INFO(std::string(s.message()));
        REQUIRE(bool(s));
        REQUIRE(bool(g.forward(first.x(), into(y))));
        CHECK(distance(y, reference(which == 0 ? first : second)) < 6e-3);
      }
    }
}
TEST_CASE("gpu: several active adapters add up") {
  if (no_gpu()) return;
  for (const long long tokens : {6, 300}) {
    const pair_of_adapters p(tokens, 8, 20);
    gpu_layer g = p.bound();
    REQUIRE(bool(g.bind({tokens, 32})));
    const status s = g.activate({0, 1});
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
    std::vector<float> y = p.first.buffer_for("y", lora_graphs.forward);
    REQUIRE(bool(g.forward(p.first.x(), into(y))));
    const std::vector<double> base = reference(p.first, false), other = reference(p.second);
    std::vector<double> sum = reference(p.first);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i] - base[i];
    CHECK(distance(y, sum) < 5e-3);
    REQUIRE(bool(g.activate({1})));
    REQUIRE(bool(g.forward(p.first.x(), into(y))));
    CHECK(distance(y, other) < 5e-3);
  }
}
TEST_CASE("gpu: refused operations and their messages") {
  if (no_gpu()) return;
  const pair_of_adapters p(6, 8, 20);
  gpu_layer g = p.bound();
  CHECK(std::string(g.activate({2}).message()).starts_with("there is no adapter 2; this layer"));
  CHECK(std::string(g.activate({}).message()) == "activate() needs an adapter; enable(false) runs the base alone");
  REQUIRE(bool(g.bind({6, 16})));
  std::vector<float> y(3), right = p.first.buffer_for("y", lora_graphs.forward);
  CHECK(std::string(g.forward(p.first.x(), into(y)).message()) == "output 'y' has 3 elements, expected 3072");
  const std::string unknown_name = g.set("lora_C", 1.0).message();
  INFO(unknown_name);
  CHECK(unknown_name.starts_with("adapter 0: this layer has no scalar 'lora_C'"));
  CHECK(std::string(g.activate({1}).message()).find("capacity of a larger rank") != std::string::npos);
  REQUIRE(bool(g.forward(p.first.x(), into(right))));  // the active adapter is unchanged
  CHECK(distance(right, reference(p.first)) < 5e-3);
}
