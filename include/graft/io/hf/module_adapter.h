// SPDX-License-Identifier: Apache-2.0
// Converts what a PEFT folder has for one module (peft_layer) to the module's adapter in a model (module_adapter).
#pragma once
#include <graft/io/peft/layer.h>
#include <graft/model/adapter_set.h>

namespace graft::io::hf {

inline adapter_tensor adapter_tensor_of(const loaded_tensor& t) {
  adapter_tensor one{t.key, std::make_shared<std::vector<float>>(t.data), t.shape, t.stored};
  if (!t.indices.empty()) one.indices = std::make_shared<std::vector<std::int64_t>>(t.indices);
  return one;
}
// tensor(loaded) converts a tensor; the caller may share tensors between modules there.
template <class Tensor> module_adapter module_adapter_of(const base_layer& b, const peft_layer& layer, Tensor tensor) {
  module_adapter m{b.module, layer.formula.of, {}, layer.scalars, layer.sizes, {}};
  for (const auto& [name, t] : layer.tensors) m.tensors[name] = tensor(t);
  if (layer.base_weight) m.base["weight"] = tensor(*layer.base_weight);
  if (layer.base_bias) m.base["bias"] = tensor(*layer.base_bias), m.trains_bias = true;
  m.table = b.kind == "embedding";
  m.transposed_storage = b.stored_in_out || (b.shape.size() == 2 && b.weight.strides[0] != 0);
  return m;
}

}  // namespace graft::io::hf
