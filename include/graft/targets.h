// SPDX-License-Identifier: Apache-2.0
// The language and the GPUs that it can be asked about while compiling; needs neither CUDA nor a GPU.
//     static_assert(compile<q_proj, fullgraph, on<sm_90>>::kernels == 1);
#pragma once
#include <graft/backend/cuda/targets.h>
#include <graft/graft.h>
