// SPDX-License-Identifier: Apache-2.0
// PEFT's target_parameters: adapters on the parameters of a module, here those of the experts of a mixture. A name
// stands for the parameters whose path is the name or ends with "." + name. PEFT wraps the module once for each of them
// in the order in which the module has them, so that the path of the first one in a file has `base_layer` once for each
// further one (peft/tuners/tuners_utils.py, _inject_parameters).
#pragma once
#include <graft/io/peft/layer_values.h>
#include <graft/io/peft/target_modules.h>

#include <algorithm>
#include <span>

namespace graft::io::hf {

// The parameters of an experts module in the order in which transformers creates them.
inline constexpr std::string_view expert_parameters[] = {"gate_up_proj", "down_proj"};

// Returns true for the layer that scores experts, which is no linear layer in transformers: "all-linear" leaves it out.
inline bool is_router(std::string_view module) {
  return ends_with_name(module, "mlp.gate") || ends_with_name(module, "mlp.router");
}
inline bool is_target_parameter(const adapter_config& c, std::string_view path) {
  return std::any_of(c.target_parameters.begin(), c.target_parameters.end(),
                     [&](const std::string& name) { return ends_with_name(path, name); });
}

// Gives each targeted parameter its path in adapter files.
inline void name_parameters_in_files(std::span<base_layer* const> targets) {
  for (base_layer* b : targets) {
    if (b->kind != "experts") continue;
    const std::string module = b->module.substr(0, b->module.rfind('.'));
    const auto position = [](const base_layer& p) {
      return std::find(std::begin(expert_parameters), std::end(expert_parameters),
                       std::string_view(p.module).substr(p.module.rfind('.') + 1));
    };
    b->wrapped_module = module;
    for (const base_layer* other : targets)
      if (other->kind == "experts" && other->module.starts_with(module + ".") && position(*other) > position(*b))
        b->wrapped_module += ".base_layer";
  }
}
// Checks that every name stands for a parameter of experts.
inline status check_target_parameters(const adapter_config& c, const std::vector<base_layer>& all) {
  for (const std::string& name : c.target_parameters) {
    const auto stands_for = [&](const base_layer& b) { return b.kind == "experts" && ends_with_name(b.module, name); };
    if (std::any_of(all.begin(), all.end(), stands_for)) continue;
    text known;
    for (const base_layer& b : all)
      if (b.kind == "experts" && known.empty()) known << "experts.gate_up_proj and experts.down_proj";
    return fail("'target_parameters' of adapter_config.json names '", name.c_str(), "', expected parameters of experts",
                known.empty() ? ", which this model does not have" : ", which are here ", known);
  }
  return ok;
}

}  // namespace graft::io::hf
