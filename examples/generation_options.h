// SPDX-License-Identifier: Apache-2.0
// Command-line options of programs that generate text: sampling, and the context length.
#pragma once
#include <graft/io/hf/generation_config.h>
#include <graft/io/hf/load_model.h>

#include "arguments.h"

// Options that override the sampling settings of the model's generation_config.json.
struct sampling_options {
  std::optional<int> seed, top_k;
  std::optional<double> temperature, top_p;

  void declare(arguments& in) {
    in.option("--sample SEED", seed, "draws tokens, from this seed; not given: as generation_config.json says", 0);
    in.option("--temperature X", temperature, "draws tokens at this temperature; 0 takes the most likely one");
    in.option("--top-k N", top_k, "draws from the N most likely tokens, 0: from all", 0);
    in.option("--top-p X", top_p, "draws from the most likely tokens whose probabilities add up to this");
  }
  graft::result<graft::generation_settings> settings(const std::string& folder,
                                                     const graft::model_config& config) const {
    auto how = graft::io::hf::read_generation_config(folder, config.tokens);
    if (!how) return how;
    graft::sampling_settings& s = how->sampling;
    s.sample = s.sample || seed || temperature;
    if (seed) s.seed = static_cast<unsigned long long>(*seed);
    if (temperature) s.temperature = *temperature;
    if (top_k) s.top_k = *top_k;
    if (top_p) s.top_p = *top_p;
    return how;
  }
};

// The option --context: the context length that a model is loaded with, which is also the capacity of its KV cache.
struct context_options {
  std::optional<int> context;

  void declare(arguments& in) {
    in.option(
        "--context N", context,
        "capacity of the KV cache in positions, for prompt and answer; not given: those of the model, at most 4096", 1);
  }
  graft::result<graft::model_options> model(const std::string& folder) const {
    graft::model_options options;
    if (!context) return options;
    const auto config = graft::io::hf::read_config(folder);
    if (!config) return config.failure();
    if (*context > config->positions)
      return graft::fail("--context ", *context, " is more than the ", config->positions,
                         " positions of the model; ask for ", config->positions, " or fewer");
    options.context = *context;
    return options;
  }
  // Says what to do when the context of a model is full.
  static std::string context_advice(int context, int positions) {
    if (context < positions)
      return "a larger --context has more, up to the " + std::to_string(positions) + " of the model";
    return "the model has no more";
  }
};
