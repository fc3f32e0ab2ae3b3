// SPDX-License-Identifier: Apache-2.0
// Folders of GPTQ, AWQ, MXFP4 and NVFP4 (test/golden/checkpoints): what a configuration says of them, saved as they
// were read, merged, and refused where tensors and configuration do not agree. Their numbers are compared by ./run
// golden.
#include <doctest/doctest.h>
#include <graft/io/hf/adapters.h>
#include <graft/io/hf/save_model.h>
#include <graft/io/safetensors/writer.h>
#include <graft/model/on_cpu.h>

#include <algorithm>
#include <cmath>

#include "../support.h"

using namespace graft;
using namespace graft::io::test;

namespace {

using engine = cpu::engine<float>;
const std::string golden = std::string(GRAFT_GOLDEN_DIR) + "/checkpoints/models/";
constexpr const char* every_base[] = {"gptq_2", "gptq_3", "gptq_4", "gptq_4_v2", "gptq_8", "awq", "mxfp4", "nvfp4"};

std::vector<float> logits(causal_lm<engine>& model) {
  const std::vector<std::int64_t> ids{1, 5, 7, 29, 3};
  const std::vector<sequence_chunk> rows{{ids, 0, 0}};
  std::vector<float> all(ids.size() * static_cast<std::size_t>(model.config().vocabulary));
  const status s = model.logits(rows, all);
  REQUIRE_MESSAGE(s, s.message());
  return all;
}
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
  return most;
}
std::string text_of(const std::string& file) {
  const auto bytes = io::read_file(file);
  REQUIRE_MESSAGE(bytes, bytes.message());
  return std::string(io::as_chars(*bytes));
}
void write(const std::string& file, const std::string& content) {
  const std::vector<std::byte> bytes = bytes_of(content);
  REQUIRE(io::write_file(file, std::span<const std::byte>(bytes)));
}
std::string replaced(std::string s, const std::string& from, const std::string& to) {
  const std::size_t at = s.find(from);
  REQUIRE(at != s.npos);
  return s.replace(at, from.size(), to);
}
// A copy of a folder whose tensors and configuration a test changes.
struct changed_folder {
  temp_folder dir{};
  std::string folder = dir.path / "m";
  io::safetensors file;

  explicit changed_folder(const std::string& base) : file(*io::read_safetensors(base + "/model.safetensors")) {
    std::filesystem::create_directory(folder);
    for (const char* name : {"config.json", "hf_quant_config.json"})
      if (std::filesystem::exists(base + "/" + name))
        std::filesystem::copy_file(base + "/" + name, folder + "/" + name);
  }
  std::string error_text() {
    REQUIRE(io::write_safetensors(folder + "/model.safetensors", file.tensors));
    return io::hf::load_model<engine>(folder).message();
  }
};

}  // namespace

TEST_CASE("checkpoint formats: a model is saved with the tensors that it was read from") {
  for (const std::string name : every_base) {
    INFO(name);
    const temp_folder to;
    const std::string base = golden + name + "/base", folder = to.path / "saved";
    auto model = io::hf::load_model<engine>(base);
    REQUIRE_MESSAGE(model, model.message());
    const status saved = io::hf::save_model(folder, model->weights(), base);
    REQUIRE_MESSAGE(saved, saved.message());
    auto again = io::hf::load_model<engine>(folder);
    REQUIRE_MESSAGE(again, again.message());
    CHECK(logits(*model) == logits(*again));
    const auto before = io::read_safetensors(base + "/model.safetensors"),
               after = io::read_safetensors(folder + "/model.safetensors");
    REQUIRE((before && after));
    std::size_t of_activations = 0;
    for (const io::tensor_view& t : before->tensors) {
      INFO(t.name);
      const io::tensor_view* const same = after->get(t.name);
      if (t.name.ends_with(".input_scale")) {
        ++of_activations;
        CHECK(same == nullptr);
        continue;
      }
      REQUIRE(same != nullptr);
      CHECK(same->type == t.type);
      CHECK(same->shape == t.shape);
      CHECK(std::ranges::equal(same->data, t.data));
    }
    CHECK(before->tensors.size() == after->tensors.size() + of_activations);
  }
}

