// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/regex/parser.h>

using namespace graft;
using namespace graft::io;

TEST_CASE("pattern: whole-path matches as Python's re.fullmatch gives them") {
  const struct {
    const char* regex;
    const char* path;
    bool expected;
  } cases[] = {
      {"lin", "lin", true},
      {"lin", "lin1", false},
      {"lin", "a.lin", false},
      {"", "", true},
      {"", "a", false},
      {".*layers\\.1\\..*(q|v)_proj", "model.layers.1.self_attn.q_proj", true},
      {".*layers\\.1\\..*(q|v)_proj", "model.layers.11.self_attn.q_proj", false},
      {".*layers\\.1\\..*(q|v)_proj", "model.layers.1.self_attn.k_proj", false},
      {"^model.*(?:q_proj|v_proj)$", "model.x.v_proj", true},
      {"^(?!.*visual).*\\.q_proj$", "model.q_proj", true},
      {"^(?!.*visual).*\\.q_proj$", "visual.blocks.q_proj", false},
      {".*(?=q_proj).*", "a.q_proj", true},
      {".*(?<!out_)proj", "q_proj", true},
      {".*(?<!out_)proj", "out_proj", false},
      {".*(?<=q_)proj", "a.q_proj", true},
      {".*(?<=q_)proj", "a.v_proj", false},
      {"(?:.*?(?:language|text).*?(?:q_proj|v_proj).*?)|(?:\\bmodel\\.layers\\.[\\d]{1,}\\.(?:q_proj))",
       "model.layers.17.q_proj", true},
      {"layers\\.\\d+\\.fc[12]", "layers.30.fc2", true},
      {"layers\\.\\d+\\.fc[12]", "layers..fc2", false},
      {"layers\\.[^13]\\.x", "layers.2.x", true},
      {"layers\\.[^13]\\.x", "layers.3.x", false},
      {"[]a]+", "a]a", true},
      {"[a-c-]+", "a-b", true},
      {"[\\w.]+", "a.b_9", true},
      {"[\\W]", "_", false},
      {"a{2}", "aa", true},
      {"a{2}", "aaa", false},
      {"a{2,}", "aaaa", true},
      {"a{,2}", "aaa", false},
      {"a{1,2}?b", "aab", true},
      {"a{x}", "a{x}", true},
      {"a{}", "a{}", true},
      {"(ab)*c", "ababc", true},
      {"(ab)*c", "abac", false},
      {"a|b|", "", true},
      {"a+?b*?", "aab", true},
      {"(?P<name>a)b", "ab", true},
      {"\\Aa\\Z", "a", true},
      {"a^b", "ab", false},
      {"\\bq\\b.*", "q.x", true},
      {"\\bq\\b.*", "qx", false},
      {"q\\B.*", "qx", true},
      {"\\.\\*\\_", ".*_", true},
      {"(a?){3}a{3}", "aaa", true},
      {"(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", false},
      {"(a|a)*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", false},
      {"(.*)*(.*)*(.*)*x", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaay", false},
  };
  for (const auto& c : cases) {
    CAPTURE(std::string(c.regex));
    CAPTURE(std::string(c.path));
    const result<bool> hit = full_match(c.regex, c.path);
    CAPTURE(std::string(hit.message()));
    REQUIRE(hit);
    CHECK(*hit == c.expected);
  }
}

TEST_CASE("pattern: an unsupported construct is an error with its position") {
  const struct {
    std::string regex;
    const char* expected;
  } cases[] = {
      {"(a", "')' is missing"},
      {"a)", "at character 2: this ')' closes nothing"},
      {"[a", "']' is missing"},
      {"*a", "at character 1: there is nothing to repeat"},
      {"a|+", "there is nothing to repeat"},
      {"{2}a", "there is nothing to repeat"},
      {"a**", "two quantifiers"},
      {"a*+", "two quantifiers"},
      {"a{2}{3}", "two quantifiers"},
      {"a{3,2}", "ends before it begins"},
      {"a{2000}", "larger than 1000"},
      {"a{99999999999999999999}", "larger than 1000"},
      {"(a)\\1", "back references are not supported"},
      {"(?i)a", "this kind of group is not supported"},
      {"(?P=x)", "this kind of group is not supported"},
      {"(?>a)", "this kind of group is not supported"},
      {"\\pL", "the escape \\p is not supported"},
      {"[\\b]", "the escape \\b is not supported"},
      {"a\\", "ends after a backslash"},
      {"[z-a]", "this range of characters"},
      {"[\\d-z]", "this range of characters"},
      {"\xc3\xa9", "only ASCII"},
      {"[\xc3]", "only ASCII"},
      {std::string(40, '(') + std::string(40, ')'), "nested deeper than 32"},
      {std::string(20000, 'a'), "has 20000 characters, expected at most 16384"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.regex.substr(0, 60));
    const result<pattern> p = parse_pattern(c.regex);
    CHECK_FALSE(p);
    CAPTURE(std::string(p.message()));
    CHECK(contains(p.message(), c.expected));
    CHECK(contains(p.message(), "regular expression '"));
  }
  CHECK(contains(full_match("a", std::string(513, 'a')).message(), "expected at most 512"));
  CHECK(*full_match("a*", std::string(512, 'a')));
}

TEST_CASE("pattern: the work is bounded for every pattern") {
  std::string nested = "a?";
  for (int i = 0; i < 30; ++i) nested = "(" + nested + "b){1000}";
  CHECK(full_match(nested, std::string(512, 'b')).message() != nullptr);
  std::string looks;
  for (int i = 0; i < 2000; ++i) looks += "(?<!.*b)";
  CHECK(contains(full_match(".*" + looks, std::string(512, 'a')).message(), "too many steps"));
}
