// SPDX-License-Identifier: Apache-2.0
// rejected: 2 errors instead of one
// expected: selftest: sizes differ
#ifdef GRAFT_SHOULD_FAIL
static_assert(3 == 4, "selftest: sizes differ");
static_assert(3 == 5, "selftest: sizes differ");
#endif
