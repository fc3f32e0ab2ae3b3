// SPDX-License-Identifier: Apache-2.0
// HRA in PEFT's format; apply_GS selects the form with Gram-Schmidt.
#pragma once
#include <graft/adapter/hra.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

inline constexpr peft_key hra_keys[] = {whole("r", 8), flag("apply_GS"), word("init_weights", "true", "true false")};
inline constexpr peft_variant hra_variants[] = {
    variant<hra_gram_schmidt<>>([](const peft_layer_state& s) { return s.on("apply_GS"); }), variant<hra<>>()};
inline constexpr peft_method hra_files{
    .type = "HRA", .bias_only = "hra_only", .keys = hra_keys, .variants = hra_variants};

}  // namespace graft::io::peft
