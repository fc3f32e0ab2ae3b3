// SPDX-License-Identifier: Apache-2.0
// Umbrella header for the GPU targets that compile<> can plan for; it needs neither CUDA nor a GPU.
//     static_assert(compile<q_proj, fullgraph, for_target<sm_90>>::kernels == 1);
#pragma once
#include <graft/backend/gpu/dispatch/targets.h>
#include <graft/graft.h>
