// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/peft/adapter_config.h>
#include <graft/io/peft/config_refused.h>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

result<adapter_config> parsed(const std::string& type, const std::string& keys) {
  const std::string target = keys.find("\"target_modules\"") == keys.npos ? "\"target_modules\":[\"q\"]," : "";
  const std::string more = keys.empty() ? "" : "," + keys;
  return parse_adapter_config("{" + target + "\"peft_type\":\"" + type + "\"" + more + "}", "adapter_config.json");
}

}  // namespace

TEST_CASE("adapter_config: every wrong value is an error with file, key, found and expected value") {
  const struct {
    const char* type;
    const char* keys;
    const char* expected;
  } cases[] = {
      {"LORA", "\"r\":0", "'r' is 0, expected an integer from 1 to 2147483647"},
      {"LORA", "\"r\":-1", "'r' is -1, expected an integer"},
      {"LORA", "\"r\":\"16\"", "'r' is \"16\", expected an integer"},
      {"LORA", "\"r\":1.5", "'r' is 1.5, expected an integer"},
      {"LORA", "\"r\":8.0", "'r' is 8.0, expected an integer"},
      {"LORA", "\"r\":2147483648", "'r' is 2147483648, expected an integer"},
      {"LORA", "\"r\":-9223372036854775808", "expected an integer"},
      {"LORA", "\"r\":36893488147419103232", "expected an integer"},
      {"LORA", "\"r\":null", "'r' is null, expected an integer"},
      {"LORA", "\"r\":true", "'r' is true, expected an integer"},
      {"LORA", "\"r\":[8]", "'r' is a list, expected an integer"},
      {"HRA", "\"r\":0", "'r' is 0"},
      {"VERA", "\"r\":0", "'r' is 0"},
      {"LORA", "\"lora_alpha\":null", "'lora_alpha' is null, expected a number"},
      {"LORA", "\"lora_alpha\":-1", "'lora_alpha' is -1, expected a number that is not negative"},
      {"LORA", "\"lora_alpha\":\"16\"", "'lora_alpha' is \"16\", expected a number"},
      {"LORA", "\"lora_alpha\":NaN", "(last key 'lora_alpha')"},
      {"LORA", "\"lora_alpha\":1e999", "the number 1e999 does not fit a double"},
      {"LORA", "\"lora_alpha\":1e308",
       "'lora_alpha' is 1e308, expected a number that a float can hold, at most 3.4e38"},
      {"LORA", "\"alpha_pattern\":{\"lin\":1e39}",
       "'alpha_pattern' of 'lin' is 1e39, expected a number that is not negative and at most 3.4e38, the largest "
       "float"},
      {"LORA", "\"lora_alpha\":true", "'lora_alpha' is true, expected a number"},
      {"LOHA", "\"alpha\":null", "'alpha' is null"},
      {"LORA", "\"lora_dropout\":1.5", "'lora_dropout' is 1.5, expected a number from 0 to 1"},
      {"LORA", "\"lora_dropout\":-0.1", "expected a number from 0 to 1"},
      {"LORA", "\"use_dora\":1", "'use_dora' is 1, expected true or false"},
      {"LORA", "\"use_dora\":\"true\"", "'use_dora' is \"true\", expected true or false"},
      {"LORA", "\"use_rslora\":null", "'use_rslora' is null, expected true or false"},
      {"LORA", "\"lora_bias\":[]", "'lora_bias' is a list, expected true or false"},
      {"LORA", "\"fan_in_fan_out\":0", "'fan_in_fan_out' is 0, expected true or false"},
      {"LORA", "\"use_dora\":true,\"lora_bias\":true", "'use_dora' and 'lora_bias' are both true"},
      {"LORA", "\"bias\":\"oft_only\"", "'bias' is \"oft_only\", expected \"none\", \"all\" or \"lora_only\""},
      {"LORA", "\"bias\":null", "'bias' is null, expected"},
      {"LORA", "\"target_modules\":5", "'target_modules' is 5, expected a list of strings"},
      {"LORA", "\"target_modules\":[\"q\",5]", "'target_modules' holds 5, expected only strings"},
      {"LORA", "\"target_modules\":[\"\"]", "'target_modules' holds \"\", expected only strings"},
      {"LORA", "\"modules_to_save\":\"head\"", "'modules_to_save' is \"head\", expected a list"},
      {"LORA", "\"layers_to_transform\":-1", "'layers_to_transform' is -1, expected a layer number"},
      {"LORA", "\"layers_to_transform\":[1,\"2\"]", "'layers_to_transform' is a list, expected a layer number"},
      {"LORA", "\"target_modules\":\".*\",\"layers_to_transform\":[1]", "although 'target_modules' is not a list"},
      {"LORA", "\"rank_pattern\":[]", "'rank_pattern' is a list, expected an object"},
      {"LORA", "\"rank_pattern\":{\"q\":0}", "'rank_pattern' of 'q' is 0, expected a positive integer"},
      {"LORA", "\"rank_pattern\":{\"q\":\"4\"}", "'rank_pattern' of 'q' is \"4\""},
      {"LORA", "\"rank_pattern\":{\"q\":4,\"q\":8}", "the key 'q' occurs twice"},
      {"LORA", "\"alpha_pattern\":{\"q\":null}", "'alpha_pattern' of 'q' is null"},
      {"LORA", "\"r\":8,\"r\":16", "the key 'r' occurs twice"},
      {"LORA", "\"base_model_name_or_path\":1", "'base_model_name_or_path' is 1, expected a string or null"},
      {"lora", "", "'peft_type' is \"lora\", expected one of LORA, ADALORA"},
      {"XLORA", "", "'peft_type' is \"XLORA\", expected one of"},
      {"", "", "'peft_type' is \"\", expected one of"},
      {"ADALORA", "\"init_r\":0", "'init_r' is 0"},
      {"ADALORA", "\"use_dora\":true", "expected false for ADALORA"},
      {"ADALORA", "\"lora_bias\":true", "expected false for ADALORA"},
      {"ADALORA", "\"tinit\":8,\"tfinal\":2,\"total_step\":10",
       "'tinit' is 8, expected less than total_step - tfinal = 8"},
      {"ADALORA", "\"total_step\":0", "'total_step' is 0"},
      {"ADALORA", "\"init_r\":2,\"rank_pattern\":{\"q\":[true]}",
       "'rank_pattern' of 'q' is a list, expected a list of 2"},
      {"ADALORA", "\"init_r\":2,\"rank_pattern\":{\"q\":[1,0]}", "expected a list of 2 booleans"},
      {"OFT", "\"r\":4", "the key 'oft_block_size' is missing"},
      {"OFT", "\"r\":4,\"oft_block_size\":8", "expected exactly one of them to be 0"},
      {"OFT", "\"r\":0,\"oft_block_size\":0", "expected exactly one of them to be 0"},
      {"OFT", "\"oft_block_size\":-8", "'oft_block_size' is -8"},
      {"OFT", "\"oft_block_size\":8,\"coft\":\"yes\"", "'coft' is \"yes\""},
      {"OFT", "\"oft_block_size\":8,\"eps\":-1", "'eps' is -1"},
      {"OFT", "\"oft_block_size\":8,\"num_cayley_neumann_terms\":0", "'num_cayley_neumann_terms' is 0"},
      {"BOFT", "\"boft_block_num\":2", "'boft_block_size' is 4 and 'boft_block_num' is 2"},
      {"BOFT", "\"boft_n_butterfly_factor\":0", "'boft_n_butterfly_factor' is 0"},
      {"BOFT", "\"init_weights\":\"odd\"", "'init_weights' is \"odd\", expected true or false"},
      {"HRA", "\"apply_GS\":1", "'apply_GS' is 1"},
      {"IA3", "\"feedforward_modules\":[\"x\"]", "'feedforward_modules' holds 'x', expected only names of"},
      {"IA3", "\"feedforward_modules\":3", "'feedforward_modules' is 3"},
      {"LOKR", "\"decompose_factor\":0", "'decompose_factor' is 0, expected -1 or a positive integer"},
      {"LOKR", "\"decompose_factor\":-2", "'decompose_factor' is -2"},
      {"VERA", "\"projection_prng_key\":-1", "'projection_prng_key' is -1"},
      {"VERA", "\"projection_prng_key\":null", "'projection_prng_key' is null"},
      {"VERA", "\"save_projection\":\"no\"", "'save_projection' is \"no\""},
      {"VBLORA", "\"topk\":9,\"num_vectors\":8", "'topk' is 9, expected at most num_vectors = 8"},
      {"VBLORA", "\"vector_length\":0", "'vector_length' is 0"},
      {"MISS", "\"init_weights\":\"Bat\"", "'init_weights' is \"Bat\", expected true, false, \"mini\" or \"bat\""},
      {"MISS", "\"init_weights\":null", "'init_weights' is null"},
      {"MISS", "\"mini_r\":0", "'mini_r' is 0"},
  };
  for (const auto& c : cases) {
    CAPTURE(std::string(c.type));
    CAPTURE(std::string(c.keys));
    const auto r = parsed(c.type, c.keys);
    CHECK_FALSE(r);
    CAPTURE(std::string(r.message()));
    CHECK(contains(r.message(), c.expected));
    CHECK(std::string_view(r.message()).starts_with("adapter_config.json: "));
  }
}

