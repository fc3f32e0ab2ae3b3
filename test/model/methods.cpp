// SPDX-License-Identifier: Apache-2.0
// The table of methods: which exist on which kind of layer, and that each is the one its name says.
#include <doctest/doctest.h>

#include "../support/random_layer.h"

using namespace test;

namespace {

std::string formula_of(const char* kind, const char* m, bool bias = false) {
  const graph g = graphs_for(kind, m, bias).merge;
  return expression(g, g.result("weight"), {nullptr, 40}).c_str();
}
std::string message_of(const char* kind, const char* m, bool bias) {
  return built_in_methods().graphs(kind, m, bias).message();
}

}  // namespace

TEST_CASE("methods: which exist where") {
  int linear = 0;
  for (const method& m : built_in_methods()) {
    INFO(m.name);
    const std::string name = m.name;
    const bool both = name == "none" || name == "trainable_tokens" || name == "tinylora",
               table = both || name.ends_with("_embedding");
    const bool own = name == "loha_conv" || name == "lora_on_experts" || name.starts_with("ln_tuning");
    for (const bool bias : {false, true}) {
      const bool fits = name.starts_with("adamss")  ? bias == name.ends_with("with_bias")
                        : name.starts_with("glora") ? bias || name.ends_with("_weight")
                                                    : true;
      CHECK(graphs_for("linear", m.name, bias).exists() == (both || (!table && !own && fits)));
      const bool conv = name == "none" || name == "lora" || name == "lora_with_bias" || name == "dora" ||
                        name == "loha" || name == "loha_conv" || name == "hira";
      CHECK(graphs_for("conv2d", m.name, bias).exists() == conv);
      const bool norm = name == "none" || (bias ? name == "ln_tuning" : name == "ln_tuning_weight");
      CHECK(graphs_for("layer_norm", m.name, bias).exists() == norm);
      CHECK(graphs_for("rms_norm", m.name, bias).exists() == norm);
    }
    CHECK(graphs_for("experts", m.name, false).exists() == (name == "none" || name == "lora_on_experts"));
    CHECK_FALSE(graphs_for("experts", m.name, true).exists());
    CHECK(graphs_for("embedding", m.name, false).exists() == table);
    CHECK_FALSE(graphs_for("embedding", m.name, true).exists());
    linear += exists_on(m, "linear") ? 1 : 0;
  }
  CHECK(linear >= 28);
}

TEST_CASE("methods: what does not exist is named, with what does") {
  CHECK(message_of("linear", "lorra", false)
            .starts_with("there is no method 'lorra'; there are none, lora, lora_with_bias, "));
  CHECK(message_of("lineer", "lora", false) ==
        "there is no kind of layer 'lineer'; there are linear, embedding, conv2d, layer_norm, rms_norm, experts");
  CHECK(message_of("embedding", "oft", false) ==
        "method 'oft' does not exist for this kind of layer (embedding); it exists on linear");
  CHECK(message_of("layer_norm", "ln_tuning", false) ==
        "method 'ln_tuning' does not exist on a layer_norm layer without a bias");
  CHECK(message_of("embedding", "none", true) == "method 'none' does not exist on a embedding layer with a bias");
  CHECK(message_of("conv2d", "loha_conv", true).empty());
}

TEST_CASE("methods: one name, one formula") {
  std::map<std::string, std::string> seen;
  for (const method& m : built_in_methods()) {
    if (!exists_on(m, "linear")) continue;
    const bool bias = graphs_for("linear", m.name, true).exists();
    const layer_graphs g = graphs_for("linear", m.name, bias);
    // The formula, the bias and the shapes of its tensors: shared and own blocks differ in nothing else.
    std::string all = formula_of("linear", m.name, bias);
    if (const id b = g.merge.result("bias"); b >= 0) all += expression(g.merge, b, {nullptr, 40}).c_str();
    for (int k = 0; k < g.merge.size; ++k)
      if (g.merge.n[k].what == op::param) {
        text t;
        print_shape(t, g.merge, k);
        all += t.c_str();
      }
    INFO(m.name, " and ", seen.contains(all) ? seen[all] : "", ": ", all);
    CHECK_FALSE(seen.contains(all));
    seen[all] = m.name;
  }
}

TEST_CASE("methods: the formulas are those their names say") {
  auto holds = [](const char* m, const char* part) { return formula_of("linear", m).find(part) != std::string::npos; };
  CHECK(holds("lora", "lora_B.weight @ lora_A.weight"));
  CHECK(holds("lokr", "kron(lokr_w1, lokr_w2_a @ lokr_w2_b)"));
  CHECK(holds("lokr_both_full", "kron(lokr_w1, lokr_w2)"));
  CHECK(holds("lokr_first_low", "kron(lokr_w1_a @ lokr_w1_b, lokr_w2)"));
  CHECK(holds("lokr_both_low", "kron(lokr_w1_a @ lokr_w1_b, lokr_w2_a @ lokr_w2_b)"));
  int forms = 0;
  for (const method& m : built_in_methods()) {
    const std::string name = m.name;
    if (!name.starts_with("oft")) continue;
    const layer_graphs g = graphs_for("linear", m.name, false);
    INFO(name);
    CHECK(holds(m.name, "neumann(") == name.starts_with("oft_neumann"));
    CHECK((g.merge.find("coft_limit") >= 0) == name.ends_with("projected"));
    CHECK((g.merge[g.merge.find("oft_R.weight")].d[2] == dim{1}) == (name.find("shared") != std::string::npos));
    ++forms;
  }
  CHECK(forms == 8);
}

TEST_CASE("methods: every graph of every method is sound") {
  for (const layer_variant& c : every_layer_variant()) {
    INFO(c.name);
    for (const graph* g : {&c.graphs.literal, &c.graphs.literal_backward, &c.graphs.forward, &c.graphs.folded,
                           &c.graphs.backward, &c.graphs.base_forward, &c.graphs.merge}) {
      CHECK(g->bad.what == formula_error::none);
      for (int i = 0; i < g->size; ++i) {
        const node& v = g->n[i];
        for (int k = 0; k < 3; ++k) {
          CHECK((v.operand(k) >= 0) == (k < traits_of(v.what).arity));
          CHECK(v.operand(k) < i);  // operands come first
        }
      }
      for (int k = 0; k < g->outs; ++k) CHECK((g->out[k].at >= 0 && g->out[k].at < g->size));
    }
    CHECK(c.graphs.forward.result("y") >= 0);
    CHECK(c.graphs.merge.result("weight") >= 0);
  }
}
