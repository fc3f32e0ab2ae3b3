// SPDX-License-Identifier: Apache-2.0
// A method of the program's own joins the table in one line, and is then found like the others.
#include <doctest/doctest.h>

#include "../support/random_layer.h"

using namespace test;

namespace {

struct gated {  // W' = tanh(g) ⊙ W + s B A
  static constexpr const char* name = "gated";
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r");
    return tanh(p.param("gate", W.rows())) * W +
           p.scalar("scaling") * (p.param("lora_B.weight", W.rows(), r) * p.param("lora_A.weight", r, W.cols()));
  }
};

}  // namespace

TEST_CASE("own method: it runs like the others") {
  method_table methods;
  REQUIRE(bool(methods.add<gated>("GATED", "linear conv2d")));
  const auto g = methods.graphs("linear", "GATED", true);
  REQUIRE(bool(g));
  const random_layer<double> l(*g, usual_sizes());
  cpu::executor<double> fused(*g), eager(*g, execution_mode::eager);
  for (auto* e : {&fused, &eager}) REQUIRE(bool(l.bind(*e)));
  std::vector<double> y = l.buffer_for("y", g->literal), z = y;
  REQUIRE(bool(fused.forward(l.x(), into(y))));
  REQUIRE(bool(eager.forward(l.x(), into(z))));
  CHECK(difference(y, z) < 1e-12);
  CHECK(methods.graphs("conv2d", "GATED", false)->exists());
  CHECK(std::string(methods.graphs("embedding", "GATED", false).message()) ==
        "method 'GATED' does not exist for this kind of layer (embedding); it exists on linear conv2d");
  CHECK(methods.added().end() - methods.added().begin() == 1);
}

TEST_CASE("own method: a name is given once, and other tables do not know it") {
  method_table methods;
  REQUIRE(bool(methods.add<gated>("GATED")));
  CHECK(std::string(methods.add<lora<4>>("GATED").message()) ==
        "there is a method 'GATED' already; give yours another name");
  CHECK_FALSE(bool(methods.add<gated>("lora")));
  CHECK(std::string(methods.find("GATED")->of.name) == "gated");
  CHECK(built_in_methods().find("GATED") == nullptr);
}
