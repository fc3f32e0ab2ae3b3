// SPDX-License-Identifier: Apache-2.0
// The modules of a model that an adapter targets, each told what it must know of the others.
#pragma once
#include <graft/io/hf/modules.h>
#include <graft/io/target.h>

#include <span>

namespace graft::io::hf {

// Where a module stands in the model: its block, and its place among the layers of it, in the order in which transformers
// makes them. What stands before all blocks has number -1.
inline std::pair<int, std::size_t> place_in_model(const model_config& c, const std::string& module) {
  static constexpr const char* opt[] = {"k_proj", "v_proj", "q_proj", "out_proj", "fc1", "fc2"};
  static constexpr const char* others[] = {"q_proj",    "k_proj", "v_proj",      "o_proj", "gate_proj", "up_proj",
                                           "down_proj", "c_attn", "attn.c_proj", "c_fc",   "mlp.c_proj"};
  const bool is_opt = c.family == model_family::opt;
  const std::span<const char* const> order = is_opt ? std::span<const char* const>(opt) : others;
  std::size_t at = 0;
  while (at < order.size() && !ends_with_name(module, order[at])) ++at;
  if (module == "lm_head") return {c.layers, at};
  const result<std::optional<int>> block = layer_number(module, {});
  return {block && *block ? **block : -1, at};
}

// `model`: whose order the modules have for what is drawn for all of them; null: that in which they are listed.
inline result<std::vector<base_layer*>> targets_of(const adapter_config& c, std::vector<base_layer>& modules,
                                                   const model_config* model = nullptr) {
  std::vector<base_layer*> targets;
  const auto among = std::make_shared<target_layers>();
  long long out = 0, in = 0;
  for (base_layer& b : modules) {
    const result<bool> hit = is_target(c, b.module, {b.kind == "linear", b.module == "lm_head"});
    if (!hit) return hit.failure();
    if (!*hit) continue;
    targets.push_back(&b);
    out = std::max(out, b.out), in = std::max(in, b.in);
  }
  std::vector<base_layer*> in_order = targets;
  if (model != nullptr)
    std::stable_sort(in_order.begin(), in_order.end(), [&](const base_layer* a, const base_layer* b) {
      return place_in_model(*model, a->module) < place_in_model(*model, b->module);
    });
  for (base_layer* b : in_order) {
    b->largest_out = out, b->largest_in = in;
    b->among = among, b->number = among->all.size();
    among->all.push_back({b->out, b->in});
  }
  return targets;
}

}  // namespace graft::io::hf
