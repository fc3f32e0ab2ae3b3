// SPDX-License-Identifier: Apache-2.0
// BEFT in PEFT's format; the formula is in adapter/beft.h.
#pragma once
#include <graft/adapter/beft.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

inline constexpr peft_key beft_keys[] = {word("init_weights", "true", "true false")};
inline constexpr peft_variant beft_variants[] = {variant<beft>()};
inline constexpr peft_method beft_files{.type = "BEFT", .keys = beft_keys, .variants = beft_variants};

}  // namespace graft::io::peft
