// SPDX-License-Identifier: Apache-2.0
// int8 weights of LLM.int8: integers from -127 to 127 and one scale per row, its largest magnitude,
//     w = q · (scale / 127)
// (bitsandbytes, backends/default/ops.py). Numbers are rounded to half precision before they are quantized, because
// bitsandbytes quantizes half-precision weights. Activations are not quantized, unlike in bitsandbytes' inference.
#pragma once
#include <graft/core/f16.h>
#include <graft/core/quant_format.h>

namespace graft::quant_formats {

struct int8_format {
  static constexpr const char* name = "int8";
  static constexpr dtype type = dtype::int8;
  static constexpr float dequantize(signed char code, float scale) {
    return static_cast<float>(code) * (scale / 127.0F);
  }
  // Rounds to nearest, ties to even.
  static constexpr signed char nearest(float x) {
    const int toward_zero = static_cast<int>(x), below = toward_zero - (x < static_cast<float>(toward_zero) ? 1 : 0);
    const float rest = x - static_cast<float>(below);
    return static_cast<signed char>(rest > 0.5F || (rest == 0.5F && below % 2 != 0) ? below + 1 : below);
  }
  // Quantizes one row and returns its scale.
  static constexpr float quantize(const float* from, long long n, signed char* quants) {
    auto half = [&](long long i) { return widen(narrow_to_f16(from[i])); };
    const float most = widen(narrow_to_f16(abs_max(from, n)));
    const float factor = most > 0 ? 1.0F / most * 127.0F : 0.0F;  // in the order of torch's scalar / tensor
    for (long long i = 0; i < n; ++i) quants[i] = nearest(rounded_product(half(i), factor));
    return most;
  }
};

}  // namespace graft::quant_formats
