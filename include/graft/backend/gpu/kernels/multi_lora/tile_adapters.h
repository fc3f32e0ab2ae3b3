// SPDX-License-Identifier: Apache-2.0
// Finds which adapter records the tiles of the multi-LoRA GEMM (gemm_sm90.cuh) have: up to four per 128 rows, with
// ranks of up to 64 in sum. Runs on the host, which has the row indices; uses no CUDA.
#pragma once
#include <graft/backend/gpu/kernels/multi_lora/adapter_record.h>

#include <algorithm>
#include <span>

namespace graft::gpu {

struct tile_adapters {
  std::vector<int> adapters_of_tile;  // [tiles, an even number][max_tile_adapters]: record index; -1: none
  bool fit = true;                    // no tile has more records than max_tile_adapters

  static tile_adapters find(std::span<const std::int64_t> of_row) {
    constexpr std::size_t rows = adapter_tile_rows, each = max_tile_adapters;
    tile_adapters p;
    p.adapters_of_tile.assign((of_row.size() + 2 * rows - 1) / (2 * rows) * 2 * each, -1);
    for (std::size_t i = 0; i < of_row.size(); ++i) {
      const auto adapter = static_cast<int>(of_row[i]);
      if (adapter < 0 || (i % rows != 0 && of_row[i] == of_row[i - 1])) continue;
      const auto first = p.adapters_of_tile.begin() + static_cast<std::ptrdiff_t>(i / rows * each),
                 end = first + static_cast<std::ptrdiff_t>(each), at = std::find(first, end, adapter),
                 free = std::find(first, end, -1);
      if (at != end) continue;
      if (free == end) return p.fit = false, p;
      *free = adapter;
    }
    return p;
  }
  // The Rank of the kernel that takes all tiles: 16, 32 or 64; 0 where none does. `rank_of` gives padded ranks.
  template <class Rank> int rank(Rank rank_of) const {
    int most = 16;
    for (std::size_t b = 0; b < adapters_of_tile.size(); b += max_tile_adapters) {
      int sum = 0;
      for (std::size_t i = b; i < b + max_tile_adapters; ++i)
        if (adapters_of_tile[i] >= 0) sum += rank_of(adapters_of_tile[i]);
      most = std::max(most, sum);
    }
    return !fit || most > max_multi_lora_rank ? 0 : most <= 16 ? 16 : most <= 32 ? 32 : 64;
  }
};

}  // namespace graft::gpu
