// SPDX-License-Identifier: Apache-2.0
// LoRA adapters as GGUF files: those of llama.cpp's converter are the PEFT folders that they were made of, the way from
// PEFT to GGUF and back changes nothing, and everything else is refused by name.
#include <doctest/doctest.h>
#include <graft/io/gguf/writer.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/io/load_model.h>
#include <graft/model/on_cpu.h>

#include <random>

#include "../support.h"

using namespace graft;
using namespace graft::io::test;

namespace {

using engine = cpu::engine<float>;
const std::string golden = GRAFT_GOLDEN_DIR;

io::hf::model_files model_of(const std::string& family) {
  auto read = io::open_model(golden + "/models/" + family + "/base");
  REQUIRE_MESSAGE(read, read.message());
  return std::move(*read);
}
io::hf::loaded_adapters read(const std::string& path, const io::hf::model_files& model) {
  auto made = io::read_adapters(path, model.config, model.weights);
  REQUIRE_MESSAGE(made, made.message());
  return std::move(*made);
}
// Updates of the weights, scaling · B A, agree.
void check_equal(const io::hf::loaded_adapters& a, const io::hf::loaded_adapters& b, double within) {
  REQUIRE(a.set.modules.size() == b.set.modules.size());
  for (const module_adapter& m : a.set.modules) {
    INFO(m.module);
    const module_adapter* const other = b.set.find(m.module);
    REQUIRE(other != nullptr);
    REQUIRE(other->tensors.size() == m.tensors.size());
    const double scale = m.scalars.find("scaling")->second / other->scalars.find("scaling")->second;
    for (const auto& [name, t] : m.tensors) {
      INFO(name);
      const adapter_tensor& u = other->tensors.find(name)->second;
      REQUIRE(u.shape == t.shape);
      const double factor = name.find('B') != name.npos ? scale : 1;
      double off = 0;
      for (std::size_t i = 0; i < t.data->size(); ++i)
        off = std::max(off, std::abs((*t.data)[i] * factor - (*u.data)[i]));
      CHECK(off <= within);
    }
  }
}
// An adapter with random numbers, of these modules and keys.
io::hf::loaded_adapters random_adapter(const std::string& family, const std::vector<std::string>& targets,
                                       const std::vector<std::pair<std::string, io::json>>& keys,
                                       const char* method = "LORA") {
  auto model = io::load_model<engine>(golden + "/models/" + family + "/base");
  REQUIRE_MESSAGE(model, model.message());
  const auto config = io::make_adapter_config(method, targets, keys);
  REQUIRE_MESSAGE(config, config.message());
  auto made = io::hf::new_adapter(*model, *config, 3);
  REQUIRE_MESSAGE(made, made.message());
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  for (module_adapter& m : made->set.modules)
    for (auto& [name, t] : m.tensors)
      for (float& v : *t.data) v = normal(random);
  return std::move(*made);
}
io::json by_module(const char* name, double n) {
  io::json v;
  v.what = io::json::kind::object, v.keys = {name}, v.items = {io::json_number(n)};
  return v;
}

}  // namespace

TEST_CASE("gguf adapters: what llama.cpp's converter wrote is what PEFT wrote") {
  const io::hf::model_files model = model_of("llama");
  for (const std::string name : {"lora_embedding", "lora_qv"}) {
    INFO(name);
    const io::hf::loaded_adapters expected = read(golden + "/models/llama/" + name + "/adapter_init", model),
                                  found = read(golden + "/gguf_adapters/" + name + ".gguf", model);
    check_equal(found, expected, 0);
    for (const module_adapter& m : found.set.modules)
      CHECK(m.scalars.find("scaling")->second == expected.set.find(m.module)->scalars.find("scaling")->second);
    // What is written here has the tensors that the converter wrote.
    const temp_folder folder;
    const std::string file = folder.path / "adapter.gguf";
    const status saved = io::save_adapters(file, expected, model.config);
    REQUIRE_MESSAGE(saved, saved.message());
    const auto ours = io::map_gguf(file), theirs = io::map_gguf(golden + "/gguf_adapters/" + name + ".gguf");
    REQUIRE_MESSAGE(ours, ours.message());
    REQUIRE(ours->tensors.size() == theirs->tensors.size());
    for (const auto& [tensor, v] : theirs->tensors) {
      INFO(tensor);
      const view& w = ours->tensors.find(tensor)->second;
      CHECK((w.type == v.type && w.size[0] == v.size[0] && w.size[1] == v.size[1]));
      CHECK(std::memcmp(w.data, v.data, static_cast<std::size_t>(v.count()) * sizeof(float)) == 0);
    }
    for (const char* key : {"general.type", "general.architecture", "adapter.type", "adapter.lora.alpha"}) {
      INFO(key);
      CHECK(ours->find_value(key)->type == theirs->find_value(key)->type);
      CHECK(ours->find_value(key)->stored == theirs->find_value(key)->stored);
    }
  }
}

