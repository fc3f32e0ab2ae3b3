// SPDX-License-Identifier: Apache-2.0
// A call that may bring the program down, made in a second run of this program that holds nothing else. For inputs
// that must be refused and are not yet: the rest of the suite goes on.
#pragma once
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace test {

// Runs f in a program of its own, started with the name of the test case that calls this; true where f returned true.
template <class F> bool apart(const char* test_case, F f) {
  const char* const flag = "GRAFT_TEST_APART";
  if (std::getenv(flag) != nullptr) std::_Exit(f() ? 0 : 1);
  char self[4096];
  const auto n = ::readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (n <= 0) return true;  // no way to tell
  self[n] = '\0';
  const char* const emulator = std::getenv("GRAFT_EMULATOR");
  const std::string by = emulator != nullptr ? std::string(emulator) + " '" : "'";
  const std::string command = std::string(flag) + "=1 " + by + self + "' -tc='" + test_case + "' >/dev/null 2>&1";
  return std::system(command.c_str()) == 0;
}

}  // namespace test
