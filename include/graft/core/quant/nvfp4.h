// SPDX-License-Identifier: Apache-2.0
// NVFP4 (ModelOpt, modelopt/torch/quantization/qtensor/nvfp4_tensor.py): E2M1 numbers with a scale in FP8 E4M3 for 16
// elements of a row and one in float for the tensor,
//     w = value(q) · (value(s) · tensor_scale)
// The tensor's scale makes the largest scale of a block 448. A block of zeros has the scale 1.
#pragma once
#include <graft/core/quant/e2m1.h>
#include <graft/core/quant/fp8.h>

namespace graft::quant_formats {

struct nvfp4_format {
  static constexpr const char* name = "nvfp4";
  static constexpr int block = 16;
  static constexpr quant_format format() {
    return {.type = e2m1::type, .scaled = scale_granularity::block, .block = block, .scales = dtype::f8_e4m3};
  }
  static constexpr float scale(unsigned char s, float tensor_scale) { return fp8_format::value(s) * tensor_scale; }
  static constexpr float tensor_scale(const float* from, long long n) {
    const float most = abs_max(from, n);
    return most > 0 ? most / (e2m1::largest * fp8_format::largest) : 1.0F;
  }
  // Quantizes a block and returns its scale.
  static constexpr unsigned char quantize(const float* from, float tensor_scale, unsigned char* to) {
    const float wanted = abs_max(from, block) / (e2m1::largest * tensor_scale);
    const unsigned char s = fp8_format::nearest(wanted > 0 ? wanted : 1.0F);
    e2m1::quantize(from, block, scale(s, tensor_scale), to);
    return s;
  }
};

}  // namespace graft::quant_formats
