// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/json.h>

#include "support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

TEST_CASE("json: values arrive with their exact kinds") {
  const auto v =
      parse_json(R"( {"a": [1, -2, 2.5, 18446744073709551615, true, null, "é\u0041"], "b": {}, "c": []} )", "f");
  REQUIRE(v);
  CHECK((*v)["a"][0].is_number_unsigned());
  CHECK((*v)["a"][1] == -2);
  CHECK((*v)["a"][2] == 2.5);
  CHECK((*v)["a"][3] == 18446744073709551615ULL);
  CHECK((*v)["a"][6] == "éA");
  CHECK((*v)["b"].empty());
  CHECK((*v)["c"].is_array());
  CHECK(*parse_json("7", "f") == 7);
}

TEST_CASE("json: order of the keys is kept when asked for") {
  const auto v = parse_json_as<nlohmann::ordered_json>(R"({"z": {"y": 1, "b": 2}, "a": [{"q": 1, "c": 2}]})", "f");
  REQUIRE(v);
  CHECK(v->dump() == R"({"z":{"y":1,"b":2},"a":[{"q":1,"c":2}]})");
}

TEST_CASE("json: every bad text is an error that names file, line and column") {
  const struct {
    std::string input;
    const char* expected;
  } cases[] = {
      {"", "f: line 1, column 1"},
      {" ", "unexpected end of input"},
      {"{", "unexpected end of input"},
      {"[1, 2", "f: line 1, column 5"},
      {"{\n \"a\": 1,\n \"a\": 2}", "f: line 3, column 4 (last key 'a'): the key 'a' occurs twice"},
      {R"({"x": {"b": 1, "c": 2, "b": 3}})", "the key 'b' occurs twice"},
      {R"({"a": 1, "\u0061": 2})", "the key 'a' occurs twice"},
      {R"({"lora_alpha": NaN})", "(last key 'lora_alpha')"},
      {"Infinity", "invalid literal"},
      {"-Infinity", "f: line 1"},
      {"1e999", "number overflow"},
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
    CHECK_FALSE(parse_json_as<nlohmann::ordered_json>(c.input, "f"));
  }
}

TEST_CASE("json: depth is a parameter") {
  CHECK(parse_json(std::string(64, '[') + std::string(64, ']'), "f"));
  CHECK(parse_json("[[1]]", "f", 2));
  CHECK_FALSE(parse_json("[[[1]]]", "f", 2));
}

TEST_CASE("json: a hundred thousand keys take no quadratic time, in either order") {
  std::string s = "{";
  for (int i = 0; i < 100000; ++i) s += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":1";
  s += "}";
  CHECK(parse_json_as<nlohmann::ordered_json>(s, "f")->size() == 100000);
  CHECK(parse_json(s, "f")->size() == 100000);
}

TEST_CASE("json: from a file") {
  temp_folder dir;
  REQUIRE(write_file(dir.path / "a.json", bytes_of("{\"a\": 1}")));
  CHECK((*read_json(dir.path / "a.json"))["a"] == 1);
  CHECK(contains(read_json(dir.path / "b.json").message(), "no such file"));
  CHECK(contains(read_json(dir.path / "a.json", 3).message(), "expected at most 3"));
}
