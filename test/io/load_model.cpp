// SPDX-License-Identifier: Apache-2.0
// A path is a Hugging Face folder or a GGUF file; either gives a model, its tokenizer, chat template and settings.
#include <doctest/doctest.h>
#include <graft/io/gguf/chat_template.h>
#include <graft/io/gguf/writer.h>
#include <graft/io/load_model.h>

#include "support.h"

using namespace graft;
using namespace graft::io::test;

namespace {

const std::string golden = GRAFT_GOLDEN_DIR;

std::string texts(const std::vector<std::string>& all) {
  std::string out;
  for (const std::string& s : all) out += length_prefix(s.size()) + s;
  return out;
}
io::gguf_value list_of(std::uint32_t element, std::uint64_t count, const std::string& bytes, std::string& stored) {
  stored.assign(reinterpret_cast<const char*>(&element), sizeof element);
  stored += length_prefix(count) + bytes;
  io::gguf_value v;
  v.type = 9, v.stored = stored;
  return v;
}

}  // namespace

TEST_CASE("paths: what ends in .gguf or begins as a GGUF file is one") {
  const temp_folder folder;
  CHECK(io::is_gguf_path("nowhere.gguf"));
  CHECK(!io::is_gguf_path("nowhere"));
  CHECK(!io::is_gguf_path(folder.path));
  CHECK(io::is_gguf_path(golden + "/gguf/llama_mixed/model.gguf"));
  CHECK(!io::is_gguf_path(golden + "/gguf/llama_mixed/case.json"));
  std::filesystem::copy_file(golden + "/gguf/llama_mixed/model.gguf", folder.path / "blob");
  CHECK(io::is_gguf_path(folder.path / "blob"));
  CHECK(bool(io::open_model(folder.path / "blob")));
  CHECK(std::string(io::open_model("nowhere.gguf").message()).find("nowhere.gguf: there is no such file") == 0);
  CHECK(std::string(io::open_model("nowhere").message()).find("nowhere/config.json") == 0);
  std::filesystem::copy_file(golden + "/gguf/llama_mixed/case.json", folder.path / "other.gguf");
  CHECK(std::string(io::open_model(folder.path / "other.gguf").message()).find("this is no GGUF file") !=
        std::string::npos);
}

TEST_CASE("paths: configuration and settings are those of the folder or the file") {
  const auto a = io::read_model_config(golden + "/gguf/qwen3_tied/model.gguf"),
             b = io::read_model_config(golden + "/models/qwen3/base");
  REQUIRE_MESSAGE(a, a.message());
  REQUIRE_MESSAGE(b, b.message());
  CHECK(a->family == &families::qwen3);
  CHECK(b->family == &families::qwen3);
  const auto settings = io::read_generation_settings(golden + "/gguf/qwen3_tied/model.gguf", {1, 0, {7, 9}});
  REQUIRE_MESSAGE(settings, settings.message());
  CHECK(*settings->eos_tokens == std::vector<int>{7, 9});
  CHECK(!settings->sampling.draws());
  CHECK(bool(io::read_generation_settings(golden + "/models/qwen3/base", {})));
}

TEST_CASE("chat templates of a GGUF file: by name, with the special tokens of the vocabulary") {
  const temp_folder folder;
  const std::string file = folder.path / "a.gguf";
  std::string tokens;
  io::gguf_writer to;
  to.put("general.architecture", "llama");
  to.put("tokenizer.ggml.tokens", list_of(8, 4, texts({"<unk>", "<s>", "</s>", "a"}), tokens));
  to.put("tokenizer.ggml.bos_token_id", std::uint32_t{1}), to.put("tokenizer.ggml.eos_token_id", std::uint32_t{2});
  to.put("tokenizer.ggml.padding_token_id", std::uint32_t{99});
  to.put("tokenizer.chat_template",
         "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token is defined }}");
  to.put("tokenizer.chat_template.tool_use", "tools");
  REQUIRE(to.save(file));
  const auto plain = io::read_chat_template(file), tools = io::read_chat_template(file, true),
             other = io::read_chat_template(file, false, "rag");
  REQUIRE_MESSAGE(plain, plain.message());
  CHECK(*plain->render(io::hf::chat_messages({{"user", "hi"}})) == "<s>hi</s>False");
  REQUIRE_MESSAGE(tools, tools.message());
  CHECK(*tools->render(io::hf::chat_messages({})) == "tools");
  CHECK(std::string(other.message()).find("no chat template named 'rag', expected one of: default, tool_use") !=
        std::string::npos);
  const auto none = io::read_chat_template(golden + "/gguf/llama_mixed/model.gguf");
  CHECK(std::string(none.message()).find("'tokenizer.chat_template' is missing") != std::string::npos);
}
