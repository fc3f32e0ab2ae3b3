// SPDX-License-Identifier: Apache-2.0
// What a request may ask of its text: stop strings, JSON objects, log probabilities.
#include <doctest/doctest.h>
#include <graft/model/serving/json_object_prefix.h>
#include <graft/model/serving/stop_strings.h>
#include <graft/model/serving/token_logprobs.h>

using namespace graft::serving;

namespace {

// The text that is released when a text comes in pieces of n bytes.
std::pair<std::string, bool> released(std::vector<std::string> stops, const std::string& text, std::size_t n) {
  stop_strings s(std::move(stops));
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += n) {
    const auto fed = s.feed(std::string_view(text).substr(at, n));
    out += fed.text;
    if (fed.stopped) return {out, true};
  }
  return {out + s.finish(), false};
}
bool begins(const std::string& text) {
  json_object_prefix p;
  return p.feed(text);
}
bool is_object(const std::string& text) {
  json_object_prefix p;
  return p.feed(text) && p.complete();
}

}  // namespace

TEST_CASE("stop_strings: the text in front of the first one, however it is divided") {
  for (std::size_t n = 1; n < 20; ++n) {
    CAPTURE(n);
    CHECK(released({"END"}, "one EN two END three", n) == std::pair(std::string("one EN two "), true));
    CHECK(released({"END"}, "one EN", n) == std::pair(std::string("one EN"), false));
    CHECK(released({"abab"}, "aababab", n) == std::pair(std::string("a"), true));
    CHECK(released({"\n\n", "x"}, "a\nb\n\nx", n) == std::pair(std::string("a\nb"), true));
    CHECK(released({}, "all of it", n) == std::pair(std::string("all of it"), false));
    CHECK(released({""}, "all of it", n) == std::pair(std::string("all of it"), false));
    CHECK(released({"three", "two"}, "one two three", n) == std::pair(std::string("one "), true));
    CHECK(released({"aab"}, "aaab", n) == std::pair(std::string("a"), true));
    CHECK(released({"aaa"}, "aab aa", n) == std::pair(std::string("aab aa"), false));
    CHECK(released({"stop"}, "stop", n) == std::pair(std::string(), true));
  }
}

TEST_CASE("stop_strings: text is held back only while a stop string may begin in it") {
  stop_strings s({"abc"});
  CHECK(s.feed("xa").text == "x");
  CHECK(s.feed("b").text.empty());
  CHECK(s.feed("a").text == "ab");
  CHECK(s.finish() == "a");
}

TEST_CASE("json_object_prefix: every prefix of an object begins one, and only the whole is complete") {
  const std::string objects[] = {
      "{}", "{ \"a\" : [ 1 , -2.5e+3, 0, 0.25, 1E5, true, false, null, \"x\", [], {} ] ,\n \"b\": { \"c\": \"\" } }",
      "{\"\\u00e9\\\\\\\"\\n\":\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"}"};
  for (const std::string& text : objects)
    for (std::size_t n = 0; n <= text.size(); ++n) {
      CAPTURE(text.substr(0, n));
      CHECK(begins(text.substr(0, n)));
      CHECK(is_object(text.substr(0, n)) == (n == text.size()));
    }
}

TEST_CASE("json_object_prefix: what begins no object is refused") {
  for (const char* text : {"[",
                           " {",
                           "1",
                           "{,",
                           "{1",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{\"a\":1,}",
                           "{\"a\":[1,]",
                           "{\"a\":01",
                           "{\"a\":1.}",
                           "{\"a\":.5",
                           "{\"a\":+1",
                           "{\"a\":1e}",
                           "{\"a\":-}",
                           "{\"a\":tru}",
                           "{\"a\":nul1",
                           "{\"a\":1]",
                           "{\"a\":[1}",
                           "{\"a\n",
                           "{\"\\x",
                           "{\"\\u12g",
                           "{\"a\":\"\xff",
                           "{\"a\":\"\xc0\x80",
                           "{\"a\":\"\xed\xa0\x80",
                           "{\"a\":\"\xe2\x82\"",
                           "{}}",
                           "{} ",
                           "{\"a\" 1"}) {
    CAPTURE(text);
    CHECK_FALSE(begins(text));
  }
}

TEST_CASE("json_object_prefix: nesting and white space are bounded") {
  std::string deep = "{\"a\":";
  for (int i = 1; i < json_object_prefix::max_depth; ++i) deep += "[";
  CHECK(begins(deep));
  CHECK_FALSE(begins(deep + "["));
  CHECK_FALSE(begins(deep + "{"));
  const std::string spaces(json_object_prefix::max_spaces, ' ');
  CHECK(begins("{" + spaces + "\"a\":" + spaces));
  CHECK_FALSE(begins("{" + spaces + " "));
  CHECK_FALSE(begins("{\"a\":1" + spaces + " "));
}

TEST_CASE("logprobs: of the most likely tokens, of equals the lowest first") {
  const std::vector<float> logits{1, 3, 2, 3};
  const double sum = log_sum_exp(logits);
  CHECK(sum == doctest::Approx(std::log(std::exp(1.0) + std::exp(2.0) + 2 * std::exp(3.0))));
  const auto top = top_logprobs(logits, sum, 3);
  REQUIRE(top.size() == 3);
  CHECK(top[0].token == 1);
  CHECK(top[1].token == 3);
  CHECK(top[2].token == 2);
  CHECK(top[2].logprob == doctest::Approx(2 - sum));
  CHECK(top_logprobs(logits, sum, 9).size() == 4);
  CHECK(top_logprobs(logits, sum, 0).empty());
}
