// SPDX-License-Identifier: Apache-2.0
// LORA in PEFT's files: LoRA, rsLoRA, DoRA, and LoRA with a bias of its own.
//     scaling = lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora; rank_pattern and alpha_pattern may change both
// PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA subtract from the base weight when the adapter is made: on the original base
// the saved adapter alone is wrong. PEFT can convert it while saving, and then writes true in init_lora_weights.
#pragma once
#include <graft/adapter/dora.h>
#include <graft/io/config_reader.h>
#include <graft/io/peft/source.h>

#include <cmath>

namespace graft::io::peft {

inline void refuse_changed_base(config_reader& in, const adapter_config&) {
  const auto* v = in.at("init_lora_weights");
  if (v == nullptr || v->is_boolean()) return;
  if (v->is_word()) {
    const std::string& name = v->word;
    for (const char* harmless : {"gaussian", "eva", "orthogonal", "mica"})
      if (name == harmless) return;
    for (const char* changes : {"pissa", "olora", "corda", "loftq", "lora_ga"})
      if (name.starts_with(changes))
        return in.expected("init_lora_weights", *v,
                           "an adapter for the original base weights; this one changed them: save "
                           "it with path_initial_model_for_weight_conversion");
  }
  in.expected("init_lora_weights", *v, "true, false, \"gaussian\", \"eva\", \"orthogonal\" or \"mica\"");
}

// alpha / r for this module.
inline result<double> alpha_over_rank(const peft_source& s) {
  const result<int> r = s.rank();
  if (!r) return r.failure();
  result<double> alpha = alpha_of(s.config, s.base.module);
  if (!alpha) return alpha;
  return *alpha / (s.on("use_rslora") ? std::sqrt(*r) : *r);
}
inline status scaled_by_rank(peft_source& s) {
  const result<double> scaling = alpha_over_rank(s);
  if (!scaling) return scaling.failure();
  s.layer.scalars["scaling"] = *scaling;
  return ok;
}

inline constexpr peft_key lora_keys[] = {whole("r", 8),
                                         real("lora_alpha", 8),
                                         dropout("lora_dropout"),
                                         flag("use_rslora"),
                                         flag("use_dora"),
                                         flag("lora_bias"),
                                         wholes_by_module("rank_pattern"),
                                         reals_by_module("alpha_pattern"),
                                         unread("init_lora_weights"),
                                         unread("megatron_core"),
                                         unread("loftq_config"),
                                         unread("eva_config"),
                                         unread("corda_config"),
                                         unread("lora_ga_config"),
                                         unread("runtime_config"),
                                         unread("qalora_group_size")};
inline constexpr peft_rule lora_rules[] = {{peft_rule::kind::not_both, "use_dora", "lora_bias"}};
inline constexpr peft_variant lora_variants[] = {
    variant<dora<>>([](const peft_source& s) { return s.on("use_dora"); }),
    variant<dora_embedding<>>([](const peft_source& s) { return s.on("use_dora"); }),
    variant<lora_with_bias<>>([](const peft_source& s) { return s.on("lora_bias"); }), variant<lora<>>(),
    variant<lora_embedding<>>()};
inline constexpr peft_place lora_places[] = {on_conv2d("lora_A.weight", stored_as::kernel),
                                             on_conv2d("lora_B.weight", stored_as::point),
                                             on_conv2d("lora_magnitude_vector", stored_as::channel)};
inline constexpr peft_method lora_files{.type = "LORA",
                                        .bias_only = "lora_only",
                                        .keys = lora_keys,
                                        .rules = lora_rules,
                                        .variants = lora_variants,
                                        .places = lora_places,
                                        .numbers = scaled_by_rank,
                                        .check = refuse_changed_base};

}  // namespace graft::io::peft
