// SPDX-License-Identifier: Apache-2.0
// A fresh adapter of any method, as PEFT begins one, from a configuration. What is drawn follows from the seed.
//     auto config = make_adapter_config("OFT", {"q_proj", "v_proj"}, {{"oft_block_size", json_number(16)}});
//     add_adapter(model, "fresh", *config);
// VeRA's and RandLoRA's projections follow from their key and are not written: the configuration says so.
#pragma once
#include <graft/io/hf/adapters.h>

#include <functional>

namespace graft::io::hf {

// The layers that an adapter may be for, and who computes what follows from their weights (DoRA's norms).
struct fresh_base {
  std::vector<base_layer> modules;
  const model_weights& weights;
  bool turned = false;  // weights are stored [in, out]
  std::function<status(const graph&, const size_values&, const leaf_views&, mutable_view)> evaluate;
  std::string table{};  // the weight that holds the rows of tokens
};
// What a folder with it would hold.
GRAFT_LIBRARY result<peft_folder> begin_adapter(const fresh_base& base, const adapter_config& config,
                                                std::uint64_t seed);

template <class Engine>
result<loaded_adapters> new_adapter(causal_lm<Engine>& model, const adapter_config& config, std::uint64_t seed = 0) {
  const auto evaluate = [&](const graph& g, const size_values& sizes, const leaf_views& leaves, mutable_view to) {
    const auto mine = model.alone();
    return Engine::evaluate_in_host_memory(model.programs().queue, g, sizes, leaves, {to});
  };
  const bool turned = stored_in_out(model.config());
  const result<peft_folder> made = begin_adapter({modules_of(model.config(), model.weights()), model.weights(), turned,
                                                  evaluate, token_table(model.config().family)},
                                                 config, seed);
  if (!made) return made.failure();
  return adapters_from(*made, model.config(), model.weights());
}
// Under a name; it is not active yet.
template <class Engine>
status add_adapter(causal_lm<Engine>& model, const std::string& name, const adapter_config& config,
                   std::uint64_t seed = 0) {
  result<loaded_adapters> made = new_adapter(model, config, seed);
  if (!made) return made.failure();
  return model.add(name, std::move(*made).with_origin());
}

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/hf/adapter_starter.h>
#endif
