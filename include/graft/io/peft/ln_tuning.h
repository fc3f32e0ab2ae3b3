// SPDX-License-Identifier: Apache-2.0
// LN_TUNING in PEFT's files: no keys of its own.
#pragma once
#include <graft/adapter/ln_tuning.h>
#include <graft/io/peft/source.h>

namespace graft::io::peft {

inline constexpr peft_variant ln_tuning_variants[] = {
    variant<ln_tuning>([](const peft_source& s) { return s.base.bias; }), variant<ln_tuning_weight>()};
inline constexpr peft_method ln_tuning_files{.type = "LN_TUNING", .variants = ln_tuning_variants};

}  // namespace graft::io::peft
