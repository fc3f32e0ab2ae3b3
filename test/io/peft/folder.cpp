// SPDX-License-Identifier: Apache-2.0
// Writing PEFT folders: reading and writing every golden case reproduces PEFT's files byte for byte, and folders with a
// configuration made by a program can be read.
#include <doctest/doctest.h>
#include <graft/io/peft/all.h>
#include <graft/io/peft/folder.h>

#include <cstdlib>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using graft::io::test::temp_folder;

namespace {

namespace fs = std::filesystem;

struct base_numbers {
  std::vector<float> weight, bias;
};
base_layer base_in(const fs::path& from, base_numbers& has) {
  const auto file = read_safetensors(from / "base.safetensors");
  REQUIRE(bool(file));
  base_layer base;
  for (const tensor_view& t : file->tensors) {
    if (t.name.ends_with(".bias")) base.bias = true, has.bias = *to_float(t);
    if (!t.name.ends_with(".weight")) continue;
    base.module = t.name.substr(0, t.name.size() - 7);
    for (const auto d : t.shape) base.shape.push_back(static_cast<long long>(d));
    has.weight = *to_float(t);
  }
  const auto config = read_adapter_config(from / "adapter");
  REQUIRE_MESSAGE(config, config.message());
  base.out = base.shape[config->fan_in_fan_out && base.shape.size() == 2 ? 1 : 0];
  base.in = static_cast<long long>(has.weight.size()) / base.out;
  base.kind = base.module == "emb"    ? "embedding"
              : base.module == "conv" ? "conv2d"
              : base.module == "norm" ? "layer_norm"
                                      : "linear";
  base.weight = view_of(has.weight.data(), base.out, base.in);
  if (base.bias) base.bias_values = view_of(has.bias.data(), base.out);
  return base;
}
std::string content(const fs::path& file) {
  const auto bytes = read_file(file);
  REQUIRE(bool(bytes));
  return std::string(as_chars(*bytes));
}
std::vector<fs::path> golden_cases() {
  std::vector<fs::path> all;
  for (const char* set : {"/layers", "/other_sizes/layers"})
    for (const auto& e : fs::directory_iterator(std::string(GRAFT_GOLDEN_DIR) + set)) all.push_back(e.path());
  return all;
}

}  // namespace

TEST_CASE("peft folder: every golden case is written as PEFT wrote it, byte for byte") {
  int folders = 0;
  for (const fs::path& from : golden_cases()) {
    INFO(from.string());
    base_numbers has;
    const base_layer base = base_in(from, has);
    const auto f = open_peft_folder(from / "adapter");
    REQUIRE_MESSAGE(f, f.message());
    const auto layer = read_module(*f, base);
    REQUIRE_MESSAGE(layer, layer.message());
    const temp_folder dir;
    const adapted_module modules[] = {{base, *layer}};
    const status written = write_peft_folder(dir.path / "copy", f->config, modules);
    REQUIRE_MESSAGE(written, written.message());
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
      CHECK(content(dir.path / "copy" / file) == content(from / "adapter" / file));
    ++folders;
  }
  CHECK(folders > 60);
}

TEST_CASE("peft folder: a configuration that a program makes") {
  const auto made = make_adapter_config("LORA", {"q", "v"}, {{"r", json_number(16)}, {"use_dora", json_bool(true)}});
  REQUIRE_MESSAGE(made, made.message());
  CHECK(made->whole("r") == 16);
  CHECK(made->on("use_dora"));
  CHECK(made->parsed.find("lora_alpha")->real == 8);
  CHECK(made->parsed.find("bias")->says("none"));
  CHECK(make_adapter_config("LORA", {"q"}, {{"r", json_number(100000)}}));
  CHECK(contains(make_adapter_config("LORA", {"q"}, {{"r", json_number(0)}}).message(), "'r' is 0"));
  CHECK(contains(make_adapter_config("LORA", {"q"}, {{"lora_alhpa", json_number(1)}}).message(), "'lora_alhpa'"));
  for (const peft_method* m : peft::all) {
    INFO(m->type);
    std::vector<std::pair<std::string, json>> keys;
    if (same_text(m->type, "TRAINABLE_TOKENS")) {
      CHECK(contains(make_adapter_config(m->type, {"q"}).message(), "'token_indices' is missing"));
      json tokens;
      tokens.what = json::kind::list, tokens.items = {json_number(3), json_number(5)};
      keys.emplace_back("token_indices", tokens);
    }
    const auto c = make_adapter_config(m->type, {"q"}, keys);
    CHECK_MESSAGE(c, c.message());
  }
}

