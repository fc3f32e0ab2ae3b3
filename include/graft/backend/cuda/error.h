// SPDX-License-Identifier: Apache-2.0
// What the CUDA runtime answers, as the library's own kind of answer.
#pragma once
#include <cuda_runtime_api.h>
#include <graft/core/result.h>

namespace graft::cuda {

inline status check(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return ok;
  return fail("CUDA: ", what, ": ", cudaGetErrorString(e), " (", cudaGetErrorName(e), ")");
}

}  // namespace graft::cuda
