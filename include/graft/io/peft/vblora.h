// SPDX-License-Identifier: Apache-2.0
// VBLORA in PEFT's files. The bank is one for all layers. A file with save_only_topk_weights holds no logits.
#pragma once
#include <graft/adapter/vblora.h>
#include <graft/io/peft/source.h>

namespace graft::io::peft {

inline status vblora_numbers(peft_source& s) {
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
inline constexpr peft_place vblora_places[] = {{"vblora_vector_bank", stored_as::itself, true}};
inline constexpr peft_method vblora_files{.type = "VBLORA",
                                          .bias_only = "vblora_only",
                                          .keys = vblora_keys,
                                          .rules = vblora_rules,
                                          .variants = vblora_variants,
                                          .places = vblora_places,
                                          .numbers = vblora_numbers};

}  // namespace graft::io::peft
