// SPDX-License-Identifier: Apache-2.0
// DEFT in PEFT's format.
//     scaling = alpha / r, or 1 if alpha is not set; r is at most the number of outputs
#pragma once
#include <graft/adapter/deft.h>
#include <graft/io/json/config_reader.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

inline status deft_numbers(peft_layer_state& s) {
  const double r = std::min(s.config.number("r"), static_cast<double>(s.base.out)), alpha = s.config.number("alpha");
  s.layer.sizes["r"] = static_cast<long long>(r);
  s.layer.scalars["scaling"] = alpha == 0 ? 1 : alpha / r;
  return ok;
}

inline double deft_dropout_factor(const adapter_config& c) { return c.on("para") ? 0 : 1; }

inline constexpr peft_key deft_keys[] = {
    whole("r", 8),         or_null(real("alpha", 0)), word("decomposition_method", "relu", "relu qr"), flag("para"),
    real("init_scale", 1), dropout("deft_dropout"),   word("init_weights", "true", "true false")};
inline bool by_qr(const peft_layer_state& s) { return s.config.word("decomposition_method") == "qr"; }
inline constexpr peft_variant deft_variants[] = {
    variant<deft_qr_removal<>>([](const peft_layer_state& s) { return s.on("para") && by_qr(s); }),
    variant<deft_qr<>>(by_qr), variant<deft_removal<>>([](const peft_layer_state& s) { return s.on("para"); }),
    variant<deft<>>()};
inline constexpr peft_method deft_files{.type = "DEFT",
                                        .bias_only = "deft_only",
                                        .keys = deft_keys,
                                        .variants = deft_variants,
                                        .numbers = deft_numbers,
                                        .dropout_factor = deft_dropout_factor};

}  // namespace graft::io::peft
