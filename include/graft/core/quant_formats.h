// SPDX-License-Identifier: Apache-2.0
// All quantization formats that can be dequantized, and the check of a quantized weight that a caller passes.
#pragma once
#include <graft/core/quant/double_quant.h>
#include <graft/core/quant/fp4.h>
#include <graft/core/quant/fp8.h>
#include <graft/core/quant/grouped_uint.h>
#include <graft/core/quant/int8.h>
#include <graft/core/quant/iq4.h>
#include <graft/core/quant/mxfp4.h>
#include <graft/core/quant/nf4.h>
#include <graft/core/quant/nvfp4.h>
#include <graft/core/quant/q2_k.h>
#include <graft/core/quant/q3_k.h>
#include <graft/core/quant/q4_0.h>
#include <graft/core/quant/q4_1.h>
#include <graft/core/quant/q4_k.h>
#include <graft/core/quant/q5_0.h>
#include <graft/core/quant/q5_1.h>
#include <graft/core/quant/q5_k.h>
#include <graft/core/quant/q6_k.h>
#include <graft/core/quant/q8_0.h>
#include <graft/core/result.h>

namespace graft {

namespace quant_formats {

// visit() calls f(Format{}) for the format that `e` describes and returns false if the list has none.
template <class... Formats> struct ggml_format_list {
  template <class F> static constexpr bool visit(const quant_format& e, F&& f) {
    return ((e.block_type == Formats::ggml_type_id && e == Formats::format() && (f(Formats{}), true)) || ...);
  }
  template <class F> static constexpr void for_each(F&& f) { (f(Formats{}), ...); }
};
// The block formats of ggml that are dequantized; readers, products and messages follow from this list.
using ggml_formats =
    ggml_format_list<q4_0_format, q4_1_format, q5_0_format, q5_1_format, q8_0_format, q2_k_format, q3_k_format,
                     q4_k_format, q5_k_format, q6_k_format, iq4_nl_format, iq4_xs_format, mxfp4_block_format>;

template <class Format>
concept quantizable = requires(const float* from, unsigned char* to) {
  Format::quantize(from, to);
};

}  // namespace quant_formats

constexpr bool is_four_bit(const quant_format& e) { return e.type == dtype::nf4 || e.type == dtype::fp4; }
// The 16 numbers of a 4-bit type of bitsandbytes; null for every other type, so that none is taken for one of them.
constexpr const float* four_bit_table(dtype type) {
  return type == dtype::nf4   ? quant_formats::nf4_format::table
         : type == dtype::fp4 ? quant_formats::fp4_format::table
                              : nullptr;
}
// Returns true if the library dequantizes this combination of element type, block and scales.
constexpr bool can_dequantize(const quant_format& e) {
  const bool single = e.scales == dtype::f32 || e.scales == dtype::bf16 || e.scales == dtype::f16;
  switch (e.type) {
    case dtype::nf4:
    case dtype::fp4:
      return (e.scaled == scale_granularity::flat_block || e.scaled == scale_granularity::row_flat_block) &&
             quant_formats::is_four_bit_block(e.block) &&
             (e.second_block > 0 ? e.scales == dtype::u8 : e.scales == dtype::f32);
    case dtype::int8: return e.scaled == scale_granularity::row && single;
    case dtype::f8_e4m3: return (e.scaled == scale_granularity::row || e.scaled == scale_granularity::tensor) && single;
    case dtype::u2:
    case dtype::u3:
    case dtype::u4:
    case dtype::u8:
      return (e.scaled == scale_granularity::block || e.scaled == scale_granularity::column_group) && e.block > 0 &&
             e.block_rows == 1 && e.block_bytes == 0 && e.second_block == 0 && single;
    case dtype::f4_e2m1:
      return e == quant_formats::mxfp4_format::format() || e == quant_formats::nvfp4_format::format();
    case dtype::ggml: return quant_formats::ggml_formats::visit(e, [](auto) {});
    case dtype::f32:
    case dtype::f64:
    case dtype::bf16:
    case dtype::f16:
    case dtype::i64:
    case dtype::f8_e5m2:
    case dtype::f8_e8m0: return false;
  }
  return false;
}
// Returns true for integers with one scale per row (int8) or per 32 columns (Q8_0, Q4_0), which kernels multiply as
// integers.
constexpr bool is_scaled_integer(const quant_format& e) {
  return e.type == dtype::int8 || e == quant_formats::q8_0_format::format() ||
         e == quant_formats::q4_0_format::format();
}
// Returns true if the library also quantizes numbers to this format (merging an adapter into a weight that stays
// quantized).
constexpr bool can_quantize(const quant_format& e) {
  if (has_zero_points(e)) return false;  // GPTQ and AWQ choose integers by a calibration, not by rounding
  if (e.type != dtype::ggml) return can_dequantize(e);
  bool can = false;
  quant_formats::ggml_formats::visit(e, [&](auto format) { can = quant_formats::quantizable<decltype(format)>; });
  return can;
}
constexpr const char* name_of(const quant_format& e) {
  if (e == quant_formats::mxfp4_format::format()) return quant_formats::mxfp4_format::name;
  if (e == quant_formats::nvfp4_format::format()) return quant_formats::nvfp4_format::name;
  const char* name = name_of(e.type);
  quant_formats::ggml_formats::visit(e, [&](auto format) { name = decltype(format)::name; });
  return name;
}

// Checks that a view of a quantized weight is complete and has a supported format.
[[gnu::cold, gnu::noinline]] constexpr status check_quantized(const detail::message_part& name, const view& v) {
  if (v.quant == nullptr)
    return fail("tensor '", name, "' is a quantized weight of type ", name_of(v.type),
                " without its quantization state; set view::quant");
  const quant_state& p = *v.quant;
  if (v.type == dtype::ggml && p.format.type == dtype::ggml && !can_dequantize(p.format))
    return fail("tensor '", name, "' has ggml's type ", p.format.block_type, " in blocks of ", p.format.block,
                " elements and ", p.format.block_bytes, " bytes, which is not supported");
  if (v.type != p.format.type || !can_dequantize(p.format))
    return fail("tensor '", name, "' is stored as ", name_of(v.type), " with scales that this format does not have");
  // Blocks within rows are the same for matrices that lie one below the other.
  const bool in_blocks = p.format.block_bytes > 0 || p.format.type == dtype::f4_e2m1;
  if (!(v.rank == 2 || (v.rank == 3 && in_blocks)) || !v.contiguous())
    return fail("tensor '", name, "' is quantized, expected a row-major matrix");
  if (in_blocks && v.size[v.rank - 1] % p.format.block != 0)
    return fail("tensor '", name, "' has rows of ", v.size[v.rank - 1],
                " elements, expected a multiple of the block size ", p.format.block);
  if (has_zero_points(p.format) && v.size[1] * bits_of(v.type) % 8 != 0)
    return fail("tensor '", name, "' has rows of ", v.size[1], " elements of ", bits_of(v.type),
                " bits, expected rows of whole bytes");
  if (p.format.block_bytes == 0 && p.scales == nullptr)
    return fail("tensor '", name, "' is quantized and has no scales");
  if (has_zero_points(p.format) && p.zeros == nullptr)
    return fail("tensor '", name, "' is ", name_of(p.format), " and has no zero points");
  if (p.format.scaled == scale_granularity::column_group && p.column_group == nullptr)
    return fail("tensor '", name, "' has scales per group of columns and does not say which group a column is in");
  if (p.format.second_block > 0 && (p.second_scales == nullptr || p.second_codebook == nullptr))
    return fail("tensor '", name, "' has quantized scales (double quantization) without their own scales and table");
  return ok;
}

}  // namespace graft
