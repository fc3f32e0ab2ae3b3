// SPDX-License-Identifier: Apache-2.0
// A hash of a tensor's memory, by which a bound layer notices that parameters were written. PyTorch's version counters
// are not enough for them: fused optimizers (torch.optim.AdamW(fused=True), the default of transformers' Trainer) and
// writes to `parameter.data` leave them as they are. The parameters of an adapter are small compared with the weight
// that a call reads. A change of one word always changes the hash, because every step is invertible in the hash and in
// the word.
#pragma once
#include <graft/core/view.h>

#include <cstdint>
#include <cstring>

namespace graft::pytorch {

// Continues the hash with the bytes of a tensor that is contiguous in host memory.
inline std::uint64_t fingerprint(const view& v, std::uint64_t seed) {
  constexpr std::uint64_t factor = 0x9e3779b97f4a7c15ULL;
  constexpr long long lanes = 4, word = 8;
  std::uint64_t h[lanes] = {seed ^ 1, seed ^ 2, seed ^ 3, seed ^ 4};
  const auto* at = static_cast<const unsigned char*>(v.data);
  const long long bytes = v.count() * bits_of(v.type) / 8;
  std::uint64_t w[lanes];
  long long k = 0;
  for (; k + lanes * word <= bytes; k += lanes * word) {  // four chains, so that multiplications overlap
    std::memcpy(w, at + k, sizeof w);
    for (int i = 0; i < lanes; ++i) h[i] = (h[i] ^ w[i]) * factor;
  }
  for (; k < bytes; k += word) {
    w[0] = 0;
    std::memcpy(w, at + k, static_cast<std::size_t>(bytes - k < word ? bytes - k : word));
    h[0] = (h[0] ^ w[0]) * factor;
  }
  for (int i = 1; i < lanes; ++i) h[0] = (h[0] ^ (h[i] >> 29) ^ h[i]) * factor;
  return h[0] ^ (h[0] >> 32);
}

}  // namespace graft::pytorch
