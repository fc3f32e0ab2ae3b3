// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/hf/config.h>
#include <graft/io/hf/generation_config.h>
#include <graft/model/architectures.h>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

// The config.json of a small model of each family, as transformers writes it, with `more` appended.
std::string small(const std::string& family, const std::string& more = "") {
  if (family == "gpt2")
    return R"({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 32, "vocab_size": 99)" +
           more + "}";
  const std::string inner = family == "opt" ? "ffn_dim" : "intermediate_size";
  return "{\"model_type\": \"" + family +
         R"(", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "max_position_embeddings": 32,
             "vocab_size": 99, ")" +
         inner + "\": 160" + more + "}";
}
result<model_config> parsed(const std::string& content) { return hf::parse_config(content, "config.json"); }
std::string message(const std::string& content) { return parsed(content).message(); }

}  // namespace

TEST_CASE("config: every family has its names, constants and defaults") {
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "gemma", "opt", "gpt2"}) {
    CAPTURE(family);
    const auto c = parsed(small(family, std::string(family) == "mistral"       ? ", \"num_key_value_heads\": 2"
                                        : family[0] == 'q' || family[0] == 'g' ? ", \"num_key_value_heads\": 4"
                                                                               : ""));
    CAPTURE(std::string(c.message()));
    REQUIRE(c);
    CHECK(std::string(c->family->name) == family);
    CHECK(c->hidden_size == 64);
    CHECK(c->embedding_width == 64);
    CHECK(c->heads == 4);
    CHECK(c->layers == 3);
    CHECK(c->positions == 32);
    CHECK(c->vocabulary == 99);
    CHECK(c->intermediate_size == (c->family == &families::gpt2 ? 256 : 160));
    CHECK(c->kv_heads == (c->family == &families::mistral ? 2 : 4));
    CHECK(c->head_dim == (c->family == &families::qwen3 ? 128 : c->family == &families::gemma ? 256 : 16));
    CHECK(c->attention_scale == 1 / std::sqrt(static_cast<double>(c->head_dim)));
    const bool learned = !c->family->has_rope;
    CHECK(c->attention_bias == (learned || c->family == &families::qwen2));
    CHECK(c->output_bias == learned);
    CHECK(c->mlp_bias == learned);
    CHECK(c->tied == (learned || c->family == &families::gemma));
    CHECK(c->norm_eps == (learned ? 1e-5 : 1e-6));
    CHECK(c->activation == (c->family == &families::opt                                     ? activation_kind::relu
                            : c->family == &families::gpt2 || c->family == &families::gemma ? activation_kind::gelu_tanh
                                                                                            : activation_kind::silu));
    CHECK(c->window == std::vector<int>(3, c->family == &families::mistral ? 4096 : 0));
  }
}

