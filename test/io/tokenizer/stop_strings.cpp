// SPDX-License-Identifier: Apache-2.0
// Stop strings: however a text is cut into pieces, what is shown is the text before the first stop string.
#include <doctest/doctest.h>
#include <graft/io/tokenizer/stop_strings.h>

using graft::io::hf::stop_strings;

namespace {

struct outcome {
  std::string shown;
  bool found = false;
  bool operator==(const outcome&) const = default;
};
outcome fed(const std::string& text, const std::vector<std::string>& stops, std::size_t piece) {
  stop_strings s(stops);
  outcome out;
  for (std::size_t at = 0; at < text.size() && !s.found(); at += piece) out.shown += s.feed(text.substr(at, piece));
  out.found = s.found();
  out.shown += s.finish();
  return out;
}

}  // namespace

TEST_CASE("stop strings: the text ends before the first one, in pieces of any size") {
  for (std::size_t piece = 1; piece < 12; ++piece) {
    INFO(piece);
    CHECK(fed("one two three", {"two"}, piece) == outcome{"one ", true});
    CHECK(fed("one two three", {"three", "two"}, piece) == outcome{"one ", true});
    CHECK(fed("one two three", {"four"}, piece) == outcome{"one two three", false});
    CHECK(fed("aaab", {"aab"}, piece) == outcome{"a", true});
    CHECK(fed("aab aa", {"aaa"}, piece) == outcome{"aab aa", false});
    CHECK(fed("x\n\ny", {"\n\n"}, piece) == outcome{"x", true});
    CHECK(fed("text", {}, piece) == outcome{"text", false});
    CHECK(fed("text", {""}, piece) == outcome{"text", false});
    CHECK(fed("stop", {"stop"}, piece) == outcome{"", true});
  }
}
TEST_CASE("stop strings: only what may begin one is held back") {
  stop_strings s({"END"});
  CHECK(s.feed("some E") == "some ");
  CHECK(s.feed("x") == "Ex");
  CHECK(s.feed("EN") == "");
  CHECK(s.feed("D and more") == "");
  CHECK(s.found());
  CHECK(s.feed("more") == "");
  CHECK(s.finish() == "");
}