TEST_CASE(
    "checkpoint formats: an adapter merges into numbers, and into quantized weights where their rounding is defined") {
  for (const auto& [name, adapter] :
       {std::pair{"gptq_4", "lora"}, std::pair{"awq", "dora"}, std::pair{"nvfp4", "lora"}}) {
    INFO(name);
    const temp_folder to;
    const std::string base = golden + name + "/base", folder = to.path / "saved";
    auto model = io::hf::load_model<engine>(base);
    REQUIRE_MESSAGE(model, model.message());
    const status added = io::hf::load_adapter(*model, "mine", golden + name + "/" + adapter + "/adapter_init");
    REQUIRE_MESSAGE(added, added.message());
    REQUIRE(model->activate({"mine"}));
    const std::vector<float> wanted = logits(*model);
    auto quantized = model->merged_weights(model->active());
    if (name == std::string("nvfp4")) {
      REQUIRE_MESSAGE(quantized, quantized.message());
      auto merged = causal_lm<engine>::make(model->config(), std::move(*quantized));
      REQUIRE_MESSAGE(merged, merged.message());
      CHECK(largest_difference(logits(*merged), wanted) < 3);  // rounded to 4 bits again
      REQUIRE(io::hf::save_model(folder, merged->weights(), base));
      auto again = io::hf::load_model<engine>(folder);
      REQUIRE_MESSAGE(again, again.message());
      CHECK(logits(*again) == logits(*merged));
    } else {
      REQUIRE_FALSE(quantized);
      CHECK(std::string(quantized.message())
                .find(": weights in u4 are read and not written; take the merged weights as f32 or bf16") !=
            std::string::npos);
    }
    auto numbers = model->merged_weights(model->active(), merged_format::f32);
    REQUIRE_MESSAGE(numbers, numbers.message());
    auto merged = causal_lm<engine>::make(model->config(), *numbers);
    REQUIRE_MESSAGE(merged, merged.message());
    CHECK(largest_difference(logits(*merged), wanted) < 1e-4);
    // The adapter changes some modules: the others stay quantized, which GPTQ's configuration cannot say.
    const std::string other = to.path / "partly";
    const status saved = io::hf::save_model(other, *numbers, base);
    if (name == std::string("awq")) {
      REQUIRE_MESSAGE(saved, saved.message());
      auto again = io::hf::load_model<engine>(other);
      REQUIRE_MESSAGE(again, again.message());
      CHECK(largest_difference(logits(*again), wanted) < 1e-4);
    } else {
      REQUIRE_FALSE(saved);
      CHECK(std::string(saved.message())
                .find("is not quantized while others are, which the configuration of this model "
                      "cannot state") != std::string::npos);
      CHECK_FALSE(std::filesystem::exists(other));
    }
    // A model whose weights are all dequantized is saved as a plain model.
    std::deque<std::vector<float>> memory;
    for (auto& [key, v] : numbers->tensors) {
      if (v.quant == nullptr) continue;
      std::vector<float>& plain = memory.emplace_back(static_cast<std::size_t>(v.count()));
      cpu::convert(v, plain.data());
      v = view_of(plain.data(), v.size[0], v.size[1]);
    }
    const std::string all = to.path / "plain";
    REQUIRE(io::hf::save_model(all, *numbers, base));
    CHECK_FALSE(std::filesystem::exists(all + "/hf_quant_config.json"));
    CHECK(text_of(all + "/config.json").find("quantization_config") == std::string::npos);
    auto again = io::hf::load_model<engine>(all);
    REQUIRE_MESSAGE(again, again.message());
    CHECK(largest_difference(logits(*again), wanted) < 1e-4);
  }
}

