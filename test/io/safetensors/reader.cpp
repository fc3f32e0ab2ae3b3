// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/safetensors/reader.h>
#include <sys/stat.h>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

result<safetensors> parsed(const std::string& file) { return parse_safetensors(bytes_of(file), "m.safetensors"); }

}  // namespace

TEST_CASE("safetensors: names, shapes, bytes and metadata") {
  const auto f = parsed(file_text("{\"__metadata__\":{\"format\":\"pt\"},\"b\":" + entry("\"F32\"", "[2,1]", "[0,8]") +
                                      ",\"a\":" + entry("\"BOOL\"", "[3]", "[8,11]") + "}",
                                  11));
  REQUIRE(f);
  CHECK(f->metadata == metadata_map{{"format", "pt"}});
  CHECK(f->file == "m.safetensors");
  std::string order;
  for (const tensor_view& t : *f) order += t.name;
  CHECK(order == "ab");
  const auto b = f->find("b");
  REQUIRE(b);
  CHECK(b->type == io::safetensors_type::f32);
  CHECK(b->shape == std::vector<std::uint64_t>{2, 1});
  CHECK(b->data.size() == 8);
  CHECK(f->get("a")->data.data() == b->data.data() + 8);
  CHECK(f->get("c") == nullptr);
  CHECK(contains(f->find("c").message(), "m.safetensors: there is no tensor 'c'"));
}

TEST_CASE("safetensors: a misspelled name gets a suggestion") {
  const auto f = parsed(file_text("{\"lin.lora_A.weight\":" + entry("\"U8\"", "[4]", "[0,4]") + "}", 4));
  REQUIRE(f);
  CHECK(contains(f->find("lin.lora_a.weight").message(), "of this file; did you mean 'lin.lora_A.weight'?"));
  CHECK(contains(f->find("model.lin.lora_A.weight").message(), "did you mean 'lin.lora_A.weight'?"));
  CHECK(!contains(f->find("lin.bias").message(), "did you mean"));
}

TEST_CASE("safetensors: views stay valid while a copy of the file object exists") {
  safetensors kept;
  {
    auto f = parsed(file_text(one("\"U8\"", "[4]", "[0,4]"), 4));
    kept = *f;
    f->tensors.clear();
  }
  CHECK(kept.find("t")->data[3] == std::byte{1});
}

TEST_CASE("safetensors: unusual files that the reference accepts are accepted") {
  const struct {
    std::string header;
    std::size_t data;
    std::size_t tensors;
  } cases[] = {
      {"{}", 0, 0},
      {"{}      ", 0, 0},
      {" \n\t{}", 0, 0},
      {"  " + one("\"F32\"", "[]", "[0,4]") + "  ", 4, 1},
      {one("\"F32\"", "[2,0]", "[0,0]"), 0, 1},
      {one("\"F64\"", "[0]", "[0,0]"), 0, 1},
      {one("\"F4\"", "[2]", "[0,1]"), 1, 1},
      {one("\"F6_E2M3\"", "[4]", "[0,3]"), 3, 1},
      {"{\"__metadata__\":{}," + one("\"U8\"", "[4]", "[0,4]").substr(1), 4, 1},
      {"{\"a\":" + entry("\"U8\"", "[1]", "[0,1]") + ",\"b\":" + entry("\"F32\"", "[1]", "[1,5]") + "}", 5, 2},
      {two("[4,8]", "[0,4]"), 8, 2},
      {"{\"ü\":" + entry("\"U8\"", "[1]", "[0,1]") + "}", 1, 1},
      {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"later\":true}}", 1, 1},
      {one("\"U8\"",
           ("[1" +
            [] {
              std::string s;
              for (int i = 0; i < 299; ++i) s += ",1";
              return s + "]";
            }())
               .c_str(),
           "[0,1]"),
       1, 1},
  };
  for (const auto& c : cases) {
    CAPTURE(c.header.substr(0, 100));
    const auto f = parsed(file_text(c.header, c.data));
    CAPTURE(std::string(f.message()));
    CHECK(f);
    if (f) CHECK(f->tensors.size() == c.tensors);
  }
}

TEST_CASE("safetensors: paths that are no readable file") {
  temp_folder dir;
  CHECK(contains(read_safetensors(dir.path).message(), "directory"));
  CHECK(contains(read_safetensors(dir.path / "none").message(), "no such file"));
  CHECK(contains(read_safetensors("/dev/zero").message(), "expected a regular file"));
  REQUIRE(::mkfifo((dir.path / "fifo").c_str(), 0600) == 0);
  CHECK(contains(read_safetensors(dir.path / "fifo").message(), "expected a regular file"));
}

TEST_CASE("safetensors: mutations of a valid file never crash and never give a view outside the file") {
  const std::string valid = file_text("{\"__metadata__\":{\"k\":\"v\"},\"a\":" + entry("\"F32\"", "[2,2]", "[0,16]") +
                                          ",\"b\":" + entry("\"BF16\"", "[3]", "[16,22]") + "}",
                                      22);
  REQUIRE(parsed(valid));
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return random() % n; };
  int accepted = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string s = valid;
    for (std::size_t k = 0, n = 1 + below(3); k < n; ++k) {
      const std::size_t at = below(s.size());
      switch (below(5)) {
        case 0: s[at] = static_cast<char>(random()); break;
        case 1: s[at] = static_cast<char>(s[at] ^ (1 << below(8))); break;
        case 2: s.resize(at + 1); break;
        case 3: s.insert(at, 1, "{}[]\",:0123456789eE-. "[below(22)]); break;
        default: s.erase(at, 1 + below(4)); break;
      }
      if (s.empty()) s.push_back('x');
    }
    const auto f = parsed(s);
    if (!f) {
      CHECK(f.message()[0] != '\0');
      continue;
    }
    ++accepted;
    std::size_t total = 0;
    for (const tensor_view& t : *f) {
      const std::byte *first = f->bytes.all.data(), *last = first + f->bytes.all.size();
      CHECK((t.data.empty() || (t.data.data() >= first && t.data.data() + t.data.size() <= last)));
      CHECK(byte_count(t.type, t.shape) == t.data.size());
      total += t.data.size();
    }
    CHECK(total < s.size());
  }
  CHECK(accepted > 0);
}
