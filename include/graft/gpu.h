// SPDX-License-Identifier: Apache-2.0
// Umbrella header for layers on a GPU: formulas, plans and the CUDA backend, for files that nvcc compiles. It needs the
// CUDA Toolkit 13 and no other library. The CMake target graft::gpu_compiled defines GRAFT_GPU_COMPILED.
#pragma once
#if defined(GRAFT_CPU_COMPILED)
// A file may use layers on the CPU as well: what the library has compiled of them is declared before executors are
// defined, since the declarations would otherwise instantiate them.
#include <graft/run/cpu_compiled.h>
#endif
#include <graft/run/gpu_grouped.cuh>
#include <graft/targets.h>
#if defined(GRAFT_GPU_COMPILED)
#include <graft/run/gpu_compiled.cuh>
#endif
