// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/atomic_folder.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>

#include "support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

using contents = std::map<std::string, std::string>;

contents all_files(const std::filesystem::path& folder) {
  contents out;
  for (const auto& e : std::filesystem::recursive_directory_iterator(folder)) {
    if (!e.is_regular_file()) continue;
    const auto bytes = read_file(e.path());
    REQUIRE(bytes);
    const auto* chars = reinterpret_cast<const char*>(bytes->data());
    out[std::filesystem::relative(e.path(), folder)] = std::string(chars, bytes->size());
  }
  return out;
}
std::vector<file_to_save> as_files(const contents& wanted) {
  std::vector<file_to_save> out;
  for (const auto& [name, text] : wanted) {
    const auto bytes = std::as_bytes(std::span(text));
    out.push_back({name, {bytes.first(bytes.size() / 2), bytes.subspan(bytes.size() / 2)}});
  }
  return out;
}

const contents older{{"config.json", "{}"}, {"model.safetensors", std::string(9000, 'o')}, {"notes/a", "mine"}};
const contents newer{{"config.json", "{\"a\": 1}"}, {"model.safetensors", std::string(70000, 'n')}, {"extra", ""}};
const contents merged{
    {"config.json", "{\"a\": 1}"}, {"model.safetensors", std::string(70000, 'n')}, {"extra", ""}, {"notes/a", "mine"}};

void make_older(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder / "notes");
  for (const auto& [name, text] : older) REQUIRE(write_file(folder / name, bytes_of(text)));
}

void exit_at_zero(void* state) {
  if ((*static_cast<int*>(state))-- == 0) ::_exit(7);
}

// Runs the save in a child process that dies before its nth step; returns whether there was an nth step.
bool killed_at(int step, const std::filesystem::path& folder) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const status saved = save_folder(folder, as_files(newer), {exit_at_zero, &step});
    ::_exit(saved ? 0 : 1);
  }
  int wait_status = 0;
  REQUIRE(::waitpid(child, &wait_status, 0) == child);
  REQUIRE(WIFEXITED(wait_status));
  REQUIRE(WEXITSTATUS(wait_status) != 1);
  return WEXITSTATUS(wait_status) == 7;
}

}  // namespace

TEST_CASE("atomic folder: writes a new folder, and replaces files of one while others stay") {
  temp_folder dir;
  REQUIRE(save_folder(dir.path / "new", as_files(newer)));
  CHECK(all_files(dir.path / "new") == newer);
  make_older(dir.path / "old");
  REQUIRE(save_folder((dir.path / "old").string() + "/", as_files(newer)));
  CHECK(all_files(dir.path / "old") == merged);
  CHECK(dir.files() == 2);
  std::filesystem::create_directory_symlink("old", dir.path / "link");
  REQUIRE(save_folder(dir.path / "link", as_files({{"x", "y"}})));
  CHECK(std::filesystem::is_symlink(dir.path / "link"));
  CHECK(all_files(dir.path / "old").at("x") == "y");
  CHECK(dir.files() == 3);
}

TEST_CASE("atomic folder: killed before any write, flush or rename, the folder is completely old or completely new") {
  int step = 0;
  bool was_old = false, was_new = false;
  for (bool more = true; more; ++step) {
    temp_folder dir;
    make_older(dir.path / "m");
    more = killed_at(step, dir.path / "m");
    const contents now = all_files(dir.path / "m");
    CAPTURE(step);
    CHECK((now == older || now == merged));
    was_old = was_old || (more && now == older);
    was_new = was_new || (more && now == merged);
    if (!more) CHECK(now == merged);
  }
  CHECK(was_old);
  CHECK(was_new);
  CHECK(step > 12);
}

TEST_CASE("atomic folder: killed before any step, a new folder is complete or absent") {
  for (int step = 0;; ++step) {
    temp_folder dir;
    const bool more = killed_at(step, dir.path / "m");
    CAPTURE(step);
    if (exists(dir.path / "m")) CHECK(all_files(dir.path / "m") == newer);
    if (more) continue;
    CHECK(all_files(dir.path / "m") == newer);
    break;
  }
}

TEST_CASE("atomic folder: a failed write changes nothing and leaves no temporary files") {
  temp_folder dir;
  make_older(dir.path / "m");
  SUBCASE("the disk is full") {
    rlimit old{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
    const rlimit small{20000, old.rlim_max};
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    const status s = save_folder(dir.path / "m", as_files(newer));
    ::setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, handler);
    CHECK(contains(s.message(), "model.safetensors: writing failed"));
  }
  SUBCASE("a name that leads out of the folder, or occurs twice") {
    for (const char* name : {"", ".", "..", "../x", "a/b", "/etc/x"}) {
      const std::vector<file_to_save> files{{name, {}}};
      CHECK(contains(save_folder(dir.path / "m", files).message(), "is not the name of a file in this folder"));
    }
    const std::vector<file_to_save> twice{{"a", {}}, {"a", {}}};
    CHECK(contains(save_folder(dir.path / "m", twice).message(), "two files are called 'a'"));
  }
  SUBCASE("the folder above is missing") { CHECK_FALSE(save_folder(dir.path / "no" / "m", as_files(newer))); }
  SUBCASE("the target is a file") {
    CHECK(contains(save_folder(dir.path / "m" / "config.json", as_files(newer)).message(), "this is a file"));
  }
  SUBCASE("checked without writing") {
    CHECK(can_save_folder(dir.path / "m"));
    CHECK(can_save_folder(dir.path / "new"));
    CHECK(contains(can_save_folder(dir.path / "no" / "m").message(), "cannot create this folder"));
    CHECK(contains(can_save_folder(dir.path / "m" / "config.json").message(), "this is a file"));
  }
  CHECK(all_files(dir.path / "m") == older);
  CHECK(dir.files() == 1);
}
