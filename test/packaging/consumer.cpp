// SPDX-License-Identifier: Apache-2.0
// The smallest user: finds the headers and prints their version.
#include <graft/graft.h>

#include <cstdio>

static_assert(GRAFT_VERSION == GRAFT_VERSION_MAJOR * 10000 + GRAFT_VERSION_MINOR * 100 + GRAFT_VERSION_PATCH);

int main() { std::printf("graft %d.%d.%d\n", GRAFT_VERSION / 10000, GRAFT_VERSION / 100 % 100, GRAFT_VERSION % 100); }
