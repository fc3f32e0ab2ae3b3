// SPDX-License-Identifier: Apache-2.0
// For tests that look inside the CPU's engine: its parts are in the library that the tests link.
#pragma once
#include <graft/backend/cpu/engine_plan.h>

extern template graft::cpu::operations<float> graft::cpu::every_operation<float>();
extern template graft::cpu::operations<double> graft::cpu::every_operation<double>();
