// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/safetensors/bind.h>
#include <graft/io/safetensors/writer.h>
#include <sys/stat.h>

#include "support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

TEST_CASE("mapped: the mapped bytes equal those of a read, also after the file is replaced or deleted") {
  temp_folder dir;
  for (const std::string& content : {std::string(), std::string("abc"), std::string(3 << 20, 'x')}) {
    REQUIRE(write_file(dir.path / "f", bytes_of(content)));
    const auto mapped = map_bytes(dir.path / "f");
    REQUIRE(mapped);
    REQUIRE(write_file(dir.path / "f", bytes_of("other")));
    std::filesystem::remove(dir.path / "f");
    const owned_bytes copy = *mapped;
    CHECK(std::string_view(reinterpret_cast<const char*>(copy.all.data()), copy.all.size()) == content);
  }
}

TEST_CASE("mapped: anything but a readable regular file is refused with its name") {
  temp_folder dir;
  CHECK(contains(map_bytes(dir.path).message(), "this is a directory"));
  CHECK(contains(map_bytes(dir.path / "none").message(), "there is no such file"));
  CHECK(contains(map_bytes("/dev/zero").message(), "expected a regular file"));
  REQUIRE(::mkfifo((dir.path / "fifo").c_str(), 0600) == 0);
  CHECK(contains(map_bytes(dir.path / "fifo").message(), "FIFO"));
}

TEST_CASE("mapped: tensors are views into the file, with type and sizes") {
  temp_folder dir;
  const std::vector<std::byte> raw(48, std::byte{1});
  const std::span<const std::byte> all(raw);
  const std::vector<tensor_view> tensors{{"h", io::safetensors_type::f16, {2, 3}, all.first(12)},
                                         {"b", io::safetensors_type::bf16, {4}, all.first(8)},
                                         {"f", io::safetensors_type::f32, {1, 2, 1, 2}, all.first(16)},
                                         {"deep", io::safetensors_type::f32, {1, 1, 1, 1, 1}, all.first(4)},
                                         {"codes", io::safetensors_type::u8, {4}, all.first(4)}};
  const std::string path = dir.path / "m.safetensors";
  REQUIRE(write_safetensors(path, tensors));
  const auto file = map_safetensors(path);
  REQUIRE(file);
  const auto h = bind_in_place(*file->find("h"), path), f = bind_in_place(*file->find("f"), path);
  REQUIRE(h);
  REQUIRE(f);
  CHECK(h->data == file->find("h")->data.data());
  CHECK(h->type == graft::dtype::f16);
  CHECK(h->rank == 2);
  CHECK(h->size[1] == 3);
  CHECK(f->count() == 4);
  CHECK(bind_in_place(*file->find("b"), path)->type == graft::dtype::bf16);
  CHECK(contains(bind_in_place(*file->find("deep"), path).message(), "tensor 'deep' has shape [1, 1, 1, 1, 1]"));
  CHECK(contains(bind_in_place(*file->find("codes"), path).message(), "tensor 'codes' is U8"));
  tensor_view shifted = *file->find("f");
  shifted.data = std::span(shifted.data.data() + 2, 16);
  CHECK(contains(bind_in_place(shifted, path).message(), "does not begin at a multiple of its element's 4 bytes"));
}
