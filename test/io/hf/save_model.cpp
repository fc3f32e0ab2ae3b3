// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/bitsandbytes/reader.h>
#include <graft/io/bitsandbytes/writer.h>
#include <graft/io/hf/save_model.h>
#include <graft/model/on_cpu.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>

#include "../support.h"

using namespace graft;
using namespace graft::io::test;

namespace {

using engine = cpu::engine<float>;

std::string base() { return std::string(GRAFT_GOLDEN_DIR) + "/quantized/models/llama_nf4_double/base"; }

std::vector<float> logits(causal_lm<engine>& model) {
  const std::vector<std::int64_t> ids{1, 5, 7, 39, 33};
  const std::vector<sequence_chunk> rows{{ids, 0, 0}};
  std::vector<float> all(ids.size() * static_cast<std::size_t>(model.config().vocabulary));
  const status s = model.logits(rows, all);
  REQUIRE_MESSAGE(s, s.message());
  return all;
}

// The tensors of a model, with the quantized ones whose names contain `part` dequantized.
model_weights as_numbers(const model_weights& from, std::deque<std::vector<float>>& memory, std::string_view part) {
  model_weights out = from;
  for (auto& [name, v] : out.tensors) {
    if (v.quant == nullptr || name.find(part) == name.npos) continue;
    std::vector<float>& numbers = memory.emplace_back(static_cast<std::size_t>(v.count()));
    cpu::convert(v, numbers.data());
    v = view_of(numbers.data(), v.size[0], v.size[1]);
  }
  return out;
}
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
  return most;
}

}  // namespace

TEST_CASE("save_model: dequantized weights are read as plain numbers, all of them or some") {
  for (const char* family : {"llama_nf4_double", "gpt2_nf4"}) {
    for (const char* part : {"", "attn.c_proj", "layers.1.mlp.up_proj"}) {
      INFO(family << " " << part);
      const temp_folder to;
      const std::string from = std::string(GRAFT_GOLDEN_DIR) + "/quantized/models/" + family + "/base";
      const std::string folder = to.path / "saved";
      auto model = io::hf::load_model<engine>(from);
      REQUIRE_MESSAGE(model, model.message());
      std::deque<std::vector<float>> memory;
      const model_weights weights = as_numbers(model->weights(), memory, part);
      if (memory.empty()) continue;  // the name belongs to another family
      const status saved = io::hf::save_model(folder, weights, from);
      const auto config = io::read_json(folder + "/config.json");
      if (family[0] == 'g' && part[0] != '\0') {  // a mixture of [in, out] and [out, in] is not read
        REQUIRE_FALSE(saved);
        CHECK(contains(saved.message(), "is not quantized while others are"));
        CHECK_FALSE(config);
        continue;
      }
      REQUIRE_MESSAGE(saved, saved.message());
      REQUIRE_MESSAGE(config, config.message());
      const io::json* const quantization = config->find("quantization_config");
      CHECK((quantization == nullptr) == (part[0] == '\0'));
      if (quantization != nullptr) {
        const io::json* const plain = quantization->find("llm_int8_skip_modules");
        REQUIRE(plain != nullptr);
        REQUIRE(plain->items.size() == 2);
        CHECK(plain->items[0].word == "lm_head");
        CHECK(plain->items[1].word == "model.layers.1.mlp.up_proj");
      }
      auto again = io::hf::load_model<engine>(folder);
      REQUIRE_MESSAGE(again, again.message());
      CHECK(largest_difference(logits(*model), logits(*again)) < 1e-4);
    }
  }
}
TEST_CASE("save_model: a quantized model is written as it was read, tensor by tensor") {
  const temp_folder to;
  auto model = io::hf::load_model<engine>(base());
  REQUIRE_MESSAGE(model, model.message());
  const std::string folder = to.path / "saved";
  const status saved = io::hf::save_model(folder, model->weights(), base());
  REQUIRE_MESSAGE(saved, saved.message());
  auto again = io::hf::load_model<engine>(folder);
  REQUIRE_MESSAGE(again, again.message());
  CHECK(logits(*model) == logits(*again));
  const auto before = io::read_safetensors(base() + "/model.safetensors"),
             after = io::read_safetensors(folder + "/model.safetensors");
  REQUIRE(before);
  REQUIRE(after);
  CHECK(before->tensors.size() == after->tensors.size());
  for (const io::tensor_view& t : before->tensors) {
    INFO(t.name);
    const auto same = std::find_if(after->tensors.begin(), after->tensors.end(),
                                   [&](const io::tensor_view& other) { return other.name == t.name; });
    REQUIRE(same != after->tensors.end());
    CHECK(same->type == t.type);
    CHECK(same->shape == t.shape);
    CHECK(std::ranges::equal(same->data, t.data));
  }
}
TEST_CASE("save_model: 8-bit weights are read back, and formats that a configuration cannot state are refused") {
  const temp_folder to;
  auto model = io::hf::load_model<engine>(base());
  REQUIRE_MESSAGE(model, model.message());
  const std::vector<float> numbers(64 * 64, 0.25F);
  for (const quant_format& format :
       {quant_format{dtype::int8, scale_granularity::row}, quant_format{dtype::f8_e4m3, scale_granularity::row},
        quant_format{dtype::f8_e4m3, scale_granularity::tensor},
        quant_format{dtype::fp4, scale_granularity::flat_block, 64}}) {
    INFO(name_of(format));
    const auto quantized = cpu::quantize(numbers.data(), 64, 64, format);
    REQUIRE(quantized);
    std::vector<io::tensor_view> tensors;
    io::quantized_writer writer("float32");
    REQUIRE(writer.add("a.weight", quantized->as_view(), tensors));
    io::quant_state_pool kept;
    io::quantized_reader reader(
        "file",
        [&](const std::string& name) -> const io::tensor_view* {
          const auto at = std::ranges::find(tensors, name, &io::tensor_view::name);
          return at == tensors.end() ? nullptr : &*at;
        },
        kept);
    const auto read = reader.read(tensors[0]);
    REQUIRE_MESSAGE(read, read.message());
    REQUIRE(read->has_value());
    std::vector<float> found(numbers.size()), expected(numbers.size());
    cpu::convert(**read, found.data()), cpu::convert(quantized->as_view(), expected.data());
    CHECK(found == expected);
  }
  const std::string plain = std::string(GRAFT_GOLDEN_DIR) + "/models/llama/base";
  const status refused = io::hf::save_model(to.path / "other", model->weights(), plain);
  REQUIRE_FALSE(refused);
  CHECK(std::string(refused.message()).find("has no quantization_config") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(to.path / "other"));
}