// GRAFT_WRITTEN names a folder that is not deleted, from which test/golden/peft_reads_layers.py loads the adapters in
// PEFT.
TEST_CASE("peft folder: every golden case with a configuration that is made here") {
  const char* keep = std::getenv("GRAFT_WRITTEN");
  const temp_folder dir;
  for (const fs::path& from : golden_cases()) {
    if (from.string().find("other_sizes") != std::string::npos) continue;
    INFO(from.string());
    base_numbers has;
    const base_layer base = base_in(from, has);
    const auto f = open_peft_folder(from / "adapter");
    REQUIRE_MESSAGE(f, f.message());
    const auto layer = read_module(*f, base);
    REQUIRE_MESSAGE(layer, layer.message());
    std::vector<std::pair<std::string, json>> keys;
    for (std::size_t i = 0; i < f->config.parsed.keys.size(); ++i)
      if (const std::string& key = f->config.parsed.keys[i];
          f->config.key(key) != nullptr || key == "bias" || key == "fan_in_fan_out")
        keys.emplace_back(key, f->config.parsed.items[i]);
    const auto made = make_adapter_config(f->config.type_name(), {base.module}, keys);
    REQUIRE_MESSAGE(made, made.message());
    const fs::path to = (keep != nullptr ? fs::path(keep) : dir.path) / from.filename();
    const adapted_module modules[] = {{base, *layer}};
    const status written = write_peft_folder(to, *made, modules);
    REQUIRE_MESSAGE(written, written.message());
    const auto again = open_peft_folder(to);
    REQUIRE_MESSAGE(again, again.message());
    const auto back = read_module(*again, base);
    REQUIRE_MESSAGE(back, back.message());
    CHECK(back->formula.name == layer->formula.name);
    CHECK(back->scalars == layer->scalars);
    CHECK(back->sizes == layer->sizes);
    REQUIRE(back->tensors.size() == layer->tensors.size());
    for (const auto& [name, t] : layer->tensors) {
      CHECK(back->tensors.at(name).data == t.data);
      CHECK(back->tensors.at(name).indices == t.indices);
    }
  }
}

TEST_CASE("peft folder: many modules in one folder, each complete") {
  auto config = make_adapter_config("LORA", {"q", "v"}, {{"r", json_number(2)}});
  REQUIRE(bool(config));
  const auto tensor = [](long long rows, long long cols, float v) {
    return loaded_tensor{"", std::vector<float>(static_cast<std::size_t>(rows * cols), v), {rows, cols}};
  };
  std::vector<adapted_module> modules(2);
  for (int i = 0; i < 2; ++i) {
    const float v = static_cast<float>(i + 1);
    modules[static_cast<std::size_t>(i)].base = {"linear", i == 0 ? "m.q" : "m.v", 6, 4, {6, 4}};
    modules[static_cast<std::size_t>(i)].layer.tensors = {{"lora_A.weight", tensor(2, 4, v)},
                                                          {"lora_B.weight", tensor(6, 2, -v)}};
  }
  const temp_folder dir;
  const status written = write_peft_folder(dir.path / "two", *config, modules);
  REQUIRE_MESSAGE(written, written.message());
  const auto f = open_peft_folder(dir.path / "two");
  REQUIRE_MESSAGE(f, f.message());
  CHECK(f->weights.tensors.size() == 4);
  for (const adapted_module& m : modules) {
    const auto back = read_module(*f, m.base);
    REQUIRE_MESSAGE(back, back.message());
    CHECK(back->tensors.at("lora_A.weight").data == m.layer.tensors.at("lora_A.weight").data);
    CHECK(back->scalars.at("scaling") == 4);
  }
  CHECK_FALSE(bool(write_peft_folder(dir.path / "no" / "such", *config, modules)));
}
