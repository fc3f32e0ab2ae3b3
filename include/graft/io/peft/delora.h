// SPDX-License-Identifier: Apache-2.0
// DeLoRA in PEFT's format (DELORA). delora_lambda and lambda_pattern are initial values; the trained value is a tensor.
#pragma once
#include <graft/adapter/delora.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

inline constexpr peft_key delora_keys[] = {whole("r", 8),
                                           real("delora_lambda", 15),
                                           dropout("module_dropout"),
                                           integers_by_module("rank_pattern"),
                                           reals_by_module("lambda_pattern"),
                                           word("init_weights", "true", "true false")};
inline constexpr peft_variant delora_variants[] = {variant<delora<>>()};
inline constexpr peft_method delora_files{
    .type = "DELORA", .bias_only = "delora_only", .keys = delora_keys, .variants = delora_variants};

}  // namespace graft::io::peft
