// SPDX-License-Identifier: Apache-2.0
// PEFT folders for a whole model: what belongs to one module stays its own, and what a file brings of the base layer.
#include <doctest/doctest.h>
#include <graft/io/hf/made_adapters.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/model/on_cpu.h>

#include "../support.h"

using namespace graft;
using namespace graft::io;

namespace {

using engine = cpu::engine<float>;
const std::string models = GRAFT_GOLDEN_DIR "/models/";

causal_lm<engine> base() {
  auto m = hf::load_model<engine>(models + "llama/base");
  REQUIRE_MESSAGE(m, std::string(m.message()));
  return std::move(*m);
}
const std::vector<float>& values(const adapter_set& set, const char* module, const char* name) {
  const module_adapter* const m = set.find(module);
  REQUIRE(m != nullptr);
  return *m->tensors.at(name).data;
}
std::vector<float> logits(causal_lm<engine>& m) {
  const std::vector<std::int64_t> ids{1, 2, 3};
  const row_run run{ids};
  std::vector<float> out(3 * static_cast<std::size_t>(m.config().vocabulary));
  REQUIRE(m.logits(std::span(&run, 1), out));
  return out;
}
// LoRA on the head whose B is zero, with the head's own weight in the file, all of it times `factor`.
adapter_set head_with_weight(const causal_lm<engine>& m, float factor) {
  hf::made_tensors tensors;
  const view w = m.weights().tensors.at("lm_head.weight");
  const std::string key = "base_model.model.lm_head.";
  std::fill_n(tensors.put(key + "lora_A.weight", {2, w.size[1]}).begin(), 5, 1.0F);
  tensors.put(key + "lora_B.weight", {w.size[0], 2});
  std::vector<float>& own = tensors.put(key + "base_layer.weight", {w.size[0], w.size[1]});
  for (std::size_t i = 0; i < own.size(); ++i) own[i] = factor * static_cast<const float*>(w.data)[i];
  const auto config = make_adapter_config("LORA", {"lm_head"}, {{"r", json_number(2)}});
  auto made = hf::load_made(*config, tensors, m.config(), m.weights(), "a head");
  REQUIRE_MESSAGE(made, std::string(made.message()));
  return std::move(*made).with_origin();
}

}  // namespace

TEST_CASE("load_adapters: what follows from a module's base weight is of that module alone") {
  causal_lm<engine> m = base();
  const auto config = make_adapter_config("PSOFT", {"q_proj"}, {{"r", json_number(4)}});
  REQUIRE(hf::add_adapter(m, "turned", *config));
  for (const char* name : {"psoft_A", "psoft_B"})
    CHECK(values(*m.find("turned"), "model.layers.0.self_attn.q_proj", name) !=
          values(*m.find("turned"), "model.layers.1.self_attn.q_proj", name));
}

TEST_CASE("load_adapters: as many rows of the embedding as of the head are still other rows") {
  const causal_lm<engine> m = base();
  auto folder = open_peft_folder(models + "llama/lora_trainable_tokens_head/adapter_init");
  REQUIRE(folder);
  folder->config.trainable_tokens[1].tokens.pop_back();
  hf::made_tensors tensors;
  for (const tensor_view& t : folder->weights) {
    std::vector<long long> shape(t.shape.begin(), t.shape.end());
    if (t.name.find("lm_head") != t.name.npos) shape[0] = 2;
    auto& to = tensors.put(t.name, shape);
    const auto from = to_float(t);
    std::copy_n(from->begin(), to.size(), to.begin());
  }
  const auto made = hf::load_made(folder->config, tensors, m.config(), m.weights(), "rows");
  REQUIRE_MESSAGE(made, std::string(made.message()));
  for (const char* name : {"selected", "trainable_tokens_original"})
    CHECK(values(made->set, "model.embed_tokens", name) != values(made->set, "lm_head", name));
}

TEST_CASE("load_adapters: rows of a table that is the head too may be in the file twice") {
  const auto m = hf::load_model<engine>(models + "llama_tied_bias/base");
  REQUIRE(m);
  json tokens;
  tokens.what = json::kind::list, tokens.items = {json_number(3), json_number(9)};
  const auto config = make_adapter_config("TRAINABLE_TOKENS", {"embed_tokens"}, {{"token_indices", tokens}});
  REQUIRE_MESSAGE(config, std::string(config.message()));
  hf::made_tensors tensors;
  for (const char* module : {"model.embed_tokens", "lm_head"})
    tensors.put("base_model.model." + std::string(module) + ".trainable_tokens_delta",
                {2, m->weights().tensors.at("model.embed_tokens.weight").size[1]});
  const auto made = hf::load_made(*config, tensors, m->config(), m->weights(), "rows");
  REQUIRE_MESSAGE(made, std::string(made.message()));
  CHECK(made->set.find("lm_head")->follows == "model.embed_tokens");
}

TEST_CASE("load_adapters: the weight of the head that PEFT writes beside an adapter on it") {
  causal_lm<engine> m = base();
  const std::vector<float> before = logits(m);
  REQUIRE(m.add("same", head_with_weight(m, 1)));
  REQUIRE(m.add("too", head_with_weight(m, 1)));
  CHECK(m.find("same")->modules[0].base.empty());  // it is the model's
  const status both = m.activate({"same", "too"});
  CHECK_MESSAGE(both, std::string(both.message()));
  CHECK(logits(m) == before);
  REQUIRE(m.add("other", head_with_weight(m, 2)));
  REQUIRE(m.activate({"other"}));
  const std::vector<float> doubled = logits(m);
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(doubled[i] == 2 * before[i]);
  const io::test::temp_folder dir;
  REQUIRE(hf::save_adapter(dir.path / "other", m, "other"));
  REQUIRE(hf::load_adapter(m, "again", dir.path / "other"));
  REQUIRE(m.activate({"again"}));
  CHECK(logits(m) == doubled);
}