TEST_CASE("config: fields that change the computation are read") {
  const auto llama = parsed(small("llama", R"(, "num_key_value_heads": 2, "head_dim": 32, "attention_bias": true,
      "mlp_bias": true, "hidden_act": "gelu", "tie_word_embeddings": true, "rms_norm_eps": 1e-05, "bos_token_id": 5,
      "eos_token_id": [6, 7], "pad_token_id": -1, "torch_dtype": "bfloat16", "rope_theta": 500000.0)"));
  REQUIRE(llama);
  CHECK(llama->kv_heads == 2);
  CHECK(llama->head_dim == 32);
  CHECK(llama->attention_bias);
  CHECK(llama->output_bias);
  CHECK(llama->mlp_bias);
  CHECK(llama->tied);
  CHECK(llama->activation == activation_kind::gelu);
  CHECK(llama->norm_eps == 1e-5);
  CHECK(*llama->tokens.bos_token == 5);
  CHECK(llama->tokens.eos_tokens == std::vector<int>{6, 7});
  CHECK_FALSE(llama->tokens.pad_token);
  CHECK(*llama->stored == graft::dtype::bf16);
  CHECK(llama->rope.theta == 500000);

  const auto opt = parsed(small("opt", R"(, "word_embed_proj_dim": 32, "do_layer_norm_before": false,
      "enable_bias": false, "activation_function": "gelu", "tie_word_embeddings": false, "eos_token_id": null)"));
  REQUIRE(opt);
  CHECK(opt->embedding_width == 32);
  CHECK_FALSE(opt->norm_before);
  CHECK_FALSE(opt->final_norm);
  CHECK_FALSE(opt->attention_bias);
  CHECK_FALSE(opt->mlp_bias);
  CHECK_FALSE(opt->tied);
  CHECK(opt->tokens.eos_tokens.empty());
  CHECK_FALSE(parsed(small("opt", R"(, "_remove_final_layer_norm": true)"))->final_norm);

  const auto gpt2 = parsed(small("gpt2", R"(, "n_inner": 100, "scale_attn_weights": false, "dtype": "float16")"));
  REQUIRE(gpt2);
  CHECK(gpt2->intermediate_size == 100);
  CHECK(gpt2->attention_scale == 1);
  CHECK(!gpt2->attention_scaled_by_layer);
  CHECK(parsed(small("gpt2", R"(, "scale_attn_by_inverse_layer_idx": true)"))->attention_scaled_by_layer);
  CHECK(*gpt2->stored == graft::dtype::f16);
  CHECK(parsed(small("gpt2", R"(, "n_inner": null)"))->intermediate_size == 256);
  CHECK(parsed(small("gemma", R"(, "hidden_act": "gelu", "num_key_value_heads": 1)"))->activation ==
        activation_kind::gelu_tanh);
}

TEST_CASE("config: which layers have a sliding window") {
  const auto window = [](const std::string& family, const std::string& more) {
    const auto c = parsed(small(family, ", \"num_key_value_heads\": 2" + more));
    CAPTURE(std::string(c.message()));
    REQUIRE(c);
    return c->window;
  };
  CHECK(window("mistral", R"(, "sliding_window": 6)") == std::vector<int>{6, 6, 6});
  CHECK(window("mistral", R"(, "sliding_window": null)") == std::vector<int>{0, 0, 0});
  CHECK(window("llama", R"(, "sliding_window": 6)") == std::vector<int>{0, 0, 0});
  CHECK(window("qwen2", R"(, "sliding_window": 6)") == std::vector<int>{0, 0, 0});
  CHECK(window("qwen2", R"(, "sliding_window": 6, "use_sliding_window": true, "max_window_layers": 1)") ==
        std::vector<int>{0, 6, 6});
  CHECK(window("qwen3", R"(, "sliding_window": 6, "use_sliding_window": true,
                            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"])") ==
        std::vector<int>{6, 0, 6});
}

TEST_CASE("config: RoPE frequencies are those of transformers") {
  const struct {
    const char *name, *settings;
    int head, positions;
    float factor;
    std::vector<float> frequencies;
  } cases[] = {
      {"linear",
       R"({"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0})",
       8,
       256,
       1.0F,
       {0.25F, 0.0250000004F, 0.00249999994F, 0.000250000012F}},
      {"llama3",
       R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0})",
       16,
       256,
       1.0F,
       {0.576056361F, 0.0395284705F, 0.0125000002F, 0.00395284733F, 0.00124999997F, 0.000395284733F, 0.000125000006F,
        3.95284733e-05F}},
      {"llama3 as Llama 3.1",
       R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_theta": 500000.0})",
       32,
       131072,
       1.0F,
       {1.0F, 0.440366626F, 0.193922758F, 0.0853971019F, 0.0376060307F, 0.0165604409F, 0.00729266508F, 0.00321144611F,
        0.000524846022F, 7.78465546e-05F, 3.42810235e-05F, 1.50962178e-05F, 6.64786967e-06F, 2.92749974e-06F,
        1.28917316e-06F, 5.6770881e-07F}},
      {"yarn",
       R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0})",
       16,
       256,
       1.13862944F,
       {1.0F, 0.079056941F, 0.0250000004F, 0.00790569466F, 0.00249999994F, 0.000790569466F, 0.000250000012F,
        7.90569466e-05F}},
      {"yarn as Qwen",
       R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1000000.0})",
       32,
       131072,
       1.13862944F,
       {1.0F, 0.421696514F, 0.177827939F, 0.0749894157F, 0.0316227786F, 0.0133352149F, 0.00477990136F, 0.00165996165F,
        0.000549999997F, 0.000168678584F, 4.44569851e-05F, 1.87473561e-05F, 7.90569356e-06F, 3.33380353e-06F,
        1.40585337e-06F, 5.92843435e-07F}},
      {"yarn, all settings",
       R"({"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "rope_theta": 10000.0, "beta_fast": 16, "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": false})",
       16,
       163840,
       0.850405786F,
       {1.0F, 0.316227764F, 0.100000001F, 0.0316227786F, 0.00579010462F, 0.000123952457F, 2.49999994e-05F,
        7.90569447e-06F}},
      {"yarn, factor given",
       R"({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0, "attention_factor": 1.5})",
       8,
       256,
       1.5F,
       {1.0F, 0.075000003F, 0.00499999989F, 0.000500000024F}},
  };
  for (const auto& c : cases) {
    CAPTURE(c.name);
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      auto read = parsed(small(
          "llama", std::string(", \"") + key + "\": " + c.settings + ", \"head_dim\": " + std::to_string(c.head)));
      CAPTURE(std::string(read.message()));
      REQUIRE(read);
      const rope_frequencies r = make_rope_frequencies(read->rope, c.head, c.positions);
      CHECK(r.factor == doctest::Approx(c.factor).epsilon(1e-6));
      REQUIRE(r.frequencies.size() == c.frequencies.size());
      for (std::size_t i = 0; i < c.frequencies.size(); ++i)
        CHECK(r.frequencies[i] == doctest::Approx(c.frequencies[i]).epsilon(1e-6));
    }
  }
}

