// SPDX-License-Identifier: Apache-2.0
// A rank's part of a weight that is codes: rows of it, or columns of which every rank has whole blocks. Codes of rows stay
// where they lie, those of columns are copied row by row. A part has scales of its own; scales that are codes themselves
// are decoded, so that their blocks need not be whole.
#pragma once
#include <graft/core/encoding.h>
#include <graft/core/encoding/nested.h>
#include <graft/core/result.h>

#include <cstddef>
#include <cstring>
#include <vector>

namespace graft {

class code_part {
 public:
  // It stays where it is as long as the view is used.
  const view& part() const { return part_; }

  status cut(const view& whole, int axis, int rank, int ranks) {
    const encoding& how = whole.beside->how;
    const long long size[2] = {whole.size[0], whole.size[1]};
    if (whole.rank != 2 || size[axis] % ranks != 0)
      return fail(shape_of(whole), " codes cannot be divided among ", ranks, " ranks");
    const long long n[2] = {axis == 0 ? size[0] / ranks : size[0], axis == 1 ? size[1] / ranks : size[1]};
    const long long first[2] = {axis == 0 ? rank * n[0] : 0, axis == 1 ? rank * n[1] : 0};
    if (!whole_blocks(how, axis, size[1], n))
      return fail(shape_of(whole), " codes in blocks of ", how.block, " are not whole blocks for each of ", ranks,
                  " ranks; use fewer, or load the model as numbers");
    part_ = whole;
    part_.size[0] = n[0], part_.size[1] = n[1], part_.beside = &beside_;
    const auto* const from = static_cast<const std::byte*>(whole.data);
    if (axis == 0) {
      part_.data = from + bytes_of_codes(how, first[0], size[1]);
    } else {
      const long long row = bytes_of_codes(how, 1, size[1]), bytes = bytes_of_codes(how, 1, n[1]);
      codes_.resize(static_cast<std::size_t>(n[0] * bytes));
      for (long long r = 0; r < n[0]; ++r)
        std::memcpy(codes_.data() + r * bytes, from + r * row + bytes_of_codes(how, 1, first[1]),
                    static_cast<std::size_t>(bytes));
      part_.data = codes_.data();
    }
    take_scales(*whole.beside, size[1], first, n);
    return ok;
  }

 private:
  static bool runs(const encoding& how) { return how.scaled == scaled_by::run || how.scaled == scaled_by::row_run; }
  // Do the parts end where bytes and blocks do?
  static bool whole_blocks(const encoding& how, int axis, long long cols, const long long (&n)[2]) {
    const auto fits = [](long long size, long long block) { return block <= 1 || size % block == 0; };
    const int codes_of_byte = how.block_bytes > 0 ? 1 : 8 / bits_of(how.codes);
    if (axis == 0) return fits(n[0] * cols, codes_of_byte) && fits(runs(how) ? n[0] * cols : n[0], of_rows(how));
    return fits(n[1], codes_of_byte) && fits(cols, codes_of_byte) && fits(n[1], how.block) && fits(cols, how.block);
  }
  static long long of_rows(const encoding& how) { return runs(how) ? how.block : how.block_rows; }

  // Scales lie as a matrix: of rows and blocks of columns, or, where blocks go on from row to row, in one row.
  void take_scales(const planes& whole, long long cols, const long long (&first)[2], const long long (&n)[2]) {
    const encoding& how = whole.how;
    beside_ = whole;
    struct range {
      long long first, count;
    };
    range rows{0, 1}, blocks{0, 1};
    long long each = 1;  // scales of a row
    if (how.scaled == scaled_by::nothing || how.block_bytes > 0) return;
    if (how.scaled == scaled_by::row) rows = {first[0], n[0]};
    if (runs(how) && cols % how.block != 0) blocks = {first[0] * cols / how.block, n[0] * cols / how.block};
    if (how.scaled == scaled_by::row_run && cols % how.block != 0)
      blocks = {first[0] * (cols / how.block), n[0] * (cols / how.block) + 1};
    if (how.scaled == scaled_by::block || (runs(how) && cols % how.block == 0)) {
      each = (cols + how.block - 1) / how.block;
      rows = {first[0] / how.block_rows, (n[0] + how.block_rows - 1) / how.block_rows};
      blocks = {first[1] / how.block, (n[1] + how.block - 1) / how.block};
    }
    const bool coded = how.scales == dtype::u8;
    const auto bytes = static_cast<std::size_t>(bits_of(coded ? dtype::f32 : how.scales) / 8);
    scales_.resize(static_cast<std::size_t>(rows.count * blocks.count) * bytes);
    std::byte* to = scales_.data();
    for (long long r = rows.first; r < rows.first + rows.count; ++r)
      for (long long b = blocks.first; b < blocks.first + blocks.count; ++b, to += bytes) {
        const long long k = r * each + b;
        const auto* const at = static_cast<const std::byte*>(whole.scales);
        if (!coded) {
          std::memcpy(to, at + k * static_cast<long long>(bytes), bytes);
          continue;
        }
        const float scale = encodings::nested_scale(whole.second_table[std::to_integer<int>(at[k])],
                                                    whole.second_scales[k / how.second_block], whole.offset);
        std::memcpy(to, &scale, bytes);
      }
    beside_.scales = scales_.data();
    if (coded)
      beside_.how.scales = dtype::f32, beside_.how.second_block = 0,
      beside_.second_scales = beside_.second_table = nullptr, beside_.offset = 0;
  }

  view part_;
  planes beside_;
  std::vector<std::byte> codes_, scales_;
};

}  // namespace graft
