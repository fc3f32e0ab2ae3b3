// SPDX-License-Identifier: Apache-2.0
// What graft/cuda.h needs of graft/gpu.h, for compilers that know no CUDA.
#pragma once
namespace graft::gpu {
inline constexpr int layers = 1;
}
