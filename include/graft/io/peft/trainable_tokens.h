// SPDX-License-Identifier: Apache-2.0
// Trainable tokens in PEFT's format: the method TRAINABLE_TOKENS, and the key trainable_token_indices of other methods.
// The file stores only the new rows; the configuration says which rows of the base weight they replace.
#pragma once
#include <graft/adapter/trainable_tokens.h>
#include <graft/backend/cpu/runtime/storage.h>
#include <graft/io/json/config_reader.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

// Sets the frozen tensors of the formula for these tokens: the selection matrix and the original rows.
inline status select_rows(peft_layer_state& s, const std::vector<int>& tokens) {
  const auto n = static_cast<long long>(tokens.size());
  const view& w = s.base.weight;
  if (w.data == nullptr || !is_floating(w.type) || w.rank != 2 || w.size[0] != s.base.out || w.size[1] != s.base.in)
    return fail_in(s.file.file,
                   "rows of the base weight are replaced: give it to read_peft_layer as base_layer::weight, [",
                   s.base.out, ", ", s.base.in, "]");
  for (const int row : tokens)
    if (row >= s.base.out)
      return fail_in(s.file.file, "token ", row, " of adapter_config.json beside it is none of ", s.base.module.c_str(),
                     ", which has ", s.base.out, " rows");
  loaded_tensor chosen{s.prefix() + "selected",
                       std::vector<float>(static_cast<std::size_t>(s.base.out * n)),
                       {s.base.out, n},
                       safetensors_type::f32,
                       false};
  loaded_tensor before{s.prefix() + "trainable_tokens_original",
                       std::vector<float>(static_cast<std::size_t>(n * s.base.in)),
                       {n, s.base.in},
                       safetensors_type::f32,
                       false};
  for (long long k = 0; k < n; ++k) {
    const long long row = tokens[static_cast<std::size_t>(k)];
    chosen.data[static_cast<std::size_t>(row * n + k)] = 1;
    cpu::read(w, row * s.base.in, s.base.in, before.data.data() + k * s.base.in);
  }
  s.layer.tensors["selected"] = std::move(chosen);
  s.layer.tensors["trainable_tokens_original"] = std::move(before);
  return ok;
}

inline std::vector<int> tokens_of_type(const adapter_config& c) {
  std::vector<int> tokens;
  for (const json& t : c.set("token_indices")->items) tokens.push_back(static_cast<int>(t.real));
  return tokens;
}
inline status trainable_tokens_numbers(peft_layer_state& s) {
  s.layer.sizes["trained_tokens"] = static_cast<long long>(s.config.set("token_indices")->items.size());
  return ok;
}
inline status trainable_tokens_frozen(peft_layer_state& s) { return select_rows(s, tokens_of_type(s.config)); }
// The initial rows, which are those of the base weight.
inline result<loaded_tensor> initial_token_rows(peft_layer_state s, const std::vector<int>& tokens, const char* name) {
  if (status got = select_rows(s, tokens); !got) return got.failure();
  loaded_tensor rows = std::move(s.layer.tensors["trainable_tokens_original"]);
  rows.key = s.prefix() + name;
  return rows;
}
inline result<std::vector<loaded_tensor>> trainable_tokens_initial(const peft_layer_state& s) {
  result<loaded_tensor> rows = initial_token_rows(s, tokens_of_type(s.config), "trainable_tokens_delta");
  if (!rows) return rows.failure();
  return std::vector<loaded_tensor>{std::move(*rows)};
}
inline void check_trainable_tokens(config_reader& in, const adapter_config&) {
  std::vector<int> tokens;
  in.tokens("token_indices", *in.at("token_indices"), tokens);
}

inline constexpr peft_key trainable_tokens_keys[] = {required(unread("token_indices"), "the list of tokens"),
                                                     flag("init_weights", true)};
inline constexpr peft_variant trainable_tokens_variants[] = {variant<trainable_tokens<>>()};
inline constexpr peft_method trainable_tokens_files{.type = "TRAINABLE_TOKENS",
                                                    .keys = trainable_tokens_keys,
                                                    .variants = trainable_tokens_variants,
                                                    .numbers = trainable_tokens_numbers,
                                                    .frozen = trainable_tokens_frozen,
                                                    .check = check_trainable_tokens,
                                                    .initial_tensors = trainable_tokens_initial};

}  // namespace graft::io::peft
