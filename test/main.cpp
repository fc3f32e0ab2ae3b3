// SPDX-License-Identifier: Apache-2.0
// doctest's main, compiled once and linked into the program of every floor.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
