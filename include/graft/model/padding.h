// SPDX-License-Identifier: Apache-2.0
// The padding token's row in an embedding is not trained: torch.nn.Embedding skips it (padding_idx, which transformers
// sets to pad_token_id), and among PEFT's adapters of an embedding LoRA, trainable tokens and modules_to_save do too.
// The gradient that lookups of this token produce is cleared. A head that shares the table does train the row.
#pragma once
#include <graft/model/block_stack.h>

namespace graft {

inline std::optional<int> padding_token_of(const model_config& c) {
  if (!c.family->has_padding_index || !c.tokens.pad_token || *c.tokens.pad_token >= c.vocabulary) return std::nullopt;
  return c.tokens.pad_token;
}

// A contiguous range of elements of a gradient.
struct gradient_range {
  long long first = 0, count = 0;
};

// Returns the elements of the gradient of the first block's parameter `name` that only lookups of the token `pad`
// reach.
template <class Engine>
std::vector<gradient_range> padding_gradient_ranges(const block_stack<Engine>& stack, const bound_block<Engine>& block,
                                                    const std::string& name, int pad) {
  const auto tensor = [&](const std::string& of) { return block.values.tensors.find(of)->second; };
  const view value = tensor(name);
  const long long rows = value.size[0], columns = value.size[1];
  if (name.ends_with("embed_tokens.modules_to_save.weight")) return {{pad * columns, columns}};
  const std::string delta_suffix = "trainable_tokens_delta";  // `selected` [vocabulary, rows] says which
  if (name.ends_with(delta_suffix)) {
    const view selected = tensor(name.substr(0, name.size() - delta_suffix.size()) + "selected");
    const auto* const of_token = static_cast<const float*>(stack.original(selected.data)) + pad * rows;
    for (long long k = 0; k < rows; ++k)
      if (of_token[k] != 0) return {{k * columns, columns}};
  }
  std::vector<gradient_range> column;
  for (long long k = 0; name.ends_with("lora_embedding_A") && k < rows; ++k) column.push_back({k * columns + pad, 1});
  return column;
}

}  // namespace graft
