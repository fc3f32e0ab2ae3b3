// SPDX-License-Identifier: Apache-2.0
// A tensor of a safetensors file: name, element type, row-major shape and bytes that it does not own.
//     bytes = product(shape) * bits / 8, in checked arithmetic
#pragma once
#include <graft/io/error_text.h>

#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace graft::io {

// Element types (dtypes) of safetensors files, in the order of the reference implementation's enumeration: its writer
// sorts tensors by this order, largest alignment first (safetensors/src/tensor.rs).
enum class safetensors_type {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64
};

struct safetensors_type_facts {
  const char* name;
  int bits;
};

inline constexpr safetensors_type_facts safetensors_types[] = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};

constexpr const safetensors_type_facts& facts(safetensors_type t) { return safetensors_types[static_cast<int>(t)]; }
constexpr const char* name_of(safetensors_type t) { return facts(t).name; }

constexpr std::optional<safetensors_type> safetensors_type_named(std::string_view name) {
  int k = 0;
  for (const safetensors_type_facts& d : safetensors_types) {
    if (name == d.name) return static_cast<safetensors_type>(k);
    ++k;
  }
  return std::nullopt;
}

static_assert(facts(safetensors_type::u64).bits == 64 && safetensors_type_named("BF16") == safetensors_type::bf16 &&
              safetensors_type_named("U64") == safetensors_type::u64);

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
