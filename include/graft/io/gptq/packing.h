// SPDX-License-Identifier: Apache-2.0
// The order of codes in the files of GPTQ and AWQ, and in memory (core/quant/grouped_uint.h). Files store a weight
// [out, in] as columns in 32-bit words, with scales and zero points [groups, out]:
//     GPTQ    qweight [in bits / 32, out]    a column of words is the stream of codes of a row of the weight
//             qzeros [groups, out bits / 32] a row of words is the stream of the zero points of a group
//     AWQ     qweight [in, out / 8]          a word has the codes of eight rows, in the order 0 2 4 6 1 3 5 7
//             qzeros [groups, out / 8]       and of eight zero points
// (AutoGPTQ, nn_modules/qlinear; AutoAWQ, modules/linear/gemm.py). Bytes are moved in the order of the file, which is
// that of little-endian words on any machine.
#pragma once
#include <graft/core/quant/grouped_uint.h>

#include <algorithm>
#include <cstring>

namespace graft::io::gptq {

inline constexpr std::size_t word_bytes = 4;
inline constexpr int awq_bits = 4, awq_pack = 8;                      // codes in a word
inline constexpr int awq_order[awq_pack] = {0, 4, 1, 5, 2, 6, 3, 7};  // position of the code of row 8 j + c in its word

// Computes to[c][r] = from[r][c] for elements of `Bytes` bytes, by tiles, so that source and destination lines stay in
// the cache.
template <std::size_t Bytes> void transpose(const std::byte* from, std::size_t rows, std::size_t cols, std::byte* to) {
  constexpr std::size_t tile = 64 / Bytes;
  for (std::size_t r0 = 0; r0 < rows; r0 += tile)
    for (std::size_t c0 = 0; c0 < cols; c0 += tile)
      for (std::size_t c = c0; c < std::min(cols, c0 + tile); ++c)
        for (std::size_t r = r0; r < std::min(rows, r0 + tile); ++r)
          std::memcpy(to + (c * rows + r) * Bytes, from + (r * cols + c) * Bytes, Bytes);
}
inline void transpose(const std::byte* from, std::size_t rows, std::size_t cols, std::size_t bytes, std::byte* to) {
  if (bytes == 2)
    transpose<2>(from, rows, cols, to);
  else
    transpose<4>(from, rows, cols, to);
}

inline const unsigned char* as_codes(const std::byte* p) { return reinterpret_cast<const unsigned char*>(p); }
inline unsigned char* as_codes(std::byte* p) { return reinterpret_cast<unsigned char*>(p); }

// The codes of AWQ's words [in, out / 8] as rows [out, in], and back.
inline void unpack_awq(const std::byte* from, std::size_t in, std::size_t out, std::byte* to) {
  const std::size_t words = out / awq_pack, row_bytes = in / 2;
  std::fill_n(to, out * row_bytes, std::byte{});
  for (std::size_t k = 0; k < in; ++k)
    for (std::size_t j = 0; j < words; ++j)
      for (int c = 0; c < awq_pack; ++c)
        quant_formats::grouped_uint::put(
            as_codes(to + (j * awq_pack + static_cast<std::size_t>(c)) * row_bytes), static_cast<long long>(k),
            awq_bits,
            quant_formats::grouped_uint::code(as_codes(from + (k * words + j) * word_bytes), awq_order[c], awq_bits));
}
inline void pack_awq(const std::byte* from, std::size_t in, std::size_t out, std::byte* to) {
  const std::size_t words = out / awq_pack, row_bytes = in / 2;
  std::fill_n(to, in * words * word_bytes, std::byte{});
  for (std::size_t k = 0; k < in; ++k)
    for (std::size_t j = 0; j < words; ++j)
      for (int c = 0; c < awq_pack; ++c)
        quant_formats::grouped_uint::put(
            as_codes(to + (k * words + j) * word_bytes), awq_order[c], awq_bits,
            quant_formats::grouped_uint::code(as_codes(from + (j * awq_pack + static_cast<std::size_t>(c)) * row_bytes),
                                              static_cast<long long>(k), awq_bits));
}

// Where the zero point of a row is in the words of its group.
constexpr long long zero_point_index(bool awq, long long row) {
  return awq ? row / awq_pack * awq_pack + awq_order[row % awq_pack] : row;
}
// GPTQ's first format stores zero points less one, modulo the number of codes; `less_one` says so.
inline void unpack_zeros(const std::byte* from, long long groups, long long out, int bits, bool awq, bool less_one,
                         unsigned char* to) {
  const int mask = (1 << bits) - 1;
  for (long long g = 0; g < groups; ++g)
    for (long long r = 0; r < out; ++r)
      to[r * groups + g] = static_cast<unsigned char>(
          (quant_formats::grouped_uint::code(as_codes(from + g * out * bits / 8), zero_point_index(awq, r), bits) +
           (less_one ? 1 : 0)) &
          mask);
}
inline void pack_zeros(const unsigned char* from, long long groups, long long out, int bits, bool awq, bool less_one,
                       std::byte* to) {
  const int mask = (1 << bits) - 1;
  std::fill_n(to, groups * out * bits / 8, std::byte{});
  for (long long g = 0; g < groups; ++g)
    for (long long r = 0; r < out; ++r)
      quant_formats::grouped_uint::put(as_codes(to + g * out * bits / 8), zero_point_index(awq, r), bits,
                                       (from[r * groups + g] - (less_one ? 1 : 0)) & mask);
}

}  // namespace graft::io::gptq
