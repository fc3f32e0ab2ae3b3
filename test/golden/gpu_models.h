// SPDX-License-Identifier: Apache-2.0
// The model cases on any engine, and those on the GPU for a runner that the host compiler compiles.
#pragma once
#include "multi_case.h"

namespace golden {

// Runs a case of the base, of one adapter or of several.
template <class Engine, class Reference = Engine>
result<model_checks> run_model(const std::filesystem::path& folder, const std::filesystem::path& keep,
                               const model_comparison& within = {}) {
  const bool one = folder.filename() == "base" || std::filesystem::exists(folder / "adapter_init");
  if (!one && std::filesystem::exists(folder / "case.json")) return multi_case<Engine>::run(folder, within);
  return model_case<Engine, Reference>::run(folder, keep, within);
}
// Runs a case in float with the CPU's tolerances, or in bf16.
result<model_checks> run_model_on_gpu(const std::filesystem::path& folder, const std::filesystem::path& keep,
                                      bool narrow);
// Runs a case of a GGUF file in float with the CPU's tolerances.
result<model_checks> run_gguf_on_gpu(const std::filesystem::path& folder);

}  // namespace golden
