// SPDX-License-Identifier: Apache-2.0
// Element types (dtypes) of safetensors files, in the order of the reference implementation's enumeration: its writer
// sorts tensors by this order, largest alignment first (safetensors/src/tensor.rs).
#pragma once
#include <optional>
#include <string_view>

namespace graft::io {

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

}  // namespace graft::io
