// SPDX-License-Identifier: Apache-2.0
// The messages of the executor about input that does not fit, word for word.
#include <doctest/doctest.h>

#include <limits>

#include "../support/random_layer.h"

using namespace test;

namespace {

constexpr float numbers[64 * 64]{};
constexpr std::int64_t whole[64]{};

std::string message_of(const status& s) { return s.message(); }

struct lora_layer {
  layer_graphs graphs = graphs_for("linear", "lora", false);
  random_layer<float> l{graphs, usual_sizes()};
  cpu::executor<float> e{graphs};
  std::vector<float> y = l.buffer_for("y", graphs.literal), small = std::vector<float>(3);
  lora_layer() { REQUIRE(bool(l.bind(e))); }
};

}  // namespace

TEST_CASE("errors: a name the layer does not have") {
  cpu::executor<float> e(graphs_for("linear", "lora", false));
  CHECK(message_of(e.set("lora_C", view_of(numbers, 24, 32))) ==
        "this layer has no tensor 'lora_C'; it has weight, lora_B.weight, lora_A.weight");
  CHECK(message_of(e.set("x", view_of(numbers, 24, 32))) ==  // x is an argument of the call
        "this layer has no tensor 'x'; it has weight, lora_B.weight, lora_A.weight");
  CHECK(message_of(e.set("", view_of(numbers, 24, 32))) ==
        "this layer has no tensor ''; it has weight, lora_B.weight, lora_A.weight");
  CHECK(message_of(e.set("alpha", 2.0)) == "this layer has no scalar 'alpha'; it has scaling");
  CHECK(message_of(e.set("weight", 2.0)) == "'weight' is a tensor of this layer, not a scalar; set it to a view");
  CHECK(message_of(e.set("scaling", view_of(numbers, 1))) ==
        "'scaling' is a scalar of this layer, not a tensor; set it to a number");
  cpu::executor<float> bare(graphs_for("linear", "none", false));
  CHECK(message_of(bare.set("alpha", 2.0)) == "this layer has no scalar 'alpha'; it has none");
  CHECK(message_of(e.size("rank", 4)) == "this layer has no size 'rank'");
}

TEST_CASE("errors: a shape that contradicts the other tensors") {
  cpu::executor<float> e(graphs_for("linear", "lora", false));
  CHECK(message_of(e.set("weight", view_of(numbers, 24))) ==
        "tensor 'weight' has shape [24], expected [out, in] = [?, ?]");
  REQUIRE(bool(e.set("weight", view_of(numbers, 24, 32))));
  CHECK(message_of(e.set("lora_A.weight", view_of(numbers, 4, 31))) ==
        "tensor 'lora_A.weight' has shape [4, 31], expected [r, in] = [?, 32]");
  REQUIRE(bool(e.set("lora_A.weight", view_of(numbers, 4, 32))));
  CHECK(message_of(e.set("lora_B.weight", view_of(numbers, 24, 5))) ==
        "tensor 'lora_B.weight' has shape [24, 5], expected [out, r] = [24, 4]");
  CHECK(message_of(e.set("lora_B.weight", view_of(numbers, 4, 24))) ==  // transposed
        "tensor 'lora_B.weight' has shape [4, 24], expected [out, r] = [24, 4]");
  CHECK(message_of(e.set("weight", view_of(numbers, 24, 33))) ==
        "tensor 'weight' has shape [24, 33], expected [out, in] = [?, 32]");
}

TEST_CASE("errors: sizes") {
  lora_layer t;
  CHECK(message_of(t.e.size("r", -1)) == "size 'r' is -1, expected a number that is not negative");
  CHECK(message_of(t.e.size("r", 5)) == "tensor 'lora_B.weight' has shape [24, 4], expected [out, r] = [24, 5]");
  cpu::executor<float> miss(graphs_for("linear", "miss_bat", false));
  REQUIRE(bool(miss.set("weight", view_of(numbers, 24, 32))));
  CHECK(message_of(miss.set("miss_block", view_of(numbers, 4, 5, 5))) ==
        "tensor 'miss_block' has shape [4, 5, 5], expected [out/r, r, r] = [?, ?, ?]");
  const std::string divides = message_of(miss.size("r", 5));
  INFO(divides);
  CHECK(divides.starts_with("5 does not divide 32 in in / r, line "));
  CHECK(divides.ends_with(" of the formula"));
}

TEST_CASE("errors: scalars that no float can hold") {
  lora_layer t;
  constexpr double infinite = std::numeric_limits<double>::infinity();
  for (const double bad : {infinite, -infinite, std::numeric_limits<double>::quiet_NaN(), 1e308, -3.5e38}) {
    INFO(bad);
    CHECK(message_of(t.e.set("scaling", bad)) == "scalar 'scaling' is not finite as a float; the largest is 3.4e38");
  }
  for (const double good : {0.0, -2.0, 1e-320, 3.4e38}) CHECK(message_of(t.e.set("scaling", good)) == "");
}

