// SPDX-License-Identifier: Apache-2.0
// LN_TUNING in PEFT's format: trained norm weights and biases; it has no keys of its own.
#pragma once
#include <graft/adapter/ln_tuning.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

inline constexpr peft_variant ln_tuning_variants[] = {
    variant<ln_tuning>([](const peft_layer_state& s) { return s.base.bias; }), variant<ln_tuning_weight>()};
inline constexpr peft_method ln_tuning_files{.type = "LN_TUNING", .variants = ln_tuning_variants};

}  // namespace graft::io::peft
