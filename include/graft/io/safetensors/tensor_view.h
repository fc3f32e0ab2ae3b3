// SPDX-License-Identifier: Apache-2.0
// A tensor of a safetensors file: name, element type, row-major shape and bytes that it does not own.
//     bytes = product(shape) * bits / 8, in checked arithmetic
#pragma once
#include <graft/io/error_text.h>
#include <graft/io/safetensors/element_type.h>

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace graft::io {

struct tensor_view {
  std::string name;
  safetensors_type type;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> data;  // may be unaligned: old files have no padding
};

inline text shape_text(std::span<const std::uint64_t> shape) {
  text out("[");
  for (std::size_t i = 0; i < shape.size() && i < 8; ++i) out << (i == 0 ? "" : ", ") << number(shape[i]);
  return out << (shape.size() > 8 ? ", ...]" : "]");
}

// Size in bytes; empty if it exceeds 63 bits or is no whole number. A zero dimension does not hide an overflow.
inline std::optional<std::uint64_t> byte_count(safetensors_type type, std::span<const std::uint64_t> shape) {
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  std::uint64_t bits = static_cast<std::uint64_t>(facts(type).bits);
  bool none = false;
  for (const std::uint64_t d : shape) {
    none = none || d == 0;
    if (d != 0 && bits > most / d) return std::nullopt;
    bits *= d == 0 ? 1 : d;
  }
  if (none) return 0;
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

inline status check_tensor_name(std::string_view file, std::string_view name) {
  if (name.empty()) return fail_in(file, "a tensor has an empty name, expected at least one character");
  if (name.find('\0') != name.npos)
    return fail_in(file, "tensor ", in_quotes(name), ": the name holds a NUL character");
  return ok;
}

}  // namespace graft::io
