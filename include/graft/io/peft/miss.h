// SPDX-License-Identifier: Apache-2.0
// MISS in PEFT's files, which keep the formula under init_weights: true and false are the standard one.
#pragma once
#include <graft/adapter/miss.h>
#include <graft/io/peft/source.h>

namespace graft::io::peft {

// The bat form draws nothing in PEFT either.
inline double miss_dropped(const adapter_config& c) { return c.word("init_weights") == "bat" ? 0 : 1; }

inline constexpr peft_key miss_keys[] = {whole("r", 64), whole("mini_r", 1), dropout("miss_dropout"),
                                         word("init_weights", "true", "true false mini bat")};
inline constexpr peft_variant miss_variants[] = {
    variant<miss_mini<>>([](const peft_source& s) { return s.config.word("init_weights") == "mini"; }),
    variant<miss_bat<>>([](const peft_source& s) { return s.config.word("init_weights") == "bat"; }),
    variant<miss<>>()};
inline constexpr peft_method miss_files{
    .type = "MISS", .bias_only = "MiSS_only", .keys = miss_keys, .variants = miss_variants, .dropped = miss_dropped};

}  // namespace graft::io::peft
