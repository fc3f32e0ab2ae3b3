// SPDX-License-Identifier: Apache-2.0
// Umbrella header for layers on the CPU: formulas, plans and the CPU backend (Eigen).
//     struct q_proj : graft::linear<1024, 1024, float, graft::lora<16>> {};
//     graft::cpu::layer<q_proj, graft::fullgraph> q;
#pragma once
#include <graft/core/bf16.h>
#include <graft/core/f16.h>
#include <graft/graft.h>
#include <graft/run/cpu_layer.h>
#include <graft/run/print_plan.h>
