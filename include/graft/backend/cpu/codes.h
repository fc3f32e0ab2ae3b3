// SPDX-License-Identifier: Apache-2.0
// Codes as numbers: elements [first, first + n) of an encoded weight, row after row. One function for each way in which
// scales lie beside codes; what a code means is in the files of core/encoding.
#pragma once
#include <graft/backend/cpu/fp8_numbers.h>
#include <graft/backend/cpu/table16.h>
#include <graft/core/bf16.h>
#include <graft/core/encodings.h>

#include <algorithm>
#include <bit>

namespace graft::cpu {

// Blocks are powers of two in all files that we know of, and a division takes longer than what a scale is multiplied with.
inline long long block_of(long long at, long long block) {
  const auto size = static_cast<unsigned long long>(block);
  return std::has_single_bit(size) ? at >> std::countr_zero(size) : at / block;
}
// Scale k of a weight whose scales are no part of its codes.
inline float scale_at(const planes& p, long long k) {
  switch (p.how.scales) {
    case dtype::u8:
      return encodings::nested_scale(p.second_table[static_cast<const unsigned char*>(p.scales)[k]],
                                     p.second_scales[block_of(k, p.how.second_block)], p.offset);
    case dtype::bf16: return widen(static_cast<const bf16*>(p.scales)[k]);
    case dtype::f16: return widen(static_cast<const f16*>(p.scales)[k]);
    default: return static_cast<const float*>(p.scales)[k];
  }
}

// Scales [first, first + n) of a weight whose scales are codes, those with the same second scale at a time.
inline void nested_scales(const planes& p, long long first, long long n, float* to) {
  const auto* const codes = static_cast<const unsigned char*>(p.scales);
  for (long long k = first, end = first + n; k < end;) {
    const long long second = block_of(k, p.how.second_block), stop = std::min(end, (second + 1) * p.how.second_block);
    const float scale = p.second_scales[second], offset = p.offset;
    for (; k < stop; ++k) *to++ = encodings::nested_scale(p.second_table[codes[k]], scale, offset);
  }
}

namespace detail {

// The scale of element `at`, and where the elements end that share it.
struct scale_place {
  long long scale, end;
};
inline scale_place place_of(const weight_view& w, long long at) {
  const long long block = w.how.block;
  if (w.how.scaled == scaled_by::run) return {block_of(at, block), (block_of(at, block) + 1) * block};
  const long long row = at / w.cols, in_row = (at - row * w.cols) / block;
  return {row * (w.cols / block) + in_row, row * w.cols + std::min(w.cols, (in_row + 1) * block)};
}

[[gnu::noinline]] inline void decode_four_bits(const weight_view& w, const float* values, long long first, long long n,
                                               float* to) {
  const auto* const codes = static_cast<const unsigned char*>(w.codes);
  const table16 table(values);
  const long long end = first + n;
  for (long long at = first; at < end;) {
    const scale_place place = place_of(w, at);
    const long long stop = std::min(end, place.end);
    const float scale = scale_at(*w.beside, place.scale);
    auto one = [&] { *to++ = values[encodings::four_bits_at(codes, at++)] * scale; };
    if (at % 2 != 0) one();
    for (; at + 16 <= stop; at += 16, to += 16) table.decode(codes + at / 2, scale, to);
    while (at < stop) one();
  }
}
// f(code, scale) of each element; one scale for a row or for all.
template <class Code, class F>
[[gnu::noinline, gnu::hot]] void decode_rows(const weight_view& w, long long first, long long n, float* to, F f) {
  constexpr int some = 32;
  const auto* const codes = static_cast<const Code*>(w.codes);
  const long long end = first + n;
  for (long long at = first; at < end;) {
    const long long row = at / w.cols, stop = std::min(end, (row + 1) * w.cols);
    const float scale = scale_at(*w.beside, w.how.scaled == scaled_by::row ? row : 0);
    for (Code few[some]; at + some <= stop; at += some, to += some) {  // a copy, which nothing written to overlaps
      std::copy_n(codes + at, some, few);
      if constexpr (requires { f.decode(few, scale, to); })
        f.decode(few, scale, to);
      else
        for (int k = 0; k < some; ++k) to[k] = f(few[k], scale);
    }
    for (; at < stop; ++at) *to++ = f(codes[at], scale);
  }
}
template <class Codes>
[[gnu::noinline]] void decode_blocks(const weight_view& w, long long first, long long n, float* to) {
  const auto* const codes = static_cast<const unsigned char*>(w.codes);
  float one[Codes::block];
  unsigned char bytes[Codes::bytes];
  for (long long at = first, end = first + n; at < end;) {
    const long long block = at / Codes::block, inside = at % Codes::block;
    const long long take = std::min(end - at, Codes::block - inside);
    std::copy_n(codes + block * Codes::bytes, Codes::bytes, bytes);  // which nothing written to overlaps
    Codes::decode(bytes, take == Codes::block ? to : one);
    if (take < Codes::block) std::copy_n(one + inside, take, to);
    at += take, to += take;
  }
}

}  // namespace detail

inline void decode_codes(const weight_view& w, long long first, long long n, float* to) {
  using namespace encodings;
  switch (w.how.codes) {
    case dtype::nf4: return detail::decode_four_bits(w, nf4_codes::table, first, n, to);
    case dtype::fp4: return detail::decode_four_bits(w, fp4_codes::table, first, n, to);
    case dtype::int8:
      return detail::decode_rows<signed char>(w, first, n, to,
                                              [](signed char c, float scale) { return int8_codes::number(c, scale); });
    case dtype::f8_e4m3: return detail::decode_rows<unsigned char>(w, first, n, to, fp8_numbers());
    case dtype::ggml:
      if (w.how.block_type == q8_0_codes::number_in_files) return detail::decode_blocks<q8_0_codes>(w, first, n, to);
      return detail::decode_blocks<q4_0_codes>(w, first, n, to);
    case dtype::f32:
    case dtype::f64:
    case dtype::bf16:
    case dtype::f16:
    case dtype::i64:
    case dtype::u8:
    case dtype::f8_e5m2:
    case dtype::f8_e8m0: return;  // numbers and indices; the rest is refused where a weight is set
  }
}

}  // namespace graft::cpu
