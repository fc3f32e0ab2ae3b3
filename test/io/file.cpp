// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

TEST_CASE("file: written bytes are read back, also zero bytes") {
  temp_folder dir;
  for (const std::string& content :
       {std::string(), std::string("a"), std::string(100000, 'x'), std::string("\0\1\xff", 3)}) {
    REQUIRE(write_file(dir.path / "f", bytes_of(content)));
    const auto back = read_file(dir.path / "f");
    REQUIRE(back);
    CHECK(*back == bytes_of(content));
  }
  CHECK(dir.files() == 1);
}

TEST_CASE("file: anything but a readable regular file is refused with its name") {
  temp_folder dir;
  const auto message = [](const std::filesystem::path& p) { return std::string(read_file(p).message()); };
  CHECK(message(dir.path / "none") == (dir.path / "none").string() + ": there is no such file");
  CHECK(message(dir.path).find("this is a directory") != std::string::npos);
  CHECK(message("/dev/zero").find("expected a regular file") != std::string::npos);
  REQUIRE(::mkfifo((dir.path / "fifo").c_str(), 0600) == 0);
  CHECK(message(dir.path / "fifo").find("FIFO") != std::string::npos);
  std::filesystem::create_symlink(dir.path / "loop", dir.path / "loop");
  CHECK(message(dir.path / "loop").find("cannot look at this file") != std::string::npos);
  std::filesystem::create_symlink(dir.path / "gone", dir.path / "dangling");
  CHECK(message(dir.path / "dangling").find("no such file") != std::string::npos);
  CHECK_FALSE(read_file(""));
}

TEST_CASE("file: no permission") {
  if (::geteuid() == 0) return;  // root can read every file
  temp_folder dir;
  REQUIRE(write_file(dir.path / "f", bytes_of("secret")));
  ::chmod((dir.path / "f").c_str(), 0);
  CHECK(contains(read_file(dir.path / "f").message(), "cannot open this file"));
}

TEST_CASE("file: larger than the limit") {
  temp_folder dir;
  REQUIRE(write_file(dir.path / "f", bytes_of("12345")));
  CHECK(read_file(dir.path / "f", 5));
  CHECK(contains(read_file(dir.path / "f", 4).message(), "the file has 5 bytes, expected at most 4"));
}

TEST_CASE("file: a long or hostile name is shortened so that the reason fits") {
  const std::string message = read_file(std::string(5000, 'n') + "\n\x01").message();
  CHECK(message.size() < 400);
  CHECK(message.find('\n') == std::string::npos);
  CHECK(message.find(": ") != std::string::npos);
}

TEST_CASE("file: a failed write changes nothing and leaves no temporary file") {
  temp_folder dir;
  const auto target = dir.path / "f";
  REQUIRE(write_file(target, bytes_of("old")));

  SUBCASE("the target is a folder") {
    std::filesystem::create_directories(dir.path / "d" / "inner");
    CHECK(contains(write_file(dir.path / "d", bytes_of("new")).message(), "cannot replace this file"));
    CHECK(std::filesystem::exists(dir.path / "d" / "inner"));
    CHECK(dir.files() == 2);
  }
  SUBCASE("the folder does not exist") {
    CHECK(contains(write_file(dir.path / "no" / "f", bytes_of("new")).message(), "cannot create a file beside"));
  }
  SUBCASE("the disk is full") {
    rlimit old{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
    const rlimit small{1000, old.rlim_max};
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    const status s = write_file(target, bytes_of(std::string(100000, 'n')));
    ::setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, handler);
    CHECK_FALSE(s);
    CHECK(contains(s.message(), "the old file was left as it was"));
    CHECK(dir.files() == 1);
  }
  CHECK(*read_file(target) == bytes_of("old"));
}

TEST_CASE("file: a reader that has the old file open can still read it") {
  temp_folder dir;
  REQUIRE(write_file(dir.path / "f", bytes_of("old")));
  const open_file f(std::fopen((dir.path / "f").c_str(), "rb"));
  REQUIRE(write_file(dir.path / "f", bytes_of("newer")));
  char seen[8]{};
  CHECK(std::fread(seen, 1, sizeof seen, f.get()) == 3);
  CHECK(std::string(seen) == "old");
}
