// SPDX-License-Identifier: Apache-2.0
// A PEFT folder for a whole model: which modules it changes, what each of them gets, and the modules that it replaces
// whole. Every tensor of the file must have been for one of them. The way back writes the same file with the values that
// the tensors have now; PEFT reads it.
#pragma once
#include <graft/io/hf/modules.h>
#include <graft/model/adalora.h>

namespace graft::io::hf {

// What is needed to write an adapter again.
struct peft_origin : adapter_origin {
  adapter_config config;
  std::vector<adapted_module> modules;
};
struct loaded_adapters {
  adapter_set set;
  adapter_config config;
  std::vector<adapted_module> modules;

  // To be handed to a model, with what is needed to write it again.
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
result<loaded_adapters> load_adapters(const std::string& folder, const causal_lm<Engine>& model) {
  const result<peft_folder> opened = open_peft_folder(folder);
  if (!opened) return opened.failure();
  return adapters_from(*opened, model.config(), model.weights());
}

// What AdaLoRA's file says about its ranks.
inline adalora_settings adalora_settings_of(const adapter_config& c) {
  return {c.whole("target_r"),   c.whole("tinit"),  c.whole("tfinal"), c.whole("deltaT"),
          c.whole("total_step"), c.number("beta1"), c.number("beta2"), c.number("orth_reg_weight")};
}

// The folder as it was read, with the values of now.
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
    if (!m.follows.empty()) continue;
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
      if (!to.whole && to.stored && t.places == nullptr) to.data = *t.data;
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
