// SPDX-License-Identifier: Apache-2.0
// HIRA in PEFT's files. PEFT follows rank_pattern only where a layer had an adapter before: the rank is then another one
// than r, and the first adapter of a layer has r. Which of the two it was, the tensor tells.
#pragma once
#include <graft/adapter/hira.h>
#include <graft/io/peft/source.h>

namespace graft::io::peft {

inline status hira_numbers(peft_source& s) {
  const long long r = s.config.whole("r");
  const tensor_view* const A = s.file.get(s.prefix() + (s.base.kind == "embedding" ? "hira_embedding_A" : "hira_A"));
  const bool other = A != nullptr && !A->shape.empty() && A->shape[0] != static_cast<std::uint64_t>(r);
  const result<int> by_pattern = other ? s.rank() : static_cast<int>(r);
  if (!by_pattern) return by_pattern.failure();
  s.layer.sizes["r"] = *by_pattern;
  return ok;
}

inline constexpr peft_key hira_keys[] = {whole("r", 32), dropout("hira_dropout"), wholes_by_module("rank_pattern"),
                                         or_null(word("init_weights", "true", "true false gaussian"))};
inline constexpr peft_variant hira_variants[] = {variant<hira<>>(), variant<hira_embedding<>>()};
inline constexpr peft_place hira_places[] = {on_conv2d("hira_A", stored_as::kernel),
                                             on_conv2d("hira_B", stored_as::point)};
inline constexpr peft_method hira_files{
    .type = "HIRA", .keys = hira_keys, .variants = hira_variants, .places = hira_places, .numbers = hira_numbers};

}  // namespace graft::io::peft
