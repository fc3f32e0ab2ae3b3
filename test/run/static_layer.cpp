// SPDX-License-Identifier: Apache-2.0
// A layer whose sizes are in its type gives the same bits as a layer whose sizes are found at run time.
#include <doctest/doctest.h>
#include <graft/cpu.h>

#include "../support/random_layer.h"

using namespace test;

namespace {

template <class Layer> void same_as_dynamic(const layer_graphs& dynamic) {
  for (const execution_mode run_mode : {execution_mode::fused, execution_mode::eager}) {
    const random_layer<float> l(dynamic, usual_sizes());
    cpu::executor<float> at_run_time(dynamic, run_mode);
    cpu::layer<Layer, fullgraph, training> fixed(run_mode);
    REQUIRE(bool(l.bind(at_run_time)));
    for (const auto& [name, v] : l.views)
      if (name != "x" && name != "dy") {
        const status s = fixed.set(name.c_str(), v);
        INFO(std::string(s.message()));
        REQUIRE(bool(s));
      }
    for (const auto& [name, v] : l.scalars)
      if (dynamic.literal.find(name.c_str()) >= 0) REQUIRE(bool(fixed.set(name.c_str(), v)));
    for (const char* name : {"vector_length", "num_vectors"})  // sizes that the type does not state
      if (dynamic.literal.sizes.find(name) >= 0) REQUIRE(bool(fixed.size(name, usual_sizes().at(name))));
    INFO(Layer::adapter::name);
    std::vector<float> y = l.buffer_for("y", dynamic.literal), z = y;
    REQUIRE(bool(at_run_time.forward(l.x(), into(y))));
    const status s = fixed.forward(l.x(), into(z));
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
    CHECK(difference(z, y) == 0);
    for (const std::string& p : l.parameters()) {
      std::vector<float> d = l.buffer_for(p.c_str(), dynamic.backward), e = d;
      REQUIRE(bool(at_run_time.backward(l.x(), l.dy(), {}, {{p, into(d)}})));
      REQUIRE(bool(fixed.backward(l.x(), l.dy(), {}, {{p, into(e)}})));
      INFO(p);
      CHECK(difference(e, d) == 0);
    }
    if (dynamic.merge.result("weight") < 0) continue;
    std::vector<float> w = l.data.at("weight"), v = w;
    REQUIRE(bool(at_run_time.merge(into(w))));
    REQUIRE(bool(fixed.merge(into(v))));
    CHECK(difference(v, w) == 0);
  }
}
template <class A> using fixed = linear<24, 32, float, A>;
template <class A> layer_graphs found() { return graphs_of<linear_kind, A, false>(); }

}  // namespace

TEST_CASE("static sizes: linear layers") {
  same_as_dynamic<fixed<none>>(found<none>());
  same_as_dynamic<fixed<lora<4>>>(found<lora<>>());
  same_as_dynamic<fixed<dora<4>>>(found<dora<>>());
  same_as_dynamic<fixed<adalora<4>>>(found<adalora<>>());
  same_as_dynamic<fixed<ia3>>(found<ia3>());
  same_as_dynamic<fixed<ia3_feedforward>>(found<ia3_feedforward>());
  same_as_dynamic<fixed<loha<4>>>(found<loha<>>());
  same_as_dynamic<fixed<vera<4>>>(found<vera<>>());
  same_as_dynamic<fixed<hra<4>>>(found<hra<>>());
  same_as_dynamic<fixed<hra_gram_schmidt<4>>>(found<hra_gram_schmidt<>>());
  same_as_dynamic<fixed<oft<8>>>(found<oft<dyn>>());
  same_as_dynamic<fixed<oft_neumann<8, 5>>>(found<oft_neumann<dyn, dyn>>());
  same_as_dynamic<fixed<boft<8, 2>>>(found<boft<dyn, dyn>>());
  same_as_dynamic<fixed<miss<4>>>(found<miss<>>());
  same_as_dynamic<fixed<miss_mini<4, 4>>>(found<miss_mini<>>());
  same_as_dynamic<fixed<miss_bat<4>>>(found<miss_bat<>>());
  same_as_dynamic<fixed<vblora<4, 2>>>(found<vblora<dyn, dyn>>());
}

TEST_CASE("static sizes: with a bias, and other kinds of layer") {
  same_as_dynamic<linear<24, 32, float, lora_with_bias<4>, bias::yes>>(
      graphs_of<linear_kind, lora_with_bias<>, true>());
  same_as_dynamic<embedding<13, 24, float, dora_embedding<4>>>(graphs_of<embedding_kind, dora_embedding<>, false>());
  same_as_dynamic<conv2d<24, 3, 3, float, lora<4>, bias::yes, 2, 1>>(graphs_of<conv2d_kind, lora<>, true>());
  same_as_dynamic<layer_norm<32, float, ln_tuning>>(graphs_of<norm_kind<false>, ln_tuning, true>());
  same_as_dynamic<rms_norm<32, float, ln_tuning_weight>>(graphs_of<norm_kind<true>, ln_tuning_weight, false>());
}

TEST_CASE("static sizes: a tensor of another size is refused with the same message") {
  static const float numbers[2048]{};
  cpu::layer<linear<24, 32, float, lora<4>>> l;
  CHECK(std::string(l.set("weight", view_of(numbers, 24, 31)).message()) ==
        "tensor 'weight' has shape [24, 31], expected [out, in] = [24, 32]");
  CHECK(std::string(l.set("lora_A.weight", view_of(numbers, 5, 32)).message()) ==
        "tensor 'lora_A.weight' has shape [5, 32], expected [4, in] = [4, 32]");
  CHECK(bool(l.set("weight", view_of(numbers, 24, 32))));
}

TEST_CASE("static sizes: LoKr's factors follow from the layer's type") {
  static const float numbers[2048]{};
  cpu::layer<linear<64, 48, float, lokr<2>>> l;  // 64 = 8 x 8, 48 = 6 x 8
  CHECK(bool(l.set("lokr_w1", view_of(numbers, 8, 6))));
  CHECK(std::string(l.set("lokr_w2_a", view_of(numbers, 16, 2)).message()) ==
        "tensor 'lokr_w2_a' has shape [16, 2], expected [out/a, 2] = [8, 2]");
}

TEST_CASE("static sizes: facts and executor in one object") {
  using layer = cpu::layer<linear<24, 32, float, dora<4>>, fullgraph>;
  static_assert(layer::kernels == 1 && layer::mergeable && !layer::unmergeable && layer::saved_for_unmerge == 1);
  static_assert(std::is_same_v<cpu::layer<linear<24, 32, bf16, lora<4>>>::real, float>);
  static_assert(std::is_same_v<cpu::layer<linear<24, 32, double, lora<4>>>::real, double>);
  CHECK(layer::kernels == 1);
}

TEST_CASE("static layer: a size that the layer's type states") {
  struct narrow : linear<64, 32, float, lora<4>> {};
  cpu::layer<narrow> q;
  CHECK(
      std::string(q.size("out", 65).message()) ==
      "size 'out' is 64 by the layer's type and cannot become 65; state graft::dyn in the type for a size that is set");
  CHECK(std::string(q.size("out", 64).message()) == "");
}
