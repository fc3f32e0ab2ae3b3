// SPDX-License-Identifier: Apache-2.0
// Generation settings: sampling of the next token and when to stop. They are the part of transformers' GenerationConfig
// that this library has, with its defaults (generation/configuration_utils.py).
#pragma once
#include <optional>
#include <vector>

namespace graft {

struct sampling_settings {
  bool sample = false;     // false: the most likely token (greedy)
  double temperature = 1;  // 0: the most likely token
  int top_k = 50;          // 0: all
  double top_p = 1;        // 0: the most likely token
  double repetition_penalty = 1;
  unsigned long long seed = 0;
  double min_p = 0;  // excludes tokens less likely than min_p times the most likely one; 0: none
  // Subtracted from the logits of tokens of the answer, not of the prompt: presence_penalty once, frequency_penalty for
  // every time that the answer has the token (vllm/model_executor/layers/utils.py).
  double presence_penalty = 0, frequency_penalty = 0;

  // Returns whether tokens are drawn at random; temperature 0 and top_p 0 leave only the token with the largest logit.
  bool draws() const { return sample && temperature != 0 && top_p != 0; }
};

// This value of generation_settings::eos_tokens lets no token end a sequence.
inline const std::vector<int> no_eos_tokens{};

struct generation_settings {
  sampling_settings sampling{};
  std::optional<int> max_new_tokens{};  // largest number of new tokens
  std::optional<int> max_length{};      // largest number of tokens with the prompt; max_new_tokens takes precedence
  // These tokens end a sequence. Not set: those of the model's generation_config.json, or of config.json if that names
  // none.
  std::optional<std::vector<int>> eos_tokens{};
  std::optional<int> bos_token{}, pad_token{};
  // Chunked prefill: prompts with more tokens in total go through the model in chunks of so many, so that the workspace
  // of a call does not grow with them.
  std::optional<int> prefill_chunk_size{};  // not set: 4096
};

}  // namespace graft
