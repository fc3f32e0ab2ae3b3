// SPDX-License-Identifier: Apache-2.0
// How ggml quantizes to K-quants (quantize_row_q4_K_ref and its siblings in ggml-quants.c): it searches the scale of a
// run, and its minimum where there is one, with the smallest weighted squared error, and then quantizes those of a
// block to integers. Sums add in ggml's order, and every product is rounded before it is added, so the bits are those
// of a ggml that was compiled without contraction (-ffp-contract=off), whatever compiler compiles this.
#pragma once
#include <graft/core/quant/k_quants.h>

#include <cstdint>

namespace graft::quant_formats {

constexpr float magnitude_of(float v) { return v < 0 ? -v : v; }
// Rounds to nearest even as ggml does: 1.5 · 2^23 leaves no bits for a fraction. Defined for every float.
inline int nearest_even(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v + 12582912.0F);
  return static_cast<int>(bits & 0x007fffffU) - 0x00400000;
}
inline int nearest_code(float v, int least, int most) {
  const int c = nearest_even(v);
  return c < least ? least : c > most ? most : c;
}

// A run of codes from 0 on: w = scale · code - minimum.
struct run_of_codes {
  float scale = 0, minimum = 0;
};

// Searches scale and minimum of 32 elements. Step s tries the scale (highest - lowest) / (largest + first + s / 10) and
// improves it and the minimum by weighted least squares for the codes that it gives.
inline run_of_codes search_run(const float* x, int largest, float first, int steps, unsigned char* code) {
  constexpr int n = 32;
  const auto product = [](float a, float b) { return rounded_product(a, b); };
  float squares = 0, weight[n], low = x[0], high = x[0], sum_w = 0, sum_x = 0;
  for (int i = 0; i < n; ++i) squares += product(x[i], x[i]);
  const float typical = __builtin_sqrtf(squares / n);
  for (int i = 0; i < n; ++i) {
    weight[i] = typical + magnitude_of(x[i]);
    low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
    sum_w += weight[i], sum_x += product(weight[i], x[i]);
  }
  low = low > 0 ? 0 : low;
  for (int i = 0; i < n; ++i) code[i] = 0;
  if (high == low) return {0, -low};
  const auto codes_with = [&](float factor, float from, unsigned char* to) {
    for (int i = 0; i < n; ++i)
      to[i] = static_cast<unsigned char>(nearest_code(product(factor, x[i] - from), 0, largest));
  };
  const auto error_of = [&](float scale, float from, const unsigned char* of) {
    float all = 0;
    for (int i = 0; i < n; ++i) {
      const float off = product(scale, of[i]) + from - x[i];
      all += product(weight[i], product(off, off));
    }
    return all;
  };
  const float factor = static_cast<float>(largest) / (high - low);
  run_of_codes best{1 / factor, low};  // here the minimum is what is added
  codes_with(factor, low, code);
  float least = error_of(best.scale, low, code);
  for (int s = 0; s <= steps; ++s) {
    unsigned char tried[n];
    const float levels = first + product(0.1F, static_cast<float>(s)) + static_cast<float>(largest);
    codes_with(levels / (high - best.minimum), best.minimum, tried);
    float sum_l = 0, sum_l2 = 0, sum_xl = 0;
    for (int i = 0; i < n; ++i) {
      const auto l = static_cast<float>(tried[i]);
      const float weighted = product(weight[i], l);
      sum_l += weighted, sum_l2 += product(weighted, l), sum_xl += product(weighted, x[i]);
    }
    const float determinant = product(sum_w, sum_l2) - product(sum_l, sum_l);
    if (!(determinant > 0)) continue;
    float scale = (product(sum_w, sum_xl) - product(sum_x, sum_l)) / determinant,
          from = (product(sum_l2, sum_x) - product(sum_l, sum_xl)) / determinant;
    if (from > 0) from = 0, scale = sum_xl / sum_l2;
    const float error = error_of(scale, from, tried);
    if (!(error < least)) continue;
    least = error, best = {scale, from};
    for (int i = 0; i < n; ++i) code[i] = tried[i];
  }
  return {best.scale, -best.minimum};
}

