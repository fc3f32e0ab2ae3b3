// SPDX-License-Identifier: Apache-2.0
// rejected: has no line '// expected: REGEX'
#ifdef GRAFT_SHOULD_FAIL
static_assert(3 == 4, "selftest: sizes differ");
#endif