TEST_CASE("errors: data and element types") {
  cpu::executor<float> e(graphs_for("linear", "lora", false));
  CHECK(message_of(e.set("weight", view_of(static_cast<const float*>(nullptr), 24, 32))) ==
        "tensor 'weight' has no data");
  CHECK(message_of(e.set("weight", view_of(whole, 8, 8))) ==
        "tensor 'weight' is stored as i64, expected f32, f64, bf16 or f16");
  for (const dtype t : {dtype::nf4, dtype::int8})
    CHECK(message_of(e.set("weight", view{numbers, t, {24, 32, 1, 1}, 2})) ==
          std::string("tensor 'weight' is a quantized weight of type ") + name_of(t) +
              " without its quantization state; set view::quant");
}

TEST_CASE("errors: a tensor is missing when a call is made") {
  const layer_graphs g = graphs_for("linear", "lora", false);
  const random_layer<float> l(g, usual_sizes());
  cpu::executor<float> e(g);
  std::vector<float> y = l.buffer_for("y", g.literal);
  CHECK(message_of(e.forward(l.x(), into(y))) == "tensor 'weight' is not set, expected [out, in] = [?, ?]");
  REQUIRE(bool(e.set("weight", l.views.at("weight"))));
  REQUIRE(bool(e.set("lora_A.weight", l.views.at("lora_A.weight"))));
  CHECK(message_of(e.forward(l.x(), into(y))) == "scalar 'scaling' is not set");
  REQUIRE(bool(e.set("scaling", 1.0)));
  CHECK(message_of(e.forward(l.x(), into(y))) == "tensor 'lora_B.weight' is not set, expected [out, r] = [24, 4]");
  CHECK(message_of(e.backward(l.x(), l.dy(), {}, {})) ==
        "tensor 'lora_B.weight' is not set, expected [out, r] = [24, 4]");
  CHECK(message_of(e.merge(into(y))) == "tensor 'lora_B.weight' is not set, expected [out, r] = [24, 4]");
  REQUIRE(bool(e.set("lora_B.weight", l.views.at("lora_B.weight"))));
  CHECK(message_of(e.forward(l.x(), into(y))) == "");
  REQUIRE(bool(e.enable(false)));
  CHECK(message_of(e.forward(l.x(), into(y))) == "");
}

TEST_CASE("errors: a size that no tensor determines") {
  const layer_graphs g = graphs_for("conv2d", "lora", false);
  const random_layer<float> l(g, usual_sizes());
  cpu::executor<float> e(g);
  for (const char* n : {"weight", "lora_A.weight", "lora_B.weight"}) REQUIRE(bool(e.set(n, l.views.at(n))));
  REQUIRE(bool(e.set("scaling", 1.0)));
  std::vector<float> y = l.buffer_for("y", g.literal);
  CHECK(message_of(e.forward(l.x(), into(y))) == "size 'stride' follows from no tensor; give it by name");
  REQUIRE(bool(e.size("stride", 1)));
  REQUIRE(bool(e.size("padding", 0)));
  CHECK(message_of(e.forward(view_of(numbers, 1, 3, 2, 6), into(y))) ==
        "the size out_height does not exist for these tensors: a window is larger than what it slides over");
}

TEST_CASE("errors: the tensors of a call") {
  lora_layer t;
  CHECK(message_of(t.e.forward(view_of(numbers, 7, 31), into(t.y))) ==
        "tensor 'x' has shape [7, 31], expected [tokens, in] = [?, 32]");
  CHECK(message_of(t.e.forward(view_of(numbers, 1, 7, 32), into(t.y))) ==
        "tensor 'x' has shape [1, 7, 32], expected [tokens, in] = [?, 32]");
  CHECK(message_of(t.e.forward(view_of(static_cast<const float*>(nullptr), 7, 32), into(t.y))) ==
        "tensor 'x' has no data");
  CHECK(message_of(t.e.forward(view_of(whole, 2, 32), into(t.y))) ==
        "tensor 'x' is stored as i64, expected f32, f64, bf16 or f16");
  CHECK(message_of(t.e.forward(t.l.x(), into(t.small))) == "output 'y' has 3 elements, expected 168");
  CHECK(message_of(t.e.backward(t.l.x(), view_of(numbers, 6, 24), {}, {})) ==
        "tensor 'dy' has shape [6, 24], expected [tokens, out] = [7, 24]");
  CHECK(message_of(t.e.backward(t.l.x(), t.l.dy(), into(t.small), {})) == "output 'dx' has 3 elements, expected 224");
  CHECK(message_of(t.e.backward(t.l.x(), t.l.dy(), {}, {{"lora_A.weight", into(t.small)}})) ==
        "output 'lora_A.weight' has 3 elements, expected 128");
  CHECK(message_of(t.e.backward(t.l.x(), t.l.dy(), {}, {{"weight", into(t.small)}})) ==
        "this layer has no parameter 'weight'");
}

