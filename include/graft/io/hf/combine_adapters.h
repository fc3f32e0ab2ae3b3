// SPDX-License-Identifier: Apache-2.0
// Weighted combination of adapters into a new one, as PEFT's add_weighted_adapter computes it. With a_i = w_i s_i,
// weight times scaling of adapter i:
//     cat                    A = [a_1 A_1; a_2 A_2; …], B = [B_1, B_2, …]: exact; the ranks add up
//     linear, ties, …        over A_i with weights sgn(a_i) √|a_i|, over B_i with √|a_i|: equal ranks; not Σ w_i ΔW_i
//     svd, ties_svd, …       best approximation, of the requested rank, of the combined updates ΔW_i with weights w_i
// IA3 is combined linearly: Σ w_i l_i. The svd types accept adapters of any method that changes the weight alone, by
// computing their updates, which PEFT does not do. The result is a LoRA (or IA3) of all modules that an input changes.
#pragma once
#include <graft/io/hf/combiner.h>

namespace graft::io::hf {

// Adds the combination to the model under a new name; it is not activated.
template <class Engine>
status combine(causal_lm<Engine>& model, const std::string& name, const std::vector<std::string>& names,
               const std::vector<double>& weights, const combination_settings& settings = {}) {
  return guarded("a combination", [&]() -> status {
    std::vector<shared_adapter> of;
    for (const std::string& n : names) {
      of.push_back(model.find(n));
      if (of.back() == nullptr) return fail("there is no adapter '", n.c_str(), "' to combine");
    }
    detail::combiner all(std::move(of), weights, settings, [&](const module_adapter& m, const view& weight) {
      const auto guard = model.lock();
      return weight_update_of<Engine>(model.programs().queue, m, weight);
    });
    if (status s = all.combine(modules_of(model.config(), model.weights())); !s) return s;
    const result<adapter_config> config = all.config();
    if (!config) return config.failure();
    result<loaded_adapters> made =
        load_from_tensors(*config, all.tensors(), model.config(), model.weights(), "a combination");
    if (!made) return made.failure();
    return model.add(name, std::move(*made).with_origin());
  });
}

}  // namespace graft::io::hf
