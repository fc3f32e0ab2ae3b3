// SPDX-License-Identifier: Apache-2.0
// LoHa in PEFT's format (LOHA). Convolutions saved with use_effective_conv2d have the form with a core (hada_t1).
//     scaling = alpha / r; there is no rsLoRA
#pragma once
#include <graft/adapter/loha.h>
#include <graft/io/peft/lora.h>

namespace graft::io::peft {

inline constexpr peft_key loha_keys[] = {whole("r", 8),
                                         real("alpha", 8),
                                         dropout("rank_dropout", dropout_target::ranks),
                                         dropout("module_dropout", dropout_target::the_whole),
                                         flag("use_effective_conv2d"),
                                         integers_by_module("rank_pattern"),
                                         reals_by_module("alpha_pattern"),
                                         word("init_weights", "true", "true false")};
inline constexpr peft_variant loha_variants[] = {
    variant<loha_conv<>>([](const peft_layer_state& s) { return s.has("hada_t1"); }), variant<loha<>>()};
inline constexpr peft_method loha_files{
    .type = "LOHA", .keys = loha_keys, .variants = loha_variants, .numbers = scaled_by_rank};

}  // namespace graft::io::peft
