// SPDX-License-Identifier: Apache-2.0
// What the expressions match is what the tokenizers package matches (pre_tokenizers.Split, 0.23).
#include <doctest/doctest.h>
#include <graft/io/tokenizer/split_regex_parser.h>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

std::vector<std::string> matches(const std::string& regex, const std::string& text) {
  const auto r = hf::parse_split_regex(regex);
  CAPTURE(std::string(r.message()));
  REQUIRE(r);
  std::vector<std::string> out;
  CHECK(hf::for_each_match(**r, text, [&](std::size_t from, std::size_t to) {
    if (from != to) out.push_back(text.substr(from, to - from));
  }));
  return out;
}
using texts = std::vector<std::string>;

}  // namespace

TEST_CASE("split_regex: matches are those of Oniguruma") {
  CHECK(matches(R"(\p{N}{1,3}+)", "1234567 12") == texts{"1234567", "12"});
  CHECK(matches(R"(\p{L}++|\s?+)", "abc  d") == texts{"abc", " ", " ", "d"});
  CHECK(matches("^a|b$", "ab\nab") == texts{"a", "b", "a", "b"});
  CHECK(matches(R"(\Aa|b\z)", "ab\nab") == texts{"a", "b"});
  CHECK(matches(R"(b\Z)", "b\nb\n") == texts{"b"});
  CHECK(matches("(?i)k+", "kK\u212A") == texts{"kK\u212A"});
  CHECK(matches("(?i:[^k])", "aK\u212A") == texts{"a"});
  CHECK(matches("(?i:'s|'ll)", "x'S 'LL 'ſ") == texts{"'S", "'LL", "'ſ"});
  CHECK(matches(R"([^(\s|[.,!])]+)", "ab. [c]|d") == texts{"ab", "[c]", "d"});
  CHECK(matches("(?<=a)b|(?<!a)c", "ab ac c") == texts{"b", "c"});
  CHECK(matches("(?>a+)ab|a", "aab") == texts{"a", "a"});
  CHECK(matches("(a|ab)(c|bcd)", "abcd") == texts{"abcd"});
  CHECK(matches(R"(\s+(?!\S)|\s+)", "a   b  ") == texts{"  ", " ", "  "});
  CHECK(matches(R"([[:alpha:]]+\d*)", "ab12 é3") == texts{"ab12", "é3"});
  CHECK(matches("a+?b", "aab") == texts{"aab"});
  CHECK(matches(R"(\p{Han}+|\p{^L}+)", "a中文 1") == texts{"中文", " 1"});
  CHECK(matches(" {2,}|x{,2}y", "a   xxxy") == texts{"   ", "xxy"});
}

TEST_CASE("split_regex: what is not supported is refused, and the pattern is quoted") {
  for (const char* bad :
       {"(", "[a", "a)", "*", "(?x:a)", R"(\1)", R"(\p{L)", R"(\p{Nope})", "a{3,2}", "(a*)*", "a{1001}", R"(\X)",
        "(?<=a+)b", "(?i:ss)", "[z-a]", R"(\x{110000})", "a(?i)b|c", R"(a\)", "[a-z&&[^aeiou]]"}) {
    const auto r = hf::parse_split_regex(bad);
    CAPTURE(std::string(bad));
    REQUIRE_FALSE(r);
    CHECK(contains(r.message(), "the regular expression '"));
  }
  CHECK_FALSE(hf::parse_split_regex(std::string(100, '(') + std::string(100, ')')));
  CHECK_FALSE(hf::parse_split_regex("((((a{1000}){1000}){1000}){1000})"));
  CHECK_FALSE(hf::parse_split_regex(std::string(20000, 'a')));
}

TEST_CASE("split_regex: exponential time becomes a failure") {
  const auto r = hf::parse_split_regex("(?:a|a)+(?:a|a)+(?:a|aa)+b");
  REQUIRE(r);
  CHECK_FALSE(hf::for_each_match(**r, std::string(60, 'a'), [](std::size_t, std::size_t) {}));
}