TEST_CASE("checkpoint formats: biases of zeros that AutoGPTQ adds are dropped, others belong to no model") {
  changed_folder m(golden + "gptq_4/base");
  std::vector<std::byte> bias(64 * 2);
  m.file.tensors.push_back({"model.layers.0.self_attn.q_proj.bias", io::safetensors_type::f16, {64}, bias});
  CHECK(m.error_text().empty());
  bias[5] = std::byte{60};
  CHECK(m.error_text().find("tensor 'model.layers.0.self_attn.q_proj.bias' is not part of a llama model of 1 layers") !=
        std::string::npos);
}

TEST_CASE("checkpoint formats: a configuration that does not fit the tensors is refused by name") {
  const auto with_config = [](const std::string& name, const std::string& from, const std::string& to) {
    changed_folder m(golden + name + "/base");
    write(m.folder + "/config.json", replaced(text_of(m.folder + "/config.json"), from, to));
    return m.error_text();
  };
  CHECK(with_config("gptq_4", "\"desc_act\": true", "\"desc_act\": false")
            .find("g_idx' that is not in order, and quantization_config says desc_act false") != std::string::npos);
  CHECK(with_config("gptq_4", "\"group_size\": 32", "\"group_size\": 64").find("for groups of 64 columns") !=
        std::string::npos);
  CHECK(with_config("gptq_8", "\"bits\": 8", "\"bits\": 4").find("for groups of 64 columns") != std::string::npos);
  CHECK(with_config("awq", "\"quant_method\": \"awq\"", "\"quant_method\": \"gptq\"").find("qweight'") !=
        std::string::npos);
  CHECK(with_config("mxfp4", "\"quant_method\": \"mxfp4\"", "\"quant_method\": \"mxfp8\"")
            .find("'quant_method' is 'mxfp8', expected") != std::string::npos);
  // The name of a format that the tensors do not have.
  CHECK(with_config("mxfp4", "\"quant_method\": \"mxfp4\"", "\"quant_method\": \"awq\"")
            .find("weight_blocks' is quantized, and config.json has no quantization_config with quant_method mxfp4") !=
        std::string::npos);
  CHECK(with_config("gptq_4", "quantization_config", "quantization")
            .find("qweight' is quantized, and config.json has no quantization_config with quant_method gptq or awq") !=
        std::string::npos);
  CHECK(with_config("awq", "\"modules_to_not_convert\": null", "\"modules_to_not_convert\": [\"q_proj\"]")
            .find("is quantized, and quantization_config names 'q_proj' as a module to skip") != std::string::npos);
  changed_folder m(golden + "nvfp4/base");
  write(m.folder + "/hf_quant_config.json", replaced(text_of(m.folder + "/hf_quant_config.json"), "NVFP4", "W4A8_AWQ"));
  CHECK(m.error_text().find("'quant_algo' is 'W4A8_AWQ', expected NVFP4") != std::string::npos);
  write(m.folder + "/hf_quant_config.json", "{}");
  CHECK(m.error_text().find("there is no object 'quantization' in this file") != std::string::npos);
  std::filesystem::remove(m.folder + "/hf_quant_config.json");
  CHECK(m.error_text().find("is U8 and there is no") != std::string::npos);
}

TEST_CASE("checkpoint formats: truncated tensors are refused") {
  for (const std::string name : every_base) {
    INFO(name);
    changed_folder m(golden + name + "/base");
    for (io::tensor_view& t : m.file.tensors) {
      if (t.name.find("q_proj") == t.name.npos || t.name.ends_with("scale_2") || t.name.ends_with("input_scale"))
        continue;
      INFO(t.name);
      const io::tensor_view whole = t;
      t.data = t.data.first(t.data.size() / t.shape[0] * (t.shape[0] - 1)), --t.shape[0];
      const std::string why = m.error_text();
      CHECK(why.find("q_proj") != std::string::npos);
      t = whole;
    }
    CHECK(m.error_text().empty());
  }
}