TEST_CASE("config: LongRoPE and RoPE on a part of each head are those of transformers") {
  const std::string longrope = R"(, "head_dim": 16, "max_position_embeddings": 64, "rope_theta": 300.0,
      "partial_rotary_factor": 0.5, "original_max_position_embeddings": 40, "rope_scaling": {"type": "NAME",
      "short_factor": [1.0, 1.3, 1.9, 2.5], "long_factor": [1.5, 2.5, 5.0, 11.0]})";
  const std::vector<float> few{1.0F, 0.1848316639661789F, 0.030386855825781822F, 0.005549055058509111F},
      many{0.6666666865348816F, 0.096112459897995F, 0.01154700480401516F, 0.0012611488346010447F};
  const auto small_phi3 = [](std::string more) {
    const std::string positions = R"("max_position_embeddings": 32,)";
    std::string all = small("phi3", more);
    if (more.find("max_position_embeddings\": 64") != more.npos) all.erase(all.find(positions), positions.size());
    return all;
  };
  for (const char* name : {"longrope", "su", "yarn"}) {  // the last two are old names
    CAPTURE(name);
    std::string settings = longrope;
    const auto c = parsed(small_phi3(settings.replace(settings.find("NAME"), 4, name)));
    CAPTURE(std::string(c.message()));
    REQUIRE(c);
    CHECK(rotary_dim(*c) == 8);
    CHECK(default_context(*c) == 40);  // beyond these positions all angles are others
    for (const int context : {40, 41}) {
      const rope_frequencies r = make_rope_frequencies(c->rope, rope_dim(*c), context);
      CHECK(r.factor == doctest::Approx(1.0617960954225842).epsilon(1e-6));
      const std::vector<float>& expected = context == 40 ? few : many;
      REQUIRE(r.frequencies.size() == expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i)
        CHECK(r.frequencies[i] == doctest::Approx(expected[i]).epsilon(1e-6));
    }
  }
  const auto odd = parsed(small_phi3(R"(, "head_dim": 12, "rope_parameters": {"rope_type": "default",
      "rope_theta": 300.0, "partial_rotary_factor": 0.75})"));
  REQUIRE(odd);
  CHECK(rope_dim(*odd) == 9);
  CHECK(rotary_dim(*odd) == 10);
  const rope_frequencies r = make_rope_frequencies(odd->rope, rope_dim(*odd), 32);
  const std::vector<float> expected{1.0F, 0.2815F, 0.0793F, 0.0223F, 0.0063F};
  REQUIRE(r.frequencies.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) CHECK(std::abs(r.frequencies[i] - expected[i]) < 1e-4F);
}

