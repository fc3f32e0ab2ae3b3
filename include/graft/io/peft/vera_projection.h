// SPDX-License-Identifier: Apache-2.0
// VeRA's frozen projections, drawn from projection_prng_key as PEFT does if a checkpoint does not hold them
// (peft/tuners/vera/model.py; arXiv 2310.11454). One MT19937 seeded with the key draws A [r, max_in], then B
// [max_out, r]; fan_in is max_in for A and r for B:
//     element = fma((u32 mod 2^24) 2^-24, hi - lo, lo),      hi = -lo = sqrt(6 / fan_in)
// With PyTorch's fused multiply-add both matrices equal PEFT's bit for bit.
#pragma once
#include <graft/io/random/torch.h>

#include <limits>
#include <vector>

namespace graft::io {

struct vera_projection {
  std::vector<float> A;  // row-major [r, max_in]
  std::vector<float> B;  // row-major [max_out, r]
};

// `rows` is the number of rows of A if it exceeds r (PVeRA).
inline result<vera_projection> make_vera_projection(std::uint64_t key, std::int64_t r, std::int64_t max_in,
                                                    std::int64_t max_out, std::int64_t rows = 0) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t n : {r, max_in, max_out})
    if (n < 1 || n > most)
      return fail("VeRA projection: a size is ", static_cast<long long>(n), ", expected 1 to ",
                  static_cast<long long>(most));
  return guarded("VeRA projection", [&]() -> result<vera_projection> {
    // PyTorch seeds with the low 32 bits of the key.
    mersenne_twister engine(static_cast<std::uint32_t>(key & 0xffffffff));
    vera_projection out;
    out.A = draw_uniform(engine, static_cast<std::size_t>(std::max(r, rows) * max_in), static_cast<double>(max_in));
    out.B = draw_uniform(engine, static_cast<std::size_t>(max_out * r), static_cast<double>(r));
    return out;
  });
}

}  // namespace graft::io
