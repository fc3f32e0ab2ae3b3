// SPDX-License-Identifier: Apache-2.0
// Dispatch of GEMMs that dequantize in registers, and the layout of their shared memory.
#include <doctest/doctest.h>
#include <graft/backend/gpu/dispatch/quantized.h>
#include <graft/targets.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

using namespace graft;
using namespace graft::gpu;

namespace {

const target h200 = device_target("", 90, 132, 66), a100 = device_target("", 80, 108, 54);
const quant_format nf4_64{dtype::nf4, scale_granularity::flat_block, 64},
    int8_rows{dtype::int8, scale_granularity::row}, nf4_32{dtype::nf4, scale_granularity::flat_block, 32},
    q8_0 = quant_formats::q8_0_format::format(), q4_0 = quant_formats::q4_0_format::format(),
    q4_k = quant_formats::q4_k_format::format();
const quant_format double_32{dtype::nf4, scale_granularity::flat_block,    32, 1,
                             dtype::u8,  quant_formats::double_quant_block},
    double_64{dtype::nf4, scale_granularity::flat_block, 64, 1, dtype::u8, quant_formats::double_quant_block},
    fp8{dtype::f8_e4m3, scale_granularity::tensor};

}  // namespace

TEST_CASE("quantized dispatch: the sections of shared memory do not overlap") {
  for (const quant_format& e : {nf4_64, double_64, nf4_32, double_32, int8_rows, fp8, q8_0, q4_0, q4_k})
    for (const int k : {64, 256, 1088, 4096, 8192, 14336, 32768})
      for (const int rank : {0, 16, 32, 64})
        for (const long long m : {1, 8, 9, 16, 17, 32, 33, 64}) {
          INFO(name_of(e), ", inner size ", k, ", rank ", rank, ", ", m, " tokens");
          const quantized_choice c = choose_quantized(e, dtype::bf16, m, k, rank, h200);
          CHECK((c.groups == 0) == (m > 32 || (e.block_bytes > 0 && k % 256 != 0)));
          if (c.groups == 0) continue;
          CHECK(c.groups * c.tokens >= m);
          CHECK(c.at.ready % 8 == 0);
          CHECK(c.own <= quant_steps);
          CHECK(c.own * c.splits * quant_warps >= k / 64);
          if (c.splits == 1 && (e.scales != dtype::u8 || c.form == quant_layout::nested_block_scales)) {
            const quantized_layout known =
                single_layer_layout(c.form, c.tokens, rank > 0);  // the layout that kernels of whole units assume
            CHECK(known.phase == c.at.phase);
            CHECK(known.ring == c.at.ring);
            CHECK(known.scales == c.at.scales);
            CHECK(known.nested == c.at.nested);
            CHECK(known.ready == c.at.ready);
            CHECK(known.sums == c.at.sums);
            CHECK(known.shrink_out == c.at.shrink_out);
            CHECK(known.b == c.at.b);
          }
          const long long stages = quant_stages * quant_warps, eights = c.tokens / 8;
          const long long summands = quant_warps + (has_row_scales(c.form) ? 1 : 0);
          const long long in_table = has_pair_table(c.form) ? sums_in_table : 0;
          std::vector<std::pair<long long, long long>> used{
              {c.at.ring, stages * unit_weight_bytes(c.form)},
              {c.at.scales, stages * unit_scale_bytes(c.form, e.scales == dtype::u8)},
              {c.at.nested, c.form == quant_layout::nested_block_scales ? 256 * 4 : 0},
              {c.at.ready, 8},
              {c.at.shrink_out, rank > 0 ? std::max(4 * 16, rank) * c.tokens * 4LL : 0},
              {c.at.b, rank > 0 ? quant_warps * b_rows_bytes : 0},
              {c.at.partials, c.splits > 1 ? c.at.phase * eights * unit_sum_bytes : 0},
              {c.at.sums, std::max(0LL, c.at.phase * summands * eights - in_table) * unit_sum_bytes}};
          if (in_table > 0) used.emplace_back(pair_table_begin, pair_table_end - pair_table_begin);
          used.erase(std::remove_if(used.begin(), used.end(), [](const auto& u) { return u.second == 0; }), used.end());
          std::sort(used.begin(), used.end());
          for (std::size_t i = 0; i < used.size(); ++i) {
            CHECK(used[i].first >= quant_smem_begin);
            CHECK(used[i].first % 128 == 0);
            CHECK(used[i].first + used[i].second <= (i + 1 < used.size() ? used[i + 1].first : quant_smem_end));
          }
        }
}
TEST_CASE("quantized dispatch: used for up to 32 tokens of supported formats and sizes only") {
  auto groups = [](const quant_format& e, long long m, int k, const target& on, dtype type = dtype::bf16) {
    return choose_quantized(e, type, m, k, 16, on).groups;
  };
  for (const quant_format& e : {nf4_64, double_64, nf4_32, double_32, int8_rows, fp8, q8_0, q4_0}) {
    CHECK(groups(e, 1, 4096, h200) == 1);
    CHECK(groups(e, 16, 14336, h200) == 1);
    CHECK(groups(e, 32, 4096, h200) == 2);
    CHECK(groups(e, 33, 4096, h200) == 0);
    CHECK(groups(e, 1, 4100, h200) == 0);
    CHECK(groups(e, 1, 4096, a100) == 0);
    CHECK(groups(e, 1, 4096, h200, dtype::f32) == 0);
  }
  CHECK(groups({dtype::nf4, scale_granularity::flat_block, 4096}, 1, 4096, h200) == 1);
  CHECK(groups(q4_0, 1, 4096 + 64, h200) == 0);
  CHECK(groups({dtype::nf4, scale_granularity::row_flat_block, 128}, 1, 4096 + 64, h200) == 0);
}
TEST_CASE("quantized dispatch: layers with one input are one launch, also gate and up with their product") {
  const auto layers = [](std::vector<int> n, int k, long long m, int rank) {
    std::vector<gemm_problem> all;
    for (const int one : n) all.push_back({dtype::bf16, m, one, k, rank}), all.back().stored = nf4_64;
    return all;
  };
  const auto grouped = [](const std::vector<gemm_problem>& all, bool gated) {
    return choose_quantized_grouped(all.data(), static_cast<int>(all.size()), gated, h200);
  };
  std::vector<gemm_problem> qkv = layers({4096, 1024, 1024}, 4096, 16, 16);
  CHECK(grouped(qkv, false).groups == 1);
  qkv[2].rank = 0;  // without adapter
  CHECK(grouped(qkv, false).groups == 1);
  qkv[2].stored = nf4_32;
  CHECK(grouped(qkv, false).groups == 0);
  qkv[2].stored = {};
  CHECK(grouped(qkv, false).groups == 0);
  CHECK(grouped(layers({4096, 1024}, 4096, 17, 16), false).groups == 0);
  const quantized_choice gate = grouped(layers({14336, 14336}, 4096, 16, 16), true);
  CHECK(gate.gated);
  CHECK(gate.at.phase % 2 == 0);
  CHECK(grouped(layers({14336, 14336}, 4096, 16, 64), true).groups == 0);  // no memory for both shrink results
  CHECK(grouped(layers({14336, 14336}, 4096, 16, 64), false).groups == 1);
  CHECK(grouped(layers({14336, 14336}, 8192, 16, 16), true).groups == 0);  // split-K
  CHECK(grouped(layers({14336, 14336}, 8192, 16, 16), false).groups == 1);
  CHECK(grouped(layers({14336, 4096}, 4096, 16, 16), true).groups == 0);
}
TEST_CASE("quantized dispatch: units are distributed over all thread blocks") {
  const int qkv[] = {256, 64, 64}, gate[] = {896, 896}, small[] = {1, 1, 1};
  CHECK(units_per_cluster(qkv, 3, 132) == 3);
  CHECK(units_per_cluster(gate, 2, 132) == 14);
  CHECK(units_per_cluster(gate, 1, 132) == 7);
  CHECK(units_per_cluster(small, 3, 132) == 1);
}
TEST_CASE("quantized dispatch: a layer type states its kernels: one, two with a shrink, or dequantize first") {
  using plan = compile<linear<4096, 4096, nf4<64>, lora<16>>, fullgraph, for_target<sm_90>>;
  static_assert(plan::kernels_at(8) == 1 && plan::kernels_at(9) == 2 && plan::kernels_at(32) == 2);
  using bare = compile<linear<4096, 4096, nf4<64>>, fullgraph, for_target<sm_90>>;
  static_assert(bare::kernels_at(8) == 1 && bare::kernels_at(32) == 1);
  static_assert(plan::kernels_at(4096) ==
                1 + compile<linear<4096, 4096, bf16, lora<16>>, for_target<sm_90>>::kernels_at(4096));
  std::string all;
  explain<linear<4096, 4096, nf4<64>, lora<16>>, sm_90>([&](const text& t) { all += t.c_str(); }, 1);
  CHECK(all.find("cannot read in less than 2.2 us") != std::string::npos);
}

