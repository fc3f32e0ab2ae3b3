// SPDX-License-Identifier: Apache-2.0
// IA3 in PEFT's format. Feed-forward modules scale their inputs, all others their outputs. As in PEFT, a name in
// feedforward_modules may match the end of a path without a dot before it: "proj" also matches "down_proj".
#pragma once
#include <graft/adapter/ia3.h>
#include <graft/io/json/config_reader.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

inline result<bool> is_feedforward(const adapter_config& c, std::string_view path) {
  const json* names = c.set("feedforward_modules");
  if (names == nullptr) return false;
  if (names->is_string()) return full_match(names->word, path);
  return std::any_of(names->items.begin(), names->items.end(), [&](const json& n) { return path.ends_with(n.word); });
}

inline void check_ia3(config_reader& in, const adapter_config& c) {
  const json* names = c.set("feedforward_modules");
  if (names == nullptr || !names->is_list() || c.target_modules.kind != name_pattern::form::list) return;
  const auto& targets = c.target_modules.names;
  for (const json& n : names->items)
    if (std::find(targets.begin(), targets.end(), n.word) == targets.end())
      in.reject("'feedforward_modules' holds ", in_quotes(n.word), ", expected only names of 'target_modules'");
}

inline status ia3_numbers(peft_layer_state& s) {  // reports an invalid pattern before it selects a formula
  const result<bool> known = is_feedforward(s.config, s.base.module);
  return known ? status(ok) : known.failure();
}

inline constexpr peft_key ia3_keys[] = {names("feedforward_modules"), unread("init_ia3_weights")};
inline constexpr peft_variant ia3_variants[] = {variant<ia3_feedforward>([](const peft_layer_state& s) {
                                                  const result<bool> ff = is_feedforward(s.config, s.base.module);
                                                  return ff && *ff;
                                                }),
                                                variant<ia3>()};
inline constexpr peft_method ia3_files{
    .type = "IA3", .keys = ia3_keys, .variants = ia3_variants, .numbers = ia3_numbers, .check = check_ia3};

}  // namespace graft::io::peft
