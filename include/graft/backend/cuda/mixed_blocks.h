// SPDX-License-Identifier: Apache-2.0
// Which records the rows of a tile of gemm have (gemm_mixed.cuh): those of each 128 rows, of which there may be four with
// ranks of up to 64 together. Known on the host, because rows are. Knows nothing of CUDA.
#pragma once
#include <graft/backend/cuda/mixed_record.h>

#include <algorithm>
#include <span>

namespace graft::cuda {

struct places_of_blocks {
  std::vector<int> of_block;  // mixed_block_places each, of pairs of blocks; -1: none
  bool fit = true;            // none has more

  static places_of_blocks find(std::span<const std::int64_t> of_row) {
    constexpr std::size_t rows = mixed_block_rows, each = mixed_block_places;
    places_of_blocks p;
    p.of_block.assign((of_row.size() + 2 * rows - 1) / (2 * rows) * 2 * each, -1);
    for (std::size_t i = 0; i < of_row.size(); ++i) {
      const auto place = static_cast<int>(of_row[i]);
      if (place < 0 || (i % rows != 0 && of_row[i] == of_row[i - 1])) continue;
      const auto first = p.of_block.begin() + static_cast<std::ptrdiff_t>(i / rows * each),
                 end = first + static_cast<std::ptrdiff_t>(each), at = std::find(first, end, place),
                 free = std::find(first, end, -1);
      if (at != end) continue;
      if (free == end) return p.fit = false, p;
      *free = place;
    }
    return p;
  }
  // What a kernel needs room for, at least 16; 0 where there is none. `rank_of` a place, padded.
  template <class Rank> int rank(Rank rank_of) const {
    int most = 16;
    for (std::size_t b = 0; b < of_block.size(); b += mixed_block_places) {
      int sum = 0;
      for (std::size_t i = b; i < b + mixed_block_places; ++i)
        if (of_block[i] >= 0) sum += rank_of(of_block[i]);
      most = std::max(most, sum);
    }
    return !fit || most > max_mixed_rank ? 0 : most <= 16 ? 16 : most <= 32 ? 32 : 64;
  }
};

}  // namespace graft::cuda
