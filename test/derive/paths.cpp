// SPDX-License-Identifier: Apache-2.0
// Several layers in one graph: one formula below two paths has two sets of tensors.
#include "../support/formula_text.h"

using namespace test;

namespace {

builder two_layers() {
  builder g;
  const scope p{&g};
  const extent n = p.size("n", dyn, 4096);
  const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n);
  auto layer = [&](const char* path) {
    const scope here = p.in(path);
    const ex W = here.leaf(op::base, "weight", 2, 1, 1, n, n), adapted = lora<>::weight(here, W);
    return ex{&g, apply(g, adapted.i, x.i)};
  };
  g.add_output(mul(layer("q_proj"), layer("v_proj")).i, "y");
  return canonical(g);
}

}  // namespace

TEST_CASE("paths: two LoRA layers have tensors and ranks of their own") {
  const builder g = simplify(values_only(two_layers()));
  CHECK(g.bad.what == formula_error::none);
  for (const char* name : {"q_proj.weight", "q_proj.lora_A.weight", "q_proj.lora_B.weight", "q_proj.scaling",
                           "v_proj.weight", "v_proj.lora_A.weight", "v_proj.lora_B.weight", "v_proj.scaling"})
    CHECK(g.find(name) != none_id);
  CHECK(g.find("lora_A.weight") == none_id);
  CHECK(g.find("q_proj.lora_A.weight") != g.find("v_proj.lora_A.weight"));
  CHECK(g.sizes().find("q_proj.r") != g.sizes().find("v_proj.r"));
  CHECK(g.find("x") != none_id);
  SAYS_NOW(written(g, "y"),
           "(x @ q_proj.weight' + x @ q_proj.lora_A.weight' @ (q_proj.scaling * q_proj.lora_B.weight)') * "
           "(x @ v_proj.weight' + x @ v_proj.lora_A.weight' @ (v_proj.scaling * v_proj.lora_B.weight)')");
}

TEST_CASE("paths: gradients have the names of their parameters, with the path") {
  const builder b = simplify(values_only(grad(simplify(two_layers()))));
  CHECK(b.out.size() == 5);
  for (const char* layer : {"q_proj", "v_proj"})
    for (const char* tensor : {".lora_A.weight", ".lora_B.weight"}) {
      const std::string name = std::string(layer) + tensor;
      INFO(name);
      const id gradient = b.result(name.c_str()), parameter = b.find(name.c_str());
      REQUIRE(gradient != none_id);
      REQUIRE(parameter != none_id);
      CHECK(same_shape(b.n[gradient], b.n[parameter]));
    }
  CHECK(b.result("dx") != none_id);
  CHECK(b.result("lora_A.weight") == none_id);
  CHECK(b.result("q_proj.lora_A.weight") != b.result("v_proj.lora_A.weight"));
}

TEST_CASE("paths: several adapters of one layer, each applied to the result of the ones before") {
  const formula extra[] = {formula_of<ia3>()};
  const char* const paths[] = {"second"};
  layer_formula f = layer_of<linear_kind, lora<>, true>();
  f.extra = extra, f.extra_paths = paths, f.extra_count = 1;
  SAYS_NOW(written(capture_forward(f), "y"),
           "(x @ weight' + x @ lora_A.weight' @ (scaling * lora_B.weight)') * second.ia3_l + second.ia3_l * bias");
  const builder b = capture_backward(f);
  CHECK(b.result("second.ia3_l") != none_id);
  CHECK(b.result("lora_A.weight") != none_id);
  SAYS_NOW(written(capture_forward(without_adapter(f)), "y"), "x @ weight' + bias");
}
