// SPDX-License-Identifier: Apache-2.0
// Adapter rules: which layers of a block are adapted and how, as PEFT's target_modules states it. A rule is a pattern
// for paths and a formula: "v_proj" fits every path that ends in that name, "self_attn.v_proj" fits that path, and *
// matches any characters. A type lists rules,
//     adapted<llama, target_modules<"*_proj", lora<16>>, target_modules<"v_proj", dora<8>>>
// and a program that reads adapters from files makes the same list at load.
#pragma once
#include <graft/adapter/adapter.h>
#include <graft/derive/dropout_kinds.h>

#include <cstddef>

namespace graft {

struct adapter_rule {
  const char* pattern = "";
  formula adapter{};  // without a weight function the weight stays as it is
  // Several adapters of one layer each have a name, which begins the names of their tensors; they act in turn, each on
  // the weight that the ones before it made. A rule without a name replaces the rules before it.
  const char* name = "";
  bool trains_bias = false;  // the bias of the layer is a parameter
  dropout_kinds drops{};     // dropout of the adapter in training
};

namespace detail {
constexpr bool matches_whole(const char* pattern, const char* path) {
  for (; *pattern != '*'; ++pattern, ++path) {
    if (*pattern != *path) return false;
    if (*pattern == '\0') return true;
  }
  for (;; ++path) {
    if (matches_whole(pattern + 1, path)) return true;
    if (*path == '\0') return false;
  }
}
}  // namespace detail

// Returns true if the pattern describes the path, or the rest of the path after one of its dots.
constexpr bool fits(const char* pattern, const char* path) {
  if (detail::matches_whole(pattern, path)) return true;
  for (; *path != '\0'; ++path)
    if (*path == '.' && detail::matches_whole(pattern, path + 1)) return true;
  return false;
}

struct adapter_rules {
  const adapter_rule* list = nullptr;
  int count = 0;

  // Finds the rules of one layer, in the order in which they act.
  constexpr sequence<adapter_rule> at(const char* path) const {
    sequence<adapter_rule> found;
    for (int i = 0; i < count; ++i) {
      if (!fits(list[i].pattern, path)) continue;
      if (list[i].name[0] == '\0') found.clear();
      found.push(list[i]);
    }
    return found;
  }
};

// A rule of a type: the adapter of the layers whose paths the pattern fits.
template <std::size_t N> struct path_pattern {
  char text[N]{};
  constexpr path_pattern(const char (&from)[N]) {
    for (std::size_t i = 0; i < N; ++i) text[i] = from[i];
  }
};
template <path_pattern Pattern, class Adapter> struct target_modules {
  static constexpr auto pattern = Pattern;
  static constexpr adapter_rule rule() { return {pattern.text, formula_of<Adapter>()}; }
};

}  // namespace graft
