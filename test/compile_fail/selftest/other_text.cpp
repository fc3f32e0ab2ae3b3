// SPDX-License-Identifier: Apache-2.0
// rejected: no line of the output matches: selftest: sizes differ
// expected: selftest: sizes differ
#ifdef GRAFT_SHOULD_FAIL
static_assert(3 == 4, "selftest: something else");
#endif
