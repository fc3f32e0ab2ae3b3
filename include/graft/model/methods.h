// SPDX-License-Identifier: Apache-2.0
// The methods by name, for programs that learn which one they need only when they open a file: a list of formulas, each
// with the kinds of layer on which it exists. Every size is a name here, so one formula serves any shape and rank.
#pragma once
#include <graft/adapter/adalora.h>
#include <graft/adapter/boft.h>
#include <graft/adapter/dora.h>
#include <graft/adapter/hra.h>
#include <graft/adapter/ia3.h>
#include <graft/adapter/ln_tuning.h>
#include <graft/adapter/loha.h>
#include <graft/adapter/lokr.h>
#include <graft/adapter/lora.h>
#include <graft/adapter/miss.h>
#include <graft/adapter/none.h>
#include <graft/adapter/oft.h>
#include <graft/adapter/vblora.h>
#include <graft/adapter/vera.h>
#include <graft/derive/kinds.h>

namespace graft {

enum class with_bias : unsigned char { either, always, never };
constexpr bool allows(with_bias rule, bool bias) {
  return rule == with_bias::either || (rule == with_bias::always) == bias;
}

struct method {
  const char* name = "";
  formula of{};
  const char* kinds = "";  // the names of the kinds it exists on, with spaces between them
  with_bias bias = with_bias::either;
};
template <class Adapter>
constexpr method method_of(const char* name, const char* kinds, with_bias bias = with_bias::either) {
  return {name, formula_of<Adapter>(), kinds, bias};
}
constexpr bool lists(const char* words, const char* word) {
  for (const char* at = words; *at != '\0';) {
    const char* w = word;
    while (*w != '\0' && *at == *w) ++at, ++w;
    if (*w == '\0' && (*at == ' ' || *at == '\0')) return true;
    while (*at != ' ' && *at != '\0') ++at;
    while (*at == ' ') ++at;
  }
  return false;
}
constexpr bool exists_on(const method& m, const char* kind) { return lists(m.kinds, kind); }

struct named_kind {
  kind_rules rules{};
  with_bias bias = with_bias::either;
};
inline constexpr named_kind layer_kinds[] = {
    {rules_of<linear_kind>()},     {rules_of<embedding_kind>(), with_bias::never},
    {rules_of<conv2d_kind>()},     {rules_of<norm_kind<false>>()},
    {rules_of<norm_kind<true>>()},
};

struct method_list {
  using enum oft_blocks;
  using enum oft_constraint;
  using enum lokr_form;
  static constexpr method all[] = {
      method_of<none>("none", "linear embedding conv2d layer_norm rms_norm"),
      method_of<lora<>>("lora", "linear conv2d"),
      method_of<lora_with_bias<>>("lora_with_bias", "linear conv2d"),
      method_of<dora<>>("dora", "linear conv2d"),
      method_of<adalora<>>("adalora", "linear"),
      method_of<ia3>("ia3", "linear"),
      method_of<ia3_feedforward>("ia3_feedforward", "linear"),
      method_of<loha<>>("loha", "linear conv2d"),
      method_of<lokr<dyn, -1, full, low_rank>>("lokr", "linear"),
      method_of<lokr<dyn, -1, full, full>>("lokr_both_full", "linear"),
      method_of<lokr<dyn, -1, low_rank, full>>("lokr_first_low", "linear"),
      method_of<lokr<dyn, -1, low_rank, low_rank>>("lokr_both_low", "linear"),
      method_of<vera<>>("vera", "linear"),
      method_of<hra<>>("hra", "linear"),
      method_of<hra_gram_schmidt<>>("hra_gram_schmidt", "linear"),
      method_of<oft<dyn, own, free>>("oft", "linear"),
      method_of<oft<dyn, shared, free>>("oft_shared", "linear"),
      method_of<oft<dyn, own, projected>>("oft_projected", "linear"),
      method_of<oft<dyn, shared, projected>>("oft_shared_projected", "linear"),
      method_of<oft_neumann<dyn, dyn, own, free>>("oft_neumann", "linear"),
      method_of<oft_neumann<dyn, dyn, shared, free>>("oft_neumann_shared", "linear"),
      method_of<oft_neumann<dyn, dyn, own, projected>>("oft_neumann_projected", "linear"),
      method_of<oft_neumann<dyn, dyn, shared, projected>>("oft_neumann_shared_projected", "linear"),
      method_of<boft<dyn, dyn>>("boft", "linear"),
      method_of<miss<>>("miss", "linear"),
      method_of<miss_mini<>>("miss_mini", "linear"),
      method_of<miss_bat<>>("miss_bat", "linear"),
      method_of<vblora<dyn, dyn>>("vblora", "linear"),
      method_of<lora_embedding<>>("lora_embedding", "embedding"),
      method_of<dora_embedding<>>("dora_embedding", "embedding"),
      method_of<loha_conv<>>("loha_conv", "conv2d"),
      method_of<ln_tuning>("ln_tuning", "layer_norm rms_norm", with_bias::always),
      method_of<ln_tuning_weight>("ln_tuning_weight", "layer_norm rms_norm", with_bias::never),
  };
};

}  // namespace graft
