// SPDX-License-Identifier: Apache-2.0
// The cases are those of the tokenizers package (test/golden/make_tokenizer.py); larger comparisons are run by hand,
// and their record is stored next to them.
#include <doctest/doctest.h>
#include <graft/io/json/json.h>
#include <graft/io/tokenizer/tokenizer_file.h>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

const std::string golden = GRAFT_GOLDEN_DIR "/tokenizers/";

std::vector<std::int64_t> numbers_of(const json& list) {
  std::vector<std::int64_t> out;
  for (const json& e : list.items) out.push_back(static_cast<std::int64_t>(e.whole));
  return out;
}

}  // namespace

TEST_CASE("tokenizer: tokens and text are those of the tokenizers package") {
  for (const std::string family : {"gpt2", "gpt2_space", "llama3", "qwen2"}) {
    CAPTURE(family);
    const auto t = hf::read_tokenizer(golden + family);
    CAPTURE(std::string(t.message()));
    REQUIRE(t);
    const auto cases = read_json(golden + family + "/cases.json");
    REQUIRE(cases);
    REQUIRE(cases->items.size() > 30);
    for (const json& c : cases->items) {
      const std::string& text = c.find("text")->word;
      CAPTURE(text);
      const std::vector<std::int64_t> wanted = numbers_of(*c.find("ids"));
      const auto ids = t->encode(text);
      REQUIRE(ids);
      CHECK(*ids == wanted);
      const auto plain = t->encode(text, false);
      REQUIRE(plain);
      CHECK(*plain == std::vector<std::int64_t>(wanted.begin() + (family == "llama3" ? 1 : 0), wanted.end()));
      const auto field = [&](const char* key) { return c.find(key) != nullptr ? c.find(key)->word : text; };
      CHECK(t->decode(wanted) == field("decoded"));
      CHECK(t->decode(wanted, false) == field("decoded_all"));
      if (c.find("broken") == nullptr) continue;
      std::vector<std::int64_t> broken;
      for (std::size_t i = 0; i < wanted.size(); i += 2) broken.push_back(wanted[i]);
      CHECK(t->decode(broken) == field("broken"));
    }
  }
}

TEST_CASE("tokenizer: every style of tokenizer.json gives the tokens and the text of the tokenizers package") {
  for (const std::string style :
       {"absent_bytes", "absent_bytes_unk", "deepseek", "gemma", "gpt4o", "inverted", "llama2", "metaspace_unk",
        "mistral", "splits", "t5", "unigram_bytes", "unigram_first", "whitespace"}) {
    CAPTURE(style);
    const auto t = hf::read_tokenizer(golden + style);
    CAPTURE(std::string(t.message()));
    REQUIRE(t);
    const auto cases = read_json(golden + style + "/cases.json");
    REQUIRE(cases);
    REQUIRE(cases->items.size() > 15);
    for (const json& c : cases->items) {
      const std::string& text = c.find("text")->word;
      CAPTURE(text);
      const auto ids = t->encode(text);
      REQUIRE(ids);
      const std::vector<std::int64_t> wanted = numbers_of(*c.find("ids"));
      CHECK(*ids == wanted);
      CHECK(*t->encode(text, false) == (c.find("plain") != nullptr ? numbers_of(*c.find("plain")) : wanted));
      CHECK(t->decode(wanted) == c.find("decoded")->word);
      const json* all = c.find("decoded_all");
      CHECK(t->decode(wanted, false) == (all != nullptr ? all : c.find("decoded"))->word);
    }
  }
}

TEST_CASE("tokenizer: tokens of Llama 2 come out one by one, with the space between words") {
  const auto t = hf::read_tokenizer(golden + "llama2");
  REQUIRE(t);
  const std::string text = "naïve 日本 👩‍👧 end";
  const auto ids = t->encode(text, false);
  REQUIRE(ids);
  hf::text_stream stream;
  std::string out;
  for (const std::int64_t id : *ids) out += stream.feed(t->bytes(id));
  CHECK(out + stream.finish() == " " + text);  // decode() takes the first space away
  CHECK(t->decode(*ids) == text);
}

