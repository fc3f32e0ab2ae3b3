// SPDX-License-Identifier: Apache-2.0
#include <graft/model/on_gpu.cuh>

#include "bf16_model.h"
#include "gguf_case.h"

namespace golden {

result<model_checks> run_model_on_gpu(const std::filesystem::path& folder, const std::filesystem::path& keep,
                                      bool narrow) {
  using wide = gpu::engine<float>;
  return narrow ? run_bf16_model<gpu::engine<__nv_bfloat16>, wide>(folder, keep) : run_model<wide>(folder, keep);
}
result<model_checks> run_gguf_on_gpu(const std::filesystem::path& folder) {
  return gguf_case<gpu::engine<float>>::run(folder);
}

}  // namespace golden
