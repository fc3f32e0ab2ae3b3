// SPDX-License-Identifier: Apache-2.0
// Bit-exact reimplementation of PyTorch's CPU generator and of the draws that PEFT makes with it, for tensors that a
// file leaves out because a seed determines them. The generator is MT19937, seeded with the low 32 bits of the seed; a
// float uses 24 bits of one number (ATen/core/DistributionsHelper.h):
//     uniform    fma((u32 mod 2^24) 2^-24, hi - lo, lo);  in bfloat16 the result is rounded, and hi becomes lo
#pragma once
#include <graft/core/bf16.h>
#include <graft/io/error_text.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace graft::io {

// MT19937 (Matsumoto and Nishimura 1998), with the output of std::mt19937. It is written out here because <random>
// costs more compile time than everything else in this file.
class mersenne_twister {
 public:
  explicit mersenne_twister(std::uint32_t seed) {
    state_[0] = seed;
    for (std::uint32_t i = 1; i < size; ++i) state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30U)) + i;
  }
  std::uint32_t operator()() {
    if (at_ == size) next_state();
    std::uint32_t y = state_[at_++];
    y ^= y >> 11U, y ^= (y << 7U) & 0x9d2c5680U, y ^= (y << 15U) & 0xefc60000U;
    return y ^ (y >> 18U);
  }

 private:
  void next_state() {
    for (std::uint32_t i = 0; i < size; ++i) {
      const std::uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % size] & 0x7fffffffU);
      state_[i] = state_[(i + 397) % size] ^ (y >> 1U) ^ ((y & 1U) != 0 ? 0x9908b0dfU : 0U);
    }
    at_ = 0;
  }
  static constexpr std::uint32_t size = 624;
  std::uint32_t state_[size]{}, at_ = size;
};

inline float unit_float(mersenne_twister& engine) { return static_cast<float>(engine() & 0xffffff) * 0x1p-24f; }
// Draws torch.nn.init.kaiming_uniform_ with a = 0.
inline std::vector<float> draw_uniform(mersenne_twister& engine, std::size_t count, double fan_in) {
  const float hi = static_cast<float>(std::sqrt(3.0) * (std::sqrt(2.0) / std::sqrt(fan_in)));
  const float width = hi - (-hi);
  std::vector<float> out(count);
  for (float& v : out) v = std::fma(unit_float(engine), width, -hi);
  return out;
}

// Draws torch.nn.init.kaiming_uniform_ with a = sqrt(5) on a bfloat16 tensor.
inline std::vector<float> draw_bf16_uniform(mersenne_twister& engine, std::size_t count, double fan_in) {
  const float hi = static_cast<float>(std::sqrt(3.0) * (std::sqrt(2.0 / 6.0) / std::sqrt(fan_in)));
  const float width = hi - (-hi), top = widen(narrow(hi)), bottom = widen(narrow(-hi));
  std::vector<float> out(count);
  for (float& v : out) {
    v = widen(narrow(std::fma(unit_float(engine), width, -hi)));
    if (v == top) v = bottom;
  }
  return out;
}

// Uniform double in [0, 1) from the low 53 bits of two outputs, the first output being the upper word.
inline double unit_double(mersenne_twister& engine) {
  const std::uint64_t high = engine(), low = engine();
  return static_cast<double>(((high << 32U) | low) & 0x1fffffffffffffU) * 0x1p-53;
}
// torch.normal for fewer than 16 numbers: Box-Muller in double, first the cosine and then the sine of each pair.
inline std::vector<float> draw_normal_small(mersenne_twister& engine, std::size_t count, double deviation) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; i += 2) {
    const double angle = 2 * 3.14159265358979323846 * unit_double(engine), u = unit_double(engine);
    const double radius = deviation * std::sqrt(-2 * std::log1p(-u));
    out[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < count) out[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return out;
}
// torch.normal: Box-Muller on the two halves of every 16 numbers. If the count is no multiple of 16, the last 16
// numbers are drawn once more.
inline std::vector<float> draw_normal(mersenne_twister& engine, std::size_t count, double deviation = 1) {
  if (count < 16) return draw_normal_small(engine, count, deviation);
  std::vector<float> out(count);
  for (float& v : out) v = unit_float(engine);
  const auto scale = static_cast<float>(deviation);
  const auto transform = [&](std::size_t at) {
    for (std::size_t j = at; j < at + 8; ++j) {
      const float radius = std::sqrt(-2 * std::log(1 - out[j])), angle = 2 * 3.14159265358979323846F * out[j + 8];
      out[j] = radius * std::cos(angle) * scale, out[j + 8] = radius * std::sin(angle) * scale;
    }
  };
  for (std::size_t at = 0; at + 16 <= count; at += 16) transform(at);
  if (count % 16 == 0) return out;
  for (std::size_t j = count - 16; j < count; ++j) out[j] = unit_float(engine);
  transform(count - 16);
  return out;
}

// The first `count` numbers of torch.randperm(n), a Fisher-Yates shuffle from the front. For n of 2^32 / 20 and more
// PyTorch uses another algorithm, which is not implemented.
inline constexpr long long largest_permutation = 0xffffffffLL / 20;
inline std::vector<std::int64_t> draw_permutation(mersenne_twister& engine, long long n, long long count) {
  std::vector<std::int32_t> list(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = static_cast<std::int32_t>(i);
  for (long long i = 0; i < std::min(count, n - 1); ++i)
    std::swap(list[static_cast<std::size_t>(i)], list[static_cast<std::size_t>(i + engine() % (n - i))]);
  return {list.begin(), list.begin() + count};
}

}  // namespace graft::io
