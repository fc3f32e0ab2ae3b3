// SPDX-License-Identifier: Apache-2.0
// OFT in PEFT's format. oft_block_size has no default: files without it belong to the first version of OFT, whose
// formula differs, and PEFT refuses them too. A block size or number of blocks that does not divide the input is
// changed to the nearest divisor, the smaller one of two, as in PEFT.
#pragma once
#include <graft/adapter/oft.h>
#include <graft/io/peft/layer_source.h>

#include <cmath>

namespace graft::io::peft {

inline long long nearest_divisor(long long size, long long wanted) {
  if (wanted >= size) return size;
  for (long long off = 0;; ++off) {
    if (wanted - off >= 1 && size % (wanted - off) == 0) return wanted - off;
    if (size % (wanted + off) == 0) return wanted + off;
  }
}

inline status oft_numbers(peft_layer_state& s) {
  const int size = s.config.whole("oft_block_size");
  const long long in = s.base.in,
                  b = size > 0 ? nearest_divisor(in, size) : in / nearest_divisor(in, s.config.whole("r"));
  s.layer.sizes["b"] = b;
  s.layer.sizes["terms"] = s.config.whole("num_cayley_neumann_terms");
  const long long blocks = s.on("block_share") ? 1 : in / b;  // ||Q||_F = sqrt(2) ||v||
  s.layer.scalars["coft_limit"] = s.config.number("eps") / std::sqrt(2.0 * static_cast<double>(blocks));
  return ok;
}

template <oft_blocks Blocks, oft_constraint Constraint, bool Neumann> constexpr bool is_oft(const peft_layer_state& s) {
  return s.on("use_cayley_neumann") == Neumann && s.on("block_share") == (Blocks == oft_blocks::shared) &&
         s.on("coft") == (Constraint == oft_constraint::projected);
}
template <oft_blocks Blocks, oft_constraint Constraint> constexpr peft_variant oft_exact() {
  return variant<oft<dyn, Blocks, Constraint>>(is_oft<Blocks, Constraint, false>);
}
template <oft_blocks Blocks, oft_constraint Constraint> constexpr peft_variant oft_series() {
  return variant<oft_neumann<dyn, dyn, Blocks, Constraint>>(is_oft<Blocks, Constraint, true>);
}

inline constexpr peft_key oft_keys[] = {
    whole("r", 0, 0),
    required(whole("oft_block_size", 32, 0), "files of the first OFT cannot be read"),
    flag("coft"),
    flag("block_share"),
    flag("use_cayley_neumann", true),
    whole("num_cayley_neumann_terms", 5, 1, max_iterations),
    real("eps", 6e-5),
    fraction("module_dropout"),  // has no effect in PEFT
    word("init_weights", "true", "true false")};
inline constexpr peft_rule oft_rules[] = {{peft_rule::kind::one_is_zero, "r", "oft_block_size"}};
inline constexpr peft_variant oft_variants[] = {oft_exact<oft_blocks::separate, oft_constraint::free>(),
                                                oft_exact<oft_blocks::shared, oft_constraint::free>(),
                                                oft_exact<oft_blocks::separate, oft_constraint::projected>(),
                                                oft_exact<oft_blocks::shared, oft_constraint::projected>(),
                                                oft_series<oft_blocks::separate, oft_constraint::free>(),
                                                oft_series<oft_blocks::shared, oft_constraint::free>(),
                                                oft_series<oft_blocks::separate, oft_constraint::projected>(),
                                                oft_series<oft_blocks::shared, oft_constraint::projected>()};
inline constexpr peft_method oft_files{.type = "OFT",
                                       .bias_only = "oft_only",
                                       .keys = oft_keys,
                                       .rules = oft_rules,
                                       .variants = oft_variants,
                                       .numbers = oft_numbers};

}  // namespace graft::io::peft
