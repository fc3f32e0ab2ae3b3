// SPDX-License-Identifier: Apache-2.0
// The language and its CPU backend.
//     struct q_proj : graft::linear<1024, 1024, float, graft::lora<16>> {};
//     graft::cpu::layer<q_proj, graft::fullgraph> q;
#pragma once
#include <graft/core/bf16.h>
#include <graft/core/f16.h>
#include <graft/graft.h>
#include <graft/run/layer.h>
#include <graft/run/print.h>
