// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/peft/adapter_config.h>
#include <graft/io/peft/all.h>

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
adapter_config good(const std::string& type, const std::string& keys = "") {
  const auto c = parsed(type, keys);
  REQUIRE_MESSAGE(c, c.message());
  return *c;
}

}  // namespace

TEST_CASE("adapter_config: absent keys have PEFT's defaults") {
  const adapter_config lora = good("LORA");
  CHECK(lora.type == &peft::lora_files);
  CHECK(lora.type_name() == std::string("LORA"));
  CHECK(lora.whole("r") == 8);
  CHECK(lora.number("lora_alpha") == 8);
  CHECK(lora.number("lora_dropout") == 0);
  CHECK_FALSE(lora.on("use_rslora"));
  CHECK_FALSE(lora.on("use_dora"));
  CHECK_FALSE(lora.on("lora_bias"));
  CHECK_FALSE(lora.fan_in_fan_out);
  CHECK(lora.bias == trained_bias::none);
  CHECK(lora.target_modules.names == std::vector<std::string>{"q"});
  CHECK(lora.exclude_modules.empty());
  CHECK(good("VERA").whole("r") == 256);
  CHECK(good("VERA").on("save_projection"));
  CHECK(good("VBLORA").whole("r") == 4);
  CHECK(good("VBLORA").whole("vector_length") == 256);
  CHECK(good("MISS").whole("r") == 64);
  CHECK(good("HRA").whole("r") == 8);
  CHECK(good("LOHA").number("alpha") == 8);
  CHECK(good("LOKR").whole("decompose_factor") == -1);
  CHECK(good("ADALORA").whole("init_r") == 12);
  CHECK(good("ADALORA").whole("total_step") == 0);
  CHECK(good("BOFT").whole("boft_block_size") == 4);
  CHECK(good("OFT", "\"oft_block_size\":32").on("use_cayley_neumann"));
  CHECK(good("IA3").key("r") == nullptr);
  CHECK(good("LN_TUNING").key("r") == nullptr);
}

TEST_CASE("adapter_config: each method's fields") {
  const adapter_config l =
      good("LORA", R"("r":16,"lora_alpha":32.5,"lora_dropout":0.25,"use_rslora":true,"use_dora":true,"bias":"lora_only",
      "fan_in_fan_out":true,"rank_pattern":{"z":4,"a":2},"alpha_pattern":{"q":0.5},"modules_to_save":["head"],
      "peft_version":"0.20.1","base_model_name_or_path":"m","task_type":"CAUSAL_LM","revision":null,
      "something_new":{"x":1})");
  CHECK(l.whole("r") == 16);
  CHECK(l.number("lora_alpha") == 32.5);
  CHECK(l.number("lora_dropout") == 0.25);
  CHECK((l.on("use_rslora") && l.on("use_dora") && l.fan_in_fan_out));
  CHECK(l.bias == trained_bias::targeted);
  CHECK(l.set("rank_pattern")->keys == std::vector<std::string>{"z", "a"});
  CHECK(l.set("alpha_pattern")->find("q")->real == 0.5);
  CHECK(l.modules_to_save == std::vector<std::string>{"head"});
  CHECK(l.peft_version == "0.20.1");
  CHECK(l.task_type == "CAUSAL_LM");
  const adapter_config o = good("OFT", R"("r":4,"oft_block_size":0,"coft":true,"eps":0.5,"block_share":true,
      "use_cayley_neumann":false,"num_cayley_neumann_terms":3,"bias":"oft_only")");
  CHECK((o.whole("r") == 4 && o.whole("oft_block_size") == 0 && o.on("coft") && o.on("block_share")));
  CHECK((o.number("eps") == 0.5 && o.whole("num_cayley_neumann_terms") == 3 && !o.on("use_cayley_neumann")));
  const adapter_config b = good("BOFT", R"("boft_block_size":0,"boft_block_num":8,"boft_n_butterfly_factor":3)");
  CHECK((b.whole("boft_block_size") == 0 && b.whole("boft_block_num") == 8));
  const adapter_config k = good("LOKR", R"("decompose_both":true,"decompose_factor":4,"use_effective_conv2d":true,
      "init_weights":"lycoris","rank_dropout":0.5,"rank_dropout_scale":true)");
  CHECK((k.on("decompose_both") && k.whole("decompose_factor") == 4 && k.on("use_effective_conv2d")));
  CHECK((k.number("rank_dropout") == 0.5 && k.word("init_weights") == "lycoris"));
  const adapter_config v = good("VERA", R"("projection_prng_key":18446744073709551615,"save_projection":false)");
  CHECK((v.seed("projection_prng_key") == ~std::uint64_t{0} && !v.on("save_projection")));
  CHECK(good("HRA", "\"apply_GS\":true").on("apply_GS"));
  CHECK(good("MISS", R"("init_weights":"bat")").word("init_weights") == "bat");
  CHECK(good("MISS", R"("init_weights":false,"bias":"MiSS_only")").word("init_weights") == "false");
  CHECK(good("MISS").word("init_weights") == "true");
  CHECK(good("VBLORA", R"("topk":3,"num_vectors":8,"save_only_topk_weights":true)").whole("topk") == 3);
  const adapter_config a = good("ADALORA", R"("init_r":3,"target_r":2,"tinit":1,"tfinal":2,"deltaT":5,"total_step":10,
      "rank_pattern":{"m.q.lora_E":[true,false,true]},"beta1":0.5)");
  CHECK((a.whole("deltaT") == 5 && a.number("beta1") == 0.5));
  CHECK(good("LORA", R"("target_modules":".*q")").target_modules.regex == ".*q");
  CHECK(good("LORA", R"("layers_to_transform":3,"layers_pattern":"h")").layers_to_transform == std::vector<int>{3});
}

