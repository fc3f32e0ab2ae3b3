// SPDX-License-Identifier: Apache-2.0
// C3A in PEFT's format. block_size_pattern may override block_size for a module.
#pragma once
#include <graft/adapter/c3a.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

inline status c3a_numbers(peft_layer_state& s) {
  const result<double> b = number_of(s.config, "block_size", "block_size_pattern", s.base.module);
  if (!b) return b.failure();
  s.layer.sizes["block_size"] = static_cast<long long>(*b);
  return ok;
}

inline constexpr peft_key c3a_keys[] = {
    whole("block_size", 256), integers_by_module("block_size_pattern"),
    or_null(word("init_weights", "xavier_uniform", "true false gaussian kaiming_uniform xavier_uniform"))};
inline constexpr peft_variant c3a_variants[] = {variant<c3a<>>()};
inline constexpr peft_method c3a_files{
    .type = "C3A", .bias_only = "c3a_only", .keys = c3a_keys, .variants = c3a_variants, .numbers = c3a_numbers};

}  // namespace graft::io::peft
