// SPDX-License-Identifier: Apache-2.0
// The token that pads. torch.nn.Embedding does not train its row (padding_idx, which transformers sets to pad_token_id), and
// of PEFT's adapters of a table LoRA, trainable tokens and modules_to_save look rows up in the same way: what a lookup of it
// gives to a gradient is left out. A head that shares the table trains the row.
#pragma once
#include <graft/model/block_stack.h>

namespace graft {

// GPT-2's table has no such row.
inline std::optional<int> padding_of(const model_config& c) {
  if (c.family == model_family::gpt2 || !c.tokens.pad || *c.tokens.pad >= c.vocabulary) return std::nullopt;
  return c.tokens.pad;
}

// Numbers of a gradient that lie one behind the other.
struct gradient_run {
  long long first = 0, count = 0;
};

// Those of a parameter of the first block that only lookups of the token `pad` reach.
template <class Engine>
std::vector<gradient_run> reached_by_padding(const block_stack<Engine>& stack, const bound_block<Engine>& block,
                                             const std::string& name, int pad) {
  const auto tensor = [&](const std::string& of) { return block.values.tensors.find(of)->second; };
  const view value = tensor(name);
  const long long rows = value.size[0], columns = value.size[1];
  if (name.ends_with("embed_tokens.modules_to_save.weight")) return {{pad * columns, columns}};
  const std::string some_rows = "trainable_tokens_delta";  // `selected` [vocabulary, rows] says which
  if (name.ends_with(some_rows)) {
    const view selected = tensor(name.substr(0, name.size() - some_rows.size()) + "selected");
    const auto* const of_token = static_cast<const float*>(stack.original(selected.data)) + pad * rows;
    for (long long k = 0; k < rows; ++k)
      if (of_token[k] != 0) return {{k * columns, columns}};
  }
  std::vector<gradient_run> column;
  for (long long k = 0; name.ends_with("lora_embedding_A") && k < rows; ++k) column.push_back({k * columns + pad, 1});
  return column;
}

}  // namespace graft
