// SPDX-License-Identifier: Apache-2.0
// Loads a PEFT folder for a whole model: target modules, what each of them gets, and the modules it replaces
// (modules_to_save). Every tensor of the file must belong to a module. Saving writes the same file with the present
// values, and PEFT can read it.
#pragma once
#include <graft/io/hf/modules.h>
#include <graft/model/adalora.h>

namespace graft::io::hf {

// Configuration and layers of a PEFT folder, as needed to save an adapter again.
struct peft_origin : adapter_origin {
  static constexpr const char* name = "PEFT folder";
  const char* kind() const override { return name; }
  adapter_config config;
  std::vector<adapted_module> modules;
};
struct loaded_adapters {
  adapter_set set;
  adapter_config config;
  std::vector<adapted_module> modules;

  // Returns the set for a model, together with the origin that saving needs.
  adapter_set with_origin() && {
    auto from = std::make_shared<peft_origin>();
    from->config = std::move(config), from->modules = std::move(modules);
    set.origin = std::move(from);
    return std::move(set);
  }
};

GRAFT_LIBRARY result<loaded_adapters> adapters_from(const peft_folder& folder, const model_config& c,
                                                    const model_weights& w);
template <class Engine>
result<loaded_adapters> load_adapters(const std::string& folder, const causal_lm<Engine>& model,
                                      const method_table& methods = built_in_methods()) {
  const result<peft_folder> opened = open_peft_folder(folder, methods);
  if (!opened) return opened.failure();
  return adapters_from(*opened, model.config(), model.weights());
}

// AdaLoRA's rank schedule from its configuration.
inline adalora_settings adalora_settings_of(const adapter_config& c) {
  return {c.whole("target_r"),   c.whole("tinit"),  c.whole("tfinal"), c.whole("deltaT"),
          c.whole("total_step"), c.number("beta1"), c.number("beta2"), c.number("orth_reg_weight")};
}

// Writes the folder with the present values of the tensors.
GRAFT_LIBRARY status save_adapter(const std::string& folder, const adapter_set& set, const adapter_config& config,
                                  std::vector<adapted_module> modules);
GRAFT_LIBRARY status save_adapters(const std::string& folder, const loaded_adapters& a);

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/hf/adapter_loader.h>

namespace graft::io::hf {

GRAFT_LIBRARY status save_adapter(const std::string& folder, const adapter_set& set, const adapter_config& config,
                                  std::vector<adapted_module> modules) {
  std::vector<tensor_view> more;
  for (const module_adapter& m : set.modules) {
    if (!m.tied_to.empty()) continue;
    const auto at =
        std::find_if(modules.begin(), modules.end(), [&](const auto& e) { return e.base.module == m.module; });
    for (const auto& [name, t] : m.tensors) {
      if (at == modules.end()) {
        if (t.stored)
          more.push_back(
              {t.key, safetensors_type::f32, {t.shape.begin(), t.shape.end()}, std::as_bytes(std::span(*t.data))});
        continue;
      }
      loaded_tensor& to = at->layer.tensors.at(name);
      if (!to.whole && to.stored && t.indices == nullptr) to.data = *t.data;
    }
    for (const auto& [name, t] : m.base) {
      if (at == modules.end())
        more.push_back(
            {t.key, safetensors_type::f32, {t.shape.begin(), t.shape.end()}, std::as_bytes(std::span(*t.data))});
      else if (name == "bias")
        at->layer.base_bias->data = *t.data;
    }
  }
  return write_peft_folder(folder, config, modules, more);
}
GRAFT_LIBRARY status save_adapters(const std::string& folder, const loaded_adapters& a) {
  return save_adapter(folder, a.set, a.config, a.modules);
}

}  // namespace graft::io::hf
#endif
