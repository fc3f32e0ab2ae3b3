// SPDX-License-Identifier: Apache-2.0
// rejected: the mistake compiles
// expected: selftest: sizes differ
static_assert(4 == 4, "selftest: sizes differ");
