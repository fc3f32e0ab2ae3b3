// SPDX-License-Identifier: Apache-2.0
// Double quantization: the scales of a weight, less their mean, are codes of 8 bits themselves, 256 of them to a second
// scale (bitsandbytes, functional.py and csrc/cpu_ops.cpp):
//     scale = table(code) second_scale + offset
// The table has an exponent of base ten that takes the more bits the smaller a number is. A number becomes a code by its
// place on a grid of 65536 steps. The mean is summed in torch's order, since its last bit is in the file.
#pragma once
#include <graft/core/encoding.h>

namespace graft::encodings {

inline constexpr int nested_block = 256;

constexpr float nested_scale(float value, float second_scale, float offset) {
  return rounded_product(value, second_scale) + offset;
}

struct dynamic_table {
  float v[256];
};
// In ascending order: the negative numbers from the largest on, zero, the positive ones, and one.
constexpr dynamic_table make_dynamic_table() {
  dynamic_table t{};
  int n = 0;
  constexpr float powers[7] = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.0F};
  for (int i = 0; i < 7; ++i) {
    const int steps = 1 << i;
    const float step = (1.0F - 0.1F) / static_cast<float>(steps);
    auto boundary = [&](int k) {  // both halves from their own end, as torch.linspace
      const int from_end = steps - k;
      const double way = static_cast<double>(step) * (k < (steps + 1) / 2 ? k : from_end);
      return static_cast<float>(k < (steps + 1) / 2 ? 0.1F + way : 1.0 - way);
    };
    for (int k = 0; k < steps; ++k, ++n) {
      const float mean = (boundary(k) + boundary(k + 1)) / 2;
      t.v[128 + n] = powers[i] * mean, t.v[126 - n] = -(powers[i] * mean);
    }
  }
  t.v[127] = 0, t.v[255] = 1;
  return t;
}
inline const float* dynamic_values() {
  static const dynamic_table made = make_dynamic_table();
  return made.v;
}
// The code whose value is nearest to where x, from -1 to 1, lies on the grid.
inline unsigned char nearest_dynamic(float x, const float* table) {
  const float placed = (x + 1.0F) * 0.5F;
  const auto step = static_cast<int>(rounded_product(placed, 65535.0F) + 0.5F);
  const float v = static_cast<float>(step) / 65535.0F * 2.0F - 1.0F;
  int right = 0;
  while (right < 256 && table[right] < v) ++right;
  if (right == 0 || right == 256) return static_cast<unsigned char>(right == 0 ? 0 : 255);
  return static_cast<unsigned char>(v - table[right - 1] <= table[right] - v ? right - 1 : right);
}

// torch.sum of contiguous floats: four rows of eight lanes side by side, each in four levels of partial sums
// (aten/src/ATen/native/cpu/SumKernel.cpp). A thread sums up to 32768 numbers; more than that torch shares out.
inline float torch_sum(const float* from, long long n) {
  constexpr int lanes = 8, side = 4, levels = 4;
  const long long vectors = n / lanes, rows = vectors / side;
  int power = 0;
  while ((1LL << power) < rows) ++power;
  power = power / levels > 4 ? power / levels : 4;
  const long long step = 1LL << power;
  float sum[levels][side][lanes] = {};
  auto add_row = [&](long long i) {
    for (int k = 0; k < side; ++k)
      for (int l = 0; l < lanes; ++l) sum[0][k][l] += from[(i * side + k) * lanes + l];
  };
  long long i = 0;
  while (i + step <= rows) {
    for (long long j = 0; j < step; ++j, ++i) add_row(i);
    for (int level = 1; level < levels; ++level) {
      for (int k = 0; k < side; ++k)
        for (int l = 0; l < lanes; ++l) sum[level][k][l] += sum[level - 1][k][l], sum[level - 1][k][l] = 0;
      if ((i & ((step - 1) << (level * power))) != 0) break;
    }
  }
  for (; i < rows; ++i) add_row(i);
  for (int level = 1; level < levels; ++level)
    for (int k = 0; k < side; ++k)
      for (int l = 0; l < lanes; ++l) sum[0][k][l] += sum[level][k][l];
  for (long long v = rows * side; v < vectors; ++v)
    for (int l = 0; l < lanes; ++l) sum[0][0][l] += from[v * lanes + l];
  for (int k = 1; k < side; ++k)
    for (int l = 0; l < lanes; ++l) sum[0][0][l] += sum[0][k][l];
  float all = 0;
  for (long long k = vectors * lanes; k < n; ++k) all += from[k];
  for (int l = 0; l < lanes; ++l) all += sum[0][0][l];
  return all;
}

// Scales as codes of their own; returns the offset.
inline float quantize_scales(const float* scales, long long n, unsigned char* codes, float* second_scales) {
  const float offset = torch_sum(scales, n) / static_cast<float>(n);
  const float* const table = dynamic_values();
  for (long long b = 0; b * nested_block < n; ++b) {
    const long long first = b * nested_block, end = n < first + nested_block ? n : first + nested_block;
    float most = 0;
    for (long long i = first; i < end; ++i) {
      const float away = scales[i] - offset;
      most = largest_magnitude(&away, 1) > most ? largest_magnitude(&away, 1) : most;
    }
    second_scales[b] = most;
    for (long long i = first; i < end; ++i)
      codes[i] = most > 0 ? nearest_dynamic((scales[i] - offset) / most, table) : static_cast<unsigned char>(0);
  }
  return offset;
}

}  // namespace graft::encodings
