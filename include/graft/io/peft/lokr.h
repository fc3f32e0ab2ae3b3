// SPDX-License-Identifier: Apache-2.0
// LoKr in PEFT's format (LOKR). The tensors of the file tell which Kronecker factor is itself a low-rank product.
//     scaling = alpha / r; there is no rsLoRA
#pragma once
#include <graft/adapter/lokr.h>
#include <graft/io/json/config_reader.h>
#include <graft/io/peft/lora.h>

namespace graft::io::peft {

inline void check_lokr(config_reader& in, const adapter_config& c) {
  if (c.whole("decompose_factor") == 0) in.reject("'decompose_factor' is 0, expected -1 or a positive integer");
}
inline status lokr_numbers(peft_layer_state& s) {
  const int factor = s.config.whole("decompose_factor");
  s.layer.sizes["a"] = factorize(s.base.out, factor).m;
  s.layer.sizes["c"] = factorize(s.base.in, factor).m;
  return scaled_by_rank(s);
}
template <bool Low1, bool Low2> constexpr bool is_lokr(const peft_layer_state& s) {
  return s.has("lokr_w1_a") == Low1 && s.has("lokr_w2_a") == Low2;
}

inline constexpr peft_key lokr_keys[] = {whole("r", 8),
                                         real("alpha", 8),
                                         dropout("rank_dropout", dropout_target::ranks),
                                         dropout("module_dropout", dropout_target::the_whole),
                                         flag("use_effective_conv2d"),
                                         integers_by_module("rank_pattern"),
                                         reals_by_module("alpha_pattern"),
                                         flag("decompose_both"),
                                         flag("rank_dropout_scale"),
                                         whole("decompose_factor", -1, -1),
                                         word("init_weights", "true", "true false lycoris")};
inline constexpr peft_variant lokr_variants[] = {
    variant<lokr<>>(is_lokr<false, true>),
    variant<lokr<dyn, -1, lokr_form::full, lokr_form::full>>(is_lokr<false, false>),
    variant<lokr<dyn, -1, lokr_form::low_rank, lokr_form::full>>(is_lokr<true, false>),
    variant<lokr<dyn, -1, lokr_form::low_rank, lokr_form::low_rank>>(is_lokr<true, true>)};
inline constexpr peft_method lokr_files{
    .type = "LOKR", .keys = lokr_keys, .variants = lokr_variants, .numbers = lokr_numbers, .check = check_lokr};

}  // namespace graft::io::peft
