// SPDX-License-Identifier: Apache-2.0
// A function outside the language: reads the operand, writes the result of the same sizes.
#pragma once
#include <graft/backend/cpu/tensor.h>

#include <functional>

namespace graft::cpu {

template <class Real> using host_function = std::function<void(const char* name, tensor<Real> in, tensor<Real> out)>;

}  // namespace graft::cpu
