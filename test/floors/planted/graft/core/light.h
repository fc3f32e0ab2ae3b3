// SPDX-License-Identifier: Apache-2.0
// clang-format off
#pragma once
#include <cstdint>
#include <utility>
// #include <vector> in a comment is no include
