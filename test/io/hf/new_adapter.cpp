// SPDX-License-Identifier: Apache-2.0
// New adapters of every method have PEFT's tensors and shapes, and do not change the model's results.
#include <doctest/doctest.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/model/on_cpu.h>
#include <graft/model/training_run.h>

#include "../../support/fresh_methods.h"
#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;
using graft::test::fresh_method;

namespace {

using engine = cpu::engine<float>;
const std::string models = std::string(GRAFT_GOLDEN_DIR) + "/models/";

causal_lm<engine> base(const std::string& name) {
  auto m = hf::load_model<engine>(models + name + "/base");
  REQUIRE_MESSAGE(m, std::string(m.message()));
  return std::move(*m);
}
std::vector<float> logits(causal_lm<engine>& m) {
  const std::vector<std::int64_t> ids{1, 2, 3};
  const sequence_chunk run{ids};
  std::vector<float> out(3 * static_cast<std::size_t>(m.config().vocabulary));
  const status s = m.logits(std::span(&run, 1), out);
  REQUIRE_MESSAGE(s, std::string(s.message()));
  return out;
}
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double(a[i]) - double(b[i])));
  return most;
}

}  // namespace

TEST_CASE("new adapters: every method is written, read and trained") {
  causal_lm<engine> m = base("llama");
  const std::vector<float> before = logits(m);
  const temp_folder dir;
  for (const fresh_method& f : graft::test::fresh_methods()) {
    CAPTURE(std::string(f.type));
    CAPTURE(f.keys.size());
    const auto config = make_adapter_config(f.type, {"q_proj", "v_proj", "up_proj"}, f.keys);
    REQUIRE_MESSAGE(config, std::string(config.message()));
    const status added = hf::add_adapter(m, "fresh", *config, 7);
    REQUIRE_MESSAGE(added, std::string(added.message()));
    REQUIRE(m.activate({"fresh"}));
    const std::vector<float> now = logits(m);
    CHECK((largest_difference(now, before) < 1e-4) == f.neutral);
    const status saved = hf::save_adapter(dir.path / "a", m, "fresh");
    REQUIRE_MESSAGE(saved, std::string(saved.message()));
    const status loaded = hf::load_adapter(m, "again", dir.path / "a");
    REQUIRE_MESSAGE(loaded, std::string(loaded.message()));
    REQUIRE(m.activate({"again"}));
    CHECK(logits(m) == now);
    auto run = training_run<engine>::make(m);
    REQUIRE_MESSAGE(run, std::string(run.message()));
    const std::vector<std::int64_t> ids{1, 2, 3, 4, 5};
    const labeled_sequence batch{ids};
    REQUIRE(run->add(std::span(&batch, 1)));
    bool any_gradient = false;
    for (const trained_parameter& p : run->parameters())
      for (long long i = 0; i < p.gradient.count(); ++i)
        any_gradient = any_gradient || static_cast<const float*>(p.gradient.data)[i] != 0;
    CHECK(any_gradient);
    REQUIRE(m.remove("fresh"));
    REQUIRE(m.remove("again"));
  }
}

TEST_CASE("new adapters: factors that follow from a weight differ between modules") {
  causal_lm<engine> m = base("llama");
  for (const auto& [type, rank, factor] :
       {std::tuple{"PSOFT", "r", "psoft_A"}, std::tuple{"OSF", "effective_rank", "osf_U_high"}}) {
    const auto config = make_adapter_config(type, {"q_proj"}, {{rank, json_number(4)}});
    REQUIRE_MESSAGE(config, std::string(config.message()));
    const status added = hf::add_adapter(m, type, *config, 7);
    REQUIRE_MESSAGE(added, std::string(added.message()));
    const auto& modules = m.find(type)->modules;
    REQUIRE(modules.size() > 1);
    CHECK(modules[0].tensors.at(factor).shape == modules[1].tensors.at(factor).shape);
    CHECK(*modules[0].tensors.at(factor).data != *modules[1].tensors.at(factor).data);
  }
}

