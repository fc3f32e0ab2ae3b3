// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/adapter_config.h>

#include "support.h"

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

TEST_CASE("adapter_config: PEFT's defaults stand for absent keys") {
  const adapter_config lora = good("LORA");
  CHECK(lora.type == peft_type::lora);
  CHECK(lora.r == 8);
  CHECK(lora.alpha == 8);
  CHECK(lora.dropout == 0);
  CHECK_FALSE(lora.use_rslora);
  CHECK_FALSE(lora.use_dora);
  CHECK_FALSE(lora.lora_bias);
  CHECK_FALSE(lora.fan_in_fan_out);
  CHECK(lora.bias == trained_bias::none);
  CHECK(lora.target_modules.names == std::vector<std::string>{"q"});
  CHECK(lora.exclude_modules.empty());
  CHECK(good("VERA").r == 256);
  CHECK(good("VERA").vera.save_projection);
  CHECK(good("VBLORA").r == 4);
  CHECK(good("VBLORA").vblora.vector_length == 256);
  CHECK(good("MISS").r == 64);
  CHECK(good("HRA").r == 8);
  CHECK(good("LOHA").alpha == 8);
  CHECK(good("LOKR").lokr.decompose_factor == -1);
  CHECK(good("ADALORA").adalora.init_r == 12);
  CHECK(good("ADALORA").adalora.total_step == 0);
  CHECK(good("BOFT").boft.block_size == 4);
  CHECK(good("OFT", "\"oft_block_size\":32").oft.use_cayley_neumann);
  CHECK(good("IA3").r == 0);
  CHECK(good("LN_TUNING").r == 0);
}

TEST_CASE("adapter_config: each method's fields") {
  const adapter_config l =
      good("LORA", R"("r":16,"lora_alpha":32.5,"lora_dropout":0.25,"use_rslora":true,"use_dora":true,"bias":"lora_only",
      "fan_in_fan_out":true,"rank_pattern":{"z":4,"a":2},"alpha_pattern":{"q":0.5},"modules_to_save":["head"],
      "peft_version":"0.20.1","base_model_name_or_path":"m","task_type":"CAUSAL_LM","revision":null,
      "something_new":{"x":1})");
  CHECK(l.r == 16);
  CHECK(l.alpha == 32.5);
  CHECK(l.dropout == 0.25);
  CHECK((l.use_rslora && l.use_dora && l.fan_in_fan_out));
  CHECK(l.bias == trained_bias::targeted);
  CHECK(l.rank_pattern == std::vector<std::pair<std::string, int>>{{"z", 4}, {"a", 2}});
  CHECK(l.alpha_pattern == std::vector<std::pair<std::string, double>>{{"q", 0.5}});
  CHECK(l.modules_to_save == std::vector<std::string>{"head"});
  CHECK(l.peft_version == "0.20.1");
  CHECK(l.task_type == "CAUSAL_LM");
  const adapter_config o = good("OFT", R"("r":4,"oft_block_size":0,"coft":true,"eps":0.5,"block_share":true,
      "use_cayley_neumann":false,"num_cayley_neumann_terms":3,"bias":"oft_only")");
  CHECK((o.r == 4 && o.oft.block_size == 0 && o.oft.coft && o.oft.block_share && !o.oft.use_cayley_neumann));
  CHECK((o.oft.eps == 0.5 && o.oft.num_cayley_neumann_terms == 3));
  const adapter_config b = good("BOFT", R"("boft_block_size":0,"boft_block_num":8,"boft_n_butterfly_factor":3)");
  CHECK((b.boft.block_size == 0 && b.boft.block_num == 8 && b.boft.n_butterfly_factor == 3));
  const adapter_config k = good("LOKR", R"("decompose_both":true,"decompose_factor":4,"use_effective_conv2d":true,
      "init_weights":"lycoris","rank_dropout":0.5,"rank_dropout_scale":true)");
  CHECK((k.lokr.decompose_both && k.lokr.decompose_factor == 4 && k.use_effective_conv2d && k.rank_dropout == 0.5));
  const adapter_config v = good("VERA", R"("projection_prng_key":18446744073709551615,"save_projection":false)");
  CHECK((v.vera.projection_prng_key == ~std::uint64_t{0} && !v.vera.save_projection));
  CHECK(good("HRA", "\"apply_GS\":true").apply_gs);
  CHECK(good("MISS", R"("init_weights":"bat")").miss.kind == miss_kind::bat);
  CHECK(good("MISS", R"("init_weights":"mini","mini_r":4)").miss.kind == miss_kind::mini);
  CHECK(good("MISS", R"("init_weights":false,"bias":"MiSS_only")").miss.kind == miss_kind::standard);
  CHECK(good("VBLORA", R"("topk":3,"num_vectors":8,"save_only_topk_weights":true)").vblora.topk == 3);
  const adapter_config a = good("ADALORA", R"("init_r":3,"target_r":2,"tinit":1,"tfinal":2,"deltaT":5,"total_step":10,
      "rank_pattern":{"m.q.lora_E":[true,false,true]},"beta1":0.5)");
  REQUIRE(a.adalora.kept.size() == 1);
  CHECK(a.adalora.kept[0].second == std::vector<bool>{true, false, true});
  CHECK((a.adalora.delta_t == 5 && a.adalora.beta1 == 0.5 && a.rank_pattern.empty()));
  CHECK(good("IA3", R"("target_modules":["a","b"],"feedforward_modules":["b"])").feedforward_modules.names[0] == "b");
  CHECK(good("LORA", R"("target_modules":".*q")").target_modules.regex == ".*q");
  CHECK(good("LORA", R"("layers_to_transform":3,"layers_pattern":"h")").layers_to_transform == std::vector<int>{3});
}

TEST_CASE("adapter_config: alpha 0 is an adapter that does nothing, and is allowed") {
  CHECK(good("LORA", "\"lora_alpha\":0").alpha == 0);
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
  CHECK(message("{\"peft_type\":\"LORA\"}").find("'target_modules' is missing") != std::string::npos);
  CHECK(message("{\"peft_type\":\"LORA\",\"target_modules\":[\"q\"]}").empty());
  CHECK(read_adapter_config(dir.path / "adapter_config.json"));
}

TEST_CASE("adapter_config: pickle checkpoints are refused with a way out") {
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
