// SPDX-License-Identifier: Apache-2.0
// The library's version. CMakeLists.txt reads these lines; semantic versioning promises source compatibility only.
#pragma once
#define GRAFT_VERSION_MAJOR 0
#define GRAFT_VERSION_MINOR 1
#define GRAFT_VERSION_PATCH 0
// A single number to compare with: major * 10000 + minor * 100 + patch.
#define GRAFT_VERSION (GRAFT_VERSION_MAJOR * 10000 + GRAFT_VERSION_MINOR * 100 + GRAFT_VERSION_PATCH)
