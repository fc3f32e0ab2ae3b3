// SPDX-License-Identifier: Apache-2.0
// GRAFT_GPU_LIBRARY and GRAFT_GPU_BODIES: where non-template functions that launch kernels are defined. nvcc compiles
// every kernel that such a function launches, in each file that sees its body. Header-only, the bodies are inline. A
// program that links graft::gpu_compiled (which sets GRAFT_GPU_COMPILED) sees declarations only; src/gpu_launchers.cu
// compiles the bodies. core/library.h does the same for the CPU.
#pragma once

#if !defined(GRAFT_GPU_COMPILED)
#define GRAFT_GPU_LIBRARY inline
#define GRAFT_GPU_BODIES 1
#elif defined(GRAFT_DEFINES_GPU_LIBRARY)
#define GRAFT_GPU_LIBRARY
#define GRAFT_GPU_BODIES 1
#else
#define GRAFT_GPU_LIBRARY
#define GRAFT_GPU_BODIES 0
#endif

namespace graft::gpu {
#if defined(GRAFT_GPU_COMPILED)
inline constexpr bool in_library = true;  // the library has the kernels of every element type
#else
inline constexpr bool in_library = false;
#endif
}  // namespace graft::gpu
