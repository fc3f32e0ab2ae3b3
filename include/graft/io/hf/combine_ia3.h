// SPDX-License-Identifier: Apache-2.0
// IA3 combines linearly: l = Σ w_i l_i.
#pragma once
#include <graft/io/hf/weighted_adapters.h>

namespace graft::io::hf::detail {

template <class Engine>
result<loaded_adapters> combine_ia3(const causal_lm<Engine>& model, const weighted_adapters& adapters,
                                    combination type) {
  made_tensors made;
  if (type != combination::linear && type != combination::svd)
    return fail("IA3 combines as linear; ", combination_names[static_cast<int>(type)], " is for LoRA");
  std::vector<std::string> targets;
  json inner;
  inner.what = json::kind::list;
  for (const base_layer& b : modules_of(model.config(), model.weights())) {
    const std::vector<weighted_module> share = adapters.at(b.module);
    if (share.empty()) continue;
    const formula ff = formula_of<ia3_feedforward>();
    for (const weighted_module& m : share)
      if ((m.is->of.weight == ff.weight) != (share[0].is->of.weight == ff.weight))
        return fail(b.module.c_str(), " is feed-forward for one adapter and not for the other");
    targets.push_back(b.module);
    if (share[0].is->of.weight == ff.weight) inner.items.push_back(json_word(b.module));
    const adapter_tensor& like = share[0].is->tensors.at("ia3_l");
    std::vector<float>& to = made.put("base_model.model." + b.module + ".ia3_l", like.shape);
    for (const weighted_module& m : share) {
      const std::vector<float>& from = *m.is->tensors.at("ia3_l").data;
      for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i] * static_cast<float>(m.weight);
    }
  }
  const result<adapter_config> config = make_adapter_config(
      "IA3", targets,
      {{"feedforward_modules", inner},
       {"fan_in_fan_out", json_flag(adapters.first().fan_in_fan_out)},
       {"task_type", adapters.first().task_type.empty() ? json{} : json_word(adapters.first().task_type)}});
  if (!config) return config.failure();
  return load_made(*config, made, model.config(), model.weights(), "a combination");
}

}  // namespace graft::io::hf::detail
