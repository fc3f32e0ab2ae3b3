// SPDX-License-Identifier: Apache-2.0
// What the operators of the CPU know of those for CUDA, which nvcc compiles.
#pragma once
#include <cstdint>

namespace graft::pytorch {

#if defined(GRAFT_TORCH_CUDA)
inline constexpr bool has_cuda_kernels = true;
void forget_cuda_layer(std::int64_t number);
#else
inline constexpr bool has_cuda_kernels = false;
inline void forget_cuda_layer(std::int64_t) {}
#endif

}  // namespace graft::pytorch
