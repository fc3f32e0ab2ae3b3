// SPDX-License-Identifier: Apache-2.0
// The fuzzed readers of JSON, safetensors files, adapters' configurations and target patterns. A reader returns a value
// or an error; a value that it returns must be usable.
#pragma once
#include <graft/io/peft/adapter_config.h>
#include <graft/io/peft/target_modules.h>
#include <graft/io/regex/pattern.h>
#include <graft/io/safetensors/convert.h>
#include <graft/io/safetensors/reader.h>

#include <string_view>
#include <vector>

namespace fuzz {

using namespace graft;

inline std::vector<std::byte> as_bytes(std::string_view s) {
  const auto* p = reinterpret_cast<const std::byte*>(s.data());
  return {p, p + s.size()};
}
inline bool feed_json(std::string_view s) {
  const auto v = io::parse_json(s, "fuzz.json");
  return !v || v->what <= io::json::kind::object;
}
inline bool feed_safetensors(std::string_view s) {
  const auto f = io::parse_safetensors(as_bytes(s), "fuzz.safetensors");
  if (!f) return true;
  for (const io::tensor_view& t : f->tensors) {
    const auto v = io::to_float(t);
    const auto n = io::byte_count(t.type, t.shape);
    if (!n || *n != t.data.size() || (v && v->size() > 8 * t.data.size())) return false;
  }
  return true;
}
inline bool feed_adapter_config(std::string_view s) {
  const auto c = io::parse_adapter_config(s, "fuzz/adapter_config.json");
  if (!c) return true;
  const auto hit = io::is_target(*c, "model.layers.3.self_attn.q_proj");
  return hit || *hit.message() != '\0';
}
inline bool feed_pattern(std::string_view s) {
  const auto hit = io::full_match(s.substr(0, s.size() / 2), s.substr(s.size() / 2));
  return hit || *hit.message() != '\0';
}

}  // namespace fuzz
