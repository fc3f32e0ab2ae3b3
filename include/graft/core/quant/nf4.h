// SPDX-License-Identifier: Apache-2.0
// NF4: a 4-bit index into a table of 16 quantiles of the normal distribution, scaled to [-1, 1] (QLoRA, Dettmers et al.
// 2023). The values are those of bitsandbytes.
#pragma once
#include <graft/core/quant/four_bit.h>

namespace graft::quant_formats {

struct nf4_format {
  static constexpr const char* name = "nf4";
  static constexpr dtype type = dtype::nf4;
  static constexpr float table[16] = {-1.0F,
                                      -0.6961928009986877F,
                                      -0.5250730514526367F,
                                      -0.39491748809814453F,
                                      -0.28444138169288635F,
                                      -0.18477343022823334F,
                                      -0.09105003625154495F,
                                      0.0F,
                                      0.07958029955625534F,
                                      0.16093020141124725F,
                                      0.24611230194568634F,
                                      0.33791524171829224F,
                                      0.44070982933044434F,
                                      0.5626170039176941F,
                                      0.7229568362236023F,
                                      1.0F};
  static constexpr unsigned nearest(float x) {
    unsigned code = 0;
    for (int k = 0; k < 15; ++k) code += (table[k] + table[k + 1]) / 2 < x ? 1U : 0U;
    return code;
  }
};

}  // namespace graft::quant_formats
