// SPDX-License-Identifier: Apache-2.0
// The language and the GPU backend, for files that nvcc compiles. Needs the CUDA Toolkit 13 and nothing else.
#pragma once
#include <graft/run/cuda_together.cuh>
#include <graft/targets.h>
#if defined(GRAFT_CUDA_COMPILED)
#include <graft/run/cuda_compiled.cuh>
#endif
