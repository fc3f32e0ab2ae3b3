// SPDX-License-Identifier: Apache-2.0
// A call that may end the program, made in a second run of this program that holds nothing else.
#pragma once
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace test {

inline constexpr const char* subprocess_flag = "GRAFT_TEST_SUBPROCESS";

// The shell command that runs this program again for one test case alone; empty where that is not possible.
inline std::string subprocess_command(const char* test_case) {
  char self[4096];
  const auto n = ::readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (n <= 0) return {};
  self[n] = '\0';
  const char* const emulator = std::getenv("GRAFT_EMULATOR");
  const std::string by = emulator != nullptr ? std::string(emulator) + " '" : "'";
  return "exec env " + std::string(subprocess_flag) + "=1 " + by + self + "' -tc='" + test_case + "'";
}
// Runs f in a program of its own, started with the name of the test case that calls this; true where f returned true.
template <class F> bool in_subprocess(const char* test_case, F f) {
  if (std::getenv(subprocess_flag) != nullptr) std::_Exit(f() ? 0 : 1);
  const std::string command = subprocess_command(test_case);
  return command.empty() || std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}
// Runs an f that has to end the program in a program of its own; returns what it wrote to stderr, or that f returned.
template <class F> std::string last_words(const char* test_case, F f) {
  if (std::getenv(subprocess_flag) != nullptr) f(), std::_Exit(0);
  std::FILE* const program = ::popen((subprocess_command(test_case) + " 2>&1 >/dev/null").c_str(), "r");
  if (program == nullptr) return "the program was not started";
  std::string words;
  for (int c; (c = std::fgetc(program)) != EOF;) words += static_cast<char>(c);
  return ::pclose(program) == 0 ? "the call returned" : words;
}

}  // namespace test
