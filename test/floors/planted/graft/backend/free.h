// SPDX-License-Identifier: Apache-2.0
// clang-format off
#pragma once
#include <graft/plan/heavy.h>
#include <Eigen/Core>
#include <vector>
