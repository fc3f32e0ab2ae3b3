// SPDX-License-Identifier: Apache-2.0
#include <graft/run/quantized_shard.h>

#include "../support/quantized.h"

using namespace test;

TEST_CASE("quantized shard: a rank's shard dequantizes to its part of the weight") {
  int parts = 0;
  for (const named_quant_format& e : every_quant_format())
    for (const auto& [rows, cols] : {std::pair{64LL, 128LL}, std::pair{128LL, 96LL}, std::pair{8LL, 8192LL}})
      for (const int ranks : {2, 4})
        for (const int axis : {0, 1}) {
          CAPTURE(e.name);
          CAPTURE(axis);
          if (!exists_on(e.format, cols)) continue;
          const quantized_and_plain whole(normal_numbers(rows * cols, 5), rows, cols, e.format);
          for (int rank = 0; rank < ranks; ++rank) {
            quantized_shard shard;
            const status cut = shard.slice(whole.quantized.as_view(), axis, rank, ranks);
            if (!cut) {  // only if the cut is inside a block
              CHECK(std::string(cut.message()).find("is not a whole number of blocks") != std::string::npos);
              const long long n = axis == 0 ? rows / ranks * cols : cols / ranks;
              CHECK((n % e.format.block != 0 || cols % e.format.block != 0));
              continue;
            }
            ++parts;
            const long long n = axis == 0 ? rows / ranks : rows, m = axis == 1 ? cols / ranks : cols;
            REQUIRE((shard.shard_view().size[0] == n && shard.shard_view().size[1] == m));
            std::vector<float> numbers(static_cast<std::size_t>(n * m));
            cpu::convert(shard.shard_view(), numbers.data());
            bool same = true;
            for (long long r = 0; r < n; ++r)
              for (long long c = 0; c < m; ++c) {
                const long long row = axis == 0 ? rank * n + r : r, col = axis == 1 ? rank * m + c : c;
                same = same && numbers[static_cast<std::size_t>(r * m + c)] ==
                                   whole.numbers[static_cast<std::size_t>(row * cols + col)];
              }
            CHECK(same);
          }
        }
  CHECK(parts > 300);
}

TEST_CASE("quantized shard: integers with zero points and 4-bit floats, whose columns are cut between groups") {
  int parts = 0;
  for (const named_quant_format& e : every_checkpoint_format())
    for (const int axis : {0, 1}) {
      CAPTURE(e.name);
      CAPTURE(axis);
      const quantized_and_plain whole(normal_numbers(16 * 256, 5), 16, 256, e.format);
      for (int rank = 0; rank < 2; ++rank) {
        quantized_shard shard;
        const status cut = shard.slice(whole.quantized.as_view(), axis, rank, 2);
        if (!cut) {
          const std::string why = cut.message();
          const bool any_order = e.format.scaled == scale_granularity::column_group;
          CHECK(why.find(any_order ? "columns in groups in any order" : "whole number of blocks") != why.npos);
          CHECK((axis == 1 && (any_order || e.format.block > 128)));
          continue;
        }
        ++parts;
        const long long n = axis == 0 ? 8 : 16, m = axis == 1 ? 128 : 256;
        std::vector<float> numbers(static_cast<std::size_t>(n * m));
        cpu::convert(shard.shard_view(), numbers.data());
        bool same = true;
        for (long long r = 0; r < n; ++r)
          for (long long c = 0; c < m; ++c)
            same = same && numbers[static_cast<std::size_t>(r * m + c)] ==
                               whole.numbers[static_cast<std::size_t>((axis == 0 ? rank * n + r : r) * 256 +
                                                                      (axis == 1 ? rank * m + c : c))];
        CHECK(same);
      }
    }
  CHECK(parts == 2 * (26 + 10));
}

TEST_CASE("quantized shard: a weight that the ranks do not divide is refused with a sentence") {
  const quantized_and_plain whole(normal_numbers(6 * 64, 5), 6, 64, {dtype::nf4, scale_granularity::flat_block, 64});
  quantized_shard shard;
  CHECK(!shard.slice(whole.quantized.as_view(), 0, 0, 4));
  CHECK(!shard.slice(whole.quantized.as_view(), 1, 0, 2));
  CHECK(shard.slice(whole.quantized.as_view(), 0, 1, 2));
}