TEST_CASE("adapter_config: unsupported keys that change the formula are refused by name if set") {
  for (const refused_key& k : refused_keys) {
    const std::string key = std::string("\"") + k.key + "\":";
    CAPTURE(key);
    for (const char* unset : {"null", "false", "[]", "{}"}) CHECK(parsed("LORA", key + unset));
    for (const char* set : {"true", "1", "\"x\"", "[1]", "{\"a\":1}", "0"})
      CHECK(contains(parsed("LORA", key + set).message(), k.key));
  }
  CHECK(contains(parsed("LORA", "\"init_lora_weights\":\"pissa_niter_16\"").message(),
                 "'init_lora_weights' is \"pissa_niter_16\", expected \"pissa\" or a converted adapter: PEFT draws the "
                 "start of this decomposition at random"));
  CHECK(contains(parsed("LORA", "\"init_lora_weights\":\"olora\",\"lora_bias\":true").message(),
                 "'lora_bias' is true and 'init_lora_weights' is \"olora\", expected at most one, as in PEFT"));
  for (const char* init : {"corda", "loftq", "lora_ga"})
    CHECK(contains(parsed("LORA", std::string("\"init_lora_weights\":\"") + init + "\"").message(), "changed them"));
  for (const char* init : {"true", "false", "\"gaussian\"", "\"eva\"", "\"orthogonal\"", "\"mica\"", "\"pissa\"",
                           "\"olora\"", "\"OLoRA\""})
    CHECK(parsed("LORA", std::string("\"init_lora_weights\":") + init));
  for (const char* init : {"null", "1", "\"new\""})
    CHECK(contains(parsed("LORA", std::string("\"init_lora_weights\":") + init).message(), "'init_lora_weights' is "));
}

TEST_CASE("adapter_config: thousands of mutations of a real file never crash") {
  const auto bytes = read_file(GRAFT_GOLDEN_DIR "/layers/lora/adapter/adapter_config.json");
  REQUIRE(bytes);
  const std::string valid(as_chars(*bytes));
  std::mt19937 random(11);
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string s = valid;
    for (std::size_t k = 0, n = 1 + random() % 3; k < n; ++k) {
      const std::size_t at = random() % s.size();
      switch (random() % 4) {
        case 0: s[at] = static_cast<char>(random()); break;
        case 1: s.resize(at + 1); break;
        case 2: s.insert(at, 1, "{}[]\",:0123456789eE-. "[random() % 22]); break;
        default: s.erase(at, 1 + random() % 3); break;
      }
      if (s.empty()) s.push_back('{');
    }
    const auto c = parse_adapter_config(s, "f");
    accepted += c ? 1 : 0;
    if (c) CHECK(c->whole("r") >= 1);
    if (!c) CHECK(c.message()[0] == 'f');
  }
  CHECK(accepted > 0);
}