TEST_CASE("gguf adapters: from PEFT to GGUF and back, in every family that GGUF has") {
  const std::vector<std::pair<std::string, io::json>> plain{{"r", io::json_number(4)},
                                                            {"lora_alpha", io::json_number(6)}};
  for (const std::string family : {"llama", "mistral", "qwen2", "qwen3", "gemma", "gpt2"}) {
    INFO(family);
    const bool gpt2 = family == "gpt2";
    const std::vector<std::string> targets =
        gpt2 ? std::vector<std::string>{"c_attn", "attn.c_proj", "wte"}
             : std::vector<std::string>{"q_proj", "k_proj", "down_proj", "embed_tokens"};
    auto keys = plain;
    if (gpt2) keys.emplace_back("fan_in_fan_out", io::json_bool(true));
    const io::hf::loaded_adapters made = random_adapter(family, targets, keys);
    const io::hf::model_files model = model_of(family);
    const temp_folder folder;
    const std::string file = folder.path / "a.gguf", peft = folder.path / "peft", again = folder.path / "b.gguf";
    status saved = io::save_adapters(file, made, model.config);
    REQUIRE_MESSAGE(saved, saved.message());
    const io::hf::loaded_adapters back = read(file, model);
    check_equal(made, back, 0);
    saved = io::save_adapters(peft, back, model.config);
    REQUIRE_MESSAGE(saved, saved.message());
    check_equal(made, read(peft, model), 0);
    saved = io::save_adapters(again, read(peft, model), model.config);
    REQUIRE_MESSAGE(saved, saved.message());
    CHECK(*io::read_file(again) == *io::read_file(file));
  }
}

TEST_CASE("gguf adapters: ranks and scalings of single modules are kept") {
  const io::hf::loaded_adapters made = random_adapter("llama", {"q_proj", "v_proj"},
                                                      {{"r", io::json_number(4)},
                                                       {"lora_alpha", io::json_number(8)},
                                                       {"rank_pattern", by_module("layers.0.self_attn.q_proj", 2)},
                                                       {"alpha_pattern", by_module("v_proj", 5)}});
  const io::hf::model_files model = model_of("llama");
  const temp_folder folder;
  const std::string file = folder.path / "a.gguf";
  const status saved = io::save_adapters(file, made, model.config);
  REQUIRE_MESSAGE(saved, saved.message());
  const io::hf::loaded_adapters back = read(file, model);
  CHECK(back.set.find("model.layers.0.self_attn.q_proj")->tensors.at("lora_A.weight").shape[0] == 2);
  CHECK(back.set.find("model.layers.0.self_attn.q_proj")->scalars.at("scaling") == 4);
  check_equal(made, back, 1e-6);
}

TEST_CASE("gguf adapters: other types of tensors are read, and alpha 0 or none means a factor of 1") {
  const io::hf::model_files model = model_of("llama");
  std::vector<float> a(2 * 64, 0.5F), b(32 * 2);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i);
  std::vector<f16> half;
  for (const float v : a) half.push_back(narrow_to_f16(v));
  const temp_folder folder;
  const std::string file = folder.path / "a.gguf";
  io::gguf_writer to;
  to.put("general.architecture", "llama"), to.put("general.type", "adapter"), to.put("adapter.type", "lora");
  REQUIRE(to.add("blk.1.attn_v.weight.lora_a", view_of(half.data(), 2, 64)));
  REQUIRE(to.add("blk.1.attn_v.weight.lora_b", view_of(b.data(), 32, 2)));
  REQUIRE(to.save(file));
  const io::hf::loaded_adapters found = read(file, model);
  REQUIRE(found.set.modules.size() == 1);
  const module_adapter& m = found.set.modules[0];
  CHECK(m.module == "model.layers.1.self_attn.v_proj");
  CHECK(m.scalars.at("scaling") == 1);
  CHECK(*m.tensors.at("lora_A.weight").data == a);
  CHECK(*m.tensors.at("lora_B.weight").data == b);
}

