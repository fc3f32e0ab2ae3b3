// SPDX-License-Identifier: Apache-2.0
// LLM.int8's weights: whole numbers from -127 to 127 and the largest magnitude of each row,
//     w = code (scale / 127)
// (bitsandbytes, backends/default/ops.py). Numbers are rounded to half precision before they
// become codes, since that is what bitsandbytes is given. What it does to activations outside of training is
// not done here: products are exact.
#pragma once
#include <graft/core/encoding.h>
#include <graft/core/f16.h>

namespace graft::encodings {

struct int8_codes {
  static constexpr const char* name = "int8";
  static constexpr dtype type = dtype::int8;
  static constexpr float number(signed char code, float scale) { return static_cast<float>(code) * (scale / 127.0F); }
  // To the nearest whole number, and to the even one of two.
  static constexpr signed char nearest(float x) {
    const int toward_zero = static_cast<int>(x), below = toward_zero - (x < static_cast<float>(toward_zero) ? 1 : 0);
    const float rest = x - static_cast<float>(below);
    return static_cast<signed char>(rest > 0.5F || (rest == 0.5F && below % 2 != 0) ? below + 1 : below);
  }
  // One row; returns its scale.
  static constexpr float quantize(const float* from, long long n, signed char* codes) {
    auto half = [&](long long i) { return widen(narrow_to_f16(from[i])); };
    const float most = widen(narrow_to_f16(largest_magnitude(from, n)));
    const float factor = most > 0 ? 1.0F / most * 127.0F : 0.0F;  // as torch divides a number by a tensor
    for (long long i = 0; i < n; ++i) codes[i] = nearest(rounded_product(half(i), factor));
    return most;
  }
};

}  // namespace graft::encodings
