// SPDX-License-Identifier: Apache-2.0
// Command-line options of programs that generate text: sampling, and the context length.
#pragma once
#include <graft/io/load_model.h>

#include "arguments.h"

// Options that override the sampling settings of the model's generation_config.json.
struct sampling_options {
  std::optional<int> seed, top_k;
  std::optional<double> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;

  void declare(arguments& in) {
    in.option("--seed N", seed, "draws tokens, from this seed; not given: as generation_config.json says", 0);
    in.option("--temperature X", temperature, "draws tokens at this temperature; 0 takes the most likely one");
    in.option("--top-k N", top_k, "draws from the N most likely tokens, 0: from all", 0);
    in.option("--top-p X", top_p, "draws from the most likely tokens whose probabilities add up to this");
    in.option("--min-p X", min_p, "draws from tokens that are at least X times as likely as the most likely one");
    in.option("--repetition-penalty X", repetition_penalty,
              "divides positive logits of tokens that prompt and answer have, and multiplies negative ones");
    in.option("--presence-penalty X", presence_penalty, "is subtracted from logits of tokens that the answer has");
    in.option("--frequency-penalty X", frequency_penalty,
              "is subtracted from logits for every time that the answer has the token");
  }
  graft::result<graft::generation_settings> settings(const std::string& model,
                                                     const graft::model_config& config) const {
    auto from_files = graft::io::read_generation_settings(model, config.tokens);
    if (!from_files) return from_files;
    graft::sampling_settings& s = from_files->sampling;
    s.sample = s.sample || seed || temperature;
    if (seed) s.seed = static_cast<unsigned long long>(*seed);
    if (top_k) s.top_k = *top_k;
    for (const auto& [given, to] : {std::pair{&temperature, &s.temperature},
                                    {&top_p, &s.top_p},
                                    {&min_p, &s.min_p},
                                    {&repetition_penalty, &s.repetition_penalty},
                                    {&presence_penalty, &s.presence_penalty},
                                    {&frequency_penalty, &s.frequency_penalty}})
      if (*given) *to = **given;
    return from_files;
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
  graft::result<graft::model_options> model(const std::string& path) const {
    graft::model_options options;
    if (!context) return options;
    const auto config = graft::io::read_model_config(path);
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
