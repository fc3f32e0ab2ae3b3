// SPDX-License-Identifier: Apache-2.0
// Rows of an embedding or of a head that a folder replaces beside its adapter (trainable_token_indices): which module it
// is, and its share of the file. PEFT puts them under <module>.token_adapter.
#pragma once
#include <graft/io/hf/modules.h>
#include <graft/io/peft/places.h>
#include <graft/io/peft/trainable_tokens.h>

namespace graft::io::hf {

// The module whose rows these are: the one that PEFT would wrap.
inline result<const base_layer*> module_of(const token_rows& rows, const std::vector<base_layer>& all,
                                           const model_config& c, std::string_view file) {
  const std::string table = token_table(c.family);
  for (const base_layer& b : all)
    if (rows.module.empty() ? table == b.module + ".weight" : b.module.ends_with(rows.module)) return &b;
  return fail_in(file, "'trainable_token_indices' of adapter_config.json beside it names module ",
                 in_quotes(rows.module), ", which this model does not have");
}

inline result<peft_layer> read_token_rows(const peft_folder& from, const base_layer& b, const token_rows& rows) {
  peft_source s{from.config, from.weights, b, built_in_methods()};
  s.layer.file = from.weights.file;
  s.layer.formula = *s.methods.find(trainable_tokens<>::method);
  const std::string key = s.prefix() + "token_adapter.trainable_tokens_delta";
  if (status got = s.take("trainable_tokens_delta", key); !got) return got.failure();
  const std::vector<long long> expected{static_cast<long long>(rows.tokens.size()), b.in},
      &has = s.layer.tensors["trainable_tokens_delta"].shape;
  if (has != expected)
    return fail_in(s.layer.file, "tensor ", in_quotes(key), " has shape ", shape_text(has), ", expected ",
                   shape_text(expected));
  if (status got = peft::select_rows(s, rows.tokens); !got) return got.failure();
  return std::move(s.layer);
}

}  // namespace graft::io::hf
