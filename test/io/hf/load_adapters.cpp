// SPDX-License-Identifier: Apache-2.0
// PEFT folders of a whole model: values that follow from the base weight of a module, and tensors of the base in the
// file.
#include <doctest/doctest.h>
#include <graft/io/hf/adapter_from_tensors.h>
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
  const sequence_chunk run{ids};
  std::vector<float> out(3 * static_cast<std::size_t>(m.config().vocabulary));
  REQUIRE(m.logits(std::span(&run, 1), out));
  return out;
}
// A LoRA on the head with B = 0 and the head's own weight in the file, times `factor`.
adapter_set head_with_weight(const causal_lm<engine>& m, float factor) {
  hf::owned_tensors tensors;
  const view w = m.weights().tensors.at("lm_head.weight");
  const std::string key = "base_model.model.lm_head.";
  std::fill_n(tensors.put(key + "lora_A.weight", {2, w.size[1]}).begin(), 5, 1.0F);
  tensors.put(key + "lora_B.weight", {w.size[0], 2});
  std::vector<float>& own = tensors.put(key + "base_layer.weight", {w.size[0], w.size[1]});
  for (std::size_t i = 0; i < own.size(); ++i) own[i] = factor * static_cast<const float*>(w.data)[i];
  const auto config = make_adapter_config("LORA", {"lm_head"}, {{"r", json_number(2)}});
  auto made = hf::load_from_tensors(*config, tensors, m.config(), m.weights(), "a head");
  REQUIRE_MESSAGE(made, std::string(made.message()));
  return std::move(*made).with_origin();
}

}  // namespace

TEST_CASE("load_adapters: values that follow from a base weight differ between modules") {
  causal_lm<engine> m = base();
  const auto config = make_adapter_config("PSOFT", {"q_proj"}, {{"r", json_number(4)}});
  REQUIRE(hf::add_adapter(m, "turned", *config));
  for (const char* name : {"psoft_A", "psoft_B"})
    CHECK(values(*m.find("turned"), "model.layers.0.self_attn.q_proj", name) !=
          values(*m.find("turned"), "model.layers.1.self_attn.q_proj", name));
}

TEST_CASE("load_adapters: equally many trained rows of embedding and head are different rows") {
  const causal_lm<engine> m = base();
  auto folder = open_peft_folder(models + "llama/lora_trainable_tokens_head/adapter_init");
  REQUIRE(folder);
  folder->config.trainable_tokens[1].tokens.pop_back();
  hf::owned_tensors tensors;
  for (const tensor_view& t : folder->weights) {
    std::vector<long long> shape(t.shape.begin(), t.shape.end());
    if (t.name.find("lm_head") != t.name.npos) shape[0] = 2;
    auto& to = tensors.put(t.name, shape);
    const auto from = to_float(t);
    std::copy_n(from->begin(), to.size(), to.begin());
  }
  const auto made = hf::load_from_tensors(folder->config, tensors, m.config(), m.weights(), "rows");
  REQUIRE_MESSAGE(made, std::string(made.message()));
  for (const char* name : {"selected", "trainable_tokens_original"})
    CHECK(values(made->set, "model.embed_tokens", name) != values(made->set, "lm_head", name));
}

TEST_CASE("load_adapters: rows of a tied table may be in the file twice") {
  const auto m = hf::load_model<engine>(models + "llama_tied_bias/base");
  REQUIRE(m);
  json tokens;
  tokens.what = json::kind::list, tokens.items = {json_number(3), json_number(9)};
  const auto config = make_adapter_config("TRAINABLE_TOKENS", {"embed_tokens"}, {{"token_indices", tokens}});
  REQUIRE_MESSAGE(config, std::string(config.message()));
  hf::owned_tensors tensors;
  for (const char* module : {"model.embed_tokens", "lm_head"})
    tensors.put("base_model.model." + std::string(module) + ".trainable_tokens_delta",
                {2, m->weights().tensors.at("model.embed_tokens.weight").size[1]});
  const auto made = hf::load_from_tensors(*config, tensors, m->config(), m->weights(), "rows");
  REQUIRE_MESSAGE(made, std::string(made.message()));
  CHECK(made->set.find("lm_head")->tied_to == "model.embed_tokens");
}

