// SPDX-License-Identifier: Apache-2.0
// RoAd in PEFT's format (ROAD); `variant` selects the formula.
#pragma once
#include <graft/adapter/road.h>
#include <graft/io/json/config_reader.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

inline status road_numbers(peft_layer_state& s) {
  s.layer.sizes["half_group"] = s.config.whole("group_size") / 2;
  return ok;
}
inline void check_road(config_reader& in, const adapter_config& c) {
  if (c.whole("group_size") % 2 != 0) in.reject("'group_size' is ", c.whole("group_size"), ", expected an even number");
}

inline constexpr peft_key road_keys[] = {word("variant", "road_1", "road_1 road_2 road_4"), whole("group_size", 64, 2),
                                         word("init_weights", "true", "true false")};
inline constexpr peft_variant road_variants[] = {
    variant<road<1>>([](const peft_layer_state& s) { return s.config.word("variant") == "road_1"; }),
    variant<road<2>>([](const peft_layer_state& s) { return s.config.word("variant") == "road_2"; }),
    variant<road<4>>([](const peft_layer_state& s) { return s.config.word("variant") == "road_4"; })};
inline constexpr peft_method road_files{
    .type = "ROAD", .keys = road_keys, .variants = road_variants, .numbers = road_numbers, .check = check_road};

}  // namespace graft::io::peft
