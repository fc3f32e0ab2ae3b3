// SPDX-License-Identifier: Apache-2.0
#include <graft/model/on_cuda.cuh>

#include "gpu_models.h"

namespace golden {

// In bf16 the weights themselves are off by half a unit of their last place: what is checked is what the engine makes of
// them, against float arithmetic on the same weights.
result<model_checks> run_model_on_gpu(const std::filesystem::path& folder, const std::filesystem::path& keep,
                                      bool narrow) {
  using wide = cuda::engine<float>;
  if (!narrow) return run_model<wide>(folder, keep);
  model_numbers expected;
  model_comparison how;
  how.rounded = true, how.seen = &expected;
  if (auto in_float = run_model<wide>(folder, keep, how); !in_float) return in_float;
  how = {2e-2, 1e-2, 0, false, true, &expected, nullptr};
  return run_model<cuda::engine<__nv_bfloat16>, wide>(folder, keep, how);
}

}  // namespace golden
