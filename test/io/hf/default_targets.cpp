// SPDX-License-Identifier: Apache-2.0
// Where target_modules is missing or null, the modules are those of PEFT 0.21.2, or the message says that it has none.
#include <doctest/doctest.h>
#include <graft/io/hf/target_modules.h>
#include <graft/io/peft/folder.h>

using namespace graft;
using namespace graft::io;

namespace {

adapter_config config_of(const std::string& type, const std::string& more) {
  auto c = parse_adapter_config("{\"peft_type\": \"" + type + "\"" + more + "}", "adapter_config.json");
  INFO(std::string(c.message()));
  REQUIRE(c);
  return std::move(*c);
}
std::vector<base_layer> layers() {
  std::vector<base_layer> all;
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate"}) {
    base_layer b;
    b.module = std::string("model.layers.0.") + name, b.kind = "linear", b.out = b.in = 8, b.shape = {8, 8};
    all.push_back(b);
  }
  return all;
}
std::string targets(const adapter_config& c, const model_family& family) {
  model_config m;
  m.family = &family, m.layers = 1;
  std::vector<base_layer> all = layers();
  const auto stated = hf::with_default_targets(c, family);
  if (!stated) return stated.message();
  const auto found = hf::targets_of(*stated, all, &m);
  if (!found) return found.message();
  std::string names;
  for (const base_layer* b : *found) names += b->module.substr(b->module.rfind('.') + 1) + " ";
  return names;
}

}  // namespace

TEST_CASE("default targets: queries and values of the families that PEFT knows") {
  for (const char* given : {"", ", \"target_modules\": null"})
    for (const model_family* f :
         {&families::llama, &families::mistral, &families::qwen2, &families::qwen3, &families::mixtral,
          &families::gemma, &families::gemma2, &families::gemma3, &families::opt})
      CHECK(targets(config_of("LORA", given), *f) == "q_proj v_proj ");
  CHECK(targets(config_of("LORA", ", \"target_modules\": [\"k_proj\"]"), families::mixtral) == "k_proj ");
  CHECK(targets(config_of("LORA", ", \"target_modules\": []"), families::mixtral).empty());
  CHECK(targets(config_of("LORA", ", \"exclude_modules\": [\"v_proj\"]"), families::mixtral) == "q_proj ");
}

TEST_CASE("default targets: families and methods without any are refused by name") {
  for (const model_family* f : {&families::qwen2_moe, &families::qwen3_moe, &families::gpt_oss, &families::granite,
                                &families::olmo2, &families::phi3, &families::smollm3})
    CHECK(
        targets(config_of("LORA", ""), *f) ==
        "'target_modules' of adapter_config.json is missing or null, and PEFT has no modules of its own for LORA on " +
            std::string(f->name) + " models; list them there");
  CHECK(targets(config_of("IA3", ""), families::granite).find("for IA3 on granite models") != std::string::npos);
  CHECK(
      targets(config_of("IA3", ", \"target_modules\": [\"k_proj\"]"), families::granite) ==
      "'feedforward_modules' of adapter_config.json is missing or null, and PEFT has no modules of its own for IA3 on "
      "granite models; list them there");
  CHECK(targets(config_of("IA3", ", \"target_modules\": [\"k_proj\"], \"feedforward_modules\": []"),
                families::granite) == "k_proj ");
  CHECK(targets(config_of("VBLORA", ""), families::mixtral).find("for VBLORA on mixtral models") != std::string::npos);
}

TEST_CASE("default targets: each method has those of its table, and the file states them") {
  const auto stated = [](const char* type, const model_family& f, const char* key = "target_modules",
                         const char* given = "") {
    const auto c = hf::with_default_targets(config_of(type, given), f);
    std::string names;
    if (!c) return std::string("none");
    const json* const list = c->set(key);
    REQUIRE(list != nullptr);
    for (const json& e : list->items) names += e.word + " ";
    return names;
  };
  CHECK(stated("LORA", families::gpt2) == "c_attn ");
  CHECK(stated("FOURIERFT", families::gpt2) == "mlp.c_proj ");
  CHECK(stated("BEFT", families::gpt2) == "none");
  CHECK(stated("BEFT", families::mixtral) == "v_proj ");
  CHECK(stated("LN_TUNING", families::qwen3) == "post_attention_layernorm ");
  CHECK(stated("LN_TUNING", families::mixtral) == "none");
  CHECK(stated("OSF", families::opt) == "q_proj k_proj v_proj out_proj fc1 fc2 ");
  CHECK(stated("IA3", families::llama) == "k_proj v_proj down_proj ");
  CHECK(stated("IA3", families::qwen3) == "q_proj v_proj down_proj ");
  CHECK(stated("IA3", families::opt) == "q_proj k_proj fc2 ");
  CHECK(stated("IA3", families::gpt2) == "c_attn mlp.c_proj ");
  CHECK(stated("IA3", families::llama, "feedforward_modules") == "down_proj ");
  CHECK(stated("IA3", families::mixtral, "feedforward_modules") == "w2 ");
  CHECK(stated("IA3", families::llama, "feedforward_modules", ", \"target_modules\": [\"q_proj\"]").empty());
  CHECK(stated("IA3", families::llama, "feedforward_modules",
               ", \"target_modules\": [\"q_proj\", \"mlp.down_proj\"]") == "mlp.down_proj ");
  CHECK(stated("IA3", families::llama, "feedforward_modules", ", \"target_modules\": \".*_proj\"") == "down_proj ");
  CHECK(stated("IA3", families::llama, "feedforward_modules", ", \"feedforward_modules\": []").empty());
  const char* const tokens = ", \"token_indices\": [3]";
  CHECK(stated("TRAINABLE_TOKENS", families::llama, "target_modules", tokens) == "embed_tokens ");
  CHECK(stated("TRAINABLE_TOKENS", families::gpt2, "target_modules", tokens) == "wte ");
}
