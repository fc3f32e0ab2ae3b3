// SPDX-License-Identifier: Apache-2.0
// A rank's shard of a quantized weight: rows of it, or columns that are whole blocks on every rank. Quantized values of
// rows are not copied, those of columns are copied row by row. A shard has scales of its own; doubly quantized scales
// are dequantized, so that their blocks need not be whole.
#pragma once
#include <graft/core/quant/double_quant.h>
#include <graft/core/quant_format.h>
#include <graft/core/result.h>

#include <cstddef>
#include <cstring>
#include <vector>

namespace graft {

class quantized_shard {
 public:
  // The view points into this object, which must not move or end while the view is used.
  const view& shard_view() const { return shard_; }

  status slice(const view& whole, int axis, int rank, int ranks) {
    const quant_format& format = whole.quant->format;
    const bool of_experts = whole.rank == 3 && axis == 0;  // whole matrices, one below the other
    const long long size[2] = {of_experts ? whole.size[0] * whole.size[1] : whole.size[0],
                               whole.size[of_experts ? 2 : 1]};
    if ((whole.rank != 2 && !of_experts) || whole.size[axis] % ranks != 0)
      return fail(shape_of(whole), " quantized weight cannot be divided among ", ranks, " ranks");
    const long long n[2] = {axis == 0 ? size[0] / ranks : size[0], axis == 1 ? size[1] / ranks : size[1]};
    const long long first[2] = {axis == 0 ? rank * n[0] : 0, axis == 1 ? rank * n[1] : 0};
    if (axis == 1 && format.scaled == scale_granularity::column_group)
      return fail(shape_of(whole),
                  " quantized weight has its columns in groups in any order (GPTQ with desc_act), and "
                  "ranks would divide them; use one rank, or a model quantized with desc_act false");
    if (!ends_on_blocks(format, axis, size[1], n))
      return fail(shape_of(whole), " quantized weight with a block size of ", format.block,
                  " is not a whole number of blocks for each of ", ranks,
                  " ranks; use fewer, or load the model dequantized");
    shard_ = whole;
    shard_.size[axis] /= ranks, shard_.quant = &quant_;
    const auto* const from = static_cast<const std::byte*>(whole.data);
    if (axis == 0) {
      shard_.data = from + quantized_bytes(format, first[0], size[1]);
    } else {
      const long long row = quantized_bytes(format, 1, size[1]), bytes = quantized_bytes(format, 1, n[1]);
      quants_.resize(static_cast<std::size_t>(n[0] * bytes));
      for (long long r = 0; r < n[0]; ++r)
        std::memcpy(quants_.data() + r * bytes, from + r * row + quantized_bytes(format, 1, first[1]),
                    static_cast<std::size_t>(bytes));
      shard_.data = quants_.data();
    }
    copy_scales(*whole.quant, size[1], first, n);
    return ok;
  }

 private:
  static bool spans_rows(const quant_format& format) {
    return format.scaled == scale_granularity::flat_block || format.scaled == scale_granularity::row_flat_block;
  }
  // Returns true if shards end where bytes and blocks end.
  static bool ends_on_blocks(const quant_format& format, int axis, long long cols, const long long (&n)[2]) {
    const auto fits = [](long long size, long long block) { return block <= 1 || size % block == 0; };
    // Three bits fill whole bytes eight at a time.
    const int values_per_byte = format.block_bytes > 0 ? 1 : format.type == dtype::u3 ? 8 : 8 / bits_of(format.type);
    if (axis == 0)
      return fits(n[0] * cols, values_per_byte) && fits(spans_rows(format) ? n[0] * cols : n[0], row_block(format));
    return fits(n[1], values_per_byte) && fits(cols, values_per_byte) && fits(n[1], format.block) &&
           fits(cols, format.block);
  }
  static long long row_block(const quant_format& format) {
    return spans_rows(format) ? format.block : format.block_rows;
  }

  // Scales form a matrix [rows, blocks of a row], or one row where blocks continue from row to row.
  void copy_scales(const quant_state& whole, long long cols, const long long (&first)[2], const long long (&n)[2]) {
    const quant_format& format = whole.format;
    quant_ = whole;
    struct range {
      long long first, count;
    };
    range rows{0, 1}, blocks{0, 1};
    long long scales_per_row = 1;
    if (format.scaled == scale_granularity::nothing || format.block_bytes > 0) return;
    if (format.scaled == scale_granularity::row) rows = {first[0], n[0]};
    if (spans_rows(format) && cols % format.block != 0)
      blocks = {first[0] * cols / format.block, n[0] * cols / format.block};
    if (format.scaled == scale_granularity::row_flat_block && cols % format.block != 0)
      blocks = {first[0] * (cols / format.block), n[0] * (cols / format.block) + 1};
    if (format.scaled == scale_granularity::block || format.scaled == scale_granularity::column_group ||
        (spans_rows(format) && cols % format.block == 0)) {
      scales_per_row = (cols + format.block - 1) / format.block;
      rows = {first[0] / format.block_rows, (n[0] + format.block_rows - 1) / format.block_rows};
      blocks = {first[1] / format.block, (n[1] + format.block - 1) / format.block};
    }
    const bool double_quant = format.scales == dtype::u8;
    const auto bytes = static_cast<std::size_t>(bits_of(double_quant ? dtype::f32 : format.scales) / 8);
    scales_.resize(static_cast<std::size_t>(rows.count * blocks.count) * bytes);
    zeros_.resize(whole.zeros != nullptr ? static_cast<std::size_t>(rows.count * blocks.count) : 0);
    std::byte* to = scales_.data();
    unsigned char* zero = zeros_.data();
    for (long long r = rows.first; r < rows.first + rows.count; ++r)
      for (long long b = blocks.first; b < blocks.first + blocks.count; ++b, to += bytes) {
        const long long k = r * scales_per_row + b;
        const auto* const at = static_cast<const std::byte*>(whole.scales);
        if (whole.zeros != nullptr) *zero++ = whole.zeros[k];
        if (!double_quant) {
          std::memcpy(to, at + k * static_cast<long long>(bytes), bytes);
          continue;
        }
        const float scale =
            quant_formats::double_quant_scale(whole.second_codebook[std::to_integer<int>(at[k])],
                                              whole.second_scales[k / format.second_block], whole.offset);
        std::memcpy(to, &scale, bytes);
      }
    quant_.scales = scales_.data(), quant_.zeros = zeros_.data();
    if (double_quant)
      quant_.format.scales = dtype::f32, quant_.format.second_block = 0,
      quant_.second_scales = quant_.second_codebook = nullptr, quant_.offset = 0;
  }

  view shard_;
  quant_state quant_;
  std::vector<std::byte> quants_, scales_;
  std::vector<unsigned char> zeros_;
};

}  // namespace graft
