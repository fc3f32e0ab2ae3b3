// SPDX-License-Identifier: Apache-2.0
// Mistakes in the calling program that no status can report, such as reading the value of a failed result or calling a
// model that was moved from: the program ends with one sentence on stderr, in release builds too. Input never leads
// here.
#pragma once
#include <cstdio>

namespace graft::detail {

[[noreturn, gnu::cold, gnu::noinline]] inline void contract_violation(const char* sentence, const char* more = "") {
  std::fprintf(stderr, "graft: %s%s\n", sentence, more);
  __builtin_abort();
}

}  // namespace graft::detail
