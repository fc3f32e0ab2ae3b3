// SPDX-License-Identifier: Apache-2.0
// Keys of PEFT that change what an adapter computes in ways this library does not support. Ignoring one would give
// wrong numbers silently, so a file that sets one is refused by name. A key is unset if it is absent, null, false, or
// an empty list or object.
#pragma once
#include <graft/io/json/config_reader.h>

namespace graft::io {

struct refused_key {
  const char* key;
  const char* why;
};

inline constexpr refused_key refused_keys[] = {
    {"use_qalora", "QALoRA pools the input by groups"},
    {"alora_invocation_tokens", "activated LoRA applies from a token sequence on"},
    {"use_bdlora", "block-diagonal LoRA has other shapes"},
    {"layer_replication", "it builds a deeper base model"},
    {"megatron_config", "layers are those of Megatron"},
    {"arrow_config", "adapters are routed per token"},
    {"kasa_config", "KaSA changes the base weight and adds a diagonal"},
    {"monteclora_config", "MonteCLoRA samples the adapter"},
    {"velora_config", "VeLoRA changes the backward pass"},
    {"ensure_weight_tying", "tied modules follow the adapter"},
};

inline bool is_unset(const json& v) {
  return v.is_null() || (v.is_boolean() && !v.flag) || ((v.is_list() || v.is_object()) && v.items.empty());
}

inline void refuse_unsupported(config_reader& in) {
  for (const refused_key& k : refused_keys)
    if (const auto* v = in.at(k.key); v != nullptr && !is_unset(*v))
      in.reject('\'', k.key, "' is ", found(*v), ", which is not supported (", k.why, "), expected it to be unset");
}

}  // namespace graft::io
