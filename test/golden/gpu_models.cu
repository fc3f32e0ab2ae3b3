// SPDX-License-Identifier: Apache-2.0
#include <graft/model/on_gpu.cuh>

#include "gpu_models.h"

namespace golden {

// In bf16 the weights themselves are rounded, so the engine is compared with float arithmetic on the rounded weights.
result<model_checks> run_model_on_gpu(const std::filesystem::path& folder, const std::filesystem::path& keep,
                                      bool narrow) {
  using wide = gpu::engine<float>;
  if (!narrow) return run_model<wide>(folder, keep);
  model_numbers expected;
  model_comparison how;
  how.rounded = true, how.seen = &expected;
  if (auto in_float = run_model<wide>(folder, keep, how); !in_float) return in_float;
  how = {};
  how.logits = 2e-2, how.losses = 1e-2, how.angle = 1e-2, how.length = 5e-2, how.trained = 1e-1;
  how.exact = false, how.rounded = true, how.expected = &expected;
  return run_model<gpu::engine<__nv_bfloat16>, wide>(folder, keep, how);
}

}  // namespace golden
