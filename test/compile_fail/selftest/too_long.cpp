// SPDX-License-Identifier: Apache-2.0
// rejected: lines of output, at most 1 are wanted
// expected: selftest: sizes differ
// lines: 1
#ifdef GRAFT_SHOULD_FAIL
static_assert(3 == 4, "selftest: sizes differ");
#endif
