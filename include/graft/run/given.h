// SPDX-License-Identifier: Apache-2.0
// What a layer is given by name, and asked for by name.
#pragma once
#include <graft/core/view.h>

#include <map>
#include <string>

namespace graft {

using tensor_map = std::map<std::string, view, std::less<>>;
using size_map = std::map<std::string, long long, std::less<>>;

// One thing that a layer is given: a tensor, a number, or a size.
struct given_value {
  const char* name = "";
  const view* tensor = nullptr;
  const double* scalar = nullptr;
  long long size = 0;
};
// Tensors, numbers and sizes of one adapter, to be taken whole or not at all.
struct adapter_values {
  tensor_map tensors;
  std::map<std::string, double, std::less<>> scalars;
  size_map sizes{};
};
// Where the gradient of the parameter of that name belongs, and whether it is added to what is there.
struct gradient {
  std::string name;
  mutable_view into;
  bool add = false;
};

}  // namespace graft
