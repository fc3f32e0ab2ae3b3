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
const encoding nf4_64{dtype::nf4, scaled_by::run, 64}, int8_rows{dtype::int8, scaled_by::row},
    nf4_32{dtype::nf4, scaled_by::run, 32}, q8_0 = encodings::q8_0_codes::how(), q4_0 = encodings::q4_0_codes::how();
const encoding double_32{dtype::nf4, scaled_by::run, 32, 1, dtype::u8, encodings::nested_block},
    double_64{dtype::nf4, scaled_by::run, 64, 1, dtype::u8, encodings::nested_block},
    fp8{dtype::f8_e4m3, scaled_by::tensor};

}  // namespace

TEST_CASE("code choice: parts of shared memory lie apart, in the block and around the table") {
  for (const encoding& e : {nf4_64, double_64, nf4_32, double_32, int8_rows, fp8, q8_0, q4_0})
    for (const int k : {64, 256, 1088, 4096, 8192, 14336, 32768})
      for (const int rank : {0, 16, 32, 64})
        for (const long long m : {1, 8, 9, 16, 17, 32, 33, 64}) {
          INFO(name_of(e), ", inner size ", k, ", rank ", rank, ", ", m, " tokens");
          const code_choice c = choose_codes(e, dtype::bf16, m, k, rank, h200);
          CHECK((c.groups == 0) == (m > 32 || (e.block_bytes > 0 && k % 256 != 0)));
          if (c.groups == 0) continue;
          CHECK(c.groups * c.tokens >= m);
          CHECK(c.at.ready >= c.at.factors + c.tokens * 4LL);
          CHECK(c.at.ready % 8 == 0);
          CHECK(c.own <= code_steps);
          CHECK(c.own * c.splits * code_warps >= k / 64);
          if (c.splits == 1 && (e.scales != dtype::u8 || c.form == code_form::nested_runs)) {
            const code_layout known = lone_code_layout(c.form, c.tokens, rank > 0);  // to kernels of whole units
            CHECK(known.phase == c.at.phase);
            CHECK(known.ring == c.at.ring);
            CHECK(known.scales == c.at.scales);
            CHECK(known.nested == c.at.nested);
            CHECK(known.ready == c.at.ready);
            CHECK(known.sums == c.at.sums);
            CHECK(known.side == c.at.side);
            CHECK(known.b == c.at.b);
          }
          const long long stages = code_stages * code_warps, eights = c.tokens / 8;
          const long long summands = code_warps + (has_scaled_rows(c.form) ? 1 : 0);
          const long long in_table = has_code_table(c.form) ? code_sums_in_table : 0;
          std::vector<std::pair<long long, long long>> used{
              {c.at.ring, stages * bytes_of_unit(c.form)},
              {c.at.scales, stages * bytes_of_unit_scales(c.form, e.scales == dtype::u8)},
              {c.at.nested, c.form == code_form::nested_runs ? 256 * 4 : 0},
              {c.at.factors, c.at.ready + 8 - c.at.factors},
              {c.at.side, rank > 0 ? std::max(4 * 16, rank) * c.tokens * 4LL : 0},
              {c.at.b, rank > 0 ? code_warps * bytes_of_b_rows : 0},
              {c.at.parts, c.splits > 1 ? c.at.phase * eights * code_sum_bytes : 0},
              {c.at.sums, std::max(0LL, c.at.phase * summands * eights - in_table) * code_sum_bytes}};
          if (in_table > 0) used.emplace_back(code_table_at, code_table_ends - code_table_at);
          used.erase(std::remove_if(used.begin(), used.end(), [](const auto& u) { return u.second == 0; }), used.end());
          std::sort(used.begin(), used.end());
          for (std::size_t i = 0; i < used.size(); ++i) {
            CHECK(used[i].first >= code_memory_begins);
            CHECK(used[i].first % 128 == 0);
            CHECK(used[i].first + used[i].second <= (i + 1 < used.size() ? used[i + 1].first : code_memory_ends));
          }
        }
}
TEST_CASE("code choice: few tokens of what the kernels can read, and nothing else") {
  auto groups = [](const encoding& e, long long m, int k, const target& on, dtype type = dtype::bf16) {
    return choose_codes(e, type, m, k, 16, on).groups;
  };
  for (const encoding& e : {nf4_64, double_64, nf4_32, double_32, int8_rows, fp8, q8_0, q4_0}) {
    CHECK(groups(e, 1, 4096, h200) == 1);
    CHECK(groups(e, 16, 14336, h200) == 1);
    CHECK(groups(e, 32, 4096, h200) == 2);
    CHECK(groups(e, 33, 4096, h200) == 0);
    CHECK(groups(e, 1, 4100, h200) == 0);
    CHECK(groups(e, 1, 4096, a100) == 0);
    CHECK(groups(e, 1, 4096, h200, dtype::f32) == 0);
  }
  CHECK(groups({dtype::nf4, scaled_by::run, 4096}, 1, 4096, h200) == 1);
  CHECK(groups(q4_0, 1, 4096 + 64, h200) == 0);
  CHECK(groups({dtype::nf4, scaled_by::row_run, 128}, 1, 4096 + 64, h200) == 0);
}
TEST_CASE("code choice: thread blocks of at most two units leave room for those of the next launch") {
  const auto brief = [](const encoding& e, long long m, int rows, int rank, const target& on) {
    return is_brief(choose_codes(e, dtype::bf16, m, 4096, rank, on), rows, rank, on);
  };
  const target few = device_target("", 90, 16, 8);
  for (const encoding& e : {nf4_64, double_64}) {
    CHECK(brief(e, 1, 4096, 0, h200));
    CHECK(brief(e, 8, 4096, 64, h200));
    CHECK(!brief(e, 9, 4096, 16, h200));         // x has no room
    CHECK(brief(e, 1, 2 * 132 * 16, 16, h200));  // two units for each
    CHECK(!brief(e, 1, 2 * 132 * 16 + 16, 16, h200));
    CHECK(!brief(e, 1, 1024, 0, h200));  // a unit each: nothing to overlap
    CHECK(brief(e, 1, 1024, 64, h200));
    CHECK(!brief(e, 1, 16 * 7, 16, h200));  // fewer blocks than slices of A
    CHECK(!brief(e, 1, 512, 64, few));
    CHECK(brief(e, 1, 512, 32, few));
  }
  CHECK(!brief(nf4_32, 1, 4096, 16, h200));
  CHECK(!brief(int8_rows, 1, 4096, 16, h200));
  static_assert(brief_layout::lower - brief_layout::table == code_table_ends - code_table_at);
  static_assert(brief_layout::scales - brief_layout::lower == 2 * code_warps * bytes_of_unit(code_form::runs) / 2);
  static_assert(brief_layout::nested - brief_layout::scales ==
                2 * code_warps * bytes_of_unit_scales(code_form::runs, false));
}
TEST_CASE("code choice: layers with one input are one launch, and two with the product of their results") {
  const auto layers = [](std::vector<int> n, int k, long long m, int rank) {
    std::vector<product_shape> all;
    for (const int one : n) all.push_back({dtype::bf16, m, one, k, rank}), all.back().stored = nf4_64;
    return all;
  };
  const auto together = [](const std::vector<product_shape>& all, bool gated) {
    return choose_codes_together(all.data(), static_cast<int>(all.size()), gated, h200);
  };
  std::vector<product_shape> qkv = layers({4096, 1024, 1024}, 4096, 16, 16);
  CHECK(together(qkv, false).groups == 1);
  qkv[2].rank = 0;  // has no adapter
  CHECK(together(qkv, false).groups == 1);
  qkv[2].stored = nf4_32;
  CHECK(together(qkv, false).groups == 0);
  qkv[2].stored = {};
  CHECK(together(qkv, false).groups == 0);
  CHECK(together(layers({4096, 1024}, 4096, 17, 16), false).groups == 0);
  const code_choice gate = together(layers({14336, 14336}, 4096, 16, 16), true);
  CHECK(gate.gated);
  CHECK(gate.at.phase % 2 == 0);
  CHECK(together(layers({14336, 14336}, 4096, 16, 64), true).groups == 0);  // S of both has no room
  CHECK(together(layers({14336, 14336}, 4096, 16, 64), false).groups == 1);
  CHECK(together(layers({14336, 14336}, 8192, 16, 16), true).groups == 0);  // blocks share the columns
  CHECK(together(layers({14336, 14336}, 8192, 16, 16), false).groups == 1);
  CHECK(together(layers({14336, 4096}, 4096, 16, 16), true).groups == 0);
}
TEST_CASE("code choice: units are dealt to all thread blocks that there are") {
  const int qkv[] = {256, 64, 64}, gate[] = {896, 896}, small[] = {1, 1, 1};
  CHECK(rounds_of_units(qkv, 3, 132) == 3);
  CHECK(rounds_of_units(gate, 2, 132) == 14);
  CHECK(rounds_of_units(gate, 1, 132) == 7);
  CHECK(rounds_of_units(small, 3, 132) == 1);
}
TEST_CASE(
    "code choice: a layer type counts the kernels that run: one for few tokens, another for S with more than eight, "
    "else one that decodes first") {
  using plan = compile<linear<4096, 4096, nf4<64>, lora<16>>, fullgraph, on<sm_90>>;
  static_assert(plan::kernels_at(8) == 1 && plan::kernels_at(9) == 2 && plan::kernels_at(32) == 2);
  using bare = compile<linear<4096, 4096, nf4<64>>, fullgraph, on<sm_90>>;
  static_assert(bare::kernels_at(8) == 1 && bare::kernels_at(32) == 1);
  static_assert(plan::kernels_at(4096) == 1 + compile<linear<4096, 4096, bf16, lora<16>>, on<sm_90>>::kernels_at(4096));
  std::string all;
  explain<linear<4096, 4096, nf4<64>, lora<16>>, sm_90>([&](const text& t) { all += t.c_str(); }, 1);
  CHECK(all.find("cannot read in less than 2.2 us") != std::string::npos);
}
