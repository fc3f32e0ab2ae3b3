// SPDX-License-Identifier: Apache-2.0
#include "../support/gpu_instances.h"
#include "gpu_models.h"

namespace golden {

result<model_checks> run_model_on_gpu(const std::filesystem::path& folder, const std::filesystem::path& keep,
                                      bool narrow) {
  using wide = cuda::engine<float>;
  if (!narrow) return run_model<wide>(folder, keep);
  return run_model<cuda::engine<__nv_bfloat16>, wide>(folder, keep, {2e-2, 1e-2, 1e-1, false});
}

}  // namespace golden
