// SPDX-License-Identifier: Apache-2.0
// Finds the AdaLoRA layers among trained parameters: the lora_A, lora_E and lora_B of one module.
#pragma once
#include <graft/model/adalora.h>
#include <graft/model/optimizer.h>

namespace graft {

inline std::vector<adalora_layer> adalora_layers(const std::vector<trained_parameter>& all) {
  const auto numbers = [](const mutable_view& v) {
    return std::span<float>(static_cast<float*>(v.data), static_cast<std::size_t>(v.count()));
  };
  const auto find = [&](const std::string& name) -> const trained_parameter* {
    for (const trained_parameter& p : all)
      if (p.name == name) return &p;
    return nullptr;
  };
  std::vector<adalora_layer> out;
  const std::string_view last = ".lora_E";
  for (const trained_parameter& e : all) {
    if (!e.name.ends_with(last)) continue;
    const std::string module = e.name.substr(0, e.name.size() - last.size());
    const trained_parameter *const a = find(module + ".lora_A"), *const b = find(module + ".lora_B");
    if (a == nullptr || b == nullptr) continue;
    out.push_back({module, numbers(a->value), numbers(e.value), numbers(b->value), numbers(a->gradient),
                   numbers(e.gradient), numbers(b->gradient)});
  }
  return out;
}

}  // namespace graft
