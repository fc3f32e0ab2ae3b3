// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/hf/shards.h>
#include <graft/io/safetensors/bind.h>
#include <graft/io/safetensors/writer.h>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

const std::vector<std::byte> raw(64, std::byte{5});

struct folder : temp_folder {
  void shard(const char* name, std::initializer_list<const char*> tensors) const {
    std::vector<tensor_view> views;
    for (const char* t : tensors) views.push_back({t, io::safetensors_type::f32, {2}, std::span(raw).first(8)});
    REQUIRE(write_safetensors(path / name, views));
  }
  void index(const std::string& content) const {
    REQUIRE(write_file(path / "model.safetensors.index.json", bytes_of(content)));
  }
  std::string message() const { return hf::open_model_tensors(path).message(); }
};

}  // namespace

TEST_CASE("shards: one file, or several with an index, give one list in name order") {
  folder dir;
  dir.shard("model-1.safetensors", {"b", "d"});
  dir.shard("model-2.safetensors", {"c", "a"});
  dir.index(R"({"metadata": {"total_size": 32}, "weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors",
                "c": "model-2.safetensors", "d": "model-1.safetensors"}})");
  auto opened = hf::open_model_tensors(dir.path);
  REQUIRE(opened);
  const hf::model_tensors all = std::move(*opened);
  std::string order;
  for (std::size_t i = 0; i < all.size(); ++i) order += all[i].name;
  CHECK(order == "abcd");
  REQUIRE(all.get("c") != nullptr);
  CHECK(all.get("c")->data.size() == 8);
  CHECK(all.file_of(0).file == (dir.path / "model-2.safetensors").string());
  CHECK(all.get("e") == nullptr);
  CHECK(all.get("") == nullptr);

  dir.shard("model.safetensors", {"only"});
  const auto whole = hf::open_model_tensors(dir.path);
  REQUIRE(whole);
  CHECK(whole->size() == 1);
  CHECK(whole->get("only") != nullptr);
}

TEST_CASE("shards: tensors at unaligned addresses are copied, so that every view is usable") {
  folder dir;
  const std::string header = "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
  for (std::size_t pad = 0; pad < 4; ++pad) {
    REQUIRE(write_file(dir.path / "model.safetensors", bytes_of(file_text(header + std::string(pad, ' '), 8))));
    const auto all = hf::open_model_tensors(dir.path);
    REQUIRE(all);
    CHECK(bind_in_place(*all->get("t"), "m"));
    CHECK(all->copies.size() == ((8 + header.size() + pad) % 4 == 0 ? 0 : 1));
    CHECK(all->get("t")->data[7] == std::byte{1});
  }
}

TEST_CASE("shards: folders without weights") {
  folder dir;
  CHECK(contains(hf::open_model_tensors(dir.path / "none").message(), "there is no such folder"));
  CHECK(contains(dir.message().c_str(), "there is neither model.safetensors nor model.safetensors.index.json"));
  REQUIRE(write_file(dir.path / "pytorch_model.bin", bytes_of("PK\3\4")));
  CHECK(contains(dir.message().c_str(), "pytorch_model.bin: this is a pickle checkpoint"));
}

TEST_CASE("shards: every statement of an index is checked") {
  folder dir;
  dir.shard("one.safetensors", {"a", "b"});
  dir.shard("two.safetensors", {"c"});
  std::filesystem::create_symlink(dir.path / "loop.safetensors", dir.path / "loop.safetensors");
  std::filesystem::create_directory(dir.path / "sub.safetensors");
  const auto map = [](const std::string& entries) { return "{\"weight_map\": {" + entries + "}}"; };
  const std::string good = R"("a": "one.safetensors", "b": "one.safetensors")";
  const struct {
    std::string index, message;
  } cases[] = {
      {"", "unexpected end of input"},
      {"[]", "the file holds a list, expected a JSON object"},
      {"{}", "the key 'weight_map' is missing"},
      {"{\"weight_map\": []}", "'weight_map' is a list"},
      {"{\"weight_map\": {}}", "'weight_map' is empty"},
      {map(R"("a": 1)"), "says 1 for tensor 'a'"},
      {map(R"("a": null)"), "says null for tensor 'a'"},
      {map(R"("a": "")"), "expected the name of a .safetensors file in the same folder"},
      {map(R"("a": "../../etc/passwd")"), "says \"../../etc/passwd\" for tensor 'a'"},
      {map(R"("a": "../one.safetensors")"), "expected the name of a .safetensors file in the same folder"},
      {map(R"("a": "/one.safetensors")"), "expected the name of a .safetensors file in the same folder"},
      {map(R"("a": "..\\one.safetensors")"), "expected the name of a .safetensors file in the same folder"},
      {map(R"("a": "one\u0000.safetensors")"), "expected the name of a .safetensors file in the same folder"},
      {map(R"("a": ".safetensors")"), "expected the name of a .safetensors file in the same folder"},
      {map(R"("a": "model.safetensors.index.json")"), "expected the name of a .safetensors file in the same folder"},
      {map(R"("a": "none.safetensors")"), "none.safetensors: there is no such file"},
      {map(R"("a": "sub.safetensors")"), "sub.safetensors: this is a directory"},
      {map(R"("a": "loop.safetensors")"), "loop.safetensors: cannot look at this file"},
      {map(R"("a": "one.safetensors", "a": "two.safetensors")"), "the key 'a' occurs twice"},
      {map(R"("a": "one.safetensors")"), "one.safetensors: holds the tensor 'b'"},
      {map(good + R"(, "z": "two.safetensors", "c": "two.safetensors")"), "says that the tensor 'z' is in 'two.safet"},
      {map(good + R"(, "c": "one.safetensors")"), "says that the tensor 'c' is in 'one.safetensors'"},
      {map(R"("a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors")"),
       "one.safetensors: holds the tensor 'b', which"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.index);
    dir.index(c.index);
    const std::string message = dir.message();
    CAPTURE(message);
    CHECK(message.find(c.message) != std::string::npos);
    CHECK(message.find(dir.path.string()) == 0);
  }
}

TEST_CASE("shards: the same tensor in two files") {
  folder dir;
  dir.shard("one.safetensors", {"a", "b"});
  dir.shard("two.safetensors", {"b", "c"});
  dir.index(R"({"weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}})");
  CHECK(contains(dir.message().c_str(), "two.safetensors: holds the tensor 'b'"));
  CHECK(contains(dir.message().c_str(), "a tensor may be in one file only"));
}
