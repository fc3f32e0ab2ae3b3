// SPDX-License-Identifier: Apache-2.0
// Which products read codes without decoding them first, and where the parts of such a launch lie in shared memory.
#include <doctest/doctest.h>
#include <graft/backend/cuda/code_choice.h>
#include <graft/targets.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

using namespace graft;
using namespace graft::cuda;

namespace {

const target h200 = device_target("", 90, 132, 66), a100 = device_target("", 80, 108, 54);
const encoding nf4_64{dtype::nf4, scaled_by::run, 64}, int8_rows{dtype::int8, scaled_by::row};

}  // namespace

TEST_CASE("code choice: parts of shared memory lie apart, in the block and around the table") {
  for (const encoding& e : {nf4_64, int8_rows})
    for (const int k : {64, 256, 1088, 4096, 14336})
      for (const int rank : {0, 16, 32, 64})
        for (const long long m : {1, 8, 9, 16, 17, 32, 33, 64}) {
          INFO(name_of(e), ", inner size ", k, ", rank ", rank, ", ", m, " tokens");
          const code_choice c = choose_codes(e, dtype::bf16, m, k, rank, h200);
          if (c.launches == 0) continue;
          CHECK(c.launches * c.tokens >= m);
          CHECK(c.own_steps * c.splits * c.groups >= k / 64);
          std::vector<std::pair<long long, long long>> used{
              {c.at.x, static_cast<long long>(c.groups) * c.part_steps * c.tokens * 128},
              {c.at.ring, c.at.stages * 8192LL},
              {c.at.inbox, c.groups * c.tokens * 512LL},
              {c.at.s, c.groups * ((c.tokens * rank * 2LL + 1023) / 1024 * 1024)},
              {c.at.barriers, (2LL * c.at.stages + 2) * 8}};
          if (has_four_bits(e)) {
            used.emplace_back(c.at.scales, c.at.stages * 1024LL);
            used.emplace_back(code_table_at, code_table_ends - code_table_at);
          }
          std::sort(used.begin(), used.end());
          for (std::size_t i = 0; i < used.size(); ++i) {
            CHECK(used[i].first >= code_memory_begins);
            CHECK(used[i].first % 1024 == 0);
            CHECK(used[i].first + used[i].second <= (i + 1 < used.size() ? used[i + 1].first : code_memory_ends));
          }
        }
}
TEST_CASE("code choice: few tokens of what the kernels can read, and nothing else") {
  auto launches = [](const encoding& e, long long m, int k, const target& on, dtype type = dtype::bf16) {
    return choose_codes(e, type, m, k, 16, on).launches;
  };
  CHECK(launches(nf4_64, 1, 4096, h200) == 1);
  CHECK(launches(nf4_64, 32, 4096, h200) == 1);
  CHECK(launches(nf4_64, 64, 4096, h200) == 2);
  CHECK(launches(nf4_64, 4096, 4096, h200) == 0);
  CHECK(launches(nf4_64, 1, 4100, h200) == 0);
  CHECK(launches(nf4_64, 1, 4096, a100) == 0);
  CHECK(launches(nf4_64, 1, 4096, h200, dtype::f32) == 0);
  CHECK(launches({dtype::nf4, scaled_by::run, 32}, 1, 4096, h200) == 0);
  CHECK(launches(encodings::q8_0_codes::how(), 1, 4096, h200) == 0);
}
TEST_CASE("code choice: a layer type counts the kernels that run: one for few tokens, else one that decodes first") {
  using plan = compile<linear<4096, 4096, nf4<64>, lora<16>>, fullgraph, on<sm_90>>;
  static_assert(plan::kernels_at(1) == 1 && plan::kernels_at(32) == 1 && plan::kernels_at(64) == 2);
  static_assert(plan::kernels_at(4096) == 1 + compile<linear<4096, 4096, bf16, lora<16>>, on<sm_90>>::kernels_at(4096));
  std::string all;
  explain<linear<4096, 4096, nf4<64>, lora<16>>, sm_90>([&](const text& t) { all += t.c_str(); }, 1);
  CHECK(all.find("cannot read in less than 2.2 us") != std::string::npos);
}
