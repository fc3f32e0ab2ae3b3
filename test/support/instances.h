// SPDX-License-Identifier: Apache-2.0
// For tests of the CPU engine's internals: its templates are instantiated in the library that the tests link.
#pragma once
#include <graft/backend/cpu/runtime/engine_plan.h>

extern template graft::cpu::operations<float> graft::cpu::every_operation<float>();
extern template graft::cpu::operations<double> graft::cpu::every_operation<double>();
