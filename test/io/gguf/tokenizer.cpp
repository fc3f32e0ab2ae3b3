// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/gguf/tokenizer.h>

#include <sstream>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

// Metadata as a GGUF file has it; there are no tensors.
struct file_of_facts {
  std::string facts{};
  std::uint64_t count = 0;

  template <class Number> static std::string raw(Number v) { return {reinterpret_cast<const char*>(&v), sizeof v}; }
  static std::string word(const std::string& s) { return raw<std::uint64_t>(s.size()) + s; }
  void fact(const std::string& name, std::uint32_t type, const std::string& value) {
    facts += word("tokenizer.ggml." + name) + raw(type) + value, ++count;
  }
  void texts(const std::string& name, const std::vector<std::string>& all) {
    std::string s = raw<std::uint32_t>(8) + raw<std::uint64_t>(all.size());
    for (const std::string& t : all) s += word(t);
    fact(name, 9, s);
  }
  template <class Number> void numbers(const std::string& name, std::uint32_t type, const std::vector<Number>& all) {
    std::string s = raw(type) + raw<std::uint64_t>(all.size());
    for (const Number v : all) s += raw(v);
    fact(name, 9, s);
  }
  result<hf::tokenizer> tokenizer() const {
    const std::string bytes =
        raw<std::uint32_t>(0x46554747U) + raw<std::uint32_t>(3) + raw<std::uint64_t>(0) + raw(count) + facts;
    temp_folder dir;
    const std::string path = std::string(dir.path) + "/t.gguf";
    REQUIRE(write_file(path, std::as_bytes(std::span(bytes))));
    const auto read = map_gguf(path);
    CAPTURE(std::string(read.message()));
    REQUIRE(read);
    return tokenizer_of(*read);
  }
};
using ids = std::vector<std::int64_t>;

file_of_facts byte_level(const std::string& pre) {
  file_of_facts f;
  f.fact("model", 8, f.word("gpt2"));
  f.fact("pre", 8, f.word(pre));
  f.texts("tokens", {"a", "b", "ab", "1", "11", "Ġ", "Ġa", "<|end|>"});
  f.numbers<std::int32_t>("token_type", 5, {1, 1, 1, 1, 1, 1, 1, 3});
  f.texts("merges", {"a b", "1 1", "Ġ a"});
  f.fact("bos_token_id", 4, f.raw<std::uint32_t>(7));
  return f;
}

}  // namespace

TEST_CASE("gguf tokenizer: byte-level BPE, split as its name says") {
  const auto smollm = byte_level("smollm").tokenizer();
  CAPTURE(std::string(smollm.message()));
  REQUIRE(smollm);
  CHECK(*smollm->encode("ab a11<|end|>") == ids{2, 6, 3, 3, 7});
  CHECK(smollm->decode(ids{2, 6, 3, 7}) == "ab a1");
  const auto llama3 = byte_level("llama-bpe").tokenizer();
  REQUIRE(llama3);
  CHECK(*llama3->encode("ab a11") == ids{7, 2, 6, 4});
  // Digits stay together, are single, or are in groups of three.
  const ids together{2, 4, 4}, single{2, 3, 3, 3, 3}, in_threes{2, 4, 3, 3};
  for (const auto& [names, expected] :
       {std::pair{"gpt-2 exaone4 deepseek-llm bloom poro-chat", together},
        {"smollm minerva-7b qwen2 qwen35 kormo tekken youtu deepseek-coder viking bailingmoe seed-coder laguna",
         single},
        {"llama-bpe falcon3 glm4 gpt-4o minimax-m2 deepseek-v3 hunyuan-dense falcon jais-2 minicpm5 default",
         in_threes}}) {
    std::istringstream all(names);
    for (std::string pre; all >> pre;) {
      CAPTURE(pre);
      const auto t = byte_level(pre).tokenizer();
      REQUIRE_MESSAGE(t, t.message());
      CHECK(*t->encode("ab1111", false) == expected);
    }
  }
  file_of_facts unnamed = byte_level("default");
  unnamed.facts.replace(unnamed.facts.find("ggml.pre"), 8, "ggml.any");
  CHECK(*unnamed.tokenizer()->encode("ab1111", false) == in_threes);
  CHECK(contains(byte_level("mystery").tokenizer().message(),
                 "'tokenizer.ggml.pre' is 'mystery', which is not supported"));
}

TEST_CASE("gguf tokenizer: SentencePiece merges by score and falls back to bytes") {
  file_of_facts f;
  f.fact("model", 8, f.word("llama"));
  f.texts("tokens", {"<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "▁", "a", "b", "▁a", "ab", "▁ab"});
  f.numbers<std::int32_t>("token_type", 5, {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1});
  f.numbers<float>("scores", 6, {0, 0, 0, 0, 0, -9, -8, -7, -2, -1, -3});
  f.fact("bos_token_id", 4, f.raw<std::uint32_t>(1));
  f.fact("unknown_token_id", 4, f.raw<std::uint32_t>(0));
  const auto t = f.tokenizer();
  CAPTURE(std::string(t.message()));
  REQUIRE(t);
  CHECK(*t->encode("ab aé") == ids{1, 10, 8, 3, 4});
  CHECK(t->decode(ids{1, 10, 8, 3, 4}) == "ab aé");
  CHECK(*t->encode("x", false) == ids{5, 0});
  // Special tokens of Phi-3 but <unk>, <s> and <|endoftext|> take the blanks after them.
  CHECK(t->encode("a</s> \n ab", false)->size() > 3);
  f.facts += f.word("general.name") + f.raw<std::uint32_t>(8) + f.word("Phi-3 mini"), ++f.count;
  CHECK(*f.tokenizer()->encode("a</s> \n ab", false) == ids{8, 2, 10});
  CHECK(*f.tokenizer()->encode("a<s> ab", false) == *t->encode("a<s> ab", false));
}

TEST_CASE("gguf tokenizer: wrong metadata are refused by name") {
  file_of_facts none;
  CHECK(contains(none.tokenizer().message(), "'tokenizer.ggml.model' is ''"));
  file_of_facts bert;
  bert.fact("model", 8, bert.word("bert"));
  CHECK(contains(bert.tokenizer().message(), "'tokenizer.ggml.model' is 'bert', expected gpt2"));
  file_of_facts few = byte_level("smollm");
  few.texts("scores", {"x"});
  few.facts.replace(few.facts.find("gpt2"), 4, "gptX");
  CHECK(contains(few.tokenizer().message(), "'gptX'"));
  file_of_facts llama;
  llama.fact("model", 8, llama.word("llama"));
  llama.texts("tokens", {"a", "b"});
  CHECK(contains(llama.tokenizer().message(), "'tokenizer.ggml.scores' is missing, expected a list of numbers"));
  llama.numbers<float>("scores", 6, {0});
  CHECK(contains(llama.tokenizer().message(), "'tokenizer.ggml.scores' has 1 entries, expected 2"));
  file_of_facts merge = byte_level("smollm");
  merge.facts.replace(merge.facts.find("a b"), 3, "a z");
  CHECK(contains(merge.tokenizer().message(), "is not of two tokens that exist"));
}
