// SPDX-License-Identifier: Apache-2.0
#include <graft/core/encoding.h>

#include "../support/both.h"

using namespace graft;

namespace {

constexpr bf16 halves[24]{};
constexpr encoding double_quantized{dtype::nf4, scaled_by::run, 64, 1, dtype::u8, 256, dtype::f32};
constexpr encoding fp8_squares{dtype::f8_e4m3, scaled_by::block, 128, 128, dtype::f32};
constexpr encoding q4_0{
    .codes = dtype::ggml, .scaled = scaled_by::block, .block = 32, .block_bytes = 18, .block_type = 2};

}  // namespace

TEST_CASE("encoding: numbers are plain, everything else has planes") {
  BOTH(encoding_of<float>().plain());
  BOTH(encoding_of<bf16>() == encoding{dtype::bf16});
  BOTH(encoding_of<nf4<64>>() == encoding{dtype::nf4, scaled_by::run, 64});
  BOTH(encoding_of<nf4<64>>() != encoding_of<nf4<128>>());
  BOTH(encoding_of<int8>() == encoding{dtype::int8, scaled_by::row});
  BOTH(!encoding_of<nf4<64>>().plain());
  BOTH(!encoding_of<int8>().plain());
  BOTH(!encoding{dtype::i64}.plain());
}

TEST_CASE("encoding: how many scales a weight has, and what it weighs") {
  BOTH(planes_of(encoding_of<f16>(), 5, 7).scales == 0);
  BOTH(bytes_of(encoding_of<f16>(), 5, 7) == 70);
  BOTH(planes_of(encoding_of<int8>(), 5, 7).scales == 5);
  BOTH(bytes_of(encoding_of<int8>(), 5, 7) == 35 + 4 * 5);
  BOTH(planes_of(encoding_of<nf4<64>>(), 3, 100).scales == 5);  // 300 elements: blocks run across the ends of rows
  BOTH(bytes_of(encoding_of<nf4<64>>(), 3, 5) == 8 + 4);        // an odd number of half bytes
  BOTH(planes_of(double_quantized, 4096, 4096).scales == 262144);
  BOTH(planes_of(double_quantized, 4096, 4096).second_scales == 1024);
  BOTH(bytes_of(double_quantized, 4096, 4096) == 4096 * 2048 + 262144 + 4096);
  BOTH(planes_of(fp8_squares, 300, 128).scales == 3);
  BOTH(planes_of({dtype::f8_e4m3, scaled_by::tensor}, 300, 128).scales == 1);
  BOTH(planes_of(q4_0, 4, 64).scales == 0);  // they lie between the codes
  BOTH(bytes_of(q4_0, 4, 64) == 4 * 2 * 18);
}

TEST_CASE("weight_view: a plain tensor as a matrix, by rows, by columns or as a part of another") {
  constexpr weight_view w = weight_of(view_of(halves, 4, 6), 4, 6);
  BOTH(w.row_stride == 6);
  BOTH(w.col_stride == 1);
  BOTH(w.how.codes == dtype::bf16);
  constexpr weight_view t = weight_of(view_of(halves, 6, 4).transposed(), 4, 6);
  BOTH(t.row_stride == 1);
  BOTH(t.col_stride == 4);
  BOTH(t.transposed().row_stride == 4);
  BOTH(t.transposed().rows == 6);
  constexpr weight_view kernel = weight_of(view_of(halves, 4, 3, 2, 1), 4, 6);  // a convolution's weight, flattened
  BOTH(kernel.row_stride == 6);
  BOTH(kernel.col_stride == 1);
}
