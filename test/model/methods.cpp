// SPDX-License-Identifier: Apache-2.0
// The table of methods: which exist on which kind of layer, and that each is the one its name says.
#include <doctest/doctest.h>

#include "../support/random_layer.h"

using namespace test;

namespace {

constexpr int methods = static_cast<int>(method::ln_tuning_weight) + 1;

bool on_matrices(method m) {
  return m != method::loha_conv && m != method::lora_embedding && m != method::dora_embedding &&
         m != method::ln_tuning && m != method::ln_tuning_weight;
}
std::string formula(layer_kind k, method m, bool bias = false) {
  const graph g = graphs_for(k, m, bias).merge;
  return expression(g, g.result("weight"), {nullptr, 40}).c_str();
}

}  // namespace

TEST_CASE("methods: which exist where") {
  for (int i = 0; i < methods; ++i) {
    const auto m = static_cast<method>(i);
    INFO("method ", i);
    for (const bool bias : {false, true}) {
      CHECK(graphs_for(layer_kind::linear, m, bias).exists() == on_matrices(m));
      const bool conv = m == method::none || m == method::lora || m == method::lora_with_bias || m == method::dora ||
                        m == method::loha || m == method::loha_conv;
      CHECK(graphs_for(layer_kind::conv2d, m, bias).exists() == conv);
      const bool norm = m == method::none || (bias ? m == method::ln_tuning : m == method::ln_tuning_weight);
      CHECK(graphs_for(layer_kind::layer_norm, m, bias).exists() == norm);
      CHECK(graphs_for(layer_kind::rms_norm, m, bias).exists() == norm);
    }
    const bool table = m == method::none || m == method::lora_embedding || m == method::dora_embedding;
    CHECK(graphs_for(layer_kind::embedding, m, false).exists() == table);
  }
}

TEST_CASE("methods: one number, one formula") {
  std::map<std::string, int> seen;
  for (int i = 0; i < methods; ++i) {
    const auto m = static_cast<method>(i);
    if (!on_matrices(m)) continue;
    const layer_graphs g = graphs_for(layer_kind::linear, m, true);
    // The formula, the bias and the shapes of its tensors: shared and own blocks differ in nothing else.
    std::string all = formula(layer_kind::linear, m, true);
    if (const id b = g.merge.result("bias"); b >= 0) all += expression(g.merge, b, {nullptr, 40}).c_str();
    for (int k = 0; k < g.merge.size; ++k)
      if (g.merge.n[k].what == op::param) {
        text t;
        print_shape(t, g.merge, static_cast<id>(k));
        all += t.c_str();
      }
    INFO(i, " and ", seen.contains(all) ? seen[all] : -1, ": ", all);
    CHECK_FALSE(seen.contains(all));
    seen[all] = i;
  }
  CHECK(seen.size() == 28);
}

TEST_CASE("methods: the table agrees with the types") {
  CHECK(formula(layer_kind::linear, method::lora).find("lora_B.weight @ lora_A.weight") != std::string::npos);
  CHECK(formula(layer_kind::linear, method::lokr).find("kron(lokr_w1, lokr_w2_a @ lokr_w2_b)") != std::string::npos);
  CHECK(formula(layer_kind::linear, method::lokr_second_full).find("kron(lokr_w1, lokr_w2)") != std::string::npos);
  CHECK(formula(layer_kind::linear, method::lokr_first_low).find("kron(lokr_w1_a @ lokr_w1_b, lokr_w2)") !=
        std::string::npos);
  CHECK(formula(layer_kind::linear, method::lokr_both_low).find("kron(lokr_w1_a @ lokr_w1_b, lokr_w2_a @ lokr_w2_b)") !=
        std::string::npos);
  // OFT's eight follow one another: Cayley, then Neumann; constrained from the third on; every second one shared.
  for (int form = 0; form < 8; ++form) {
    const auto m = static_cast<method>(static_cast<int>(method::oft) + form);
    const layer_graphs g = graphs_for(layer_kind::linear, m, false);
    INFO("form ", form);
    CHECK((formula(layer_kind::linear, m).find("neumann(") != std::string::npos) == ((form & 4) != 0));
    CHECK((g.merge.find("coft_limit") >= 0) == ((form & 2) != 0));
    CHECK((g.merge[g.merge.find("oft_R.weight")].d[2] == dim{1}) == ((form & 1) != 0));
  }
  CHECK(static_cast<int>(method::boft) == static_cast<int>(method::oft) + 8);
}

TEST_CASE("methods: every graph of every method is sound") {
  for (const combination& c : every_combination()) {
    INFO(c.name);
    for (const graph* g : {&c.graphs.literal, &c.graphs.literal_backward, &c.graphs.forward, &c.graphs.folded,
                           &c.graphs.backward, &c.graphs.base_forward, &c.graphs.merge}) {
      CHECK(g->bad.what == fault::none);
      for (int i = 0; i < g->size; ++i) {
        const node& v = g->n[i];
        for (int k = 0; k < 3; ++k) {
          CHECK((v.operand(k) >= 0) == (k < row(v.what).arity));
          CHECK(v.operand(k) < i);  // operands come first
        }
      }
      for (int k = 0; k < g->outs; ++k) CHECK((g->out[k].at >= 0 && g->out[k].at < g->size));
    }
    CHECK(c.graphs.forward.result("y") >= 0);
    CHECK(c.graphs.merge.result("weight") >= 0);
  }
}
