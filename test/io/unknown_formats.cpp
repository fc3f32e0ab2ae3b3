// SPDX-License-Identifier: Apache-2.0
// A format that is not known is refused by name by every reader of weights, and below the readers by every function
// that decodes: none of them takes one format for another.
#include <doctest/doctest.h>
#include <graft/backend/cpu/quantized/quantize.h>
#include <graft/io/gguf/writer.h>
#include <graft/io/hf/config.h>
#include <graft/io/safetensors/bind.h>
#include <graft/io/safetensors/convert.h>
#include <graft/io/safetensors/reader.h>

#include <fstream>

#include "support.h"

using namespace graft;
using namespace graft::io::test;

namespace {

void says(const std::string& all, const std::string& part) {
  INFO(all);
  INFO(part);
  CHECK(all.find(part) != std::string::npos);
}
// A GGUF file of one matrix of 2 x 256, whose type is this number.
std::string gguf_of_type(std::uint32_t type) {
  const temp_folder folder;
  const std::string file = folder.path / "a.gguf";
  const std::vector<float> numbers(4096);
  io::gguf_writer to;
  REQUIRE(to.add("output.weight", view_of(numbers.data(), 2, 256)));
  REQUIRE(to.save(file));
  std::string bytes(io::as_chars(*io::read_file(file)));
  // The directory's entry: name, 2 axes, sizes 256 and 2, type.
  bytes.replace(bytes.find("output.weight") + 13 + 4 + 16, 4, reinterpret_cast<const char*>(&type), 4);
  bytes.resize(bytes.size() + 4096);
  return bytes;
}

}  // namespace

TEST_CASE("unknown formats: a GGUF file with a type that is not read is refused with its number and name") {
  // enum ggml_type of ggml.h but those that are read; the missing numbers were never in files.
  const std::pair<std::uint32_t, const char*> known[] = {
      {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {21, "IQ3_S"},
      {22, "IQ2_S"}, {24, "I8"},    {25, "I16"},     {26, "I32"},    {27, "I64"},     {28, "F64"},   {29, "IQ1_M"},
      {34, "TQ1_0"}, {35, "TQ2_0"}, {40, "NVFP4"},   {41, "Q1_0"},   {42, "Q2_0"}};
  int read = 0, refused = 0;
  std::size_t named = 0;
  for (std::uint32_t type = 0; type < 80; ++type) {
    INFO(type);
    const auto parsed = io::parse_gguf(io::make_owned_bytes(bytes_of(gguf_of_type(type))), "a.gguf");
    if (parsed) {
      const view& v = parsed->tensors.at("output.weight");
      CHECK((v.quant != nullptr ? v.quant->format.block_type == static_cast<int>(type)
                                : type == 0 || type == 1 || type == 30));
      ++read;
      continue;
    }
    ++refused;
    says(parsed.message(), "tensor 'output.weight' has ggml's type " + std::to_string(type));
    for (const auto& [number, name] : known)
      if (number == type) says(parsed.message(), std::string("(") + name + ")"), ++named;
  }
  CHECK(named == std::size(known));
  CHECK(read == 16);  // and no other number
  CHECK(refused == 64);
}

TEST_CASE("unknown formats: a safetensors type is converted, or refused by name") {
  for (int k = 0; k < static_cast<int>(std::size(io::safetensors_types)); ++k) {
    const auto type = static_cast<io::safetensors_type>(k);
    INFO(io::name_of(type));
    const std::vector<std::byte> bytes(64 * 8);
    const io::tensor_view t{
        "t", type, {8, 8}, std::span(bytes).first(64 * static_cast<std::size_t>(io::facts(type).bits) / 8)};
    const auto bound = io::bind_in_place(t, "a.safetensors");
    const auto type_of_bound = io::dtype_of(type);
    if (bound)
      CHECK((type_of_bound && bound->type == *type_of_bound));
    else
      says(bound.message(), io::name_of(type));
    const auto numbers = io::to_float(t);
    if (!numbers) says(numbers.message(), io::name_of(type));
  }
  const std::string unknown = file_text(one("\"F9\"", "[4]", "[0,4]"), 4);
  says(io::parse_safetensors(bytes_of(unknown), "a.safetensors").message(), "F9");
}

TEST_CASE("unknown formats: what cannot be dequantized is refused before it is decoded") {
  int refused = 0;
  const float number = 1;
  for (int type = 0; type <= static_cast<int>(dtype::ggml); ++type)
    for (const scale_granularity scaled :
         {scale_granularity::nothing, scale_granularity::tensor, scale_granularity::row, scale_granularity::block,
          scale_granularity::flat_block})
      for (const int block : {0, 7, 64}) {
        quant_format f{static_cast<dtype>(type), scaled, block};
        if (f.type == dtype::ggml) f.block_bytes = 34, f.block_type = 99;
        if (can_dequantize(f)) continue;
        ++refused;
        const quant_state state{.format = f, .scales = &number};
        const view v{&number, f.type, {1, 64, 1, 1}, 2, {}, &state};
        const status s = check_quantized("w", v);
        CHECK(!s);
        says(s.message(), "tensor 'w'");
        says(s.message(), f.type == dtype::ggml ? "ggml's type 99" : name_of(f.type));
        const std::vector<float> row(64, 1.0F);
        const auto made = cpu::quantize(row.data(), 1, 64, f);
        CHECK(!made);
        says(made.message(), name_of(f));
      }
  CHECK(refused > 100);
}

TEST_CASE("unknown formats: a quantization_config of another method is refused by its name") {
  const std::string config =
      std::string(io::as_chars(*io::read_file(GRAFT_GOLDEN_DIR "/models/llama/base/config.json")));
  const auto refused = [&](const std::string& quantization) {
    const temp_folder folder;
    std::string changed = config;
    changed.insert(changed.find('{') + 1, "\"quantization_config\": " + quantization + ",");
    std::ofstream(folder.path / "config.json") << changed;
    const auto read = io::hf::read_config(folder.path);
    CHECK(!read);
    return std::string(read.message());
  };
  for (const char* method :
       {"hqq", "aqlm", "eetq", "quanto", "higgs", "vptq", "spqr", "bitnet", "torchao", "auto-round"})
    says(refused("{\"quant_method\": \"" + std::string(method) + "\"}"), "'" + std::string(method) + "'");
  says(refused(R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "int4"})"), "int4");
}