// Quantizes a block of 256 elements with 8 runs that have scales and minimums (Q4_K, Q5_K): writes the block's scales,
// two halves and 12 bytes, and the codes.
inline void quantize_six_bit_runs(const float* x, int largest, float first, int steps, unsigned char* to,
                                  unsigned char* code) {
  run_of_codes run[8];
  float most_scale = 0, most_minimum = 0;
  for (int r = 0; r < 8; ++r) {
    run[r] = search_run(x + 32 * r, largest, first, steps, code + 32 * r);
    most_scale = run[r].scale > most_scale ? run[r].scale : most_scale;
    most_minimum = run[r].minimum > most_minimum ? run[r].minimum : most_minimum;
  }
  const float scale_factor = most_scale > 0 ? 63.0F / most_scale : 0.0F,
              minimum_factor = most_minimum > 0 ? 63.0F / most_minimum : 0.0F;
  unsigned char* const packed = to + 4;
  for (int r = 0; r < 8; ++r) {
    // A scale or minimum below 0 wraps around as in ggml, where it becomes a byte before the largest one is taken.
    const auto six_bits = [](float v) {
      const auto byte = static_cast<unsigned char>(nearest_even(v));
      return static_cast<unsigned>(byte < 63 ? byte : 63);
    };
    const unsigned s = six_bits(rounded_product(scale_factor, run[r].scale)),
                   m = six_bits(rounded_product(minimum_factor, run[r].minimum));
    if (r < 4) {
      packed[r] = static_cast<unsigned char>(s), packed[r + 4] = static_cast<unsigned char>(m);
    } else {
      packed[r + 4] = static_cast<unsigned char>((s & 15U) | (m & 15U) << 4U);
      packed[r - 4] = static_cast<unsigned char>(packed[r - 4] | (s >> 4U) << 6U);
      packed[r] = static_cast<unsigned char>(packed[r] | (m >> 4U) << 6U);
    }
  }
  store_half(most_scale / 63.0F, to), store_half(most_minimum / 63.0F, to + 2);
  // The codes for the scales as they are stored.
  const float block_scale = load_half(to), block_minimum = load_half(to + 2);
  for (int r = 0; r < 8; ++r) {
    const float scale = block_scale * static_cast<float>(six_bit_scale(packed, r)),
                minimum = block_minimum * static_cast<float>(six_bit_minimum(packed, r));
    if (scale == 0) continue;
    for (int i = 0; i < 32; ++i)
      code[32 * r + i] = static_cast<unsigned char>(nearest_code((x[32 * r + i] + minimum) / scale, 0, largest));
  }
}

// Searches the scale of 16 elements whose codes go from -32 to 31, weighted with their squares: it begins with the
// scale that makes the element of largest magnitude -32 and tries 18 around it. Codes are written from 0 on.
inline float search_symmetric_run(const float* x, unsigned char* code) {
  constexpr int n = 16, middle = 32;
  constexpr float smallest = 1e-15F;  // ggml's bound below which a run is zero
  float most = 0, size = 0;
  for (int i = 0; i < n; ++i)
    if (magnitude_of(x[i]) > size) size = magnitude_of(x[i]), most = x[i];
  for (int i = 0; i < n; ++i) code[i] = 0;
  if (size < smallest) return 0;
  float sum_lx = 0, sum_l2 = 0;
  const auto sums_with = [&](float factor) {
    sum_lx = sum_l2 = 0;
    for (int i = 0; i < n; ++i) {
      const auto l = static_cast<float>(nearest_code(rounded_product(factor, x[i]), -middle, middle - 1));
      const float w = rounded_product(x[i], x[i]);
      sum_lx += rounded_product(rounded_product(w, x[i]), l), sum_l2 += rounded_product(rounded_product(w, l), l);
    }
  };
  const auto codes_with = [&](float factor) {
    for (int i = 0; i < n; ++i)
      code[i] = static_cast<unsigned char>(nearest_code(rounded_product(factor, x[i]), -middle, middle - 1) + middle);
  };
  const float begin = -middle / most;
  sums_with(begin), codes_with(begin);
  float scale = sum_l2 != 0 ? sum_lx / sum_l2 : 0.0F, best = scale * sum_lx;
  for (int s = -9; s <= 9; ++s) {
    if (s == 0) continue;
    const float factor = -(middle + rounded_product(0.1F, static_cast<float>(s))) / most;
    sums_with(factor);
    if (!(sum_l2 > 0 && rounded_product(sum_lx, sum_lx) > rounded_product(best, sum_l2))) continue;
    codes_with(factor);
    scale = sum_lx / sum_l2, best = scale * sum_lx;
  }
  return scale;
}

}  // namespace graft::quant_formats
