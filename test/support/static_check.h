// SPDX-License-Identifier: Apache-2.0
// Checks a fact twice: by the compiler, and by the same code at run time, where a failure shows the values. Compile
// with -DGRAFT_RUN_TIME_ONLY to see the values when the compiler rejects a fact.
#pragma once
#include <doctest/doctest.h>
#include <graft/core/text.h>

#include <string>

#if defined(GRAFT_RUN_TIME_ONLY)
#define GRAFT_WHILE_COMPILING(...) static_assert(true)
#else
#define GRAFT_WHILE_COMPILING(...) static_assert(__VA_ARGS__)
#endif

// BOTH(a == b)
#define BOTH(...)                       \
  do {                                  \
    GRAFT_WHILE_COMPILING(__VA_ARGS__); \
    CHECK(__VA_ARGS__);                 \
  } while (false)

// SAYS(text, "expected"): checks a text or a message
#define SAYS(what, ...)                                                          \
  do {                                                                           \
    GRAFT_WHILE_COMPILING(graft::same_text(::test::letters(what), __VA_ARGS__)); \
    CHECK(std::string(::test::letters(what)) == std::string(__VA_ARGS__));       \
  } while (false)

// SAYS for a text that only exists at run time.
#define SAYS_NOW(what, ...) CHECK(std::string(::test::letters(what)) == std::string(__VA_ARGS__))

namespace test {

constexpr const char* letters(const graft::text& t) { return t.c_str(); }
constexpr const char* letters(const char* t) { return t; }

}  // namespace test
