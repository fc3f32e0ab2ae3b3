// SPDX-License-Identifier: Apache-2.0
// Results of autotuning, as text and as a file: what was written is read, and a damaged file, or one of another device
// or version, is refused.
#include <doctest/doctest.h>
#include <graft/backend/autotune_file.h>

#include <filesystem>
#include <fstream>
#include <sstream>

using namespace graft;

namespace {

const std::string device = "A GPU, sm_90, 132 multiprocessors";

autotune_results some() {
  autotune_results c;
  c.put("GEMM bf16 4096x4096 r16", 16, "skinny 96x2");
  c.put("GEMM bf16 4096x4096 r16", 4096, "tiles of 256 by 16");
  c.put("decode attention bf16 32/8 of 128, 1 rows", 1024, "8 splits");
  return c;
}
struct folder {
  std::filesystem::path at;
  explicit folder(const char* name) : at(std::filesystem::temp_directory_path() / name) {
    std::filesystem::remove_all(at);
  }
  ~folder() { std::filesystem::remove_all(at); }
  std::string file(const char* name) const { return (at / name).string(); }
};
std::string text_of(const std::string& path) {
  std::ostringstream all;
  all << std::ifstream(path, std::ios::binary).rdbuf();
  return all.str();
}
void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

TEST_CASE("autotune results: written results are read") {
  for (const autotune_results& c : {autotune_results{}, some()}) {
    const auto read = autotune_results::read(c.written(device), device);
    REQUIRE(bool(read));
    CHECK(*read == c);
  }
  CHECK(*some().find("GEMM bf16 4096x4096 r16", 4096) == "tiles of 256 by 16");
  CHECK(some().find("GEMM bf16 4096x4096 r16", 64) == nullptr);
  CHECK(some().find("GEMM bf16 4096x4096", 16) == nullptr);
}
TEST_CASE("autotune results: every truncation and every changed byte is detected") {
  const std::string text = some().written(device);
  for (std::size_t n = 0; n < text.size(); ++n) CHECK(!autotune_results::read(text.substr(0, n), device));
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    CHECK(!autotune_results::read(changed, device));
  }
  CHECK(!autotune_results::read(text + "\n", device));
  CHECK(!autotune_results::read("", device));
  CHECK(!autotune_results::read(std::string(100, '\0'), device));
}
TEST_CASE("autotune results: results of another device or version are refused with a reason") {
  const std::string text = some().written(device);
  const auto other = autotune_results::read(text, "Another GPU");
  REQUIRE(!other);
  CHECK(std::string(other.message()).find("A GPU, sm_90") != std::string::npos);
  std::string older = text;
  older.replace(older.find("autotune 1"), 10, "autotune 0");
  CHECK(std::string(autotune_results::read(older, device).message()).find("version") != std::string::npos);
}
TEST_CASE("autotune results: a file is created with its folders, and the next program reads it") {
  const folder f("graft_choices_made");
  const std::string path = f.file("a/b/choices.txt");
  {
    autotune_file first(path, device);
    CHECK(first.note().empty());
    first.put("x", 1, "one"), first.put("y", 2, "two");
  }
  autotune_file second(path, device);
  CHECK(second.note().empty());
  REQUIRE(second.find("y", 2) != nullptr);
  CHECK(*second.find("x", 1) == "one");
  CHECK(std::distance(std::filesystem::directory_iterator(f.at / "a/b"), {}) == 1);  // no temporary file remains
}
TEST_CASE("autotune results: results that two programs write at the same time are both kept") {
  const folder f("graft_choices_two");
  autotune_file one(f.file("c"), device), other(f.file("c"), device);
  one.put("x", 1, "one");
  other.put("y", 1, "two");
  const autotune_file both(f.file("c"), device);
  CHECK(both.size() == 2);
  CHECK(other.size() == 2);
}
TEST_CASE("autotune results: a damaged file is replaced, a file of another kind is not touched") {
  const folder f("graft_choices_bad");
  const std::string whole = some().written(device);
  for (const std::string& bad : {whole.substr(0, whole.size() - 3), std::string(), whole.substr(0, 9)}) {
    write(f.file("c"), bad);
    autotune_file damaged(f.file("c"), device);
    CHECK(damaged.note().find("is not used") != std::string::npos);
    CHECK(damaged.size() == 0);
    damaged.put("x", 1, "one");
    CHECK(autotune_file(f.file("c"), device).size() == 1);
  }
  for (const std::string& foreign : {some().written("Another GPU"), std::string(5000, 'x'), std::string("a note\n")}) {
    write(f.file("c"), foreign);
    autotune_file other(f.file("c"), device);
    CHECK(other.note().find("is not used") != std::string::npos);
    other.put("x", 1, "one");
    CHECK(*other.find("x", 1) == "one");
    CHECK(text_of(f.file("c")) == foreign);
  }
}
TEST_CASE("autotune results: a result of this process is told from one of the file") {
  const folder f("graft_choices_whose");
  autotune_file(f.file("c"), device).put("x", 1, "one");
  autotune_file second(f.file("c"), device);
  CHECK(!second.is_timed_here("x", 1));
  second.put("x", 1, "two");
  CHECK(second.is_timed_here("x", 1));
  CHECK(!second.is_timed_here("x", 2));
  CHECK(*autotune_file(f.file("c"), device).find("x", 1) == "two");
}
TEST_CASE("autotune results: without a writable file the results stay in memory, with a warning") {
  autotune_file none("", device);
  CHECK(!none.note().empty());
  none.put("x", 1, "one");
  CHECK(none.find("x", 1) != nullptr);
  autotune_file nowhere("/dev/null/choices.txt", device);
  nowhere.put("x", 1, "one");
  CHECK(nowhere.note().find("cannot be saved") != std::string::npos);
  CHECK(nowhere.find("x", 1) != nullptr);
}
