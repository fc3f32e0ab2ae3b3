// SPDX-License-Identifier: Apache-2.0
// Mistakes in the trainable tokens of a folder give errors that name them. (Golden cases test valid folders.)
#include <doctest/doctest.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/model/on_cpu.h>

#include <fstream>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

const std::filesystem::path llama = GRAFT_GOLDEN_DIR "/models/llama";

// The message about a folder whose configuration has `to` instead of `from`.
std::string message_with(const std::string& from, const std::string& to) {
  const temp_folder copy;
  const auto folder = copy.path / "adapter";
  std::filesystem::copy(llama / "lora_trainable_tokens_head" / "adapter_init", folder);
  std::ifstream file(folder / "adapter_config.json");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t at = text.find(from);
  REQUIRE(at != text.npos);
  text.replace(at, from.size(), to);
  std::ofstream(folder / "adapter_config.json") << text;
  const auto model = hf::load_model<cpu::engine<float>>(llama / "base");
  REQUIRE(model);
  const auto loaded = hf::load_adapters(folder, *model);
  CHECK(!loaded);
  return loaded.message();
}
bool contains(const std::string& all, const char* part) { return all.find(part) != all.npos; }

}  // namespace

TEST_CASE("token_rows: a mistake in trainable_token_indices is named") {
  CHECK(contains(message_with("      5,\n      8", "      8,\n      8"), "names token 8 twice"));
  CHECK(contains(message_with("      5,\n      8", "      5,\n      256"), "token 256"));
  CHECK(contains(message_with("      5,\n      8", "      5,\n      -1"), "a list of tokens"));
  CHECK(contains(message_with("      5,\n      8", "      5"), "has shape [2, 64], expected [1, 64]"));
  CHECK(contains(message_with("\"embed_tokens\": [", "\"embedding\": ["), "which this model does not have"));
  CHECK(contains(message_with("\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]"), "lm_head"));
  CHECK(contains(message_with("\"down_proj\"", "\"lm_head\""), "lm_head"));
}
