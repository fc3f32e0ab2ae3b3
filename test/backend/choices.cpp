// SPDX-License-Identifier: Apache-2.0
// Choices that were timed, as text and as a file: what was written is read, and what is damaged or somebody else's is
// not.
#include <doctest/doctest.h>
#include <graft/backend/choice_file.h>

#include <filesystem>
#include <fstream>
#include <sstream>

using namespace graft;

namespace {

const std::string device = "A GPU, sm_90, 132 multiprocessors";

choices some() {
  choices c;
  c.put("product bf16 4096x4096 r16", 16, "stream 96x2");
  c.put("product bf16 4096x4096 r16", 4096, "tiles of 256 by 16");
  c.put("decode attention bf16 32/8 of 128, 1 rows", 1024, "8 parts");
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

TEST_CASE("choices: what is written is read again") {
  for (const choices& c : {choices{}, some()}) {
    const auto read = choices::read(c.written(device), device);
    REQUIRE(bool(read));
    CHECK(*read == c);
  }
  CHECK(*some().find("product bf16 4096x4096 r16", 4096) == "tiles of 256 by 16");
  CHECK(some().find("product bf16 4096x4096 r16", 64) == nullptr);
  CHECK(some().find("product bf16 4096x4096", 16) == nullptr);
}
TEST_CASE("choices: every cut and every changed byte is noticed") {
  const std::string text = some().written(device);
  for (std::size_t n = 0; n < text.size(); ++n) CHECK(!choices::read(text.substr(0, n), device));
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    CHECK(!choices::read(changed, device));
  }
  CHECK(!choices::read(text + "\n", device));
  CHECK(!choices::read("", device));
  CHECK(!choices::read(std::string(100, '\0'), device));
}
TEST_CASE("choices: of another device or version they are refused, and it is said why") {
  const std::string text = some().written(device);
  const auto other = choices::read(text, "Another GPU");
  REQUIRE(!other);
  CHECK(std::string(other.message()).find("A GPU, sm_90") != std::string::npos);
  std::string older = text;
  older.replace(older.find("choices 1"), 9, "choices 0");
  CHECK(std::string(choices::read(older, device).message()).find("version") != std::string::npos);
}
TEST_CASE("choices: a file is made with its folders, and the next program finds everything") {
  const folder f("graft_choices_made");
  const std::string path = f.file("a/b/choices.txt");
  {
    choice_file first(path, device);
    CHECK(first.note().empty());
    first.put("x", 1, "one"), first.put("y", 2, "two");
  }
  choice_file second(path, device);
  CHECK(second.note().empty());
  REQUIRE(second.find("y", 2) != nullptr);
  CHECK(*second.find("x", 1) == "one");
  CHECK(std::distance(std::filesystem::directory_iterator(f.at / "a/b"), {}) == 1);  // nothing is left beside it
}
TEST_CASE("choices: what two programs write at the same time is kept") {
  const folder f("graft_choices_two");
  choice_file one(f.file("c"), device), other(f.file("c"), device);
  one.put("x", 1, "one");
  other.put("y", 1, "two");
  const choice_file both(f.file("c"), device);
  CHECK(both.size() == 2);
  CHECK(other.size() == 2);
}
TEST_CASE("choices: a damaged file is not used and written again, somebody else's is left alone") {
  const folder f("graft_choices_bad");
  const std::string whole = some().written(device);
  for (const std::string& bad : {whole.substr(0, whole.size() - 3), std::string(), whole.substr(0, 9)}) {
    write(f.file("c"), bad);
    choice_file damaged(f.file("c"), device);
    CHECK(damaged.note().find("is not used") != std::string::npos);
    CHECK(damaged.size() == 0);
    damaged.put("x", 1, "one");
    CHECK(choice_file(f.file("c"), device).size() == 1);
  }
  for (const std::string& foreign : {some().written("Another GPU"), std::string(5000, 'x')}) {
    write(f.file("c"), foreign);
    choice_file other(f.file("c"), device);
    CHECK(other.note().find("is not used") != std::string::npos);
    other.put("x", 1, "one");
    CHECK(*other.find("x", 1) == "one");
    CHECK(text_of(f.file("c")) == foreign);
  }
}
TEST_CASE("choices: without a file, or with one that cannot be written, they are kept in memory and it is said") {
  choice_file none("", device);
  CHECK(!none.note().empty());
  none.put("x", 1, "one");
  CHECK(none.find("x", 1) != nullptr);
  choice_file nowhere("/dev/null/choices.txt", device);
  nowhere.put("x", 1, "one");
  CHECK(nowhere.note().find("cannot be kept") != std::string::npos);
  CHECK(nowhere.find("x", 1) != nullptr);
}
