// SPDX-License-Identifier: Apache-2.0
// Unsigned integers of 2, 3, 4 or 8 bits with a scale and a zero point for each group of columns of a row, as GPTQ and
// AWQ make them,
//     w = (q - zero) · scale
// A row is a stream of codes, each with its lowest bit first, in bytes from the first on: element k of a row has bits
// [k b, k b + b). Their files store weights transposed and zero points packed (io/gptq); this is the order in memory.
#pragma once
#include <graft/core/quant_format.h>

#include <cstddef>

namespace graft::quant_formats {

struct grouped_uint {
  static constexpr float dequantize(int code, int zero, float scale) { return static_cast<float>(code - zero) * scale; }

  // Code k of a stream.
  static constexpr int code(const unsigned char* from, long long k, int bits) {
    const long long bit = k * bits, byte = bit / 8;
    const int shift = static_cast<int>(bit % 8);
    unsigned two = from[byte];
    if (shift + bits > 8) two |= static_cast<unsigned>(from[byte + 1]) << 8U;
    return static_cast<int>(two >> static_cast<unsigned>(shift) & ((1U << static_cast<unsigned>(bits)) - 1));
  }
  // Stores code k into a stream of zeros.
  static constexpr void put(unsigned char* to, long long k, int bits, int code) {
    const long long bit = k * bits, byte = bit / 8;
    const auto shift = static_cast<unsigned>(bit % 8), placed = static_cast<unsigned>(code) << shift;
    to[byte] = static_cast<unsigned char>(to[byte] | (placed & 255U));
    if (static_cast<int>(shift) + bits > 8) to[byte + 1] = static_cast<unsigned char>(to[byte + 1] | placed >> 8U);
  }

  // The 32 codes of 4 · Bits bytes. The loops have constant lengths.
  static constexpr int chunk = 32;
  template <int Bits>
  [[gnu::always_inline]] static constexpr void codes(const unsigned char* from,
                                                     unsigned char (&to)[static_cast<std::size_t>(chunk)]) {
    if constexpr (Bits == 3) {
      for (int i = 0; i < chunk / 8; ++i) {
        const unsigned eight =
            from[3 * i] | static_cast<unsigned>(from[3 * i + 1]) << 8U | static_cast<unsigned>(from[3 * i + 2]) << 16U;
        for (int k = 0; k < 8; ++k) to[8 * i + k] = static_cast<unsigned char>(eight >> (3 * k) & 7U);
      }
    } else {
      constexpr int in_byte = 8 / Bits;
      for (int i = 0; i < chunk / in_byte; ++i)
        for (int k = 0; k < in_byte; ++k)
          to[in_byte * i + k] = static_cast<unsigned char>(from[i] >> (Bits * k) & ((1 << Bits) - 1));
    }
  }
};

}  // namespace graft::quant_formats
