// SPDX-License-Identifier: Apache-2.0
// clang-format off
#pragma once
#include <memory>
