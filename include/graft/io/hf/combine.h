// SPDX-License-Identifier: Apache-2.0
// A new adapter from several with weights, as PEFT's add_weighted_adapter makes it. With a_i = w_i s_i:
//     cat                    A = [a_1 A_1; a_2 A_2; …], B = [B_1, B_2, …]: exact, of the rank of all together
//     linear, ties, …        on the A with the weights sgn(a_i) √|a_i|, on the B with √|a_i|: equal ranks; not Σ w_i ΔW_i
//     svd, ties_svd, …       on the updates ΔW_i with the weights w_i, and the nearest matrix of the rank asked for
// IA3 combines linearly: Σ w_i l_i. The forms that end in svd take adapters of any method that changes the weight alone:
// their updates are folded, which PEFT does not do. The result is a LoRA, or an IA3, of the modules of all of them.
#pragma once
#include <graft/io/hf/combiner.h>

namespace graft::io::hf {

// Adds it to the model under the new name; it is not active yet.
template <class Engine>
status combine(causal_lm<Engine>& model, const std::string& name, const std::vector<std::string>& names,
               const std::vector<double>& weights, const combination_settings& how = {}) {
  return guarded("a combination", [&]() -> status {
    std::vector<shared_adapter> of;
    for (const std::string& n : names) {
      of.push_back(model.find(n));
      if (of.back() == nullptr) return fail("there is no adapter '", n.c_str(), "' to combine");
    }
    detail::combiner all(std::move(of), weights, how, [&](const module_adapter& m, const view& weight) {
      const auto mine = model.alone();
      return update_of<Engine>(model.programs().queue, m, weight);
    });
    if (status s = all.check(); !s) return s;
    for (const base_layer& b : modules_of(model.config(), model.weights()))
      if (status s = all.take(b); !s) return s;
    const result<adapter_config> config = all.config();
    if (!config) return config.failure();
    result<loaded_adapters> made = load_made(*config, all.tensors(), model.config(), model.weights(), "a combination");
    if (!made) return made.failure();
    return model.add(name, std::move(*made).with_origin());
  });
}

}  // namespace graft::io::hf
