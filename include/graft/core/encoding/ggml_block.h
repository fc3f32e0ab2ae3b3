// SPDX-License-Identifier: Apache-2.0
// What the encodings of ggml have in common: blocks of a row, whose scale is a number in half precision between other
// bytes, the lower one first, wherever it begins.
#pragma once
#include <graft/core/encoding.h>
#include <graft/core/f16.h>

namespace graft::encodings {

constexpr float half_at(const unsigned char* p) {
  return widen(f16{static_cast<std::uint16_t>(p[0] | static_cast<unsigned>(p[1]) << 8U)});
}
constexpr void put_half(float v, unsigned char* p) {
  const f16 half = narrow_to_f16(v);
  p[0] = static_cast<unsigned char>(half.bits & 0xffU), p[1] = static_cast<unsigned char>(half.bits >> 8U);
}

constexpr encoding ggml_block(int elements, int bytes, int number_in_files) {
  return {.codes = dtype::ggml,
          .scaled = scaled_by::block,
          .block = elements,
          .block_bytes = bytes,
          .block_type = number_in_files};
}

}  // namespace graft::encodings
