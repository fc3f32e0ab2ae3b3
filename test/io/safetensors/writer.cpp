// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/json/json.h>
#include <graft/io/safetensors/writer.h>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

TEST_CASE("safetensors_write: the layout equals that of the reference") {
  const std::vector<std::byte> raw(64, std::byte{3});
  const std::span<const std::byte> all(raw);
  const std::vector<tensor_view> tensors{{"z", io::safetensors_type::u8, {3}, all.first(3)},
                                         {"b", io::safetensors_type::f32, {1, 2}, all.first(8)},
                                         {"a\"\n", io::safetensors_type::f32, {}, all.first(4)},
                                         {"m", io::safetensors_type::i64, {0, 5}, {}}};
  const auto packed = pack_safetensors(tensors);
  REQUIRE(packed);
  const std::string_view s = as_chars(*packed);
  const std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"},\"m\":{\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[0,0]},"
      "\"a\\\"\\n\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
      "\"b\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[4,12]},"
      "\"z\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[12,15]}}";
  std::uint64_t n = 0;
  std::memcpy(&n, s.data(), 8);
  CHECK(n % 8 == 0);
  CHECK(s.substr(8, header.size()) == header);
  CHECK(s.substr(8 + header.size(), n - header.size()) == std::string(n - header.size(), ' '));
  CHECK(s.size() == 8 + n + 15);
}

TEST_CASE("safetensors_write: round trip through a file is exact, for every type") {
  temp_folder dir;
  std::vector<std::byte> raw(1000);
  for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<std::byte>(i * 37 + 11);
  std::vector<tensor_view> tensors;
  for (int k = 0; k < static_cast<int>(std::size(safetensors_types)); ++k) {
    const io::safetensors_type type = static_cast<io::safetensors_type>(k);
    const std::vector<std::uint64_t> shape{2, 4};
    tensors.push_back({std::string("t.") + name_of(type), type, shape,
                       std::span<const std::byte>(raw).subspan(static_cast<std::size_t>(k), *byte_count(type, shape))});
  }
  const metadata_map metadata{{"format", "pt"}, {"ü", "\"quoted\"\n"}};
  REQUIRE(write_safetensors(dir.path / "m.safetensors", tensors, metadata));
  const auto back = read_safetensors(dir.path / "m.safetensors");
  REQUIRE(back);
  CHECK(back->metadata == metadata);
  CHECK(back->tensors.size() == tensors.size());
  for (const tensor_view& t : tensors) {
    const auto b = back->find(t.name);
    REQUIRE(b);
    CHECK(b->type == t.type);
    CHECK(b->shape == t.shape);
    CHECK(std::equal(b->data.begin(), b->data.end(), t.data.begin(), t.data.end()));
  }
  const auto again = pack_safetensors(back->tensors, back->metadata);
  REQUIRE(again);
  CHECK(as_chars(*again) == as_chars(back->bytes.all));
}

TEST_CASE("safetensors_write: a file without tensors is valid") {
  const auto packed = pack_safetensors({}, {});
  REQUIRE(packed);
  CHECK(as_chars(*packed).substr(8) == "{}      ");
  CHECK(parse_safetensors(*packed, "f"));
}

TEST_CASE("safetensors_write: files of the reference are reproduced byte for byte") {
  int files = 0;
  for (const auto& e : std::filesystem::recursive_directory_iterator(GRAFT_GOLDEN_DIR "/layers")) {
    if (e.path().extension() != ".safetensors") continue;
    CAPTURE(e.path().string());
    const auto f = read_safetensors(e.path());
    REQUIRE(f);
    const auto packed = pack_safetensors(f->tensors, f->metadata);
    REQUIRE(packed);
    CHECK(as_chars(*packed) == as_chars(f->bytes.all));
    ++files;
  }
  CHECK(files > 0);
}

TEST_CASE("safetensors_write: an invalid tensor is refused and the old file stays") {
  temp_folder dir;
  const auto path = dir.path / "m.safetensors";
  const std::vector<std::byte> raw(16);
  const std::span<const std::byte> all(raw);
  const tensor_view good{"t", io::safetensors_type::f32, {2}, all.first(8)};
  REQUIRE(write_safetensors(path, std::span(&good, 1)));
  const auto before = read_file(path);
  const struct {
    std::vector<tensor_view> tensors;
    const char* expected;
  } cases[] = {
      {{good, good}, "two tensors are called 't'"},
      {{{"t", io::safetensors_type::f32, {2}, all.first(7)}},
       "tensor 't' has 7 bytes, expected 8 for shape [2] of F32"},
      {{{"t", io::safetensors_type::f4, {3}, all.first(2)}}, "expected a size that fits"},
      {{{"t", io::safetensors_type::f32, {std::uint64_t{1} << 63, 4}, {}}}, "expected a size that fits"},
      {{{"__metadata__", io::safetensors_type::f32, {2}, all.first(8)}}, "no tensor may be called __metadata__"},
      {{{"", io::safetensors_type::f32, {2}, all.first(8)}}, "empty name"},
      {{{std::string("a\0b", 3), io::safetensors_type::f32, {2}, all.first(8)}}, "NUL"},
      {{{"\xff", io::safetensors_type::f32, {2}, all.first(8)}}, "tensor '\\xff': the name is not UTF-8"},
  };
  for (const auto& c : cases) {
    const status s = write_safetensors(path, c.tensors);
    CHECK_FALSE(s);
    CAPTURE(std::string(s.message()));
    CHECK(contains(s.message(), c.expected));
    CHECK(*read_file(path) == *before);
    CHECK(dir.files() == 1);
  }
  CHECK(contains(write_safetensors(path, std::span(&good, 1), {{"k", "\xc3"}}).message(), "metadata 'k' is not UTF-8"));
}
