// SPDX-License-Identifier: Apache-2.0
// HiRA in PEFT's format (HIRA). PEFT applies rank_pattern only to a layer that had an adapter already; the first
// adapter of a layer has rank r. The shape of the tensor tells which of the two applies.
#pragma once
#include <graft/adapter/hira.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

inline status hira_numbers(peft_layer_state& s) {
  const long long r = s.config.whole("r");
  const tensor_view* const A = s.file.get(s.prefix() + (s.base.kind == "embedding" ? "hira_embedding_A" : "hira_A"));
  const bool other = A != nullptr && !A->shape.empty() && A->shape[0] != static_cast<std::uint64_t>(r);
  const result<int> by_pattern = other ? s.rank() : static_cast<int>(r);
  if (!by_pattern) return by_pattern.failure();
  s.layer.sizes["r"] = *by_pattern;
  return ok;
}

inline constexpr peft_key hira_keys[] = {whole("r", 32), dropout("hira_dropout"), integers_by_module("rank_pattern"),
                                         or_null(word("init_weights", "true", "true false gaussian"))};
inline constexpr peft_variant hira_variants[] = {variant<hira<>>(), variant<hira_embedding<>>()};
inline constexpr tensor_layout hira_layouts[] = {on_conv2d("hira_A", tensor_shape_kind::kernel),
                                                 on_conv2d("hira_B", tensor_shape_kind::point)};
inline constexpr peft_method hira_files{
    .type = "HIRA", .keys = hira_keys, .variants = hira_variants, .layouts = hira_layouts, .numbers = hira_numbers};

}  // namespace graft::io::peft