TEST_CASE("new adapters: the dropout that the configuration sets, for the methods that have it") {
  causal_lm<engine> m = base("llama");
  const json third = json_number(0.3), r = json_number(4), yes = json_bool(true);
  struct rates {
    double inputs = 0, ranks = 0, whole = 0, blocks = 0;
    bool scaled = false;
    bool operator==(const rates&) const = default;
  };
  const std::pair<fresh_method, rates> all[] = {
      {{"LORA", {{"r", r}, {"lora_dropout", third}}}, {.inputs = 0.3}},
      {{"ADALORA", {{"init_r", r}, {"total_step", json_number(100)}, {"lora_dropout", third}}}, {.inputs = 0.3}},
      {{"DELORA", {{"r", r}, {"module_dropout", third}}}, {.inputs = 0.3}},
      {{"LOHA", {{"r", r}, {"rank_dropout", third}}}, {.ranks = 0.3}},
      {{"LOKR", {{"r", r}, {"rank_dropout", third}, {"rank_dropout_scale", yes}, {"module_dropout", third}}},
       {.ranks = 0.3, .whole = 0.3, .scaled = true}},
      {{"OFT", {{"r", r}, {"oft_block_size", json_number(0)}, {"module_dropout", third}}}, {}},
      {{"BOFT", {{"boft_n_butterfly_factor", json_number(2)}, {"boft_dropout", third}}}, {.blocks = 0.15}},
      {{"MISS", {{"r", r}, {"miss_dropout", third}}}, {.inputs = 0.3}},
      {{"MISS", {{"r", r}, {"miss_dropout", third}, {"init_weights", json_string("bat")}}}, {}},
      {{"DEFT", {{"r", r}, {"deft_dropout", third}}}, {.inputs = 0.3}},
      {{"DEFT", {{"r", r}, {"deft_dropout", third}, {"para", yes}}}, {}},
      {{"SUPERTUNING", {{"r", r}, {"lora_alpha", r}, {"lora_dropout", third}}}, {.inputs = 0.3}},
      {{"SUPERTUNING", {{"lora_dropout", third}}}, {}},
      {{"TINYLORA", {{"tinylora_dropout", third}}}, {.inputs = 0.3}},
      {{"PVERA", {{"r", r}, {"pvera_dropout", third}}}, {.inputs = 0.3}}};
  for (const auto& one_case : all) {
    const auto& f = one_case.first;
    const auto& expected = one_case.second;
    CAPTURE(std::string(f.type));
    const auto config = make_adapter_config(f.type, {"q_proj"}, f.keys);
    REQUIRE_MESSAGE(config, std::string(config.message()));
    const status added = hf::add_adapter(m, "one", *config);
    REQUIRE_MESSAGE(added, std::string(added.message()));
    const module_adapter& one = m.find("one")->modules[0];
    CHECK(rates{one.dropout, one.rank_dropout, one.module_dropout, one.block_dropout, one.rank_dropout_scale} ==
          expected);
    REQUIRE(m.remove("one"));
  }
}

TEST_CASE("new adapters: trainable tokens, alone and with LoRA, begin with the base's rows") {
  for (const char* model : {"llama", "llama_tied_bias", "opt", "gpt2"}) {
    CAPTURE(std::string(model));
    causal_lm<engine> m = base(model);
    const std::vector<float> before = logits(m);
    const bool gpt2 = std::string(model) == "gpt2";
    const std::string table = gpt2 ? "wte" : "embed_tokens", target = gpt2 ? "c_attn" : "q_proj";
    json tokens;
    tokens.what = json::kind::list, tokens.items = {json_number(2), json_number(9)};
    for (const auto& config : {make_adapter_config("TRAINABLE_TOKENS", {table}, {{"token_indices", tokens}}),
                               make_adapter_config("LORA", {target}, {{"trainable_token_indices", tokens}})}) {
      REQUIRE_MESSAGE(config, std::string(config.message()));
      const status added = hf::add_adapter(m, "rows", *config);
      REQUIRE_MESSAGE(added, std::string(added.message()));
      REQUIRE(m.activate({"rows"}));
      CHECK(largest_difference(logits(m), before) < 1e-5);
      REQUIRE(m.remove("rows"));
    }
  }
}

TEST_CASE("new adapters: a bias is not merged into a layer without one, and nothing changes") {
  causal_lm<engine> m = base("llama");
  const std::vector<float> before = logits(m);
  const auto config = make_adapter_config("BEFT", {"v_proj"});
  REQUIRE(hf::add_adapter(m, "shift", *config));
  REQUIRE(m.activate({"shift"}));
  const status merged = m.merge({"shift"});
  CHECK(contains(merged.message(), "the adapter brings a bias, and the layer has none to merge it into"));
  CHECK(logits(m) == before);
}

TEST_CASE("new adapters: values follow from the seed, also on norms, embeddings and transposed weights") {
  causal_lm<engine> m = base("llama");
  const auto lora = make_adapter_config("LORA", {"q_proj"});
  REQUIRE(hf::add_adapter(m, "a", *lora, 1));
  REQUIRE(hf::add_adapter(m, "b", *lora, 1));
  REQUIRE(hf::add_adapter(m, "c", *lora, 2));
  const auto& a = m.find("a")->modules[0].tensors.at("lora_A.weight");
  CHECK(*a.data == *m.find("b")->modules[0].tensors.at("lora_A.weight").data);
  CHECK(*a.data != *m.find("c")->modules[0].tensors.at("lora_A.weight").data);
  CHECK(a.shape[0] == 8);
  const std::vector<float> before = logits(m);
  for (const char* target : {"embed_tokens", "lm_head"})
    for (const bool dora : {false, true}) {
      const auto config = make_adapter_config("LORA", {target}, {{"use_dora", json_bool(dora)}});
      const status added = hf::add_adapter(m, "x", *config);
      REQUIRE_MESSAGE(added, std::string(added.message()));
      REQUIRE(m.activate({"x"}));
      CHECK(largest_difference(logits(m), before) < 1e-4);
      REQUIRE(m.remove("x"));
    }
  const auto norms = make_adapter_config("LN_TUNING", {"input_layernorm"});
  REQUIRE(norms);
  REQUIRE(hf::add_adapter(m, "norms", *norms));
  REQUIRE(m.activate({"norms"}));
  CHECK(largest_difference(logits(m), before) == 0);
  causal_lm<engine> gpt2 = base("gpt2");
  const std::vector<float> bare = logits(gpt2);
  const auto conv1d = make_adapter_config("LORA", {"c_attn"}, {{"use_dora", json_bool(true)}});
  REQUIRE(hf::add_adapter(gpt2, "a", *conv1d));
  REQUIRE(gpt2.activate({"a"}));
  CHECK(largest_difference(logits(gpt2), bare) < 1e-4);
  const auto nothing = make_adapter_config("LORA", {"nowhere"});
  CHECK_FALSE(hf::add_adapter(gpt2, "b", *nothing));
}