TEST_CASE("tokenizer: a character without a token fails only where a text has it and there is no unknown token") {
  const std::string file = R"({"model":{"type":"BPE","unk_token":"<unk>","vocab":{"a":0,"b":1},"merges":[]}})";
  const auto t = hf::parse_tokenizer(file, "t.json");
  REQUIRE(t);
  CHECK(*t->encode("ab") == std::vector<std::int64_t>{0, 1});
  CHECK(contains(t->encode("abc").message(), "the unknown token '<unk>' is not in the vocabulary"));
  const auto u = hf::parse_tokenizer(R"({"model":{"type":"Unigram","vocab":[["a",-1.5],["ab",-2]]}})", "t.json");
  REQUIRE(u);
  CHECK(contains(u->encode("x").message(), "no 'unk_id'"));
}

TEST_CASE("tokenizer: text comes out token by token, whole characters only") {
  const auto t = hf::read_tokenizer(golden + "gpt2");
  REQUIRE(t);
  const std::string text = "naïve 日本 👩‍👧 \U0010FFFF end";
  const auto ids = t->encode(text);
  REQUIRE(ids);
  hf::text_stream stream;
  std::string out;
  for (const std::int64_t id : *ids) {
    const std::string piece = stream.feed(t->bytes(id));
    CHECK(is_utf8(piece));
    out += piece;
  }
  CHECK(out + stream.finish() == text);
  CHECK(t->decode(std::vector<std::int64_t>{-1, 1 << 30, 99999}) == "");
}

TEST_CASE("text_stream: broken bytes become one replacement for each beginning of a character") {
  const std::string mark = "\xEF\xBF\xBD";
  const struct {
    std::string bytes, text;
  } cases[] = {{"a\xFFz", "a" + mark + "z"},
               {"\xE3\x81z", mark + "z"},
               {"\xE3\x81", mark},
               {"\xF0\x9F\x98", mark},
               {"\xF0\x80\x80", mark + mark + mark},
               {"\xED\xA0\x80", mark + mark + mark},
               {"\xC3\xC3\xA9", mark + "é"},
               {"\xF4\x90\x80\x80", mark + mark + mark + mark}};
  for (const auto& c : cases) {
    hf::text_stream at_once, by_bytes;
    const std::string first = at_once.feed(c.bytes);
    CHECK(first + at_once.finish() == c.text);
    std::string out;
    for (const char b : c.bytes) out += by_bytes.feed(std::string_view(&b, 1));
    CHECK(out + by_bytes.finish() == c.text);
  }
}

TEST_CASE("tokenizer: a long piece takes no longer than its length allows") {
  const auto t = hf::read_tokenizer(golden + "llama3");
  REQUIRE(t);
  const std::string text(400000, 'a');  // one word: quadratic merging would take hours
  const auto ids = t->encode(text);
  REQUIRE(ids);
  CHECK(t->decode(*ids) == text);
}

TEST_CASE("tokenizer: text that is not UTF-8 is refused with the place") {
  const auto t = hf::read_tokenizer(golden + "gpt2");
  REQUIRE(t);
  CHECK(contains(t->encode("ab\xFF").message(), "the text is not UTF-8 at byte 2"));
}

