// SPDX-License-Identifier: Apache-2.0
// Named adapters of a single layer (model/adapted_layer.h): loading, saving, initializing and combining PEFT adapters,
// as hf/adapters.h, hf/new_adapter.h and hf/combine_adapters.h do for a model.
//     const base_layer base{.out = 4096, .in = 4096, .shape = {4096, 4096}, .weight = view_of(w, 4096, 4096)};
//     load_adapter(layer, base, "sql", "adapters/sql");
//     combine(layer, base, "half", {"sql", "chat"}, {0.5, 0.5});
// base.weight must be in host memory: initialization and combination read it there.
#pragma once
#include <graft/io/hf/combiner.h>
#include <graft/io/hf/module_adapter.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/model/adapted_layer.h>

namespace graft::io::hf {

namespace detail {
template <class Engine> base_layer base_in(const adapted_layer<Engine>& layer, base_layer base) {
  base.kind = layer.kind().name, base.module = layer.module(), base.bias = layer.has_bias();
  return base;
}
// Reads one layer's adapter from a PEFT folder, with its origin, so that it can be saved again.
inline result<adapter_set> read_adapter(const peft_folder& folder, const base_layer& base) {
  result<peft_layer> layer = read_module(folder, base);
  if (!layer) return layer.failure();
  adapter_set made;
  made.modules.push_back(module_adapter_of(base, *layer, adapter_tensor_of));
  auto from = std::make_shared<peft_origin>();
  from->config = folder.config, from->modules.push_back({base, std::move(*layer)});
  made.origin = std::move(from);
  return made;
}
}  // namespace detail

template <class Engine>
result<adapter_set> read_adapter(const adapted_layer<Engine>& layer, const base_layer& base, const std::string& folder,
                                 const method_table& methods = built_in_methods()) {
  const result<peft_folder> opened = open_peft_folder(folder, methods);
  if (!opened) return opened.failure();
  return detail::read_adapter(*opened, detail::base_in(layer, base));
}
template <class Engine>
status load_adapter(adapted_layer<Engine>& layer, const base_layer& base, const std::string& name,
                    const std::string& folder, const method_table& methods = built_in_methods()) {
  result<adapter_set> read = read_adapter(layer, base, folder, methods);
  if (!read) return read.failure();
  return layer.add(name, std::move(*read));
}
// Adds a new adapter, initialized as PEFT does; `config` must target the layer's module.
template <class Engine>
status add_adapter(adapted_layer<Engine>& layer, const base_layer& base, const std::string& name,
                   const adapter_config& config, std::uint64_t seed = 0, const leaf_start& start = {}) {
  const base_layer here = detail::base_in(layer, base);
  const auto evaluate = [&](const graph& g, const size_values& sizes, const leaf_views& leaves, mutable_view to) {
    return Engine::evaluate_in_host_memory(layer.layer_executor().queued(), g, sizes, leaves, {to});
  };
  const model_weights weights{{{here.module + ".weight", here.weight}}, nullptr};
  const result<peft_folder> initial_tensors =
      initialize_adapter({{here}, weights, here.weight.strides[0] != 0, evaluate}, config, seed, start);
  if (!initial_tensors) return initial_tensors.failure();
  result<adapter_set> made = detail::read_adapter(*initial_tensors, here);
  if (!made) return made.failure();
  return layer.add(name, std::move(*made));
}
// Replaces an adapter by another of the same method; weights, rank and alpha may differ.
template <class Engine>
status replace_adapter(adapted_layer<Engine>& layer, const base_layer& base, const std::string& name,
                       const std::string& folder, const method_table& methods = built_in_methods()) {
  result<adapter_set> read = read_adapter(layer, base, folder, methods);
  if (!read) return read.failure();
  const shared_adapter fresh = std::make_shared<const adapter_set>(*read);
  if (status s = detail::same_method(name, layer.find(name), detail::origin_of(fresh)->config); !s) return s;
  return layer.replace(name, std::move(*read));
}
template <class Engine>
status save_adapter(const std::string& folder, const adapted_layer<Engine>& layer, const std::string& name) {
  const shared_adapter adapter = layer.find(name);
  const peft_origin* const from = detail::origin_of(adapter);
  if (adapter == nullptr) return fail("there is no adapter '", name.c_str(), "'");
  if (from == nullptr)
    return fail("adapter '", name.c_str(), "' was made without a configuration that could be written");
  return save_adapter(folder, *adapter, from->config, from->modules);
}

// Adds a weighted combination to the layer under a new name; it is not activated.
template <class Engine>
status combine(adapted_layer<Engine>& layer, const base_layer& base, const std::string& name,
               const std::vector<std::string>& names, const std::vector<double>& weights,
               const combination_settings& settings = {}) {
  return guarded("a combination", [&]() -> status {
    std::vector<shared_adapter> of;
    for (const std::string& n : names) {
      of.push_back(layer.find(n));
      if (of.back() == nullptr) return fail("there is no adapter '", n.c_str(), "' to combine");
    }
    detail::combiner all(std::move(of), weights, settings, [&](const module_adapter& m, const view& weight) {
      return weight_update_of<Engine>(layer.layer_executor().queued(), m, weight);
    });
    const base_layer here = detail::base_in(layer, base);
    if (status s = all.combine({here}); !s) return s;
    const result<adapter_config> config = all.config();
    if (!config) return config.failure();
    result<safetensors> tensors = all.tensors().as_file("a combination");
    if (!tensors) return tensors.failure();
    result<adapter_set> made = detail::read_adapter({*config, std::move(*tensors)}, here);
    if (!made) return made.failure();
    return layer.add(name, std::move(*made));
  });
}

}  // namespace graft::io::hf