TEST_CASE("config: numbers and layers of Gemma 2 and 3, Granite, OLMo 2, Phi-3 and SmolLM3") {
  const auto gemma2 = parsed(small("gemma2", R"(, "num_key_value_heads": 2)"));
  REQUIRE(gemma2);
  CHECK(gemma2->attention_soft_cap == 50);
  CHECK(gemma2->logit_soft_cap == 30);
  CHECK(gemma2->attention_scale == 1 / 16.0);
  CHECK(gemma2->window == std::vector<int>{4096, 0, 4096});
  CHECK(gemma2->tied);
  const auto capless = parsed(small("gemma2", R"(, "num_key_value_heads": 2, "attn_logit_softcapping": null,
      "final_logit_softcapping": null, "query_pre_attn_scalar": 144, "sliding_window": null)"));
  REQUIRE(capless);
  CHECK(capless->attention_soft_cap == 0);
  CHECK(capless->logit_soft_cap == 0);
  CHECK(capless->attention_scale == 1 / 12.0);
  CHECK(capless->window == std::vector<int>(3, 0));

  const auto gemma3 = parsed(small("gemma3_text", R"(, "num_key_value_heads": 2, "sliding_window": 7,
      "sliding_window_pattern": 2, "rope_theta": 500.0, "rope_local_base_freq": 20.0,
      "rope_scaling": {"rope_type": "linear", "factor": 8.0})"));
  REQUIRE(gemma3);
  CHECK(gemma3->attention_soft_cap == 0);
  CHECK(gemma3->logit_soft_cap == 0);
  CHECK(gemma3->window == std::vector<int>{7, 0, 7});
  CHECK(gemma3->rope.theta == 500);
  CHECK(gemma3->rope.kind == rope_kind::linear);
  CHECK(gemma3->sliding_rope->theta == 20);
  CHECK(gemma3->sliding_rope->kind == rope_kind::plain);
  const auto usual = parsed(small("gemma3_text", R"(, "num_key_value_heads": 2, "rope_parameters":
      {"full_attention": null, "sliding_attention": {"rope_type": "default"}})"));
  REQUIRE(usual);
  CHECK(usual->rope.theta == 1e6);
  CHECK(usual->sliding_rope->theta == 1e4);
  CHECK(usual->window == std::vector<int>(3, 4096));

  const auto scaled = parsed(small("granite", R"(, "embedding_multiplier": 12.0, "attention_multiplier": 0.25,
      "residual_multiplier": 0.5, "logits_scaling": 8)"));
  REQUIRE(scaled);
  CHECK(scaled->embedding_multiplier == 12);
  CHECK(scaled->attention_scale == 0.25);
  CHECK(scaled->residual_multiplier == 0.5);
  CHECK(scaled->logits_scaling == 8);
  CHECK(parsed(small("granite"))->attention_scale == 1);

  const auto olmo2 = parsed(small("olmo2"));
  REQUIRE(olmo2);
  CHECK(olmo2->norm_eps == 1e-5);
  CHECK(*olmo2->tokens.pad_token == 1);

  const auto phi3 = parsed(small("phi3", R"(, "resid_pdrop": 0.25, "sliding_window": 9)"));
  REQUIRE(phi3);
  CHECK(phi3->residual_dropout == 0.25);
  CHECK(phi3->window == std::vector<int>(3, 9));
  CHECK(parsed(small("phi3"))->window == std::vector<int>(3, 0));

  const std::string kv = R"(, "num_key_value_heads": 2)";
  const auto smollm3 = parsed(small("smollm3", kv + R"(, "no_rope_layers": [1, 0, 1, 0, 0],
      "use_sliding_window": true, "sliding_window": 5)"));
  REQUIRE(smollm3);
  CHECK(smollm3->no_rope == std::vector<bool>{false, true, false});
  CHECK(smollm3->window == std::vector<int>{0, 5, 0});
  CHECK(parsed(small("smollm3", kv + R"(, "no_rope_layer_interval": 3)"))->no_rope ==
        std::vector<bool>{false, false, true});
}

TEST_CASE("config: a program's own family is read by its row of the table") {
  static constexpr model_family mine{.name = "mine", .formulas = architecture_of<graft::llama>()};
  const auto set_defaults = [](model_config& c) { c.hidden_size = 8, c.heads = 2, c.layers = 1, c.positions = 16; };
  const auto read = [](config_reader& in, model_config& c) { in.integer("width", c.hidden_size, 1); };
  hf::family_table families;
  REQUIRE(families.add({&mine, set_defaults, read}));
  const auto c = hf::parse_config(R"({"model_type": "mine", "width": 12, "vocab_size": 7})", "config.json", families);
  REQUIRE_MESSAGE(c, c.message());
  CHECK(c->family == &mine);
  CHECK(c->hidden_size == 12);
  CHECK(c->head_dim == 6);
  CHECK(c->vocabulary == 7);
  CHECK(std::string(families.add({&mine, set_defaults, read}).message()) ==
        "there is a family 'mine' already; give yours another name");
  CHECK(std::string(families.add({&families::gpt2, set_defaults, read}).message()) ==
        "there is a family 'gpt2' already; give yours another name");
  CHECK(contains(families.add({&mine, nullptr, read}).message(), "needs a family, its defaults and a function"));
  CHECK(contains(message(R"({"model_type": "mine"})").c_str(), "'model_type' is \"mine\", expected one of llama"));
  CHECK(contains(hf::parse_config(R"({"model_type": "none"})", "f", families).message(), "gpt2, mine"));
}

TEST_CASE("config: RoPE's old field names, and defaults from other fields") {
  const auto old =
      parsed(small("llama", R"(, "rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 2.0})"));
  REQUIRE(old);
  CHECK(old->rope.kind == rope_kind::linear);
  CHECK(old->rope.theta == 100);
  const auto yarn = parsed(small("llama", R"(, "rope_scaling": {"rope_type": "yarn", "rope_theta": 50.0,
                                              "original_max_position_embeddings": 8, "beta_fast": 0, "mscale": null})"));
  REQUIRE(yarn);
  CHECK(yarn->rope.factor == 4);
  CHECK(yarn->rope.theta == 50);
  CHECK(yarn->rope.beta_fast == 32);
  const auto outside = parsed(small("llama", R"(, "original_max_position_embeddings": 16, "rope_scaling":
      {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8})"));
  REQUIRE(outside);
  CHECK(outside->rope.original_positions == 16);
}

TEST_CASE("config: an invalid or unsupported field gives one sentence with the file and the field") {
  const struct {
    std::string content, message;
  } cases[] = {
      {"", "unexpected end of input"},
      {"[]", "the file holds a list, expected a JSON object"},
      {"{}",
       "the key 'model_type' is missing, expected one of llama, mistral, qwen2, qwen3, mixtral, "
       "qwen2_moe, qwen3_moe, gpt_oss, gemma, gemma2, gemma3_text, granite, olmo2, phi3, smollm3, opt, gpt2"},
      {R"({"model_type": "mamba"})", "'model_type' is \"mamba\", expected one of llama"},
      {small("llama", R"(, "architectures": ["LlamaForSequenceClassification"])"), "expected a causal language model"},
      {small("llama", R"(, "quantization_config": 4)"), "'quantization_config' is 4, expected an object"},
      {small("llama", R"(, "quantization_config": {"quant_method": "aqlm", "bits": 4})"),
       "'quant_method' is 'aqlm', expected bitsandbytes, fp8, gptq, awq, mxfp4 or modelopt; load the model"},
      {small("llama", R"(, "quantization_config": {"quant_method": "gptq", "bits": 5})"),
       "'bits' is 5, expected 2, 3, 4 or 8"},
      {small("llama", R"(, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 48})"),
       "'group_size' is 48, expected -1 (a group per row) or a power of two from 16 on"},
      {small("llama", R"(, "quantization_config": {"quant_method": "gptq", "group_size": 0})"),
       "'group_size' is 0, expected -1"},
      {small("llama", R"(, "quantization_config": {"quant_method": "gptq", "desc_act": 1})"),
       "'desc_act' is 1, expected true or false"},
      {small("llama", R"(, "quantization_config": {"quant_method": "gptq", "sym": null})"),
       "'sym' is null, expected true or false"},
      {small("llama", R"(, "quantization_config": {"quant_method": "gptq", "checkpoint_format": "marlin"})"),
       "'checkpoint_format' is \"marlin\", expected gptq or gptq_v2"},
      {small("llama", R"(, "quantization_config": {"quant_method": "gptq", "is_marlin_format": true})"),
       "'is_marlin_format' is true, expected false"},
      {small("llama", R"(, "quantization_config": {"quant_method": "gptq", "pack_dtype": "int16"})"),
       "'pack_dtype' is \"int16\", expected int32"},
      {small("llama", R"(, "quantization_config": {"quant_method": "gptq", "dynamic": {"+:.*up.*": {"bits": 8}}})"),
       "'dynamic' is an object, expected null: settings of single modules are not read"},
      {small("llama", R"(, "quantization_config": {"quant_method": "awq", "bits": 8})"),
       "'bits' is 8, expected 4 for AWQ"},
      {small("llama", R"(, "quantization_config": {"quant_method": "awq", "version": "gemv_fast"})"),
       "'version' is \"gemv_fast\", expected gemm"},
      {small("llama", R"(, "quantization_config": {"quant_method": "awq", "zero_point": false})"),
       "'zero_point' is false, expected true"},
      {small("llama", R"(, "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"})"),
       "'quant_algo' is 'FP8', expected NVFP4"},
      {small("llama",
             R"(, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32})"),
       "'group_size' is 32, expected 16"},
      {small("llama", R"(, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]})"),
       "'weight_block_size' is a list, expected null: scales of square blocks are not read"},
      {small("llama", R"(, "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"})"),
       "'format' is \"pack-quantized\", expected float-quantized or naive-quantized"},
      {small("llama", R"(, "quantization_config": {"load_in_4bit": true, "load_in_8bit": true})"),
       "'load_in_4bit' and 'load_in_8bit' are both true, expected one of them"},
      {small("llama", R"(, "quantization_config": {"load_in_4bit": true, "bnb_4bit_quant_type": "int4"})"),
       "'bnb_4bit_quant_type' is \"int4\", expected nf4 or fp4"},
      {small("llama", R"(, "hidden_size": 64)"), "the key 'hidden_size' occurs twice"},
      {R"({"model_type": "llama", "hidden_size": 0})", "'hidden_size' is 0, expected an integer from 1"},
      {R"({"model_type": "llama", "hidden_size": "64"})", "'hidden_size' is \"64\", expected an integer"},
      {R"({"model_type": "llama", "hidden_size": 4294967296})", "'hidden_size' is 4294967296"},
      {R"({"model_type": "llama", "hidden_size": 65, "num_attention_heads": 4})", "is not a multiple of the 4 heads"},
      {small("llama", R"(, "num_key_value_heads": 3)"), "is not a multiple of 'num_key_value_heads' 3"},
      {small("llama", R"(, "head_dim": 15)"), "'head_dim' 15 is odd"},
      {small("llama", R"(, "hidden_act": "quick_gelu")"), "'hidden_act' is \"quick_gelu\", expected \"silu\""},
      {small("llama", R"(, "rms_norm_eps": 0)"), "'rms_norm_eps' is 0, expected a number above 0"},
      {small("llama", R"(, "tie_word_embeddings": 1)"), "'tie_word_embeddings' is 1, expected true or false"},
      {small("llama", R"(, "eos_token_id": "2")"), "'eos_token_id' is \"2\", expected a token"},
      {small("llama", R"(, "eos_token_id": [2, -3])"), "'eos_token_id' is -3, expected a token"},
      {small("llama", R"(, "pad_token_id": -2)"), "'pad_token_id' is -2"},
      {small("llama", R"(, "dtype": "float8_e4m3fn")"), "'dtype' is \"float8_e4m3fn\""},
      {small("llama", R"(, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0})"), "'rope_type' is \"dynamic\""},
      {small("llama", R"(, "rope_scaling": {"type": "su"})"), "(rope_scaling): 'type' is \"su\""},
      {small("llama", R"(, "rope_scaling": {"type": "longrope"})"), "'short_factor' is missing"},
      {small("phi3", R"(, "rope_scaling": {"type": "linear", "factor": 2})"), "expected \"default\" or \"longrope\""},
      {small("phi3", R"(, "rope_scaling": {"type": "su", "short_factor": [1, 1], "long_factor": [1, 0]})"),
       "'long_factor' holds 0, expected only numbers from 1e-6"},
      {small("phi3", R"(, "rope_scaling": {"type": "su", "short_factor": [1, 1], "long_factor": [1, 1, 1]})"),
       "'short_factor' holds 2 numbers, expected 8, one for each pair"},
      {small("phi3", R"(, "rope_scaling": {"type": "su", "short_factor": 2, "long_factor": [1, 1]})"),
       "'short_factor' is 2, expected a list of numbers"},
      {small("phi3", R"(, "partial_rotary_factor": 1.5)"), "'partial_rotary_factor' is 1.5, expected a number above 0"},
      {small("phi3", R"(, "partial_rotary_factor": 0.01)"), "leaves no element of heads of 16 to rotate"},
      {small("phi3", R"(, "attention_bias": true)"), "'attention_bias' is true, expected false"},
      {small("phi3", R"(, "resid_pdrop": 2)"), "'resid_pdrop' is 2, expected a number from 0 to 1"},
      {small("gemma2", R"(, "num_key_value_heads": 2, "attn_logit_softcapping": 0)"),
       "expected a number from 1e-6 to 1e6"},
      {small("gemma2", R"(, "num_key_value_heads": 2, "query_pre_attn_scalar": -1)"), "'query_pre_attn_scalar' is -1"},
      {small("gemma2", R"(, "num_key_value_heads": 2, "layer_types": ["chunked", "full", "full"])"), "for layer 0"},
      {small("gemma2", R"(, "num_key_value_heads": 2, "use_bidirectional_attention": true)"), "'use_bidirectional_att"},
      {small("gemma3_text", R"(, "num_key_value_heads": 2, "attn_logit_softcapping": 50.0)"),
       "'attn_logit_softcapping' is 50.0, expected null"},
      {small("gemma3_text", R"(, "num_key_value_heads": 2, "rope_parameters": {"rope_theta": 3.0})"),
       "'rope_parameters' has the key 'rope_theta', expected 'full_attention' and 'sliding_attention'"},
      {small("gemma3_text", R"(, "num_key_value_heads": 2, "rope_parameters": {"sliding_attention":
                              {"rope_type": "longrope", "short_factor": [1], "long_factor": [1], "factor": 2}})"),
       "'short_factor' holds 1 numbers, expected 128"},
      {small("granite", R"(, "residual_multiplier": 0)"), "'residual_multiplier' is 0, expected a number from 1e-6"},
      {small("granite", R"(, "logits_scaling": "8")"), "'logits_scaling' is \"8\""},
      {small("smollm3", R"(, "num_key_value_heads": 2, "no_rope_layers": [1, 0])"),
       "an entry for each of the 3 layers"},
      {small("smollm3", R"(, "num_key_value_heads": 2, "no_rope_layers": [1, 0, 2])"), "'no_rope_layers' holds 2"},
      {small("smollm3", R"(, "num_key_value_heads": 2, "no_rope_layer_interval": 0)"), "'no_rope_layer_interval' is 0"},
      {small("llama", R"(, "rope_scaling": {"rope_type": "linear"})"), "'factor' is missing"},
      {small("llama", R"(, "rope_scaling": {"rope_type": "linear", "factor": 0})"), "'factor' is 0, expected a number"},
      {small("llama", R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8.0})"), "'low_freq_factor' is missing"},
      {small("llama", R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4,
                         "high_freq_factor": 4})"),
       "'low_freq_factor' is not below 'high_freq_factor'"},
      {small("llama", R"(, "rope_scaling": {"rope_type": "default", "mrope_section": [1, 2]})"),
       "'mrope_section' is not"},
      {small("llama", R"(, "rope_parameters": {"full_attention": {"rope_theta": 1.0}})"), "'full_attention' is not"},
      {small("llama", R"(, "rope_parameters": [1])"), "'rope_parameters' is a list, expected an object or null"},
      {small("llama", R"(, "partial_rotary_factor": 0.5)"), "'partial_rotary_factor' is 0.5, expected 1"},
      {small("llama", R"(, "layer_types": ["full_attention"])"), "one entry for each of the 3 layers"},
      {small("llama", R"(, "layer_types": ["full_attention", "full_attention", "sliding_attention"])"), "for layer 2"},
      {small("mistral", R"(, "num_key_value_heads": 2, "attention_bias": true)"), "'attention_bias' is true, expected"},
      {small("mistral", R"(, "num_key_value_heads": 2, "sliding_window": 0)"), "'sliding_window' is 0"},
      {small("gemma", R"(, "num_key_value_heads": 2, "use_bidirectional_attention": true)"), "'use_bidirectional_att"},
      {small("gemma", R"(, "hidden_activation": "relu", "num_key_value_heads": 2)"),
       "'hidden_activation' and 'hidden_act"},
      {small("opt", R"(, "layer_norm_elementwise_affine": false)"), "'layer_norm_elementwise_affine' is false"},
      {small("opt", R"(, "layerdrop": 0.1)"), "'layerdrop' is 0.1, expected 0"},
      {small("gpt2", R"(, "add_cross_attention": true)"), "'add_cross_attention' is true"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.content);
    const std::string error_text = message(c.content);
    CAPTURE(error_text);
    CHECK(error_text.find(c.message) != std::string::npos);
    CHECK(error_text.starts_with("config.json"));
  }
  temp_folder dir;
  CHECK(contains(hf::read_config(dir.path).message(), "config.json: there is no such file"));
}

TEST_CASE("generation_config: settings are read, and config.json gives the tokens that it does not name") {
  const special_tokens tokens{1, 0, {2}};
  const auto g = hf::parse_generation_config(
      R"({"do_sample": true, "temperature": 0.6, "top_k": 0, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1,
          "max_new_tokens": 64, "max_length": null, "prefill_chunk_size": 512, "eos_token_id": [5, 6], "num_beams": 1, "typical_p": 1.0,
          "suppress_tokens": [], "transformers_version": "5.17.0"})",
      "generation_config.json", tokens);
  CAPTURE(std::string(g.message()));
  REQUIRE(g);
  CHECK(g->sampling.sample);
  CHECK(g->sampling.temperature == 0.6);
  CHECK(g->sampling.top_k == 0);
  CHECK(g->sampling.top_p == 0.9);
  CHECK(g->sampling.repetition_penalty == 1.1);
  CHECK(g->sampling.min_p == 0.05);
  CHECK(*g->max_new_tokens == 64);
  CHECK_FALSE(g->max_length);
  CHECK(*g->prefill_chunk_size == 512);
  CHECK(g->eos_tokens == std::vector<int>{5, 6});
  CHECK(*g->bos_token == 1);
  temp_folder dir;
  const auto none = hf::read_generation_config(dir.path, tokens);
  REQUIRE(none);
  CHECK(none->eos_tokens == std::vector<int>{2});
  CHECK_FALSE(none->sampling.sample);
  const auto greedy = hf::parse_generation_config(R"({"do_sample": true, "temperature": 0})", "g.json", tokens);
  REQUIRE(greedy);
  CHECK_FALSE(greedy->sampling.draws());
  for (const auto& [content, error_text] :
       {std::pair{R"({"num_beams": 4})", "'num_beams' is 4, expected 1"},
        {R"({"bad_words_ids": [[1]]})", "'bad_words_ids' is a list"},
        {R"({"temperature": -1})", "'temperature' is -1, expected a number that is not negative"},
        {R"({"top_p": 1.5})", "'top_p' is 1.5"},
        {R"({"top_k": -1})", "'top_k' is -1"},
        {R"({"min_p": 1.5})", "'min_p' is 1.5"},
        {"[]", "the file holds a list"}}) {
    CHECK(contains(hf::parse_generation_config(content, "g.json", tokens).message(), error_text));
  }
}