TEST_CASE("tokenizer: files of other kinds, and broken ones, are refused with the name of the part") {
  const auto bytes = read_file(golden + "llama3/tokenizer.json");
  REQUIRE(bytes);
  const std::string good(as_chars(*bytes));
  REQUIRE(hf::parse_tokenizer(good, "tokenizer.json"));
  const struct {
    std::string from, to, message;
  } cases[] = {
      {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", "the model Unigram has no 'vocab', expected a list"},
      {"\"type\":\"BPE\"", "\"type\":\"WordPiece\"", "the model \"WordPiece\" is not supported"},
      {"\"dropout\":null", "\"dropout\":0.1", "'dropout' is 0.1"},
      {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", "'end_of_word_suffix' is \"</w>\""},
      {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Precompiled\"}",
       "the normalizer \"Precompiled\" is not supp"},
      {"\"type\":\"Split\"", "\"type\":\"Metaspace\"", "the pre_tokenizer \"Metaspace\" has no text 'replacement'"},
      {"\"type\":\"Split\"", "\"type\":\"UnicodeScripts\"", "the pre_tokenizer \"UnicodeScripts\" is not supported"},
      {"\\\\p{N}{1,3}", "\\\\p{Klingon}", "the property 'Klingon' is not supported"},
      {"\\\\p{N}{1,3}", "(\\\\s*)*", "repeating what may be empty is not supported"},
      {"\"Isolated\"", "\"Doubled\"", "has the behavior \"Doubled\", expected Removed, Isolated"},
      {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"CTC\"", "the decoder \"CTC\" is not"},
      {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Strip\"", "the decoder \"Strip\" has no text"},
      {"\"type\":\"TemplateProcessing\"", "\"type\":\"BertProcessing\"",
       "the post_processor \"BertProcessing\" is not"},
      {"\"truncation\":null", "\"truncation\":{\"max_length\":5}", "'truncation' is an object"},
      {"\"ids\":[1]", "\"ids\":\"x\"", "names a special token that it does not number"},
      {"\"merges\":[[", "\"merges\":[[\"no\",\"no\"],[", "merge 0 ('no' and 'no') is not of tokens that exist"},
      {"\"a\":", "\"a\":\"x\",\"zz\":", "the token 'a' has no number but \"x\""},
      {"\"vocab\"", "\"words\"", "the model has no 'vocab' or no 'merges'"},
  };
  for (const auto& c : cases) {
    std::string broken = good;
    const std::size_t at = broken.find(c.from);
    CAPTURE(c.to);
    REQUIRE(at != broken.npos);
    broken.replace(at, c.from.size(), c.to);
    const auto t = hf::parse_tokenizer(broken, "tokenizer.json");
    const std::string message = t.message();
    CAPTURE(message);
    CHECK(message.find(c.message) != std::string::npos);
    CHECK(message.starts_with("tokenizer.json: "));
  }
  for (const char* content : {"", "[]", "{}", "{\"model\":{}}"}) CHECK_FALSE(hf::parse_tokenizer(content, "t.json"));
  temp_folder dir;
  CHECK(contains(hf::read_tokenizer(dir.path).message(), "tokenizer.json: there is no such file"));
}

TEST_CASE("tokenizer: merges written as text, and a file without a type, as older files have them") {
  auto bytes = read_file(golden + "gpt2/tokenizer.json");
  REQUIRE(bytes);
  std::string old(as_chars(*bytes));
  const std::size_t at = old.find("\"merges\":[");
  REQUIRE(at != old.npos);
  for (std::size_t i = at + 10; i < old.size(); ++i) {
    if (old.compare(i, 2, "[\"") == 0) old.replace(i, 2, "\"");
    if (old.compare(i, 3, "\",\"") == 0 && old[i - 1] != '\\') {
      old.replace(i, 3, " ");
    } else if (old.compare(i, 2, "\"]") == 0) {
      old.replace(i, 2, "\"");
    }
  }
  old.replace(old.find("\"type\":\"BPE\","), 13, "");
  const auto now = hf::read_tokenizer(golden + "gpt2");
  const auto then = hf::parse_tokenizer(old, "old.json");
  CAPTURE(std::string(then.message()));
  REQUIRE(now);
  REQUIRE(then);
  CHECK(*now->encode("Hello, world! return 0;") == *then->encode("Hello, world! return 0;"));
}
