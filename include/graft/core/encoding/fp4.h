// SPDX-License-Identifier: Apache-2.0
// FP4 of bitsandbytes: a sign, two bits of exponent and one of fraction in an order of its own, scaled to [-1, 1]. Zero
// has two codes: 8 for what is just above zero, 0 for the rest that is nearest to it.
#pragma once
#include <graft/core/encoding/four_bits.h>

namespace graft::encodings {

struct fp4_codes {
  static constexpr const char* name = "fp4";
  static constexpr dtype type = dtype::fp4;
  static constexpr float table[16] = {0.0F, 0.0625F / 12,  8.0F / 12,  1.0F,  4.0F / 12,  0.5F,  2.0F / 12,  0.25F,
                                      0.0F, -0.0625F / 12, -8.0F / 12, -1.0F, -4.0F / 12, -0.5F, -2.0F / 12, -0.25F};
  static constexpr unsigned ascending[16] = {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3};
  static constexpr unsigned nearest(float x) {
    int place = 0;
    for (int k = 0; k < 15; ++k) place += (table[ascending[k]] + table[ascending[k + 1]]) / 2 < x ? 1 : 0;
    return ascending[place];
  }
};

}  // namespace graft::encodings
