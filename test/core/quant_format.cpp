// SPDX-License-Identifier: Apache-2.0
#include <graft/core/quant_formats.h>

#include "../support/static_check.h"

using namespace graft;

namespace {

constexpr bf16 halves[24]{};
constexpr quant_format double_quantized{dtype::nf4, scale_granularity::flat_block, 64, 1, dtype::u8, 256, dtype::f32};
constexpr quant_format fp8_squares{dtype::f8_e4m3, scale_granularity::block, 128, 128, dtype::f32};
constexpr quant_format q4_0{
    .type = dtype::ggml, .scaled = scale_granularity::block, .block = 32, .block_bytes = 18, .block_type = 2};

constexpr quant_format group_of(dtype type, int block, scale_granularity by = scale_granularity::block) {
  return {.type = type, .scaled = by, .block = block, .scales = dtype::f16};
}

}  // namespace

TEST_CASE("quant_format: element types of numbers are plain, all others are quantized") {
  BOTH(quant_format_of<float>().plain());
  BOTH(quant_format_of<bf16>() == quant_format{dtype::bf16});
  BOTH(quant_format_of<nf4<64>>() == quant_format{dtype::nf4, scale_granularity::flat_block, 64});
  BOTH(quant_format_of<nf4<64>>() != quant_format_of<nf4<128>>());
  BOTH(quant_format_of<int8>() == quant_format{dtype::int8, scale_granularity::row});
  BOTH(!quant_format_of<nf4<64>>().plain());
  BOTH(!quant_format_of<int8>().plain());
  BOTH(!quant_format{dtype::i64}.plain());
}

TEST_CASE("quant_format: number of scales and bytes of a weight") {
  BOTH(scale_counts_of(quant_format_of<f16>(), 5, 7).scales == 0);
  BOTH(bytes_of(quant_format_of<f16>(), 5, 7) == 70);
  BOTH(scale_counts_of(quant_format_of<int8>(), 5, 7).scales == 5);
  BOTH(bytes_of(quant_format_of<int8>(), 5, 7) == 35 + 4 * 5);
  BOTH(scale_counts_of(quant_format_of<nf4<64>>(), 3, 100).scales ==
       5);                                                    // 300 elements: blocks continue across row ends
  BOTH(bytes_of(quant_format_of<nf4<64>>(), 3, 5) == 8 + 4);  // an odd number of half bytes
  BOTH(scale_counts_of(double_quantized, 4096, 4096).scales == 262144);
  BOTH(scale_counts_of(double_quantized, 4096, 4096).second_scales == 1024);
  BOTH(bytes_of(double_quantized, 4096, 4096) == 4096 * 2048 + 262144 + 4096);
  BOTH(scale_counts_of(fp8_squares, 300, 128).scales == 3);
  BOTH(scale_counts_of({dtype::f8_e4m3, scale_granularity::tensor}, 300, 128).scales == 1);
  BOTH(scale_counts_of(q4_0, 4, 64).scales == 0);  // they are stored inside the blocks
  BOTH(bytes_of(q4_0, 4, 64) == 4 * 2 * 18);
}

TEST_CASE("quant_format: integers with zero points, and 4-bit floats with 8-bit scales") {
  BOTH(scale_counts_of(group_of(dtype::u4, 128), 10, 300).scales == 30);        // the last group has fewer columns
  BOTH(bytes_of(group_of(dtype::u4, 128), 10, 256) == 10 * 128 + 20 * 2 + 20);  // codes, scales, zero points
  BOTH(bytes_of(group_of(dtype::u3, 32), 1, 32) == 12 + 2 + 1);
  BOTH(scale_counts_of(group_of(dtype::u2, 64, scale_granularity::column_group), 4, 128).scales == 8);
  BOTH(bytes_of(quant_formats::mxfp4_format::format(), 4, 64) == 4 * 32 + 8);
  BOTH(bytes_of(quant_formats::nvfp4_format::format(), 4, 64) == 4 * 32 + 16);
}

