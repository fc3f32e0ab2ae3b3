// SPDX-License-Identifier: Apache-2.0
// stored_model on the current GPU, in bf16 or float.
#include <graft/model/on_gpu.cuh>

#include "model_on.h"

namespace graft::pytorch {

std::unique_ptr<stored_model> load_on_cuda(const std::string& path, int context, bool wide) {
  if (wide) return std::make_unique<model_on<gpu::engine<float>>>(path, context);
  return std::make_unique<model_on<gpu::engine<__nv_bfloat16>>>(path, context);
}

}  // namespace graft::pytorch
