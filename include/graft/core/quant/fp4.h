// SPDX-License-Identifier: Apache-2.0
// FP4 of bitsandbytes: a sign, two exponent bits and one fraction bit in an order of their own, scaled to [-1, 1]. A
// positive number that rounds to zero is stored as 8; zero and negative ones that round to it are stored as 0.
#pragma once
#include <graft/core/quant/four_bit.h>

namespace graft::quant_formats {

struct fp4_format {
  static constexpr const char* name = "fp4";
  static constexpr dtype type = dtype::fp4;
  static constexpr float table[16] = {0.0F, 0.0625F / 12,  8.0F / 12,  1.0F,  4.0F / 12,  0.5F,  2.0F / 12,  0.25F,
                                      0.0F, -0.0625F / 12, -8.0F / 12, -1.0F, -4.0F / 12, -0.5F, -2.0F / 12, -0.25F};
  static constexpr unsigned ascending[16] = {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3};
  static constexpr unsigned nearest(float x) {
    int index = 0;
    for (int k = 0; k < 15; ++k) index += (table[ascending[k]] + table[ascending[k + 1]]) / 2 < x ? 1 : 0;
    return ascending[index];
  }
};

}  // namespace graft::quant_formats
