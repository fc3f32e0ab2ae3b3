// SPDX-License-Identifier: Apache-2.0
// How the next token is chosen, and when to stop: the settings of transformers' generate that this library has, with
// its defaults (generation/configuration_utils.py).
#pragma once
#include <optional>
#include <vector>

namespace graft {

struct sampling_settings {
  bool sample = false;  // otherwise the most likely token
  double temperature = 1;
  int top_k = 50;  // 0: all
  double top_p = 1;
  double repetition_penalty = 1;
  unsigned long long seed = 0;
};

struct generation_settings {
  sampling_settings sampling{};
  std::optional<int> new_tokens{};  // at most
  std::optional<int> length{};      // at most, with the prompt
  std::vector<int> end{};           // tokens that end a sequence
  std::optional<int> begin{}, pad{};
  // Prompts of more tokens together go through the model in pieces of so many, so that the memory of a call does not
  // grow with them.
  std::optional<int> prefill_chunk_size{};  // not set: 4096
};

}  // namespace graft
