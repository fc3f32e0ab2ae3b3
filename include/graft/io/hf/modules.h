// SPDX-License-Identifier: Apache-2.0
// The modules of a model as PEFT sees them: path, kind, sizes and bias, derived from names and shapes of the weights.
#pragma once
#include <graft/io/hf/load_model.h>
#include <graft/io/peft/folder.h>

namespace graft::io::hf {

GRAFT_LIBRARY std::vector<base_layer> modules_of(const model_config& c, const model_weights& w);

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/hf/tensor_names.h>
#include <graft/io/peft/target_modules.h>

namespace graft::io::hf {

inline bool is_embedding_module(std::string_view module) {
  for (const char* name : {"embed_tokens", "embed_positions", "wte", "wpe"})
    if (ends_with_name(module, name)) return true;
  return false;
}

GRAFT_LIBRARY std::vector<base_layer> modules_of(const model_config& c, const model_weights& w) {
  std::vector<base_layer> all;
  const auto tensor = [&](const std::string& name) -> const view* {
    auto at = w.tensors.find(name);
    if (at == w.tensors.end() && name == "lm_head.weight" && c.tied) at = w.tensors.find(c.family->token_embedding);
    return at != w.tensors.end() ? &at->second : nullptr;
  };
  for (const std::string& name : names_of(c)) {
    const view* const weight = tensor(name);
    if (weight == nullptr || (!name.ends_with(".weight") && weight->rank != 3)) continue;
    base_layer b;
    if (weight->rank == 3) {
      b.kind = "experts", b.module = name, b.weight = *weight, b.shape.assign(weight->size, weight->size + 3);
      b.stored_in_out = experts_in_out(c);
      b.out = weight->size[b.stored_in_out ? 2 : 1], b.in = weight->size[b.stored_in_out ? 1 : 2];
      all.push_back(std::move(b));
      continue;
    }
    b.module = name.substr(0, name.size() - std::string_view(".weight").size());
    const view* const bias = tensor(b.module + ".bias");
    b.bias = bias != nullptr;
    if (b.bias) b.bias_values = *bias;
    b.weight = *weight;
    for (int k = 0; k < weight->rank; ++k) b.shape.push_back(weight->size[k]);
    if (weight->rank == 1) {
      b.kind = b.bias ? "layer_norm" : "rms_norm", b.out = weight->size[0], b.in = 1;
    } else {
      const bool transposed_storage = stored_in_out(c) && is_in_layers(c, b.module);
      if (transposed_storage) b.weight = weight->transposed();
      b.kind = is_embedding_module(b.module) ? "embedding" : "linear";
      b.out = b.weight.size[0], b.in = b.weight.size[1];
    }
    all.push_back(std::move(b));
  }
  return all;
}

}  // namespace graft::io::hf
#endif
