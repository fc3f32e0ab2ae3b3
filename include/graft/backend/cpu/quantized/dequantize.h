// SPDX-License-Identifier: Apache-2.0
// Dequantizes elements [first, first + n) of a quantized weight in row-major order. There is one function for each
// layout of scales; what a stored value means is in core/quant.
#pragma once
#include <graft/backend/cpu/instructions/selected_kernels.h>
#include <graft/backend/cpu/quantized/fp8_convert.h>
#include <graft/backend/cpu/quantized/nibble_lookup.h>
#include <graft/core/bf16.h>
#include <graft/core/quant_formats.h>

#include <algorithm>
#include <bit>
#include <limits>

namespace graft::cpu {

// at / block. Block sizes of real files are powers of two, and a division would take longer than the work on a block.
inline long long block_index(long long at, long long block) {
  const auto size = static_cast<unsigned long long>(block);
  return std::has_single_bit(size) ? at >> std::countr_zero(size) : at / block;
}
// The numbers of FP8, for scales, which are read one by one.
struct fp8_number_table {
  float v[256] = {};
  constexpr fp8_number_table() {
    for (unsigned k = 0; k < 256; ++k) v[k] = quant_formats::fp8_format::value(static_cast<unsigned char>(k));
  }
};
inline constexpr fp8_number_table fp8_numbers;
// Scale k of a weight whose scales are stored separately from its values.
inline float scale_at(const quant_state& p, long long k) {
  switch (p.format.scales) {
    case dtype::u8:
      return quant_formats::double_quant_scale(p.second_codebook[static_cast<const unsigned char*>(p.scales)[k]],
                                               p.second_scales[block_index(k, p.format.second_block)], p.offset);
    case dtype::bf16: return widen(static_cast<const bf16*>(p.scales)[k]);
    case dtype::f16: return widen(static_cast<const f16*>(p.scales)[k]);
    case dtype::f32: return static_cast<const float*>(p.scales)[k];
    case dtype::f8_e4m3: return fp8_numbers.v[static_cast<const unsigned char*>(p.scales)[k]] * p.tensor_scale;
    case dtype::f8_e8m0: return quant_formats::mxfp4_format::scale(static_cast<const unsigned char*>(p.scales)[k]);
    case dtype::f64:
    case dtype::i64:
    case dtype::nf4:
    case dtype::fp4:
    case dtype::int8:
    case dtype::u2:
    case dtype::u3:
    case dtype::u4:
    case dtype::f4_e2m1:
    case dtype::f8_e5m2:
    case dtype::ggml: break;  // unreachable: no format stores scales in this type
  }
  return std::numeric_limits<float>::quiet_NaN();
}

// Scales [first, first + n) of a double-quantized weight; those with the same second-level scale are dequantized
// together.
inline void double_quant_scales(const quant_state& p, long long first, long long n, float* to) {
  const auto* const quants = static_cast<const unsigned char*>(p.scales);
  for (long long k = first, end = first + n; k < end;) {
    const long long second = block_index(k, p.format.second_block),
                    stop = std::min(end, (second + 1) * p.format.second_block);
    const float scale = p.second_scales[second], offset = p.offset;
    for (; k < stop; ++k) *to++ = quant_formats::double_quant_scale(p.second_codebook[quants[k]], scale, offset);
  }
}

namespace detail {

// The index of the scale of element `at`, and the end of the elements that share it.
struct scale_span {
  long long scale, end;
};
inline scale_span scale_span_at(const weight_view& w, long long at) {
  const long long block = w.format.block;
  if (w.format.scaled == scale_granularity::flat_block)
    return {block_index(at, block), (block_index(at, block) + 1) * block};
  const long long row = at / w.cols, in_row = (at - row * w.cols) / block;
  return {row * (w.cols / block) + in_row, row * w.cols + std::min(w.cols, (in_row + 1) * block)};
}

[[gnu::noinline]] inline void dequantize_four_bit(const weight_view& w, const float* values, long long first,
                                                  long long n, float* to) {
  const auto* const quants = static_cast<const unsigned char*>(w.data);
  const table16<> table(values);
  const long long end = first + n;
  for (long long at = first; at < end;) {
    const scale_span block_scale = scale_span_at(w, at);
    const long long stop = std::min(end, block_scale.end);
    const float scale = scale_at(*w.quant, block_scale.scale);
    const auto number = [&](long long i) { return values[quant_formats::nibble_at(quants, i)] * scale; };
    if (at % 2 != 0) *to++ = number(at++);
    for (; at + 16 <= stop; at += 16, to += 16) table.dequantize(quants + at / 2, scale, to);
    for (; at < stop; ++at) *to++ = number(at);
  }
}
// f(value, scale) of each element, with one scale per row or for the whole weight.
template <class Code, class F>
[[gnu::noinline, gnu::hot]] void dequantize_rows(const weight_view& w, long long first, long long n, float* to, F f) {
  constexpr int chunk = 32;
  const auto* const quants = static_cast<const Code*>(w.data);
  const long long end = first + n;
  for (long long at = first; at < end;) {
    const long long row = at / w.cols, stop = std::min(end, (row + 1) * w.cols);
    const float scale = scale_at(*w.quant, w.format.scaled == scale_granularity::row ? row : 0);
    for (Code block_quants[chunk]; at + chunk <= stop;
         at += chunk, to += chunk) {  // a local copy, which cannot alias the output
      std::copy_n(quants + at, chunk, block_quants);
      if constexpr (requires { f.dequantize(block_quants, scale, to); })
        f.dequantize(block_quants, scale, to);
      else
        for (int k = 0; k < chunk; ++k) to[k] = f(block_quants[k], scale);
    }
    for (; at < stop; ++at) *to++ = f(quants[at], scale);
  }
}
template <class Format>
[[gnu::noinline]] void dequantize_blocks(const weight_view& w, long long first, long long n, float* to) {
  const auto* block = static_cast<const unsigned char*>(w.data) + first / Format::block * Format::bytes;
  const auto dequantize_next = [&](float* to_block) {
    quant_formats::dequantize_block<Format>(block, to_block);
    block += Format::bytes;
  };
  float one[Format::block];
  const auto dequantize_part = [&](long long inside, long long count) {
    dequantize_next(one);
    std::copy_n(one + inside, count, to);
    to += count, n -= count;
  };
  if (const long long inside = first % Format::block; inside != 0 && n > 0)
    dequantize_part(inside, std::min(n, Format::block - inside));
  for (; n >= Format::block; n -= Format::block, to += Format::block) dequantize_next(to);
  if (n > 0) dequantize_part(0, n);
}

// Scales and zero points of the groups of a row of integers.
class row_groups {
 public:
  row_groups(const weight_view& w, long long row)
      : w_(w), groups_((w.cols + w.format.block - 1) / w.format.block), first_(row * groups_) {
    if (in_order() || groups_ > table_size) return;
    for (long long g = 0; g < groups_; ++g) scales_[g] = scale(g), zeros_[g] = static_cast<float>(zero(g));
  }
  bool in_order() const { return w_.format.scaled == scale_granularity::block; }
  // For groups of consecutive columns: the group of column k, and the end of group g.
  long long group_at(long long k) const { return block_index(k, w_.format.block); }
  long long end_of(long long g) const { return std::min(w_.cols, (g + 1) * w_.format.block); }
  float scale(long long g) const { return scale_at(*w_.quant, first_ + g); }
  int zero(long long g) const { return w_.quant->zeros[first_ + g]; }

