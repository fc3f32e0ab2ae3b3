// SPDX-License-Identifier: Apache-2.0
// GraLoRA in PEFT's format (GRALORA).
//     scaling = alpha / (r + hybrid_r)
#pragma once
#include <graft/adapter/gralora.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

inline status gralora_numbers(peft_layer_state& s) {
  s.layer.scalars["scaling"] = s.config.number("alpha") / (s.config.number("r") + s.config.number("hybrid_r"));
  return ok;
}

inline constexpr peft_key gralora_keys[] = {
    whole("r", 32),        whole("hybrid_r", 0, 0),    real("alpha", 64),
    whole("gralora_k", 2), dropout("gralora_dropout"), word("init_weights", "true", "true false")};
inline constexpr peft_rule gralora_rules[] = {{peft_rule::kind::divides, "gralora_k", "r"}};
inline constexpr peft_variant gralora_variants[] = {
    variant<gralora_hybrid<>>([](const peft_layer_state& s) { return s.on("hybrid_r"); }), variant<gralora<>>()};
inline constexpr peft_method gralora_files{.type = "GRALORA",
                                           .bias_only = "gralora_only",
                                           .keys = gralora_keys,
                                           .rules = gralora_rules,
                                           .variants = gralora_variants,
                                           .numbers = gralora_numbers};

}  // namespace graft::io::peft
