// SPDX-License-Identifier: Apache-2.0
// Pages of the tree are written or compared; a page that differs from its program's output is reported with the first
// line that differs.
#pragma once
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace stored {

inline std::string read(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream s;
  s << in.rdbuf();
  return s.str();
}
inline bool write(const std::filesystem::path& file, const std::string& body) {
  std::ofstream out(file, std::ios::binary);
  out << body;
  if (!out.flush()) return std::printf("cannot write %s\n", file.c_str()), false;
  return true;
}
inline bool is(const std::filesystem::path& file, const std::string& body) {
  const std::string before = read(file);
  if (before == body) return true;
  std::istringstream was(before), now(body);
  std::string old_line, new_line;
  int line = 0;
  do {
    ++line;
    if (!std::getline(was, old_line)) old_line = "(end of the file)", was.setstate(std::ios::failbit);
    if (!std::getline(now, new_line)) new_line = "(end of the file)", now.setstate(std::ios::failbit);
  } while (old_line == new_line && (was || now));
  std::printf("%s:%d differs from what the code gives\n  stored  %s\n  now     %s\n", file.c_str(), line,
              old_line.c_str(), new_line.c_str());
  return false;
}

}  // namespace stored
