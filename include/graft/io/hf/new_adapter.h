// SPDX-License-Identifier: Apache-2.0
// Makes a new adapter of any method from a configuration, initialized as PEFT does; the seed determines random values.
//     auto config = make_adapter_config("OFT", {"q_proj", "v_proj"}, {{"oft_block_size", json_number(16)}});
//     add_adapter(model, "fresh", *config);
// The configuration may also name a method that the program added; the caller's function then initializes its leaves:
//     auto config = make_adapter_config("LORA_XS", {"q_proj"}, {{"r", json_number(16)}, {"alpha", json_number(16)}},
//                                       methods);
//     add_adapter(model, "xs", *config, seed, start);
// Frozen projections of VeRA and RandLoRA follow from their key; the configuration says that files do not hold them.
#pragma once
#include <graft/io/hf/adapters.h>
#include <graft/io/hf/default_targets.h>

#include <functional>

namespace graft::io::hf {

// The layers that an adapter may target, and the evaluator of initial values such as DoRA's norms.
struct adapter_base {
  std::vector<base_layer> modules;
  const model_weights& weights;
  bool transposed_storage = false;  // weights are stored [in, out]
  std::function<status(const graph&, const size_values&, const leaf_views&, mutable_view)> evaluate;
  std::string table{};  // name of the token embedding's weight
};
// Writes the initial values of a leaf, row-major and zero before the call, and returns true; false selects PEFT's
// initialization for a leaf of that name. The integers of an index leaf are written as floats.
using leaf_start = std::function<result<bool>(const base_layer& base, const std::string& leaf,
                                              const std::vector<long long>& shape, std::span<float> to)>;
// Returns the new adapter as the content of a PEFT folder.
GRAFT_LIBRARY result<peft_folder> initialize_adapter(const adapter_base& base, const adapter_config& config,
                                                     std::uint64_t seed, const leaf_start& start = {});

template <class Engine>
result<loaded_adapters> new_adapter(causal_lm<Engine>& model, const adapter_config& config, std::uint64_t seed = 0,
                                    const leaf_start& start = {}) {
  const auto evaluate = [&](const graph& g, const size_values& sizes, const leaf_views& leaves, mutable_view to) {
    const auto guard = model.lock();
    return Engine::evaluate_in_host_memory(model.programs().queue, g, sizes, leaves, {to});
  };
  const result<adapter_config> stated = with_default_targets(config, *model.config().family);
  if (!stated) return stated.failure();
  const bool transposed_storage = stored_in_out(model.config());
  const result<peft_folder> made =
      initialize_adapter({modules_of(model.config(), model.weights()), model.weights(), transposed_storage, evaluate,
                          model.config().family->token_embedding},
                         *stated, seed, start);
  if (!made) return made.failure();
  return adapters_from(*made, model.config(), model.weights());
}
// Adds a new adapter to the model under a name; it is not activated.
template <class Engine>
status add_adapter(causal_lm<Engine>& model, const std::string& name, const adapter_config& config,
                   std::uint64_t seed = 0, const leaf_start& start = {}) {
  result<loaded_adapters> made = new_adapter(model, config, seed, start);
  if (!made) return made.failure();
  return model.add(name, std::move(*made).with_origin());
}

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/hf/adapter_initializer.h>
#endif
