// SPDX-License-Identifier: Apache-2.0
// What a combination of adapters has of each of them: the adapters with their weights, and a module's share of one.
#pragma once
#include <graft/io/hf/adapters.h>
#include <graft/io/hf/made_adapters.h>
#include <graft/model/combination.h>

namespace graft::io::hf::detail {

// One adapter's share of a module.
struct weighted_module {
  const module_adapter* is = nullptr;
  double weight = 0;

  bool plain_lora() const {
    return is->of.weight == formula_of<lora<>>().weight || is->of.weight == formula_of<lora_embedding<>>().weight;
  }
  const adapter_tensor& factor(bool a) const {
    return is->tensors.at(is->table ? (a ? "lora_embedding_A" : "lora_embedding_B")
                                    : (a ? "lora_A.weight" : "lora_B.weight"));
  }
  long long rank() const { return factor(true).shape[0]; }
  double scale() const { return is->scalars.at("scaling"); }
};

struct weighted_adapters {
  std::vector<shared_adapter> of;
  std::vector<double> weights;

  bool all_of_type(const char* type) const {
    return std::all_of(of.begin(), of.end(),
                       [&](const shared_adapter& a) { return same_text(origin_of(a)->config.type_name(), type); });
  }
  const adapter_config& first() const { return origin_of(of[0])->config; }
  std::vector<weighted_module> at(const std::string& module) const {
    std::vector<weighted_module> all;
    for (std::size_t i = 0; i < of.size(); ++i)
      if (const module_adapter* m = of[i]->find(module); m != nullptr && m->of.weight != nullptr)
        all.push_back({m, weights[i]});
    return all;
  }
};

}  // namespace graft::io::hf::detail