  // Turns the codes of elements [k, k + n) into numbers, where groups are in any order.
  void scale_codes(long long k, long long n, float* __restrict codes) const {
    const std::int32_t* const group = w_.quant->column_group + k;
    const float *const scales = scales_, *const zeros = zeros_;
    if (groups_ <= table_size)
      for (long long i = 0; i < n; ++i) codes[i] = (codes[i] - zeros[group[i]]) * scales[group[i]];
    else
      for (long long i = 0; i < n; ++i) codes[i] = (codes[i] - static_cast<float>(zero(group[i]))) * scale(group[i]);
  }

 private:
  static constexpr long long table_size = 256;
  const weight_view& w_;
  long long groups_, first_;
  float scales_[table_size];
  float zeros_[table_size];
};
// Elements [k, end) of a row of integers in one group; with the scale 1 and the zero point 0 their codes. 4 bits are
// looked up among the 16 numbers of their group.
template <int Bits>
void dequantize_group(const unsigned char* from, long long k, long long end, float scale, int zero, float* to) {
  using quant_formats::grouped_uint;
  const auto number = [&](long long i) {
    return grouped_uint::dequantize(grouped_uint::code(from, i, Bits), zero, scale);
  };
  for (; k < end && k % 8 != 0; ++k) *to++ = number(k);
  if constexpr (Bits == 4) {
    float numbers[16];
    for (int c = 0; c < 16; ++c) numbers[c] = grouped_uint::dequantize(c, zero, scale);
    const table16<true> table(numbers);
    for (; k + 16 <= end; k += 16, to += 16) table.dequantize(from + k / 2, 1.0F, to);
  } else {
    constexpr int chunk = grouped_uint::chunk;
    for (unsigned char code[chunk]; k + chunk <= end; k += chunk, to += chunk) {
      grouped_uint::codes<Bits>(from + k * Bits / 8, code);
      for (int i = 0; i < chunk; ++i) to[i] = grouped_uint::dequantize(code[i], zero, scale);
    }
  }
  for (; k < end; ++k) *to++ = number(k);
}
// Integers with a scale and a zero point for each group of columns (GPTQ, AWQ).
template <int Bits>
[[gnu::noinline, gnu::hot]] void dequantize_grouped_uint(const weight_view& w, long long first, long long n,
                                                         float* to) {
  const long long row_bytes = w.cols * Bits / 8, end = first + n;
  for (long long at = first; at < end;) {
    const long long row = at / w.cols, last = std::min(end, (row + 1) * w.cols) - row * w.cols;
    const auto* const from = static_cast<const unsigned char*>(w.data) + row * row_bytes;
    const row_groups groups(w, row);
    for (long long k = at - row * w.cols; k < last;) {
      long long stop = 0;
      if (groups.in_order()) {
        const long long g = groups.group_at(k);
        stop = std::min(last, groups.end_of(g));
        dequantize_group<Bits>(from, k, stop, groups.scale(g), groups.zero(g), to);
      } else {
        stop = last;
        dequantize_group<Bits>(from, k, stop, 1.0F, 0, to);
        groups.scale_codes(k, stop - k, to);
      }
      to += stop - k, k = stop;
    }
    at = row * w.cols + last;
  }
}
// E2M1 numbers with a scale per `Block` elements of a row, a multiple of 16; rows are whole blocks.
template <int Block>
[[gnu::noinline, gnu::hot]] void dequantize_e2m1(const weight_view& w, long long first, long long n, float* to) {
  using quant_formats::e2m1;
  const auto* const quants = static_cast<const unsigned char*>(w.data);
  const table16<true> table(e2m1::table);
  const long long end = first + n;
  for (long long at = first; at < end;) {
    const long long block = at / Block, stop = std::min(end, (block + 1) * Block);
    const float scale = scale_at(*w.quant, block);
    const auto number = [&](long long i) { return e2m1::table[e2m1::code_at(quants, i)] * scale; };
    if (at % 2 != 0) *to++ = number(at++);
    for (; at + 16 <= stop; at += 16, to += 16) table.dequantize(quants + at / 2, scale, to);
    for (; at < stop; ++at) *to++ = number(at);
  }
}

}  // namespace detail

inline void dequantize(const weight_view& w, long long first, long long n, float* to) {
  using namespace quant_formats;
  if (const auto* k = faster_kernels()) return k->dequantize(as_kernel_weight(w), first, n, to);
  switch (w.format.type) {
    case dtype::nf4: return detail::dequantize_four_bit(w, nf4_format::table, first, n, to);
    case dtype::fp4: return detail::dequantize_four_bit(w, fp4_format::table, first, n, to);
    case dtype::int8:
      return detail::dequantize_rows<signed char>(
          w, first, n, to, [](signed char c, float scale) { return int8_format::dequantize(c, scale); });
    case dtype::f8_e4m3: return detail::dequantize_rows<unsigned char>(w, first, n, to, fp8_values());
    case dtype::u2: return detail::dequantize_grouped_uint<2>(w, first, n, to);
    case dtype::u3: return detail::dequantize_grouped_uint<3>(w, first, n, to);
    case dtype::u4: return detail::dequantize_grouped_uint<4>(w, first, n, to);
    case dtype::u8: return detail::dequantize_grouped_uint<8>(w, first, n, to);
    case dtype::f4_e2m1:
      if (w.format == mxfp4_format::format()) return detail::dequantize_e2m1<mxfp4_format::block>(w, first, n, to);
      if (w.format == nvfp4_format::format()) return detail::dequantize_e2m1<nvfp4_format::block>(w, first, n, to);
      break;
    case dtype::ggml:
      if (!ggml_formats::visit(w.format, [&](auto f) { detail::dequantize_blocks<decltype(f)>(w, first, n, to); }))
        break;
      return;
    case dtype::f32:
    case dtype::f64:
    case dtype::bf16:
    case dtype::f16:
    case dtype::i64:
    case dtype::f8_e5m2:
    case dtype::f8_e8m0: break;
  }
  std::fill_n(to, n, std::numeric_limits<float>::quiet_NaN());  // unreachable: setting a weight refuses these formats
}

}  // namespace graft::cpu