TEST_CASE("errors: ids outside the table, forward and backward, and ids of another type") {
  for (const execution_mode run_mode : {execution_mode::fused, execution_mode::eager}) {
    const layer_graphs g = graphs_for("embedding", "lora_embedding", false);
    const random_layer<float> l(g, usual_sizes());
    cpu::executor<float> e(g, run_mode);
    REQUIRE(bool(l.bind(e)));
    std::vector<float> y(4 * 24);
    const std::int64_t above[] = {0, 1, 13, 2}, below[] = {-1, 0, 0, 0}, huge[] = {0, 0, 0, INT64_MAX};
    CHECK(message_of(e.forward(view_of(above, 4), into(y))) == "id 13 at position 2 is outside the table of 13 rows");
    CHECK(message_of(e.forward(view_of(below, 4), into(y))) == "id -1 at position 0 is outside the table of 13 rows");
    CHECK(message_of(e.forward(view_of(huge, 4), into(y))) ==
          "id 9223372036854775807 at position 3 is outside the table of 13 rows");
    CHECK(message_of(e.forward(view_of(numbers, 4), into(y))) == "tensor 'x' is stored as f32, expected i64");
    CHECK(message_of(e.forward(view_of(above, 2, 2), into(y))) ==
          "tensor 'x' has shape [2, 2], expected [tokens] = [?]");
    REQUIRE(bool(e.enable(false)));
    CHECK(message_of(e.forward(view_of(above, 4), into(y))) == "id 13 at position 2 is outside the table of 13 rows");
  }
  const layer_graphs g = graphs_for("embedding", "lora_embedding", false);
  const random_layer<float> l(g, usual_sizes());
  cpu::executor<float> e(g);
  REQUIRE(bool(l.bind(e)));
  const std::int64_t above[] = {0, 1, 13, 2};
  std::vector<float> d = l.buffer_for("lora_embedding_A", g.backward);
  CHECK(message_of(e.backward(view_of(above, 4), view_of(numbers, 4, 24), {}, {{"lora_embedding_A", into(d)}})) ==
        "id 13 at position 2 is outside the table of 13 rows");
}

TEST_CASE("errors: merging and unmerging") {
  lora_layer t;
  std::vector<float> w(24 * 32);
  CHECK(message_of(t.e.merge(into(t.small))) == "'weight' has 3 elements, expected 768");
  CHECK(message_of(t.e.merge({}, into(t.y))) == "the adapter leaves 'bias' as it is");
  CHECK(message_of(t.e.unmerge("weight", view_of(numbers, 32, 24), into(w))) ==
        "tensor 'merged' has shape [32, 24], expected [out, in] = [24, 32]");
  CHECK(message_of(t.e.unmerge("weight", view_of(numbers, 24, 32), into(t.small))) ==
        "'weight' has 3 elements, expected 768");
  CHECK(message_of(t.e.unmerge("bias", view_of(numbers, 24), into(w))) ==
        "the formula cannot be solved for 'bias'; keep a copy of the base tensor");

  const layer_graphs g = graphs_for("linear", "dora", false);
  cpu::executor<float> dora_layer(g);
  REQUIRE(bool(random_layer<float>(g, usual_sizes()).bind(dora_layer)));
  CHECK(message_of(dora_layer.unmerge("weight", view_of(numbers, 24, 32), into(w))) ==
        "merge() first: unmerging needs a value that it saves");

  const layer_graphs n = graphs_for("layer_norm", "ln_tuning", true);
  cpu::executor<float> norm(n);
  const random_layer<float> l(n, usual_sizes());
  REQUIRE(bool(l.bind(norm)));
  std::vector<float> merged(32);
  REQUIRE(bool(norm.merge(into(merged))));
  CHECK(difference(merged, l.data.at("ln_tuning_layers.weight")) == 0);
  CHECK(message_of(norm.unmerge("weight", view_of(merged.data(), 32), into(merged))) ==
        "the formula cannot be solved for 'weight'; keep a copy of the base tensor");
}

TEST_CASE("errors: every method names the tensor that is missing, whatever it is") {
  for (const layer_variant& c : every_layer_variant()) {
    const random_layer<float> l(c.graphs, usual_sizes());
    INFO(c.name);
    for (const auto& missing : l.views) {
      const std::string name = missing.first;
      if (name == "x" || name == "dy") continue;
      cpu::executor<float> e(c.graphs);
      for (const auto& [size, n] : l.shape)
        if (c.graphs.literal.sizes.find(size.c_str()) >= 0 && size != "tokens" && size != "height" && size != "width")
          static_cast<void>(e.size(size.c_str(), n));
      for (const auto& [scalar, v] : l.scalars) static_cast<void>(e.set(scalar.c_str(), v));
      for (const auto& [other, v] : l.views)
        if (other != name) static_cast<void>(e.set(other.c_str(), v));
      std::vector<float> y = l.buffer_for("y", c.graphs.literal);
      const std::string sentence = message_of(e.forward(l.x(), into(y)));
      const bool replaced = c.graphs.literal.find(name.c_str()) < 0;  // LN tuning does not read the base tensor
      INFO(name, ": ", sentence);
      CHECK(sentence.starts_with("tensor '" + name + "' is not set, expected [") == !replaced);
    }
  }
}
