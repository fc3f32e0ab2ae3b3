// SPDX-License-Identifier: Apache-2.0
// Where the bodies of functions stand that launch kernels and are no templates: nvcc compiles every kernel behind them, in
// each file that sees one. As in core/library.h, for graft::cuda_compiled, which sets GRAFT_CUDA_COMPILED: header-only they
// are inline, a program that links the library sees declarations, and src/cuda_launchers.cu has the bodies.
#pragma once

#if !defined(GRAFT_CUDA_COMPILED)
#define GRAFT_CUDA_LIBRARY inline
#define GRAFT_CUDA_BODIES 1
#elif defined(GRAFT_DEFINES_CUDA_LIBRARY)
#define GRAFT_CUDA_LIBRARY
#define GRAFT_CUDA_BODIES 1
#else
#define GRAFT_CUDA_LIBRARY
#define GRAFT_CUDA_BODIES 0
#endif

namespace graft::cuda {
#if defined(GRAFT_CUDA_COMPILED)
inline constexpr bool in_library = true;  // kernels of every type are there
#else
inline constexpr bool in_library = false;
#endif
}  // namespace graft::cuda
