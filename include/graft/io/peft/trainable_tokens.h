// SPDX-License-Identifier: Apache-2.0
// Trainable tokens in PEFT's files: a type of their own, TRAINABLE_TOKENS, and a key that other types have too,
// trainable_token_indices. Only the new rows are stored; which rows they replace is in the configuration, and what was
// there before is in the base weight.
#pragma once
#include <graft/adapter/trainable_tokens.h>
#include <graft/backend/cpu/storage.h>
#include <graft/io/config_reader.h>
#include <graft/io/peft/source.h>

namespace graft::io::peft {

// The frozen tensors of the formula for these tokens.
inline status select_rows(peft_source& s, const std::vector<int>& tokens) {
  const auto n = static_cast<long long>(tokens.size());
  const view& w = s.base.weight;
  if (w.data == nullptr || !computes_in(w.type) || w.rank != 2 || w.size[0] != s.base.out || w.size[1] != s.base.in)
    return fail_in(s.file.file,
                   "rows of the base weight are replaced: give it to read_peft_layer as base_layer::weight, [",
                   s.base.out, ", ", s.base.in, "]");
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
    if (row >= s.base.out)
      return fail_in(s.file.file, "token ", row, " of adapter_config.json beside it is none of ", s.base.module.c_str(),
                     ", which has ", s.base.out, " rows");
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
inline status trainable_tokens_frozen(peft_source& s) { return select_rows(s, tokens_of_type(s.config)); }
// Rows begin as they are in the base.
inline result<loaded_tensor> rows_begun(peft_source s, const std::vector<int>& tokens, const char* name) {
  if (status got = select_rows(s, tokens); !got) return got.failure();
  loaded_tensor rows = std::move(s.layer.tensors["trainable_tokens_original"]);
  rows.key = s.prefix() + name;
  return rows;
}
inline result<std::vector<loaded_tensor>> trainable_tokens_begun(const peft_source& s) {
  result<loaded_tensor> rows = rows_begun(s, tokens_of_type(s.config), "trainable_tokens_delta");
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
                                                    .frozen = trainable_tokens_frozen,
                                                    .check = check_trainable_tokens,
                                                    .begun = trainable_tokens_begun};

}  // namespace graft::io::peft
