// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/json/json.h>

#include <nlohmann/json.hpp>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

std::string as_written(const json& v) {
  if (v.is_null()) return "null";
  if (v.is_boolean()) return v.flag ? "true" : "false";
  if (v.is_number()) return v.word;
  if (v.is_string()) return json_text(v.word);
  std::string out(1, v.is_list() ? '[' : '{');
  for (std::size_t i = 0; i < v.items.size(); ++i)
    out += (i == 0 ? "" : ",") + (v.is_object() ? json_text(v.keys[i]) + ":" : "") + as_written(v.items[i]);
  return out += v.is_list() ? ']' : '}';
}
// True if both parsers read the same value, with equal numbers.
bool same(const json& v, const nlohmann::ordered_json& n) {
  if (v.is_number()) {
    if (!n.is_number() || v.is_unsigned() != n.is_number_unsigned() || v.real != n.get<double>()) return false;
    return !v.is_unsigned() || v.whole == n.get<std::uint64_t>();
  }
  if (v.is_string()) return n.is_string() && n.get_ref<const std::string&>() == v.word;
  if (v.is_boolean()) return n.is_boolean() && n.get<bool>() == v.flag;
  if (v.is_null()) return n.is_null();
  if (v.is_list() != n.is_array() || v.is_object() != n.is_object() || v.items.size() != n.size()) return false;
  std::size_t i = 0;
  for (const auto& [key, value] : n.items()) {
    if (v.is_object() && v.keys[i] != key) return false;
    if (!same(v.items[i++], value)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("json: values have their exact kinds") {
  const auto v =
      parse_json(R"( {"a": [1, -2, 2.5, 18446744073709551615, true, null, "é\u0041"], "b": {}, "c": []} )", "f");
  REQUIRE(v);
  const std::vector<json>& a = v->find("a")->items;
  REQUIRE(a.size() == 7);
  CHECK((a[0].is_unsigned() && a[0].whole == 1 && a[0].real == 1));
  CHECK((a[1].what == json::kind::negative && a[1].real == -2));
  CHECK((a[2].what == json::kind::real && a[2].real == 2.5));
  CHECK((a[3].is_unsigned() && a[3].whole == 18446744073709551615ULL));
  CHECK((a[4].is_boolean() && a[4].flag));
  CHECK(a[5].is_null());
  CHECK(a[6].says("éA"));
  CHECK((v->find("b")->is_object() && v->find("b")->items.empty()));
  CHECK(v->find("c")->is_list());
  CHECK(v->find("d") == nullptr);
  CHECK(parse_json("7", "f")->whole == 7);
  CHECK(parse_json("18446744073709551616", "f")->what == json::kind::real);
}

TEST_CASE("json: keys are in the order of the text") {
  const auto v = parse_json(R"({"z": {"y": 1, "b": 2}, "a": [{"q": 1, "c": 2}]})", "f");
  REQUIRE(v);
  CHECK(as_written(*v) == R"({"z":{"y":1,"b":2},"a":[{"q":1,"c":2}]})");
}

TEST_CASE("json: every invalid text is an error that names file, line and column") {
  const struct {
    std::string input;
    const char* expected;
  } cases[] = {
      {"", "f: line 1, column 1"},
      {" ", "unexpected end of input"},
      {"{", "unexpected end of input"},
      {"[1, 2", "f: line 1, column 6: unexpected end of input, expected ',' or ']'"},
      {"{\n \"a\": 1,\n \"a\": 2}", "f: line 3, column 4 (last key 'a'): the key 'a' occurs twice"},
      {R"({"x": {"b": 1, "c": 2, "b": 3}})", "the key 'b' occurs twice"},
      {R"({"a": 1, "\u0061": 2})", "the key 'a' occurs twice"},
      {R"({"lora_alpha": NaN})", "(last key 'lora_alpha')"},
      {"Infinity", "f: line 1, column 1: unexpected 'I', expected a value"},
      {"nil", "invalid literal"},
      {"-Infinity", "f: line 1"},
      {"1e999", "the number 1e999 does not fit a double"},
      {"{} x", "expected end of input"},
      {"{}{}", "expected end of input"},
      {std::string("{}\0", 3), "f: line 1, column 3: a NUL character"},
      {std::string("{\n}\0{", 5), "f: line 2, column 2: a NUL character"},
      {std::string("\"a\0b\"", 5), "f: line 1, column 3: a NUL character"},
      {"\xEF\xBB\xBF{}", "byte order mark"},
      {"\"\xff\"", "ill-formed UTF-8"},
      {"\"\xc0\xaf\"", "ill-formed UTF-8"},
      {"\"\xed\xa0\x80\"", "ill-formed UTF-8"},
      {"\"\\ud800\"", "surrogate"},
      {"[1,]", "f: line 1, column 4"},
      {"{'a': 1}", "f: line 1, column 2"},
      {"// no\n1", "f: line 1"},
      {"\"\n\"", "control character"},
      {"01", "f: line 1, column 2"},
      {std::string(65, '[') + std::string(65, ']'), "column 65: nested deeper than 64"},
      {std::string(2'000'000, '['), "nested deeper than 64"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.input.substr(0, 60));
    const auto v = parse_json(c.input, "f");
    CHECK_FALSE(v);
    CAPTURE(std::string(v.message()));
    CHECK(contains(v.message(), c.expected));
  }
}

TEST_CASE("json: the maximum depth is a parameter") {
  CHECK(parse_json(std::string(64, '[') + std::string(64, ']'), "f"));
  CHECK(parse_json("[[1]]", "f", 2));
  CHECK_FALSE(parse_json("[[[1]]]", "f", 2));
}

TEST_CASE("json: a hundred thousand keys are parsed in less than quadratic time") {
  std::string s = "{";
  for (int i = 0; i < 100000; ++i) s += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":1";
  s += "}";
  CHECK(parse_json(s, "f")->keys.size() == 100000);
}

TEST_CASE("json: from a file") {
  temp_folder dir;
  REQUIRE(write_file(dir.path / "a.json", bytes_of("{\"a\": 1}")));
  CHECK(read_json(dir.path / "a.json")->find("a")->whole == 1);
  CHECK(contains(read_json(dir.path / "b.json").message(), "no such file"));
  CHECK(contains(read_json(dir.path / "a.json", 3).message(), "expected at most 3"));
}

// Texts that are nearly JSON, compared with a widely used parser. That parser accepts equal keys and skips a byte order
// mark; here both are errors.
TEST_CASE("json: accepts what nlohmann-json accepts, with the same values") {
  const std::string good[] = {
      R"({"r": 16, "lora_alpha": 3.25e-2, "target_modules": ["q_proj", "v\u00e9\ud83d\ude00\n"], "bias": null, "x": {}})",
      R"([true, false, null, -0, 0, 1E+3, -12.5e-7, 9223372036854775808, -9223372036854775808, "", [[[]]], {"a": {"b": 1}}])",
      "\t{\r\n \"k\\t\\\\\": \"\\\"/\\/\" , \"é\":[ 1 ,2 ] } \n",
  };
  std::mt19937 engine(7);
  const std::string letters = "{}[]:,\"\\u0189eE+-.truefalsn \n\xc3\xa9\xed\x01";
  int accepted = 0, refused = 0;
  for (const std::string& text : good)
    for (int i = 0; i < 20000; ++i) {
      std::string s = text;
      for (auto k = i == 0 ? 0 : 1 + engine() % 3; k > 0; --k) {
        const std::size_t at = engine() % (s.size() + 1);
        const char c = letters[engine() % letters.size()];
        switch (engine() % 3) {
          case 0: s.insert(at, 1, c); break;
          case 1: s.erase(at, 1 + engine() % 4); break;
          default: s.replace(at, 1, 1, c); break;
        }
      }
      const auto ours = parse_json(s, "f");
      const auto theirs = nlohmann::ordered_json::parse(s, nullptr, false);
      const bool twice = !ours && std::string_view(ours.message()).find("occurs twice") != std::string_view::npos;
      CAPTURE(s);
      CAPTURE(std::string(ours.message()));
      if (!twice) REQUIRE(bool(ours) == !theirs.is_discarded());
      if (ours) REQUIRE(same(*ours, theirs));
      (ours ? accepted : refused) += 1;
    }
  CHECK(accepted > 5000);
  CHECK(refused > 5000);
}
