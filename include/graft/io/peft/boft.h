// SPDX-License-Identifier: Apache-2.0
// BOFT in PEFT's format. The tensor tells the number of butterfly factors: PEFT may use fewer than the file states.
#pragma once
#include <graft/adapter/boft.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

inline status boft_numbers(peft_layer_state& s) {
  const int size = s.config.whole("boft_block_size");
  s.layer.sizes["b"] = size > 0 ? size : s.base.in / s.config.whole("boft_block_num");
  return ok;
}

// PEFT's dropout replaces blocks of one factor, drawn per call, by the identity. Here blocks of every factor are drawn,
// at a rate that gives as many on average.
inline double boft_dropout_factor(const adapter_config& c) { return 1 / c.number("boft_n_butterfly_factor"); }

inline constexpr peft_key boft_keys[] = {
    whole("boft_block_size", 4, 0), whole("boft_block_num", 0, 0), whole("boft_n_butterfly_factor", 1, 1, 30),
    dropout("boft_dropout", dropout_target::blocks), word("init_weights", "true", "true false")};
inline constexpr peft_rule boft_rules[] = {{peft_rule::kind::one_is_zero, "boft_block_size", "boft_block_num"}};
inline constexpr peft_variant boft_variants[] = {variant<boft<dyn, dyn>>()};
inline constexpr peft_method boft_files{.type = "BOFT",
                                        .bias_only = "boft_only",
                                        .keys = boft_keys,
                                        .rules = boft_rules,
                                        .variants = boft_variants,
                                        .numbers = boft_numbers,
                                        .dropout_factor = boft_dropout_factor};

}  // namespace graft::io::peft
