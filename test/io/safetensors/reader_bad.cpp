// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/safetensors/reader.h>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

result<safetensors> parsed(const std::string& file) { return parse_safetensors(bytes_of(file), "m.safetensors"); }

}  // namespace

TEST_CASE("safetensors: every violation gives one sentence with the file and the expected value") {
  const std::string valid = one("\"F32\"", "[2]", "[0,8]");
  const std::string other_name(10'000'000, 'n');
  const struct {
    std::string file;
    const char* expected;
  } cases[] = {
      {"", "the file has 0 bytes, expected at least 8"},
      {"1234567", "the file has 7 bytes, expected at least 8"},
      {length_prefix(0), "line 1, column 1"},
      {length_prefix(std::uint64_t{1} << 63) + "{}",
       "the header length is 9223372036854775808, expected at most 100000000"},
      {length_prefix(~std::uint64_t{0}) + "{}", "the header length is 18446744073709551615"},
      {"# Graft: adapters as formulas\n\nA library.\n",
       "this is a text that begins with '# Graft: adapters as formulas', expected a safetensors file"},
      {"\n\n<html>\r\n<body>", "this is a text that begins with '<html>', expected a safetensors file"},
      {"        ", "this is a text that begins with ''"},
      {"{\"r\": 8}", "this is a text that begins with '{\"r\": 8}', expected a safetensors file"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
       "this is a pointer of Git LFS, which stands for the file; fetch the file with git lfs pull"},
      {std::string("GGUF\3\0\0\0\0\0\0\0", 12), "this is a GGUF file, expected safetensors"},
      {length_prefix(100'000'001) + "{}", "expected at most 100000000"},
      {length_prefix(10) + "{}", "the header length is 10, expected at most the 2 bytes that follow it"},
      {std::string("\0\0\0\0\0\0\0\2{}", 10), "expected at most 100000000"},
      {"PK\3\4........", "pickle"},
      {"\x80\x02\x8a\nl\xfc\x9c\x46", "pickle"},
      {file_text("{\"\xff\":1}", 0), "ill-formed UTF-8"},
      {file_text("[", 0), "unexpected end of input"},
      {file_text("{", 0), "unexpected end of input"},
      {file_text("[]", 0), "the header must be a JSON object"},
      {file_text("null", 0), "the header must be a JSON object"},
      {file_text(std::string(2'000'000, '['), 0), "nested deeper than 4"},
      {file_text("\xEF\xBB\xBF{}", 0), "byte order mark"},
      {file_text("{} x", 0), "expected end of input"},
      {file_text(std::string("{}\0x", 4), 0), "NUL"},
      {file_text("{\"t\":NaN}", 0), "unexpected 'N', expected a value"},
      {file_text("{\"a\\u0000b\":" + valid.substr(5), 8), "the name holds a NUL"},
      {file_text("{\"\":" + valid.substr(5), 8), "empty name"},
      {file_text("{\"" + other_name + "\":" + one("\"F32\"", "[2]", "[0,4]").substr(5), 4), "expected 8 for shape [2]"},
      {file_text("{\"t\":" + entry("\"U8\"", "[1]", "[0,1]") + ",\"t\":" + entry("\"U8\"", "[1]", "[0,1]") + "}", 1),
       "the key 't' occurs twice"},
      {file_text("{\"t\":" + entry("\"U8\"", "[1]", "[0,1]") + ",\"t\":" + entry("\"U8\"", "[1]", "[1,2]") + "}", 2),
       "the key 't' occurs twice"},
      {file_text("{\"__metadata__\":{\"a\":1}}", 0), "__metadata__ 'a' must be a string"},
      {file_text("{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0), "__metadata__ 'a' must be a string"},
      {file_text("{\"__metadata__\":[]}", 0), "__metadata__ must be an object of strings"},
      {file_text("{\"__metadata__\":" + valid.substr(5), 8), "must be a string"},
      {file_text("{\"t\":5}", 0), "tensor 't': expected an object"},
      {file_text("{\"t\":{\"shape\":[],\"data_offsets\":[0,0]}}", 0), "the key 'dtype' is missing"},
      {file_text("{\"t\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0), "the key 'shape' is missing"},
      {file_text("{\"t\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0), "the key 'data_offsets' is missing"},
      {file_text(one("\"F33\"", "[2]", "[0,8]"), 8), "tensor 't': unknown dtype 'F33'"},
      {file_text(one("\"f32\"", "[2]", "[0,8]"), 8), "unknown dtype 'f32'"},
      {file_text(one("32", "[2]", "[0,8]"), 8), "dtype is not a string"},
      {file_text(one("\"F32\"", "[-1]", "[0,8]"), 8), "shape must be a list of integers"},
      {file_text(one("\"F32\"", "[1.5]", "[0,8]"), 8), "shape must be a list of integers"},
      {file_text(one("\"F32\"", "[1e3]", "[0,4000]"), 4000), "shape must be a list of integers"},
      {file_text(one("\"F32\"", "[\"2\"]", "[0,8]"), 8), "shape must be a list of integers"},
      {file_text(one("\"F32\"", "2", "[0,8]"), 8), "shape must be a list of integers"},
      {file_text(one("\"F32\"", "[18446744073709551616]", "[0,8]"), 8), "shape must be a list of integers"},
      {file_text(one("\"U8\"", "[9223372036854775808]", "[0,8]"), 8), "overflows"},
      {file_text(one("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0), "overflows"},
      {file_text(one("\"F32\"", "[9223372036854775808,0]", "[0,0]"), 0), "overflows"},
      {file_text(one("\"F32\"", "[0,4294967296,4294967296]", "[0,0]"), 0), "overflows"},
      {file_text(one("\"F4\"", "[3]", "[0,1]"), 1), "not a whole number of bytes"},
      {file_text(one("\"F32\"", "[2]", "[8,0]"), 8), "data_offsets [8, 0) end before they begin"},
      {file_text(one("\"F32\"", "[2]", "[0,8,8]"), 8), "data_offsets must be two integers"},
      {file_text(one("\"F32\"", "[2]", "[-8,0]"), 8), "data_offsets must be two integers"},
      {file_text(one("\"F32\"", "[2]", "[0.0,8.0]"), 8), "data_offsets must be two integers"},
      {file_text(one("\"F32\"", "[2]", "[0,7]"), 7), "hold 7 bytes, expected 8 for shape [2] of F32"},
      {file_text(one("\"F32\"", "[2]", "[4,12]"), 12), "data_offsets begin at 4, expected 0"},
      {file_text(two("[0,4]", "[2,6]"), 6), "tensor 'b': data_offsets begin at 2, expected 4"},
      {file_text(two("[0,4]", "[0,4]"), 4), "data_offsets begin at 0, expected 4"},
      {file_text(two("[0,4]", "[5,9]"), 9), "data_offsets begin at 5, expected 4"},
      {file_text(valid, 7), "data_offsets end at 8, expected at most the 7 bytes"},
      {file_text(valid, 0), "data_offsets end at 8"},
      {file_text(valid, 9), "the file holds 9 bytes of data, expected the 8 bytes"},
      {file_text(valid, 8) + "PK\3\4", "the file holds 12 bytes of data"},
      {file_text("{}", 1), "the file holds 1 bytes of data, expected the 0 bytes"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.file.substr(0, 120));
    const auto f = parsed(c.file);
    CHECK_FALSE(f);
    CAPTURE(std::string(f.message()));
    CHECK(contains(f.message(), c.expected));
    CHECK(std::string_view(f.message()).starts_with("m.safetensors"));
    CHECK(std::string_view(f.message()).size() < 800);
  }
}

TEST_CASE("safetensors: a hundred thousand tensors over one region are refused quickly") {
  std::string header = "{";
  for (int i = 0; i < 100000; ++i)
    header += (i == 0 ? "\"t" : ",\"t") + std::to_string(i) + "\":" + entry("\"U8\"", "[64]", "[0,64]");
  CHECK(contains(parsed(file_text(header + "}", 64)).message(), "no overlaps"));
}

TEST_CASE("safetensors: every truncation of a valid file is refused") {
  const std::string valid = file_text(one("\"F32\"", "[2]", "[0,8]"), 8);
  for (std::size_t n = 0; n < valid.size(); ++n) CHECK_FALSE(parsed(valid.substr(0, n)));
}
