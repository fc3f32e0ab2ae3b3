// SPDX-License-Identifier: Apache-2.0
#include <graft/core/quant_format.h>

#include "../support/static_check.h"

using namespace graft;

namespace {

constexpr bf16 halves[24]{};
constexpr quant_format double_quantized{dtype::nf4, scale_granularity::flat_block, 64, 1, dtype::u8, 256, dtype::f32};
constexpr quant_format fp8_squares{dtype::f8_e4m3, scale_granularity::block, 128, 128, dtype::f32};
constexpr quant_format q4_0{
    .type = dtype::ggml, .scaled = scale_granularity::block, .block = 32, .block_bytes = 18, .block_type = 2};

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