TEST_CASE("quantized dispatch: every layout says what it stores and where its scales are") {
  CHECK(facts_of(quant_layout::none).chunk_bytes == 0);
  CHECK(facts_of(quant_layout::none).scales == scale_layout::nowhere);
  for (int i = 1; i < quant_layout_count; ++i) {
    const auto f = static_cast<quant_layout>(i);
    INFO("layout ", i);
    CHECK(unit_weight_bytes(f) == unit_rows * quant_steps * 2 * facts_of(f).chunk_bytes);
    CHECK(unit_weight_bytes(f) > 0);
    CHECK(has_block_scales(f) + has_short_block_scales(f) + has_row_scales(f) + has_scales_inside(f) +
              has_run_scales(f) ==
          1);
    CHECK((unit_scale_bytes(f, false) > 0) == (has_block_scales(f) || has_short_block_scales(f) || has_run_scales(f)));
  }
  const std::pair<quant_format, quant_layout> known[] = {{nf4_64, quant_layout::block_scales},
                                                         {double_64, quant_layout::nested_block_scales},
                                                         {nf4_32, quant_layout::short_block_scales},
                                                         {int8_rows, quant_layout::int8},
                                                         {fp8, quant_layout::fp8},
                                                         {q8_0, quant_layout::q8_0},
                                                         {q4_0, quant_layout::q4_0},
                                                         {q4_k, quant_layout::q4_k}};
  for (const auto& [format, layout] : known) CHECK(quant_layout_of(format, 4096) == layout);
}

