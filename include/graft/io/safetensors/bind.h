// SPDX-License-Identifier: Apache-2.0
// A safetensors tensor as a view that layers compute from, without a copy. There is no such view for types that layers
// do not compute with, for more than four axes, and for unaligned data (files written without padding).
#pragma once
#include <graft/core/view.h>
#include <graft/io/safetensors/tensor_view.h>

#include <cstdint>

namespace graft::io {

// The computation type of a stored type; empty if layers do not compute with it.
inline std::optional<dtype> dtype_of(safetensors_type type) {
  switch (type) {
    case safetensors_type::f32: return dtype::f32;
    case safetensors_type::f64: return dtype::f64;
    case safetensors_type::f16: return dtype::f16;
    case safetensors_type::bf16: return dtype::bf16;
    case safetensors_type::i64: return dtype::i64;
    default: return std::nullopt;
  }
}

inline bool is_aligned(const tensor_view& t) {
  const std::size_t bytes = static_cast<std::size_t>(facts(t.type).bits) / 8;
  return bytes == 0 || reinterpret_cast<std::uintptr_t>(t.data.data()) % bytes == 0;
}

inline result<view> bind_in_place(const tensor_view& t, std::string_view file) {
  const std::optional<dtype> type = dtype_of(t.type);
  if (!type)
    return fail_in(file, "tensor ", in_quotes(t.name), " is ", name_of(t.type),
                   ", expected F32, F64, F16, BF16 or I64");
  if (t.shape.size() > 4)
    return fail_in(file, "tensor ", in_quotes(t.name), " has shape ", shape_text(t.shape), ", expected at most 4 axes");
  if (!is_aligned(t))
    return fail_in(file, "tensor ", in_quotes(t.name), " does not begin at a multiple of its element's ",
                   facts(t.type).bits / 8, " bytes; save the file again, writers pad the header today");
  view v{t.data.data(), *type};
  for (const std::uint64_t n : t.shape) v.size[v.rank++] = static_cast<long long>(n);
  return v;
}

}  // namespace graft::io
