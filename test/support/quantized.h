// SPDX-License-Identifier: Apache-2.0
// Every quantization format, and a weight in one of them with its dequantized values.
#pragma once
#include <doctest/doctest.h>
#include <graft/backend/cpu/quantized/quantize.h>
#include <graft/backend/cpu/runtime/convert.h>

#include <random>
#include <string>

namespace test {

using namespace graft;

struct named_quant_format {
  std::string name;
  quant_format format;
};
inline const std::vector<named_quant_format>& every_quant_format() {
  static const std::vector<named_quant_format> all = [] {
    std::vector<named_quant_format> e;
    for (const dtype four : {dtype::nf4, dtype::fp4})
      for (const int block : {32, 64, 4096}) {
        quant_format format{four, scale_granularity::flat_block, block};
        e.push_back({std::string(name_of(four)) + " " + std::to_string(block), format});
        format.scales = dtype::u8, format.second_block = quant_formats::double_quant_block;
        e.push_back({e.back().name + " double", format});
        format.scaled = scale_granularity::row_flat_block;
        e.push_back({e.back().name + " by rows", format});
      }
    e.push_back({"int8", {dtype::int8, scale_granularity::row}});
    e.push_back({"fp8 by tensor", {dtype::f8_e4m3, scale_granularity::tensor}});
    e.push_back({"fp8 by row", {dtype::f8_e4m3, scale_granularity::row}});
    quant_formats::ggml_formats::for_each([&](auto f) {
      if (f.block == 32) e.push_back({f.name, f.format()});
    });
    return e;
  }();
  return all;
}
// The K-quants and IQ4_XS, whose rows are multiples of 256 elements.
inline const std::vector<named_quant_format>& every_wide_quant_format() {
  static const std::vector<named_quant_format> all = [] {
    std::vector<named_quant_format> e;
    quant_formats::ggml_formats::for_each([&](auto f) {
      if (f.block == 256) e.push_back({f.name, f.format()});
    });
    return e;
  }();
  return all;
}
// The formats of GPTQ, AWQ, MXFP4 and NVFP4. Rows are whole blocks of 32 elements.
inline const std::vector<named_quant_format>& every_checkpoint_format() {
  static const std::vector<named_quant_format> all = [] {
    std::vector<named_quant_format> e{{"mxfp4", quant_formats::mxfp4_format::format()},
                                      {"nvfp4", quant_formats::nvfp4_format::format()}};
    for (const dtype type : {dtype::u2, dtype::u3, dtype::u4, dtype::u8})
      for (const scale_granularity by : {scale_granularity::block, scale_granularity::column_group})
        for (const int block : {16, 64, 1 << 20}) {
          const dtype scales = block == 16 ? dtype::bf16 : block == 64 ? dtype::f16 : dtype::f32;
          e.push_back({std::string(name_of(type)) + " " + std::to_string(block) +
                           (by == scale_granularity::block ? "" : " in any order"),
                       {.type = type, .scaled = by, .block = block, .scales = scales}});
        }
    return e;
  }();
  return all;
}
// Random integers with scales and zero points that make numbers of about one, and columns in any group.
inline cpu::quantized_weight random_groups(long long rows, long long cols, const quant_format& format, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int> byte(0, 255);
  std::uniform_real_distribution<float> size(0.5F, 1.0F);
  cpu::quantized_weight w;
  const auto scales = static_cast<std::size_t>(scale_counts_of(format, rows, cols).scales);
  const int values = 1 << bits_of(format.type);
  w.quant->format = format, w.rows = rows, w.cols = cols;
  w.data.resize(static_cast<std::size_t>(quantized_bytes(format, rows, cols)));
  for (unsigned char& b : w.data) b = static_cast<unsigned char>(byte(engine));
  for (std::size_t k = 0; k < scales; ++k) {
    const float scale = size(engine) / static_cast<float>(values);
    w.zeros.push_back(static_cast<unsigned char>(byte(engine) % values));
    if (format.scales == dtype::f32)
      w.scales.push_back(scale);
    else {
      const std::uint16_t half = format.scales == dtype::f16 ? narrow_to_f16(scale).bits : narrow(scale).bits;
      w.quantized_scales.push_back(static_cast<unsigned char>(half & 255U));
      w.quantized_scales.push_back(static_cast<unsigned char>(half >> 8U));
    }
  }
  const auto groups = static_cast<int>(scales / static_cast<std::size_t>(rows));
  for (long long c = 0; c < cols; ++c) w.column_group.push_back(byte(engine) % groups);
  w.quant->zeros = w.zeros.data(), w.quant->column_group = w.column_group.data();
  w.quant->scales = format.scales == dtype::f32 ? static_cast<const void*>(w.scales.data()) : w.quantized_scales.data();
  return w;
}
inline bool exists_on(const quant_format& e, long long cols) { return e.block_bytes == 0 || cols % e.block == 0; }

// Returns the offsets of half-precision scales in a block of a format that is only read.
inline std::vector<int> halves_of(const quant_format& format) {
  using namespace quant_formats;
  if (format == q2_k_format::format()) return {80, 82};
  if (format == q3_k_format::format()) return {108};
  if (format == q6_k_format::format()) return {208};
  if (format == q4_k_format::format() || format == q5_k_format::format()) return {0, 2};
  if (format == mxfp4_block_format::format()) return {};
  return {0};
}
// Blocks of random bits, whose scales make numbers of about one. Every byte is a valid code, so all of them occur.
inline cpu::quantized_weight random_blocks(long long rows, long long cols, const quant_format& format, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int> byte(0, 255);
  std::uniform_real_distribution<float> size(0.5F, 1.0F);
  cpu::quantized_weight w;
  w.quant->format = format, w.rows = rows, w.cols = cols;
  w.data.resize(static_cast<std::size_t>(quantized_bytes(format, rows, cols)));
  for (unsigned char& b : w.data) b = static_cast<unsigned char>(byte(engine));
  if (format == quant_formats::mxfp4_block_format::format())  // an exponent: powers of two around 1 / 16
    for (std::size_t at = 0; at < w.data.size(); at += static_cast<std::size_t>(format.block_bytes))
      w.data[at] = static_cast<unsigned char>(122 + w.data[at] % 4);
  for (std::size_t at = 0; at < w.data.size(); at += static_cast<std::size_t>(format.block_bytes))
    for (const int half : halves_of(format))
      quant_formats::store_half(size(engine) * (format.block == 32 ? 1e-2F : 1e-3F),
                                w.data.data() + at + static_cast<std::size_t>(half));
  return w;
}

// `from` in a format; random blocks where the format is only read or nothing is given.
struct quantized_and_plain {
  cpu::quantized_weight quantized;
  std::vector<float> numbers;

  quantized_and_plain(const std::vector<float>& from, long long rows, long long cols, const quant_format& format) {
    auto made = can_quantize(format) && !from.empty() ? cpu::quantize(from.data(), rows, cols, format)
                : has_zero_points(format) ? random_groups(rows, cols, format, static_cast<unsigned>(rows + cols))
                                          : random_blocks(rows, cols, format, static_cast<unsigned>(rows + cols));
    INFO(std::string(made ? "" : made.message()));
    REQUIRE(bool(made));
    quantized = std::move(*made);
    numbers.resize(static_cast<std::size_t>(rows * cols));
    cpu::convert(quantized.as_view(), numbers.data());
  }
  weight_view as_weight() const { return weight_of(quantized.as_view(), quantized.rows, quantized.cols); }
};
inline std::vector<float> normal_numbers(long long n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = normal(engine);
  return v;
}

}  // namespace test