TEST_CASE("gguf adapters: what a file or a method does not have is refused by name") {
  const io::hf::model_files model = model_of("llama");
  const temp_folder folder;
  const std::string file = folder.path / "a.gguf";
  const std::vector<float> numbers(4096, 1.0F);
  struct tensor {
    const char* name;
    long long rows, cols;
  };
  const auto refused = [&](const std::vector<tensor>& tensors, auto change) {
    io::gguf_writer to;
    change(to);
    for (const tensor& t : tensors) REQUIRE(to.add(t.name, view_of(numbers.data(), t.rows, t.cols)));
    REQUIRE(to.save(file));
    const auto s = io::read_adapters(file, model.config, model.weights);
    CHECK(!s);
    return std::string(s ? "" : s.message());
  };
  const auto facts = [](const char* architecture, const char* type, const char* kind) {
    return [=](io::gguf_writer& to) {
      to.put("general.architecture", architecture), to.put("general.type", type), to.put("adapter.type", kind);
    };
  };
  const auto right = facts("llama", "adapter", "lora");
  const std::vector<tensor> good{{"blk.0.attn_v.weight.lora_a", 2, 64}, {"blk.0.attn_v.weight.lora_b", 32, 2}};
  const auto says = [](const std::string& all, const char* part) {
    INFO(all);
    CHECK(all.find(part) != std::string::npos);
  };
  says(refused(good, facts("llama", "model", "lora")), "'general.type' is 'model', expected an adapter");
  says(refused(good, facts("llama", "adapter", "dora")), "'adapter.type' is 'dora', expected lora");
  says(refused(good, facts("qwen2", "adapter", "lora")), "'general.architecture' is 'qwen2', expected llama");
  says(refused({}, right), "the adapter has no tensors");
  says(refused(good,
               [&](io::gguf_writer& to) {
                 right(to);
                 to.put("adapter.alora.invocation_tokens", std::uint32_t{3});
               }),
       "'adapter.alora.invocation_tokens' is not a setting that is supported");
  says(refused(good, [&](io::gguf_writer& to) { right(to), to.put("adapter.lora.alpha", -1.0F); }),
       "'adapter.lora.alpha' is no number from 0 on");
  says(refused({good[0]}, right), "'blk.0.attn_v.weight.lora_b' is missing");
  says(refused({good[1]}, right), "'blk.0.attn_v.weight.lora_b' is neither the lora_a nor the lora_b of a pair");
  says(refused({good[0], good[1], {"output_norm.weight", 1, 64}}, right), "'output_norm.weight' is neither");
  says(refused({{"blk.7.attn_v.weight.lora_a", 2, 64}, {"blk.7.attn_v.weight.lora_b", 32, 2}}, right),
       "belongs to no matrix of this llama model");
  says(refused({{"blk.0.attn_v.weight.lora_a", 64, 2}, {"blk.0.attn_v.weight.lora_b", 32, 2}}, right),
       "which is no LoRA of 32 x 64");
  const auto not_written = [&](const char* method, const std::vector<std::pair<std::string, io::json>>& keys) {
    const status s =
        io::save_adapters(folder.path / "b.gguf", random_adapter("llama", {"q_proj"}, keys, method), model.config);
    CHECK(!s);
    return std::string(s.message());
  };
  says(not_written("LORA", {{"use_dora", io::json_bool(true)}}), "is not adapted by a plain LoRA");
  says(not_written("LORA", {{"lora_bias", io::json_bool(true)}}), "is not adapted by a plain LoRA");
  says(not_written("LOHA", {}), "the adapter is of type LOHA, and GGUF adapters hold LoRA alone");
  says(io::save_adapters(folder.path / "b.gguf", random_adapter("opt", {"q_proj"}, {}), model_of("opt").config)
           .message(),
       "GGUF files have no opt models");
  CHECK(!io::exists(folder.path / "b.gguf"));
}
