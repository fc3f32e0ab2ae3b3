// SPDX-License-Identifier: Apache-2.0
// Which records the rows of a tile have, and whether they fit.
#include <doctest/doctest.h>
#include <graft/backend/cuda/mixed_blocks.h>
#include <graft/backend/cuda/mixed_choice.h>
#include <graft/backend/cuda/targets.h>

using namespace graft;
using namespace graft::cuda;

namespace {

std::vector<std::int64_t> in_segments(std::size_t rows, std::size_t segment, std::int64_t adapters) {
  std::vector<std::int64_t> all(rows);
  for (std::size_t i = 0; i < rows; ++i) all[i] = static_cast<std::int64_t>(i / segment) % (adapters + 1) - 1;
  return all;
}
int rank_of(const places_of_blocks& p, int each) {
  return p.rank([&](int) { return each; });
}

}  // namespace

TEST_CASE("places of blocks: the records of each 128 rows, once each, in pairs of blocks") {
  const std::vector<std::int64_t> rows = in_segments(300, 100, 2);
  const places_of_blocks p = places_of_blocks::find(rows);
  REQUIRE(p.fit);
  const std::vector<int> expected{0, -1, -1, -1, 0, 1, -1, -1, 1, -1, -1, -1, -1, -1, -1, -1};
  CHECK(p.of_block == expected);
  CHECK(places_of_blocks::find(std::vector<std::int64_t>(256, -1)).of_block == std::vector<int>(8, -1));
  CHECK(places_of_blocks::find(std::vector<std::int64_t>{}).of_block.empty());
}

TEST_CASE("places of blocks: the ranks of a block together decide which kernel has room for them") {
  const auto aligned = places_of_blocks::find(in_segments(4096, 512, 8)),
             straddling = places_of_blocks::find(in_segments(4096, 500, 8));
  CHECK(rank_of(aligned, 16) == 16);
  CHECK(rank_of(aligned, 64) == 64);
  CHECK(rank_of(straddling, 16) == 32);
  CHECK(rank_of(straddling, 32) == 64);
  CHECK(rank_of(straddling, 64) == 0);
  CHECK(rank_of(straddling, 0) == 16);  // factors and summands alone
  const auto crowded = places_of_blocks::find(in_segments(512, 16, 32));
  CHECK_FALSE(crowded.fit);
  CHECK(rank_of(crowded, 16) == 0);
}

TEST_CASE("choose_mixed_gemm: many rows are one launch where a block has room for its records") {
  const target h200 = device_target("", 90, 132, 66), a100 = device_target("", 80, 108, 54);
  const auto chosen = [&](long long m, int n, int rank, const target& on) {
    return choose_mixed_gemm({dtype::bf16, m, n, 4096, 0}, rank, on);
  };
  for (const int n : {1024, 4096, 14336})
    for (const int rank : {16, 32, 64}) {
      const linear_choice c = chosen(4096, n, rank, h200);
      CHECK(c.pairs > 0);
      CHECK(c.owners % 4 == 0);
      CHECK(c.workspace_bytes() <= workspace_bound(4096, max_mixed_rank));
    }
  CHECK(chosen(512, 4096, 16, h200).tile_n == 128);
  CHECK(chosen(4096, 4096, 0, h200).pairs == 0);
  CHECK(chosen(64, 4096, 16, h200).pairs == 0);
  CHECK(chosen(4096, 4095, 16, h200).pairs == 0);
  CHECK(chosen(4096, 4096, 16, a100).pairs == 0);
}
