// SPDX-License-Identifier: Apache-2.0
// rejected: the control does not compile
// expected: selftest: sizes differ
static_assert(3 == 4, "selftest: sizes differ");
