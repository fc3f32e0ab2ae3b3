// SPDX-License-Identifier: Apache-2.0
#include <graft/run/code_part.h>

#include "../support/coded.h"

using namespace test;

TEST_CASE("a rank's part of codes means the numbers that its part of the whole means") {
  int parts = 0;
  for (const named_encoding& e : every_encoding())
    for (const auto& [rows, cols] : {std::pair{64LL, 128LL}, std::pair{128LL, 96LL}, std::pair{8LL, 8192LL}})
      for (const int ranks : {2, 4})
        for (const int axis : {0, 1}) {
          CAPTURE(e.name);
          CAPTURE(axis);
          if (!exists_on(e.how, cols)) continue;
          const coded_and_plain whole(normal_numbers(rows * cols, 5), rows, cols, e.how);
          for (int rank = 0; rank < ranks; ++rank) {
            code_part part;
            const status cut = part.cut(whole.codes.as_view(), axis, rank, ranks);
            if (!cut) {  // only where a block would be torn
              CHECK(std::string(cut.message()).find("are not whole blocks") != std::string::npos);
              const long long n = axis == 0 ? rows / ranks * cols : cols / ranks;
              CHECK((n % e.how.block != 0 || cols % e.how.block != 0));
              continue;
            }
            ++parts;
            const long long n = axis == 0 ? rows / ranks : rows, m = axis == 1 ? cols / ranks : cols;
            REQUIRE((part.part().size[0] == n && part.part().size[1] == m));
            std::vector<float> numbers(static_cast<std::size_t>(n * m));
            cpu::decode(part.part(), numbers.data());
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

TEST_CASE("codes that the ranks do not divide are refused with a sentence") {
  const coded_and_plain whole(normal_numbers(6 * 64, 5), 6, 64, {dtype::nf4, scaled_by::run, 64});
  code_part part;
  CHECK(!part.cut(whole.codes.as_view(), 0, 0, 4));
  CHECK(!part.cut(whole.codes.as_view(), 1, 0, 2));
  CHECK(part.cut(whole.codes.as_view(), 0, 1, 2));
}
