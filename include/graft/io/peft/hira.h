// SPDX-License-Identifier: Apache-2.0
// HIRA in PEFT's files.
#pragma once
#include <graft/adapter/hira.h>
#include <graft/io/peft/source.h>

namespace graft::io::peft {

inline constexpr peft_key hira_keys[] = {whole("r", 32), dropout("hira_dropout"), wholes_by_module("rank_pattern"),
                                         or_null(word("init_weights", "true", "true false gaussian"))};
inline constexpr peft_variant hira_variants[] = {variant<hira<>>(), variant<hira_embedding<>>()};
inline constexpr peft_place hira_places[] = {on_conv2d("hira_A", stored_as::kernel),
                                             on_conv2d("hira_B", stored_as::point)};
inline constexpr peft_method hira_files{
    .type = "HIRA", .keys = hira_keys, .variants = hira_variants, .places = hira_places};

}  // namespace graft::io::peft
