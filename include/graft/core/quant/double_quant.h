// SPDX-License-Identifier: Apache-2.0
// Double quantization of bitsandbytes (functional.py, csrc/cpu_ops.cpp): the scales of a weight, less their mean, are
// stored as 8-bit values with one second scale per 256 of them.
//     scale = dynamic_map[q] · second_scale + offset
// The dynamic map has values of 7 decades, with more steps in the larger ones. A scale is quantized by its position on
// a grid of 65536 steps. The mean is summed in torch's order, because files contain its last bit.
#pragma once
#include <graft/core/quant_format.h>

namespace graft::quant_formats {

inline constexpr int double_quant_block = 256;

constexpr float double_quant_scale(float value, float second_scale, float offset) {
  return rounded_product(value, second_scale) + offset;
}

struct dynamic_map {
  float v[256];
};
// Values in ascending order: v[127] is 0, v[126 - n] = -v[128 + n], and v[255] is 1.
constexpr dynamic_map make_dynamic_map() {
  dynamic_map t{};
  int n = 0;
  constexpr float powers[7] = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.0F};
  for (int i = 0; i < 7; ++i) {
    const int steps = 1 << i;
    const float step = (1.0F - 0.1F) / static_cast<float>(steps);
    auto boundary = [&](int k) {  // torch.linspace computes each half from its own end
      const int from_end = steps - k;
      const double distance = static_cast<double>(step) * (k < (steps + 1) / 2 ? k : from_end);
      return static_cast<float>(k < (steps + 1) / 2 ? 0.1F + distance : 1.0 - distance);
    };
    for (int k = 0; k < steps; ++k, ++n) {
      const float mean = (boundary(k) + boundary(k + 1)) / 2;
      t.v[128 + n] = powers[i] * mean, t.v[126 - n] = -(powers[i] * mean);
    }
  }
  t.v[127] = 0, t.v[255] = 1;
  return t;
}
inline const float* dynamic_map_values() {
  static const dynamic_map made = make_dynamic_map();
  return made.v;
}
// The index of the map's value that is nearest to x, in [-1, 1], after x is rounded to the grid.
inline unsigned char quantize_dynamic(float x, const float* table) {
  const float unit_value = (x + 1.0F) * 0.5F;
  const auto step = static_cast<int>(rounded_product(unit_value, 65535.0F) + 0.5F);
  const float v = static_cast<float>(step) / 65535.0F * 2.0F - 1.0F;
  int upper = 0;
  while (upper < 256 && table[upper] < v) ++upper;
  if (upper == 0 || upper == 256) return static_cast<unsigned char>(upper == 0 ? 0 : 255);
  return static_cast<unsigned char>(v - table[upper - 1] <= table[upper] - v ? upper - 1 : upper);
}

// torch.sum of contiguous floats in one thread: 4 x 8 interleaved sums, each with four cascaded levels
// (aten/src/ATen/native/cpu/SumKernel.cpp). torch divides more than 32768 numbers among threads, so the last bit
// differs.
inline float torch_sum(const float* from, long long n) {
  constexpr int lanes = 8, ilp_factor = 4, levels = 4;
  const long long vectors = n / lanes, rows = vectors / ilp_factor;
  int power = 0;
  while ((1LL << power) < rows) ++power;
  power = power / levels > 4 ? power / levels : 4;
  const long long step = 1LL << power;
  float sum[levels][ilp_factor][lanes] = {};
  auto add_row = [&](long long i) {
    for (int k = 0; k < ilp_factor; ++k)
      for (int l = 0; l < lanes; ++l) sum[0][k][l] += from[(i * ilp_factor + k) * lanes + l];
  };
  long long i = 0;
  while (i + step <= rows) {
    for (long long j = 0; j < step; ++j, ++i) add_row(i);
    for (int level = 1; level < levels; ++level) {
      for (int k = 0; k < ilp_factor; ++k)
        for (int l = 0; l < lanes; ++l) sum[level][k][l] += sum[level - 1][k][l], sum[level - 1][k][l] = 0;
      if ((i & ((step - 1) << (level * power))) != 0) break;
    }
  }
  for (; i < rows; ++i) add_row(i);
  for (int level = 1; level < levels; ++level)
    for (int k = 0; k < ilp_factor; ++k)
      for (int l = 0; l < lanes; ++l) sum[0][k][l] += sum[level][k][l];
  for (long long v = rows * ilp_factor; v < vectors; ++v)
    for (int l = 0; l < lanes; ++l) sum[0][0][l] += from[v * lanes + l];
  for (int k = 1; k < ilp_factor; ++k)
    for (int l = 0; l < lanes; ++l) sum[0][0][l] += sum[0][k][l];
  float all = 0;
  for (long long k = vectors * lanes; k < n; ++k) all += from[k];
  for (int l = 0; l < lanes; ++l) all += sum[0][0][l];
  return all;
}

// Quantizes n scales; writes one second scale per block of 256 and returns the offset, which is their mean.
inline float quantize_scales(const float* scales, long long n, unsigned char* quants, float* second_scales) {
  const float offset = torch_sum(scales, n) / static_cast<float>(n);
  const float* const table = dynamic_map_values();
  for (long long b = 0; b * double_quant_block < n; ++b) {
    const long long first = b * double_quant_block,
                    end = n < first + double_quant_block ? n : first + double_quant_block;
    float most = 0;
    for (long long i = first; i < end; ++i) {
      const float away = scales[i] - offset;
      most = abs_max(&away, 1) > most ? abs_max(&away, 1) : most;
    }
    second_scales[b] = most;
    for (long long i = first; i < end; ++i)
      quants[i] = most > 0 ? quantize_dynamic((scales[i] - offset) / most, table) : static_cast<unsigned char>(0);
  }
  return offset;
}

}  // namespace graft::quant_formats
