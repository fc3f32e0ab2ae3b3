// SPDX-License-Identifier: Apache-2.0
// All encodings that can be decoded, and what must be true of a weight in one of them.
#pragma once
#include <graft/core/encoding/fp4.h>
#include <graft/core/encoding/fp8.h>
#include <graft/core/encoding/int8.h>
#include <graft/core/encoding/nested.h>
#include <graft/core/encoding/nf4.h>
#include <graft/core/encoding/q4_0.h>
#include <graft/core/encoding/q8_0.h>
#include <graft/core/result.h>

namespace graft {

constexpr bool has_four_bits(const encoding& e) { return e.codes == dtype::nf4 || e.codes == dtype::fp4; }
// Is there a way from these codes to numbers?
constexpr bool can_decode(const encoding& e) {
  const bool single = e.scales == dtype::f32 || e.scales == dtype::bf16 || e.scales == dtype::f16;
  if (has_four_bits(e))
    return (e.scaled == scaled_by::run || e.scaled == scaled_by::row_run) && encodings::is_four_bit_block(e.block) &&
           (e.second_block > 0 ? e.scales == dtype::u8 : e.scales == dtype::f32);
  if (e.codes == dtype::int8) return e.scaled == scaled_by::row && single;
  if (e.codes == dtype::f8_e4m3) return (e.scaled == scaled_by::row || e.scaled == scaled_by::tensor) && single;
  return e == encodings::q8_0_codes::how() || e == encodings::q4_0_codes::how();
}
constexpr const char* name_of(const encoding& e) {
  if (e == encodings::q8_0_codes::how()) return encodings::q8_0_codes::name;
  if (e == encodings::q4_0_codes::how()) return encodings::q4_0_codes::name;
  return name_of(e.codes);
}

// Can layers read this view of codes?
[[gnu::cold, gnu::noinline]] constexpr status check_codes(const detail::sentence_part& name, const view& v) {
  if (v.beside == nullptr)
    return fail("tensor '", name, "' is codes of ", name_of(v.type), " without their planes; set view::beside");
  const planes& p = *v.beside;
  if (v.type != p.how.codes || !can_decode(p.how))
    return fail("tensor '", name, "' is stored as ", name_of(v.type), " with scales that are not known for it");
  if (v.rank != 2 || !v.contiguous())
    return fail("tensor '", name, "' is codes, expected a matrix that lies row after row");
  if (p.how.block_bytes > 0 && v.size[1] % p.how.block != 0)
    return fail("tensor '", name, "' has rows of ", v.size[1], " elements, expected a multiple of the block of ",
                p.how.block);
  if (p.how.block_bytes == 0 && p.scales == nullptr) return fail("tensor '", name, "' is codes without scales");
  if (p.how.second_block > 0 && (p.second_scales == nullptr || p.second_table == nullptr))
    return fail("tensor '", name, "' has scales that are codes, without their own scales and table");
  return ok;
}

}  // namespace graft
