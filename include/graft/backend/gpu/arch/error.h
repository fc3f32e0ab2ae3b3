// SPDX-License-Identifier: Apache-2.0
// Turns the error codes of the CUDA runtime into the library's status.
#pragma once
#include <cuda_runtime_api.h>
#include <graft/core/result.h>

namespace graft::gpu {

inline status check(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return ok;
  return fail("CUDA: ", what, ": ", cudaGetErrorString(e), " (", cudaGetErrorName(e), ")");
}

}  // namespace graft::gpu
