// SPDX-License-Identifier: Apache-2.0
// The adapters of the rows of a tile, and whether they fit.
#include <doctest/doctest.h>
#include <graft/backend/gpu/dispatch/multi_lora.h>
#include <graft/backend/gpu/dispatch/targets.h>
#include <graft/backend/gpu/kernels/multi_lora/tile_adapters.h>

using namespace graft;
using namespace graft::gpu;

namespace {

std::vector<std::int64_t> in_segments(std::size_t rows, std::size_t segment, std::int64_t adapters) {
  std::vector<std::int64_t> all(rows);
  for (std::size_t i = 0; i < rows; ++i) all[i] = static_cast<std::int64_t>(i / segment) % (adapters + 1) - 1;
  return all;
}
int rank_of(const tile_adapters& p, int each) {
  return p.rank([&](int) { return each; });
}

}  // namespace

TEST_CASE("tile adapters: the records of each 128 rows, once each, in pairs of blocks") {
  const std::vector<std::int64_t> rows = in_segments(300, 100, 2);
  const tile_adapters p = tile_adapters::find(rows);
  REQUIRE(p.fit);
  const std::vector<int> expected{0, -1, -1, -1, 0, 1, -1, -1, 1, -1, -1, -1, -1, -1, -1, -1};
  CHECK(p.adapters_of_tile == expected);
  CHECK(tile_adapters::find(std::vector<std::int64_t>(256, -1)).adapters_of_tile == std::vector<int>(8, -1));
  CHECK(tile_adapters::find(std::vector<std::int64_t>{}).adapters_of_tile.empty());
}

TEST_CASE("tile adapters: the sum of the ranks of a block determines the kernel") {
  const auto aligned = tile_adapters::find(in_segments(4096, 512, 8)),
             straddling = tile_adapters::find(in_segments(4096, 500, 8));
  CHECK(rank_of(aligned, 16) == 16);
  CHECK(rank_of(aligned, 64) == 64);
  CHECK(rank_of(straddling, 16) == 32);
  CHECK(rank_of(straddling, 32) == 64);
  CHECK(rank_of(straddling, 64) == 0);
  CHECK(rank_of(straddling, 0) == 16);  // factors and biases only
  const auto crowded = tile_adapters::find(in_segments(512, 16, 32));
  CHECK_FALSE(crowded.fit);
  CHECK(rank_of(crowded, 16) == 0);
}

TEST_CASE("tile adapters: many rows are one launch if the records of a block fit") {
  const target h200 = device_target("", 90, 132, 66), a100 = device_target("", 80, 108, 54);
  const auto chosen = [&](long long m, int n, int rank, const target& on) {
    return choose_multi_lora_gemm({dtype::bf16, m, n, 4096, 0}, rank, on);
  };
  for (const int n : {1024, 4096, 14336})
    for (const int rank : {16, 32, 64}) {
      const gemm_choice c = chosen(4096, n, rank, h200);
      CHECK(c.pairs > 0);
      CHECK(c.owners % 4 == 0);
      CHECK(c.workspace_bytes() <= workspace_bound(4096, max_multi_lora_rank));
    }
  CHECK(chosen(512, 4096, 16, h200).tile_n == 128);
  CHECK(chosen(4096, 4096, 0, h200).pairs == 0);
  CHECK(chosen(64, 4096, 16, h200).pairs == 0);
  CHECK(chosen(4096, 4095, 16, h200).pairs == 0);
  CHECK(chosen(4096, 4096, 16, a100).pairs == 0);
}