TEST_CASE(
    "quantized dispatch: every format has a skinny kernel or is dequantized first, and none is taken for another") {
  const auto message_of = [](const quant_format& e) {
    const quant_state state{.format = e};
    view v{nullptr, e.type};
    v.quant = &state;
    return std::string(check_gpu_format("blk.0.ffn_up.weight", v).message());
  };
  CHECK(std::string(check_gpu_format("x", view{}).message()).empty());
  for (const quant_format& e : {nf4_64, double_64, int8_rows, fp8, q8_0, q4_0, q4_k}) CHECK(message_of(e).empty());
  int dequantized = 0;
  const auto is_dequantized = [&](const quant_format& e) {
    INFO(name_of(e), " ", bits_of(e.type));
    ++dequantized;
    CHECK(message_of(e).empty());
    for (const int k : {64, 256, 4096}) {
      CHECK(quant_layout_of(e, k) == quant_layout::none);
      for (const int m : {1, 16, 4096}) CHECK(choose_quantized(e, dtype::bf16, m, k, 16, h200).groups == 0);
    }
  };
  quant_formats::ggml_formats::for_each([&](auto f) {
    const quant_format e = f.format();
    if (!(e == q8_0 || e == q4_0 || e == q4_k)) is_dequantized(e);
  });
  CHECK(dequantized == 10);
  is_dequantized(quant_formats::mxfp4_format::format());
  is_dequantized(quant_formats::nvfp4_format::format());
  for (const dtype type : {dtype::u2, dtype::u3, dtype::u4, dtype::u8})
    for (const scale_granularity by : {scale_granularity::block, scale_granularity::column_group})
      is_dequantized({.type = type, .scaled = by, .block = 128, .scales = dtype::f16});
}
TEST_CASE("quantized dispatch: an arrangement that nothing dequantizes is refused by name") {
  quant_format other_block = q4_0, unknown_type = q4_0;
  other_block.block_bytes = 20, unknown_type.block_type = 99;
  for (const quant_format& e :
       {other_block, unknown_type, quant_format{.type = dtype::u4, .scaled = scale_granularity::row},
        quant_format{.type = dtype::f4_e2m1, .scaled = scale_granularity::block, .block = 64},
        quant_format{.type = dtype::f8_e4m3, .scaled = scale_granularity::block, .block = 128, .block_rows = 128},
        quant_format{.type = dtype::f8_e5m2, .scaled = scale_granularity::row}}) {
    const quant_state state{.format = e};
    view v{nullptr, e.type};
    v.quant = &state;
    CHECK(std::string(check_gpu_format("blk.0.ffn_up.weight", v).message()) ==
          std::string("tensor 'blk.0.ffn_up.weight' is stored as ") + name_of(e) +
              " in an arrangement that is not a quantization format of this library; dequantize it, or quantize it "
              "again");
    CHECK(quant_layout_of(e, 4096) != quant_layout::q4_0);
  }
}