TEST_CASE("load_adapters: the weight of the head that PEFT writes with an adapter on the head") {
  causal_lm<engine> m = base();
  const std::vector<float> before = logits(m);
  REQUIRE(m.add("same", head_with_weight(m, 1)));
  REQUIRE(m.add("too", head_with_weight(m, 1)));
  CHECK(m.find("same")->modules[0].base.empty());  // equal to the model's
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

TEST_CASE("load_adapters: targets that the model does not have are named, with the modules that it has") {
  causal_lm<engine> m = base();
  const auto refused = [&](const std::vector<std::string>& modules,
                           std::vector<std::pair<std::string, json>> keys = {}) {
    keys.emplace_back("r", json_number(2));
    const auto config = make_adapter_config("LORA", modules, keys);
    REQUIRE_MESSAGE(config, std::string(config.message()));
    return std::string(hf::add_adapter(m, "x", *config).message());
  };
  const std::string all =
      " modules are called lm_head, embed_tokens, input_layernorm, down_proj, gate_proj, up_proj, "
      "post_attention_layernorm, k_proj, o_proj, q_proj, v_proj, norm";
  const std::string none = "a fresh adapter: 'target_modules' of adapter_config.json names no module of this model";
  CHECK(refused({"q_prj", "v_proj_"}) == none + ": there is no 'q_prj'; did you mean 'q_proj'? Its" + all);
  CHECK(refused({"attn.q_proj"}).starts_with(none + ": there is no 'attn.q_proj'; did you mean 'q_proj'?"));
  CHECK(refused({"self_atn.q_proj"}).starts_with(none + ": there is no 'self_atn.q_proj'; did you mean 'self_attn.q_"));
  CHECK(refused({"c_attn"}) == none + ": there is no 'c_attn'; its" + all);
  CHECK(refused({}, {{"target_modules", json_string(".*query")}}) == none + "; its" + all);
  CHECK(refused({"q_proj"}, {{"layers_to_transform", json_number(77)}}) ==
        none + ": those called 'q_proj' are left out by 'exclude_modules', 'modules_to_save' or 'layers_to_transform'");
  CHECK(m.all_names().empty());
}

TEST_CASE("load_adapters: a module that is saved whole holds finite floats") {
  causal_lm<engine> m = base();
  hf::owned_tensors tensors;
  const view w = m.weights().tensors.at("lm_head.weight");
  tensors.put("base_model.model.lm_head.weight", {w.size[0], w.size[1]})[7] = std::numeric_limits<float>::quiet_NaN();
  json saved;
  saved.what = json::kind::list, saved.items = {json_string("lm_head")};
  const auto config = make_adapter_config("LORA", {"nothing"}, {{"r", json_number(2)}, {"modules_to_save", saved}});
  REQUIRE(config);
  CHECK(std::string(hf::load_from_tensors(*config, tensors, m.config(), m.weights(), "a head").message()) ==
        "a head: tensor 'base_model.model.lm_head.weight' holds a value that is not finite");
}

TEST_CASE("load_adapters: PiSSA and OLoRA that cannot be factored again say why") {
  causal_lm<engine> m = base();
  const auto refused = [&](const std::vector<std::string>& modules,
                           const std::vector<std::pair<std::string, json>>& keys) {
    const auto config = make_adapter_config("LORA", modules, keys);
    REQUIRE_MESSAGE(config, std::string(config.message()));
    return std::string(hf::add_adapter(m, "x", *config).message());
  };
  const json pissa = json_string("pissa"), olora = json_string("olora");
  const auto ends = [](const std::string& s, const char* with) {
    INFO(s);
    CHECK(s.ends_with(with));
  };
  ends(refused({"k_proj"}, {{"r", json_number(1000)}, {"init_lora_weights", pissa}}),
       "self_attn.k_proj: PiSSA's first factors are 1000 pairs of a weight that has 32");
  ends(refused({"k_proj"}, {{"lora_alpha", json_number(0)}, {"init_lora_weights", pissa}}),
       "PiSSA's first factors are divided by the scaling, and 'lora_alpha' is 0");
  ends(refused({"k_proj"}, {{"fan_in_fan_out", json_bool(true)}, {"init_lora_weights", olora}}),
       "PEFT has no OLoRA of a weight that is stored [in, out] (fan_in_fan_out)");
  ends(refused({"embed_tokens"}, {{"init_lora_weights", olora}}),
       "'init_lora_weights' of adapter_config.json is 'olora', which PEFT has for linear layers alone, and "
       "'model.embed_tokens' is of the kind embedding");
  auto quantized = hf::load_model<engine>(std::string(GRAFT_GOLDEN_DIR) + "/quantized/models/gpt2_nf4/base");
  REQUIRE_MESSAGE(quantized, std::string(quantized.message()));
  const auto config = make_adapter_config("LORA", {"c_attn"}, {{"r", json_number(2)}, {"init_lora_weights", pissa}});
  ends(hf::add_adapter(*quantized, "x", *config).message(),
       "PiSSA's first factors follow from the base weight, and this one is quantized; save the adapter with "
       "path_initial_model_for_weight_conversion");
  CHECK(m.all_names().empty());
}
