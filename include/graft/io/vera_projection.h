// SPDX-License-Identifier: Apache-2.0
// VeRA's frozen projections, redrawn from projection_prng_key as PEFT does when a checkpoint does not hold them
// (peft/tuners/vera/model.py; arXiv 2310.11454). One MT19937 seeded with the key draws A [r, max_in], then B
// [max_out, r]; fan_in is max_in for A and r for B:
//     element = fma((u32 mod 2^24) 2^-24, hi - lo, lo),      hi = -lo = sqrt(6 / fan_in)
// The fused multiply-add is PyTorch's; with it both matrices equal PEFT's bit for bit.
#pragma once
#include <graft/io/wording.h>

#include <cmath>
#include <limits>
#include <vector>

namespace graft::io {

struct vera_projection {
  std::vector<float> A;  // row-major [r, max_in]
  std::vector<float> B;  // row-major [max_out, r]
};

// MT19937 (Matsumoto and Nishimura 1998), the same numbers as std::mt19937: that header costs more to include than all
// that is done with it here.
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

inline std::vector<float> draw_uniform(mersenne_twister& engine, std::size_t count, double fan_in) {
  const float hi = static_cast<float>(std::sqrt(3.0) * (std::sqrt(2.0) / std::sqrt(fan_in)));
  const float width = hi - (-hi);
  std::vector<float> out(count);
  for (float& v : out) v = std::fma(static_cast<float>(engine() & 0xffffff) * 0x1p-24f, width, -hi);
  return out;
}

inline result<vera_projection> make_vera_projection(std::uint64_t key, std::int64_t r, std::int64_t max_in,
                                                    std::int64_t max_out) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t n : {r, max_in, max_out})
    if (n < 1 || n > most)
      return fail("VeRA projection: a size is ", static_cast<long long>(n), ", expected 1 to ",
                  static_cast<long long>(most));
  return guarded("VeRA projection", [&]() -> result<vera_projection> {
    // PyTorch seeds with the low 32 bits of the key.
    mersenne_twister engine(static_cast<std::uint32_t>(key & 0xffffffff));
    vera_projection out;
    out.A = draw_uniform(engine, static_cast<std::size_t>(r * max_in), static_cast<double>(max_in));
    out.B = draw_uniform(engine, static_cast<std::size_t>(max_out * r), static_cast<double>(r));
    return out;
  });
}

}  // namespace graft::io
