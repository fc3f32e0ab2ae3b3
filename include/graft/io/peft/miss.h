// SPDX-License-Identifier: Apache-2.0
// MiSS in PEFT's format (MISS). init_weights selects the formula: mini, bat, or for true and false the standard form.
#pragma once
#include <graft/adapter/miss.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

// As in PEFT, the bat form has no dropout.
inline double miss_dropout_factor(const adapter_config& c) { return c.word("init_weights") == "bat" ? 0 : 1; }

inline constexpr peft_key miss_keys[] = {whole("r", 64), whole("mini_r", 1), dropout("miss_dropout"),
                                         word("init_weights", "true", "true false mini bat")};
inline constexpr peft_variant miss_variants[] = {
    variant<miss_mini<>>([](const peft_layer_state& s) { return s.config.word("init_weights") == "mini"; }),
    variant<miss_bat<>>([](const peft_layer_state& s) { return s.config.word("init_weights") == "bat"; }),
    variant<miss<>>()};
inline constexpr peft_method miss_files{.type = "MISS",
                                        .bias_only = "MiSS_only",
                                        .keys = miss_keys,
                                        .variants = miss_variants,
                                        .dropout_factor = miss_dropout_factor};

}  // namespace graft::io::peft
