// SPDX-License-Identifier: Apache-2.0
// Loads, replaces and saves the named adapters of a model as PEFT folders. A folder is read completely before the model
// changes, and a change is applied completely or not at all; another thread may run the model meanwhile.
//     load_adapter(model, "sql", "adapters/sql");       model.activate({"sql"});
//     replace_adapter(model, "sql", "adapters/sql-2");  // hot swap between two tokens
//     load_adapter(model, "mine", "adapters/mine", methods);  // of a method that the program added to a method_table
#pragma once
#include <graft/io/hf/load_adapters.h>

namespace graft::io::hf {

template <class Engine>
status load_adapter(causal_lm<Engine>& model, const std::string& name, const std::string& folder,
                    const method_table& methods = built_in_methods()) {
  result<loaded_adapters> loaded = load_adapters(folder, model, methods);
  if (!loaded) return loaded.failure();
  if (status s = model.add(name, std::move(*loaded).with_origin()); !s) return fail_in(folder, s.message());
  return ok;
}

namespace detail {
inline const peft_origin* origin_of(const shared_adapter& a) {
  if (a == nullptr || a->origin == nullptr || !same_text(a->origin->kind(), peft_origin::name)) return nullptr;
  return static_cast<const peft_origin*>(a->origin.get());
}
inline status same_method(const std::string& name, const shared_adapter& old, const adapter_config& fresh) {
  const peft_origin* const before = origin_of(old);
  if (before == nullptr || same_text(before->config.type_name(), fresh.type_name())) return ok;
  return fail("adapter '", name.c_str(), "' is of type ", before->config.type_name(), ", the folder holds ",
              fresh.type_name(), "; remove() it and load the other one");
}
}  // namespace detail

// Replaces an adapter by another of the same method; weights, rank, alpha and target modules may differ.
template <class Engine>
status replace_adapter(causal_lm<Engine>& model, const std::string& name, const std::string& folder,
                       const method_table& methods = built_in_methods()) {
  result<loaded_adapters> loaded = load_adapters(folder, model, methods);
  if (!loaded) return loaded.failure();
  if (status s = detail::same_method(name, model.find(name), loaded->config); !s) return fail_in(folder, s.message());
  if (status s = model.replace(name, std::move(*loaded).with_origin()); !s) return fail_in(folder, s.message());
  return ok;
}

template <class Engine>
status save_adapter(const std::string& folder, const causal_lm<Engine>& model, const std::string& name) {
  const shared_adapter adapter = model.find(name);
  if (adapter == nullptr) return fail("there is no adapter '", name.c_str(), "'");
  const peft_origin* const from = detail::origin_of(adapter);
  if (from == nullptr)
    return fail("adapter '", name.c_str(), "' was made without a configuration that could be written");
  return save_adapter(folder, *adapter, from->config, from->modules);
}

}  // namespace graft::io::hf
