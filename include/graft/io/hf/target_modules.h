// SPDX-License-Identifier: Apache-2.0
// Finds the modules of a model that an adapter targets, and gives each the facts about the others that it depends on.
#pragma once
#include <graft/core/name_suggestion.h>
#include <graft/io/hf/modules.h>
#include <graft/io/hf/target_parameters.h>
#include <graft/io/peft/target_modules.h>

#include <span>

namespace graft::io::hf {

// The order in which transformers creates modules, as (block, position within the block). Modules before all blocks
// have block -1. Random draws that span all targets follow this order.
inline std::pair<int, std::size_t> module_order(const model_config& c, const std::string& module) {
  const std::span<const char* const> order = c.family->creation_order;
  std::size_t at = 0;
  while (at < order.size() && !ends_with_name(module, order[at])) ++at;
  if (module == "lm_head") return {c.layers, at};
  const result<std::optional<int>> block = layer_number(module, {});
  return {block && *block ? **block : -1, at};
}

// `model` orders the targets for draws that span all of them; null keeps the order of `modules`.
inline result<std::vector<base_layer*>> targets_of(const adapter_config& c, std::vector<base_layer>& modules,
                                                   const model_config* model = nullptr) {
  std::vector<base_layer*> targets;
  const auto all_targets = std::make_shared<target_layers>();
  long long out = 0, in = 0;
  for (base_layer& b : modules) {
    const module_role role{b.kind == "linear" && !is_router(b.module), b.module == "lm_head"};
    const result<bool> hit = b.kind == "experts" ? is_target_parameter(c, b.module) : is_target(c, b.module, role);
    if (!hit) return hit.failure();
    if (!*hit) continue;
    targets.push_back(&b);
    out = std::max(out, b.out), in = std::max(in, b.in);
  }
  if (status s = check_target_parameters(c, modules); !s) return s.failure();
  name_parameters_in_files(targets);
  std::vector<base_layer*> in_order = targets;
  if (model != nullptr)
    std::stable_sort(in_order.begin(), in_order.end(), [&](const base_layer* a, const base_layer* b) {
      return module_order(*model, a->module) < module_order(*model, b->module);
    });
  for (base_layer* b : in_order) {
    b->largest_out = out, b->largest_in = in;
    b->all_targets = all_targets, b->number = all_targets->all.size();
    all_targets->all.push_back({b->out, b->in});
  }
  return targets;
}

// Returns the last `names` components of a path.
inline std::string_view end_of_path(std::string_view path, std::ptrdiff_t names) {
  std::size_t at = path.size();
  for (; names > 0 && at != path.npos; --names) at = at == 0 ? path.npos : path.rfind('.', at - 1);
  return at == path.npos ? path : path.substr(at + 1);
}
// Explains why an adapter has no targets, and lists the module names of the model.
inline text no_targets(const adapter_config& c, const std::vector<base_layer>& modules) {
  bool suggested = false;
  text out("'target_modules' of adapter_config.json names no module of this model");
  for (const std::string& name : c.target_modules.names) {
    const auto is_written = [&](const base_layer& b) { return ends_with_name(b.module, name); };
    if (std::any_of(modules.begin(), modules.end(), is_written))
      return out << ": those called " << in_quotes(name)
                 << " are left out by 'exclude_modules', 'modules_to_save' or 'layers_to_transform'";
  }
  if (!c.target_modules.names.empty()) {
    const std::string& wanted = c.target_modules.names.front();
    name_suggester meant(wanted.c_str());
    for (const base_layer& b : modules)
      for (const auto names : {1 + std::count(wanted.begin(), wanted.end(), '.'), std::ptrdiff_t{1}})
        meant.offer(std::string(end_of_path(b.module, names)).c_str());
    suggested = !meant.hint().empty();
    out << ": there is no " << in_quotes(wanted) << clipped(meant.hint().c_str());
  }
  text all;
  std::vector<std::string_view> listed;
  for (const base_layer& b : modules) {
    const std::string_view last = end_of_path(b.module, 1);
    if (std::find(listed.begin(), listed.end(), last) != listed.end()) continue;
    listed.push_back(last);
    all << (all.empty() ? "" : ", ") << clipped(last);
  }
  return out << (suggested ? " Its" : "; its") << " modules are called " << all;
}

}  // namespace graft::io::hf
