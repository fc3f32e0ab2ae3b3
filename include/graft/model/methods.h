// SPDX-License-Identifier: Apache-2.0
// The built-in adapter methods by name, for programs that read the method from a file: formulas, each with the kinds of
// layer on which it exists. Every size is symbolic here, so one formula serves any shape and rank.
#pragma once
#include <graft/adapter/all.h>
#include <graft/derive/layer_kinds.h>

namespace graft {

struct method {
  const char* name = "";
  formula of{};
  const char* kinds = "";  // names of the kinds of layer on which it exists, separated by spaces
  with_bias bias = with_bias::either;
};
template <class Adapter>
constexpr method method_of(const char* name, const char* kinds, with_bias bias = with_bias::either) {
  return {name, formula_of<Adapter>(), kinds, bias};
}
constexpr bool exists_on(const method& m, const char* kind) { return lists(m.kinds, kind); }

struct named_kind {
  kind_rules rules{};
  with_bias bias = with_bias::either;
};
inline constexpr named_kind layer_kinds[] = {
    {rules_of<linear_kind>()},     {rules_of<embedding_kind>(), with_bias::never},
    {rules_of<conv2d_kind>()},     {rules_of<norm_kind<false>>()},
    {rules_of<norm_kind<true>>()}, {rules_of<experts_kind<false>>(), with_bias::never},
};

template <class List> struct methods_of;
template <class... Adapters> struct methods_of<adapter_list<Adapters...>> {
  static constexpr method all[sizeof...(Adapters)] = {
      method_of<Adapters>(Adapters::method, Adapters::kinds, bias_rule<Adapters>())...};
};
using built_in_list = methods_of<all_adapters>;

}  // namespace graft
