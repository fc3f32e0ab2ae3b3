// SPDX-License-Identifier: Apache-2.0
// Tensors, scalars, sizes and gradients by name, as callers pass them to a layer.
#pragma once
#include <graft/core/view.h>

#include <map>
#include <string>

namespace graft {

using tensor_map = std::map<std::string, view, std::less<>>;
using size_map = std::map<std::string, long long, std::less<>>;

// One value that is set on a layer: a tensor, a scalar, or a size.
struct named_value {
  const char* name = "";
  const view* tensor = nullptr;
  const double* scalar = nullptr;
  long long size = 0;
  bool is_fixed = false;  // the layer's type states the size
};
// Tensors, scalars and sizes by name, of one adapter or of a block; they are set all or not at all.
struct named_values {
  tensor_map tensors;
  std::map<std::string, double, std::less<>> scalars;
  size_map sizes{};
};
// A gradient that is requested from backward(): the parameter's name in the formula, memory of its shape and of the
// type that the layer computes in, and whether the gradient is added to what that memory holds (gradient accumulation).
//     std::vector<float> dA(16 * 1024);
//     layer.backward(x, dy, dx, {{"lora_A.weight", view_into(dA.data(), 16, 1024), true}});
struct gradient {
  std::string name;
  mutable_view into;
  bool add = false;
};

}  // namespace graft