TEST_CASE("quant_format: what is dequantized, and what numbers are quantized to") {
  for (const dtype type : {dtype::u2, dtype::u3, dtype::u4, dtype::u8}) {
    CHECK(can_dequantize(group_of(type, 32)));
    CHECK(can_dequantize(group_of(type, 100, scale_granularity::column_group)));
    CHECK(!can_dequantize(group_of(type, 0)));
    CHECK(!can_dequantize(group_of(type, 32, scale_granularity::flat_block)));
    CHECK(!can_quantize(group_of(type, 32)));
  }
  CHECK(can_quantize(quant_formats::mxfp4_format::format()));
  CHECK(can_quantize(quant_formats::nvfp4_format::format()));
  CHECK(std::string(name_of(quant_formats::nvfp4_format::format())) == "nvfp4");
  CHECK(std::string(name_of(quant_formats::mxfp4_format::format())) == "mxfp4");
  // A block, a scale or a granularity that no format has is not decoded as one of them.
  for (const quant_format& e :
       {quant_format{.type = dtype::f4_e2m1, .scaled = scale_granularity::block, .block = 64, .scales = dtype::f8_e8m0},
        quant_format{.type = dtype::f4_e2m1, .scaled = scale_granularity::block, .block = 32},
        quant_format{.type = dtype::f8_e5m2, .scaled = scale_granularity::row},
        quant_format{.type = dtype::f8_e8m0, .scaled = scale_granularity::row},
        quant_format{.type = dtype::u8, .scaled = scale_granularity::row},
        quant_format{.type = dtype::int8, .scaled = scale_granularity::block, .block = 32},
        quant_format{.type = dtype::fp4, .scaled = scale_granularity::block, .block = 32}})
    CHECK(!can_dequantize(e));
}

TEST_CASE("grouped_uint: a stream of codes is read as it was written, one by one and 32 at a time") {
  using stream = quant_formats::grouped_uint;
  for (const int bits : {2, 3, 4, 8}) {
    unsigned char bytes[64] = {}, all[32] = {};
    for (int k = 0; k < 64; ++k) stream::put(bytes, k, bits, (k * 37 + 11) & ((1 << bits) - 1));
    if (bits == 2) stream::codes<2>(bytes + 32 * 2 / 8, all);
    if (bits == 3) stream::codes<3>(bytes + 32 * 3 / 8, all);
    if (bits == 4) stream::codes<4>(bytes + 32 * 4 / 8, all);
    if (bits == 8) stream::codes<8>(bytes + 32, all);
    for (int k = 0; k < 64; ++k) {
      CHECK(stream::code(bytes, k, bits) == ((k * 37 + 11) & ((1 << bits) - 1)));
      if (k >= 32) CHECK(all[k - 32] == stream::code(bytes, k, bits));
    }
  }
}

TEST_CASE("e2m1: every code is the nearest to its number, ties go to the even code, and large numbers saturate") {
  using quant_formats::e2m1;
  for (unsigned c = 0; c < 16; ++c) {
    if (c != 8) CHECK(e2m1::nearest(e2m1::table[c]) == c);  // -0 is stored as 0
  }
  for (const auto& [x, code] :
       {std::pair{0.25F, 0U}, std::pair{0.75F, 2U}, std::pair{1.25F, 2U}, std::pair{1.75F, 4U}, std::pair{2.5F, 4U},
        std::pair{3.5F, 6U}, std::pair{5.0F, 6U}, std::pair{100.0F, 7U}, std::pair{-5.1F, 15U}})
    CHECK(e2m1::nearest(x) == code);
  CHECK(quant_formats::mxfp4_format::scale(127) == 1.0F);
  CHECK(quant_formats::mxfp4_format::scale(0) == 0x1p-127F);
  CHECK(quant_formats::mxfp4_format::scale(254) == 0x1p127F);
  const float nan = quant_formats::mxfp4_format::scale(255);
  CHECK(nan != nan);
}

TEST_CASE("weight_view: a plain tensor as a matrix, row-major, column-major or as a slice of another") {
  constexpr weight_view w = weight_of(view_of(halves, 4, 6), 4, 6);
  BOTH(w.row_stride == 6);
  BOTH(w.col_stride == 1);
  BOTH(w.format.type == dtype::bf16);
  constexpr weight_view t = weight_of(view_of(halves, 6, 4).transposed(), 4, 6);
  BOTH(t.row_stride == 1);
  BOTH(t.col_stride == 4);
  BOTH(t.transposed().row_stride == 4);
  BOTH(t.transposed().rows == 6);
  constexpr weight_view kernel = weight_of(view_of(halves, 4, 3, 2, 1), 4, 6);  // a convolution's weight, flattened
  BOTH(kernel.row_stride == 6);
  BOTH(kernel.col_stride == 1);
}
