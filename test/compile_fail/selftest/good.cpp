// SPDX-License-Identifier: Apache-2.0
// expected: selftest: sizes differ
// expected-gcc: static assertion failed
// expected-clang: static_assert failed|static assertion failed
// expected-nvcc: static assertion failed with
#ifdef GRAFT_SHOULD_FAIL
constexpr int size = 3;
#else
constexpr int size = 4;
#endif
static_assert(size == 4, "selftest: sizes differ");
