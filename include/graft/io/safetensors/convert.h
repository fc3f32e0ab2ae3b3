// SPDX-License-Identifier: Apache-2.0
// Conversion of stored tensors to vectors of float, double or int64. Narrowing to float rounds to nearest, as PyTorch's
// .to() does; to_int64 accepts integer types only and refuses values that do not fit. The data may be unaligned.
//     FP8: (-1)^s 2^(e-bias) (1 + m/2^M), subnormal for e = 0; FNUZ and E8M0 as ONNX's float8 types define them
#pragma once
#include <graft/core/library.h>
#include <graft/io/safetensors/tensor_view.h>

namespace graft::io {

GRAFT_LIBRARY result<std::vector<float>> to_float(const tensor_view& t);
GRAFT_LIBRARY result<std::vector<double>> to_double(const tensor_view& t);
GRAFT_LIBRARY result<std::vector<std::int64_t>> to_int64(const tensor_view& t);

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/core/bf16.h>
#include <graft/core/f16.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace graft::io {

inline float from_f8(safetensors_type t, std::uint8_t v) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  if (t == safetensors_type::f8_e8m0) return v == 0xff ? nan : std::ldexp(1.0f, v - 127);
  const bool five = t == safetensors_type::f8_e5m2 || t == safetensors_type::f8_e5m2fnuz;
  const bool fnuz = t == safetensors_type::f8_e4m3fnuz || t == safetensors_type::f8_e5m2fnuz;
  if (fnuz && v == 0x80) return nan;
  if (t == safetensors_type::f8_e4m3 && (v & 0x7f) == 0x7f) return nan;
  const int mantissa = five ? 2 : 3, bias = (five ? 15 : 7) + (fnuz ? 1 : 0);
  const int e = (v & 0x7f) >> mantissa, m = v & ((1 << mantissa) - 1);
  if (t == safetensors_type::f8_e5m2 && e == 31)
    return m != 0 ? nan : std::copysign(std::numeric_limits<float>::infinity(), v & 0x80 ? -1.0f : 1.0f);
  const float size = e == 0 ? std::ldexp(static_cast<float>(m), 1 - bias - mantissa)
                            : std::ldexp(static_cast<float>((1 << mantissa) + m), e - bias - mantissa);
  return v & 0x80 ? -size : size;
}

template <class Raw, class Out, class Decode> std::vector<Out> decode_each(const tensor_view& t, Decode decode) {
  std::vector<Out> out(t.data.size() / sizeof(Raw));
  for (std::size_t i = 0; i < out.size(); ++i) {
    Raw raw;
    std::memcpy(&raw, t.data.data() + i * sizeof(Raw), sizeof(Raw));
    out[i] = static_cast<Out>(decode(raw));
  }
  return out;
}

template <class Out> result<std::vector<Out>> to_real(const tensor_view& t) {
  return guarded(t.name, [&]() -> result<std::vector<Out>> {
    const auto same = [](auto v) { return +v; };  // + promotes small integers to int
    const auto wide = [](auto v) { return widen(v); };
    switch (t.type) {
      case safetensors_type::f64: return decode_each<double, Out>(t, same);
      case safetensors_type::f32: return decode_each<float, Out>(t, same);
      case safetensors_type::f16: return decode_each<graft::f16, Out>(t, wide);
      case safetensors_type::bf16: return decode_each<graft::bf16, Out>(t, wide);
      case safetensors_type::i64: return decode_each<std::int64_t, Out>(t, same);
      case safetensors_type::u64: return decode_each<std::uint64_t, Out>(t, same);
      case safetensors_type::i32: return decode_each<std::int32_t, Out>(t, same);
      case safetensors_type::u32: return decode_each<std::uint32_t, Out>(t, same);
      case safetensors_type::i16: return decode_each<std::int16_t, Out>(t, same);
      case safetensors_type::u16: return decode_each<std::uint16_t, Out>(t, same);
      case safetensors_type::i8: return decode_each<std::int8_t, Out>(t, same);
      case safetensors_type::u8: return decode_each<std::uint8_t, Out>(t, same);
      case safetensors_type::boolean: return decode_each<std::uint8_t, Out>(t, [](std::uint8_t v) { return v != 0; });
      case safetensors_type::f8_e5m2:
      case safetensors_type::f8_e4m3:
      case safetensors_type::f8_e8m0:
      case safetensors_type::f8_e4m3fnuz:
      case safetensors_type::f8_e5m2fnuz:
        return decode_each<std::uint8_t, Out>(t, [&](std::uint8_t v) { return from_f8(t.type, v); });
      case safetensors_type::f4:
      case safetensors_type::f6_e2m3:
      case safetensors_type::f6_e3m2:
      case safetensors_type::c64: break;
    }
    return fail("tensor ", in_quotes(t.name), ": ", name_of(t.type), " values cannot be read as real numbers");
  });
}

GRAFT_LIBRARY result<std::vector<float>> to_float(const tensor_view& t) { return to_real<float>(t); }
GRAFT_LIBRARY result<std::vector<double>> to_double(const tensor_view& t) { return to_real<double>(t); }

GRAFT_LIBRARY result<std::vector<std::int64_t>> to_int64(const tensor_view& t) {
  return guarded(t.name, [&]() -> result<std::vector<std::int64_t>> {
    const auto same = [](auto v) { return +v; };  // + promotes small integers to int
    switch (t.type) {
      case safetensors_type::u64: {
        std::vector<std::int64_t> v = decode_each<std::uint64_t, std::int64_t>(t, same);
        for (const std::int64_t e : v)
          if (e < 0)
            return fail("tensor ", in_quotes(t.name), ": a U64 value is larger than 2^63-1, the most int64 holds");
        return v;
      }
      case safetensors_type::i64: return decode_each<std::int64_t, std::int64_t>(t, same);
      case safetensors_type::i32: return decode_each<std::int32_t, std::int64_t>(t, same);
      case safetensors_type::u32: return decode_each<std::uint32_t, std::int64_t>(t, same);
      case safetensors_type::i16: return decode_each<std::int16_t, std::int64_t>(t, same);
      case safetensors_type::u16: return decode_each<std::uint16_t, std::int64_t>(t, same);
      case safetensors_type::i8: return decode_each<std::int8_t, std::int64_t>(t, same);
      case safetensors_type::u8: return decode_each<std::uint8_t, std::int64_t>(t, same);
      case safetensors_type::boolean:
        return decode_each<std::uint8_t, std::int64_t>(t, [](std::uint8_t v) { return v != 0; });
      default: return fail("tensor ", in_quotes(t.name), ": ", name_of(t.type), " values are not integers");
    }
  });
}

}  // namespace graft::io
#endif
