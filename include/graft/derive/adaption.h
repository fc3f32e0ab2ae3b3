// SPDX-License-Identifier: Apache-2.0
// Which layers of a block are adapted, and how: a pattern for paths, and a formula. "v_proj" fits every path that ends in
// that name, "self_attn.v_proj" that path, and * any letters. A type lists them,
//     adapted<llama, on<"*_proj", lora<16>>, on<"v_proj", dora<8>>>
// and a program that reads a file makes the same list at load.
#pragma once
#include <graft/adapter/adapter.h>
#include <graft/derive/left_out.h>

namespace graft {

struct adaption {
  const char* pattern = "";
  formula adapter{};  // without a weight function the weight stays as it is
  // Several adapters on one layer each have a name, which their tensors lie under; each works on what the ones before it
  // made of the weight. One without a name takes the place of those before it.
  const char* name = "";
  bool trains_bias = false;  // the bias of the layer is a parameter
  left_out drops{};          // in training
};

namespace detail {
constexpr bool fits_from_here(const char* pattern, const char* path) {
  for (; *pattern != '*'; ++pattern, ++path) {
    if (*pattern != *path) return false;
    if (*pattern == '\0') return true;
  }
  for (;; ++path) {
    if (fits_from_here(pattern + 1, path)) return true;
    if (*path == '\0') return false;
  }
}
}  // namespace detail

// Does the pattern describe the path, or what is left of it behind one of its dots?
constexpr bool fits(const char* pattern, const char* path) {
  if (detail::fits_from_here(pattern, path)) return true;
  for (; *path != '\0'; ++path)
    if (*path == '.' && detail::fits_from_here(pattern, path + 1)) return true;
  return false;
}

struct adaptions {
  const adaption* list = nullptr;
  int count = 0;

  // Those of one layer, in the order in which they act.
  constexpr sequence<adaption> at(const char* path) const {
    sequence<adaption> found;
    for (int i = 0; i < count; ++i) {
      if (!fits(list[i].pattern, path)) continue;
      if (list[i].name[0] == '\0') found.clear();
      found.push(list[i]);
    }
    return found;
  }
};

}  // namespace graft
