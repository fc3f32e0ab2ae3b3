// SPDX-License-Identifier: Apache-2.0
// AdaLoRA in PEFT's format (ADALORA). The saved rank_pattern is a mask of the triplets that are left: init_r booleans
// for each "<module>.lora_E". The tensors in the file contain only these triplets.
//     scaling = lora_alpha / (init_r + 1e-5), whatever rank is left
#pragma once
#include <graft/adapter/adalora.h>
#include <graft/io/peft/lora.h>

namespace graft::io::peft {

inline void check_adalora(config_reader& in, const adapter_config& c) {
  check_init_lora_weights(in, c);
  if (c.on("use_dora")) in.reject("'use_dora' is true, expected false for ADALORA, as in PEFT");
  if (c.on("lora_bias")) in.reject("'lora_bias' is true, expected false for ADALORA");
  const int total = c.whole("total_step"), tfinal = c.whole("tfinal"), init_r = c.whole("init_r");
  if (total != 0 && c.whole("tinit") >= static_cast<long long>(total) - tfinal)
    in.reject("'tinit' is ", c.whole("tinit"), ", expected less than total_step - tfinal = ", total - tfinal);
  in.entries("rank_pattern", [&](const std::string& name, const json& v) {
    const auto is_flag = [](const json& e) { return e.is_boolean(); };
    if (!v.is_list() || v.items.size() != static_cast<std::size_t>(init_r) ||
        !std::all_of(v.items.begin(), v.items.end(), is_flag))
      in.reject("'rank_pattern' of ", in_quotes(name), " is ", found(v), ", expected a list of ", init_r,
                " booleans, one for each of init_r");
  });
}

inline status adalora_numbers(peft_layer_state& s) {
  const int init_r = s.config.whole("init_r");
  long long rank = init_r;
  if (const json* pattern = s.config.set("rank_pattern"))
    if (const json* flags = pattern->find(s.base.module + ".lora_E"))
      rank = std::count_if(flags->items.begin(), flags->items.end(), [](const json& e) { return e.flag; });
  const double alpha = s.config.number("lora_alpha");
  s.layer.sizes["r"] = rank;
  s.layer.scalars["scaling"] = (alpha > 0 ? alpha : init_r) / (init_r + 1e-5);
  return ok;
}

inline constexpr peft_key adalora_keys[] = {
    whole("r", 8),
    real("lora_alpha", 8),
    dropout("lora_dropout"),
    flag("use_rslora"),
    flag("use_dora"),
    flag("lora_bias"),
    unread("init_lora_weights"),
    whole("init_r", 12),
    whole("target_r", 8),
    whole("tinit", 0, 0),
    whole("tfinal", 0, 0),
    whole("deltaT", 1),
    or_null(whole("total_step", 0)),  // null in files of older releases; such an adapter can run but cannot be trained
    real("beta1", 0.85, 1),
    real("beta2", 0.85, 1),
    real("orth_reg_weight", 0.5),
    unread("rank_pattern"),
    unread("alpha_pattern"),
    unread("megatron_core"),
    unread("loftq_config"),
    unread("eva_config"),
    unread("corda_config"),
    unread("lora_ga_config"),
    unread("runtime_config"),
    unread("qalora_group_size")};
inline constexpr peft_variant adalora_variants[] = {variant<adalora<>>()};
inline constexpr peft_method adalora_files{.type = "ADALORA",
                                           .bias_only = "lora_only",
                                           .keys = adalora_keys,
                                           .variants = adalora_variants,
                                           .numbers = adalora_numbers,
                                           .check = check_adalora};

}  // namespace graft::io::peft