TEST_CASE("adapter_config: a misspelled key is an error that names the right one") {
  CHECK(
      contains(parsed("LORA", R"("lora_aplha":16)").message(), "LORA has no key 'lora_aplha', expected 'lora_alpha'"));
  CHECK(contains(parsed("LORA", R"("use_rs_lora":true)").message(), "expected 'use_rslora'"));
  CHECK(contains(parsed("VBLORA", R"("top_k":2)").message(), "VBLORA has no key 'top_k', expected 'topk'"));
  CHECK(contains(parsed("LORA", R"("exclude_module":["a"])").message(), "expected 'exclude_modules'"));
  CHECK(parsed("LORA", R"("lora_alpha":16,"lora_alphas":1)"));  // another release may have both
  CHECK(parsed("LORA", R"("x":1,"rr":2,"quite_another":true)"));
}

TEST_CASE("adapter_config: alpha 0 is allowed, and such an adapter changes nothing") {
  CHECK(good("LORA", "\"lora_alpha\":0").number("lora_alpha") == 0);
}

TEST_CASE("adapter_config: files that are no configuration") {
  temp_folder dir;
  const auto message = [&](const std::string& content) {
    REQUIRE(write_file(dir.path / "adapter_config.json", bytes_of(content)));
    return std::string(read_adapter_config(dir.path).message());
  };
  CHECK(std::string(read_adapter_config(dir.path).message()).find("adapter_config.json: there is no such file") !=
        std::string::npos);
  CHECK(message("").find("unexpected end of input") != std::string::npos);
  CHECK(message("[]").find("the file holds a list, expected a JSON object") != std::string::npos);
  CHECK(message("null").find("the file holds null, expected a JSON object") != std::string::npos);
  CHECK(message("{}").find("the key 'peft_type' is missing") != std::string::npos);
  CHECK(message("{\"peft_type\":1,\"target_modules\":[]}").find("'peft_type' is 1") != std::string::npos);
  CHECK(message("{\"peft_type\":\"LORA\"}").empty());  // PEFT's modules of the model's family are targeted
  CHECK(message("{\"peft_type\":\"LORA\",\"target_modules\":[\"q\"]}").empty());
  CHECK(read_adapter_config(dir.path / "adapter_config.json"));
}

TEST_CASE("adapter_config: pickle checkpoints are refused with advice") {
  temp_folder dir;
  REQUIRE(write_file(dir.path / "adapter_model.bin", bytes_of("PK\3\4")));
  for (const auto& p : {dir.path, dir.path / "adapter_model.bin"}) {
    const std::string message = read_adapter_weights(p).message();
    CHECK(message.find("adapter_model.bin: this is a pickle checkpoint") != std::string::npos);
    CHECK(message.find("save it with safetensors") != std::string::npos);
  }
  CHECK(contains(read_adapter_config(dir.path / "adapter_model.bin").message(), "pickle"));
  std::filesystem::remove(dir.path / "adapter_model.bin");
  CHECK(contains(read_adapter_weights(dir.path).message(), "adapter_model.safetensors: there is no such file"));
}

TEST_CASE("adapter_config: every folder PEFT saved can be read") {
  int folders = 0;
  for (const auto& e : std::filesystem::directory_iterator(GRAFT_GOLDEN_DIR "/layers")) {
    CAPTURE(e.path().string());
    const auto c = read_adapter_config(e.path() / "adapter");
    CHECK_MESSAGE(c, c.message());
    const auto w = read_adapter_weights(e.path() / "adapter");
    CHECK_MESSAGE(w, w.message());
    ++folders;
  }
  CHECK(folders > 0);
}
