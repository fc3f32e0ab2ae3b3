// SPDX-License-Identifier: Apache-2.0
// Numbers as codes, and the memory for them: a weight in any encoding, made from floats as the writers of its files make
// it. Used to store a merged weight in the encoding of its base, and to make weights to try things with.
#pragma once
#include <graft/backend/cpu/codes.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace graft::cpu {

// A weight that owns its codes. It may be moved: what views point to stays where it is.
struct coded_weight {
  std::vector<unsigned char> codes, scale_codes;
  std::vector<float> scales, second_scales;
  std::unique_ptr<planes> beside = std::make_unique<planes>();
  long long rows = 0, cols = 0;

  view as_view() const { return {codes.data(), beside->how.codes, {rows, cols, 1, 1}, 2, {}, beside.get()}; }
};

namespace detail {

inline void quantize_four_bits(const float* from, coded_weight& w) {
  const encoding& how = w.beside->how;
  const long long n = w.rows * w.cols;
  w.codes.resize(static_cast<std::size_t>((n + 1) / 2));
  w.scales.resize(static_cast<std::size_t>(planes_of(how, w.rows, w.cols).scales));
  if (how.codes == dtype::nf4)
    encodings::quantize_four_bits<encodings::nf4_codes>(from, n, how.block, w.codes.data(), w.scales.data());
  else
    encodings::quantize_four_bits<encodings::fp4_codes>(from, n, how.block, w.codes.data(), w.scales.data());
  if (how.second_block == 0) return;
  w.scale_codes.resize(w.scales.size());
  w.second_scales.resize(static_cast<std::size_t>(planes_of(how, w.rows, w.cols).second_scales));
  w.beside->offset = encodings::quantize_scales(w.scales.data(), static_cast<long long>(w.scales.size()),
                                                w.scale_codes.data(), w.second_scales.data());
  w.scales.clear();
}
// Rows, or everything, share a scale.
template <class Codes> void quantize_rows(const float* from, coded_weight& w) {
  const bool by_row = w.beside->how.scaled == scaled_by::row;
  const long long parts = by_row ? w.rows : 1, n = by_row ? w.cols : w.rows * w.cols;
  w.codes.resize(static_cast<std::size_t>(w.rows * w.cols));
  for (long long p = 0; p < parts; ++p) {
    if constexpr (Codes::type == dtype::int8)
      w.scales.push_back(Codes::quantize(from + p * n, n, reinterpret_cast<signed char*>(w.codes.data()) + p * n));
    else
      w.scales.push_back(Codes::quantize(from + p * n, n, w.codes.data() + p * n));
  }
}
template <class Codes> void quantize_blocks(const float* from, coded_weight& w) {
  const long long blocks = w.rows * w.cols / Codes::block;
  w.codes.resize(static_cast<std::size_t>(blocks * Codes::bytes));
  for (long long b = 0; b < blocks; ++b) Codes::quantize(from + b * Codes::block, w.codes.data() + b * Codes::bytes);
}

}  // namespace detail

// Scales are stored as floats, or as codes where the encoding has a second level.
inline result<coded_weight> quantize(const float* from, long long rows, long long cols, encoding how) {
  using namespace encodings;
  if (how.second_block > 0)
    how.scales = dtype::u8, how.second_block = nested_block;
  else if (how.block_bytes == 0)
    how.scales = dtype::f32;
  if (!can_decode(how)) return fail("there is no way to numbers from codes of ", name_of(how), " with these scales");
  for (long long i = 0; i < rows * cols; ++i)
    if (!(largest_magnitude(from + i, 1) <= 3.4028235e38F) || from[i] != from[i])
      return fail("element ", i, " of a weight to be quantized is not a finite number");
  coded_weight w;
  w.beside->how = how, w.rows = rows, w.cols = cols;
  if (how.block_bytes > 0 && cols % how.block != 0)
    return fail("rows of ", cols, " elements are no multiple of the block of ", how.block, " of ", name_of(how));
  if (has_four_bits(how)) detail::quantize_four_bits(from, w);
  if (how.codes == dtype::int8) detail::quantize_rows<int8_codes>(from, w);
  if (how.codes == dtype::f8_e4m3) detail::quantize_rows<fp8_codes>(from, w);
  if (how == q8_0_codes::how()) detail::quantize_blocks<q8_0_codes>(from, w);
  if (how == q4_0_codes::how()) detail::quantize_blocks<q4_0_codes>(from, w);
  w.beside->scales = how.second_block > 0 ? static_cast<const void*>(w.scale_codes.data()) : w.scales.data();
  w.beside->second_scales = w.second_scales.data();
  w.beside->second_table = dynamic_values();
  return result<coded_weight>(std::move(w));  // nvcc does not move by itself here
}

}  // namespace graft::cpu
