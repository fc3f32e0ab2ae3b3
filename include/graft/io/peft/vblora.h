// SPDX-License-Identifier: Apache-2.0
// VB-LoRA in PEFT's format (VBLORA). All layers share the vector bank. A file with save_only_topk_weights is refused
// because it holds no logits.
#pragma once
#include <graft/adapter/vblora.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

inline status vblora_numbers(peft_layer_state& s) {
  if (!s.on("save_only_topk_weights")) return ok;
  return fail_in(s.file.file, "save_only_topk_weights is true: such a file holds no logits; save with it set to false");
}

inline constexpr peft_key vblora_keys[] = {whole("r", 4),
                                           whole("num_vectors", 256),
                                           whole("vector_length", 256),
                                           whole("topk", 2),
                                           flag("save_only_topk_weights"),
                                           dropout("vblora_dropout"),
                                           unread("init_vector_bank_bound"),
                                           unread("init_logits_std")};
inline constexpr peft_rule vblora_rules[] = {{peft_rule::kind::at_most, "topk", "num_vectors"}};
inline constexpr peft_variant vblora_variants[] = {variant<vblora<dyn, dyn>>()};
inline constexpr tensor_layout vblora_layouts[] = {{"vblora_vector_bank", tensor_shape_kind::itself, true}};
inline constexpr peft_method vblora_files{.type = "VBLORA",
                                          .bias_only = "vblora_only",
                                          .keys = vblora_keys,
                                          .rules = vblora_rules,
                                          .variants = vblora_variants,
                                          .layouts = vblora_layouts,
                                          .numbers = vblora_numbers};

}  // namespace graft::io::peft
