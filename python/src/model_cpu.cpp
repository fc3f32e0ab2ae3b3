// SPDX-License-Identifier: Apache-2.0
// stored_model on the CPU, in float.
#include <graft/model/on_cpu.h>

#include "model_on.h"

namespace graft::pytorch {

std::unique_ptr<stored_model> load_on_cpu(const std::string& path, int context) {
  return std::make_unique<model_on<cpu::engine<float>>>(path, context);
}

}  // namespace graft::pytorch
