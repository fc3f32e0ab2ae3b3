// SPDX-License-Identifier: Apache-2.0
// Quantizes a weight: floats become stored values and scales of any format, rounded as the writers of its files round
// them. It is used to store a merged weight in the format of its base, and to make weights for tests and benchmarks.
#pragma once
#include <graft/backend/cpu/quantized/dequantize.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace graft::cpu {

// A quantized weight that owns its memory. It may be moved, because views point to heap memory, which does not move.
struct quantized_weight {
  std::vector<unsigned char> data, quantized_scales, zeros;
  std::vector<float> scales, second_scales;
  std::vector<std::int32_t> column_group;
  std::unique_ptr<quant_state> quant = std::make_unique<quant_state>();
  long long rows = 0, cols = 0;

  view as_view() const { return {data.data(), quant->format.type, {rows, cols, 1, 1}, 2, {}, quant.get()}; }
};

namespace detail {

template <class Format> void quantize_four_bit(const float* from, quantized_weight& w) {
  const quant_format& format = w.quant->format;
  const long long n = w.rows * w.cols;
  w.data.resize(static_cast<std::size_t>((n + 1) / 2));
  w.scales.resize(static_cast<std::size_t>(scale_counts_of(format, w.rows, w.cols).scales));
  quant_formats::quantize_four_bit<Format>(from, n, format.block, w.data.data(), w.scales.data());
  if (format.second_block == 0) return;
  w.quantized_scales.resize(w.scales.size());
  w.second_scales.resize(static_cast<std::size_t>(scale_counts_of(format, w.rows, w.cols).second_scales));
  w.quant->offset = quant_formats::quantize_scales(w.scales.data(), static_cast<long long>(w.scales.size()),
                                                   w.quantized_scales.data(), w.second_scales.data());
  w.scales.clear();
}
// One scale per row or for the whole weight.
template <class Format> void quantize_rows(const float* from, quantized_weight& w) {
  const bool by_row = w.quant->format.scaled == scale_granularity::row;
  const long long parts = by_row ? w.rows : 1, n = by_row ? w.cols : w.rows * w.cols;
  w.data.resize(static_cast<std::size_t>(w.rows * w.cols));
  for (long long p = 0; p < parts; ++p) {
    if constexpr (Format::type == dtype::int8)
      w.scales.push_back(Format::quantize(from + p * n, n, reinterpret_cast<signed char*>(w.data.data()) + p * n));
    else
      w.scales.push_back(Format::quantize(from + p * n, n, w.data.data() + p * n));
  }
}
template <class Format> void quantize_blocks(const float* from, quantized_weight& w) {
  const long long blocks = w.rows * w.cols / Format::block;
  w.data.resize(static_cast<std::size_t>(blocks * Format::bytes));
  for (long long b = 0; b < blocks; ++b) Format::quantize(from + b * Format::block, w.data.data() + b * Format::bytes);
}

template <class Format> void quantize_e2m1(const float* from, quantized_weight& w) {
  constexpr bool has_tensor_scale = requires { Format::tensor_scale(from, 0); };
  const long long n = w.rows * w.cols, blocks = n / Format::block;
  w.data.resize(static_cast<std::size_t>(n / 2)), w.quantized_scales.resize(static_cast<std::size_t>(blocks));
  if constexpr (has_tensor_scale) w.quant->tensor_scale = Format::tensor_scale(from, n);
  for (long long b = 0; b < blocks; ++b) {
    const float* const block = from + b * Format::block;
    unsigned char *const to = w.data.data() + b * Format::block / 2,
                         &scale = w.quantized_scales[static_cast<std::size_t>(b)];
    if constexpr (has_tensor_scale)
      scale = Format::quantize(block, w.quant->tensor_scale, to);
    else
      scale = Format::quantize(block, to);
  }
}

}  // namespace detail

// Scales are stored as floats, or quantized if the format has double quantization or scales of 8 bits.
inline result<quantized_weight> quantize(const float* from, long long rows, long long cols, quant_format format) {
  using namespace quant_formats;
  if (format.second_block > 0)
    format.scales = dtype::u8, format.second_block = double_quant_block;
  else if (format.block_bytes == 0 && format.type != dtype::f4_e2m1)
    format.scales = dtype::f32;
  if (!can_dequantize(format)) return fail("there is no dequantization of ", name_of(format), " with these scales");
  if (!can_quantize(format))
    return fail("weights in ", name_of(format), " are read and not written; keep a merged weight as f32 or bf16");
  for (long long i = 0; i < rows * cols; ++i)
    if (!(abs_max(from + i, 1) <= 3.4028235e38F) || from[i] != from[i])
      return fail("element ", i, " of a weight to be quantized is not a finite number");
  quantized_weight w;
  w.quant->format = format, w.rows = rows, w.cols = cols;
  if ((format.block_bytes > 0 || format.type == dtype::f4_e2m1) && cols % format.block != 0)
    return fail("rows of ", cols, " elements are no multiple of the block size ", format.block, " of ",
                name_of(format));
  switch (format.type) {
    case dtype::nf4: detail::quantize_four_bit<nf4_format>(from, w); break;
    case dtype::fp4: detail::quantize_four_bit<fp4_format>(from, w); break;
    case dtype::int8: detail::quantize_rows<int8_format>(from, w); break;
    case dtype::f8_e4m3: detail::quantize_rows<fp8_format>(from, w); break;
    case dtype::f4_e2m1:
      if (format == mxfp4_format::format()) detail::quantize_e2m1<mxfp4_format>(from, w);
      if (format == nvfp4_format::format()) detail::quantize_e2m1<nvfp4_format>(from, w);
      break;
    case dtype::ggml:
      ggml_formats::visit(format, [&](auto f) {
        if constexpr (quantizable<decltype(f)>) detail::quantize_blocks<decltype(f)>(from, w);
      });
      break;
    case dtype::u2:
    case dtype::u3:
    case dtype::u4:
    case dtype::u8:
    case dtype::f32:
    case dtype::f64:
    case dtype::bf16:
    case dtype::f16:
    case dtype::i64:
    case dtype::f8_e5m2:
    case dtype::f8_e8m0: break;  // unreachable: can_quantize() refuses these formats
  }
  w.quant->scales = w.quantized_scales.empty() ? w.scales.data() : static_cast<const void*>(w.quantized_scales.data());
  w.quant->second_scales = w.second_scales.data();
  w.quant->second_codebook = dynamic_map_values();
  return result<quantized_weight>(std::move(w));  // nvcc would copy without the move
}

}  // namespace graft::cpu
