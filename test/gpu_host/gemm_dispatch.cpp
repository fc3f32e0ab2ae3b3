// SPDX-License-Identifier: Apache-2.0
// GEMM dispatch, which depends on sizes and device only, so it is tested without a GPU.
#include <doctest/doctest.h>
#include <graft/backend/gpu/dispatch/targets.h>
#include <graft/backend/gpu/kernels/gemm/sm90_layout.h>

#include <bit>
#include <vector>

using namespace graft;
using namespace graft::gpu;

namespace {

const target h200 = device_target("", 90, 132, 66), a100 = device_target("", 80, 108, 54),
             sliver = device_target("", 90, 16, 8);

gemm_choice chosen(long long m, int n, int k, int rank, const target& on = h200, dtype type = dtype::bf16) {
  return choose({type, m, n, k, rank}, on);
}

}  // namespace

TEST_CASE("choose: few tokens run as a skinny GEMM, many as a tiled GEMM, each with its adapter in one launch") {
  for (const long long m : {1, 8, 16, 33, 64}) CHECK(chosen(m, 4096, 4096, 16).path == gemm_path::skinny);
  for (const long long m : {65, 512, 4096, 16384}) {
    CHECK(chosen(m, 4096, 4096, 16).path == gemm_path::gemm);
    CHECK(chosen(m, 4096, 4096, 16).launches == 1);
  }
  CHECK(chosen(4096, 4096, 4096, 256).path == gemm_path::gemm_after_shrink);  // more accumulators than registers
  CHECK(chosen(4096, 4096, 4096, 256).launches == 2);
}
TEST_CASE("choose: sizes that TMA cannot address, and other devices") {
  CHECK(chosen(16, 4096, 4095, 16).path == gemm_path::simt);
  CHECK(chosen(16, 4095, 4096, 16).path == gemm_path::skinny);
  CHECK(chosen(512, 4095, 4096, 16).path == gemm_path::mma);
  CHECK(choose({dtype::bf16, 512, 4096, 4096, 16, false}, h200).path == gemm_path::simt);  // not aligned
  CHECK(chosen(16, 4096, 4096, 16, a100).path == gemm_path::mma);
  CHECK(chosen(512, 4096, 4096, 16, h200, dtype::f32).path == gemm_path::simt);
}
TEST_CASE("choose: rare cases use the kernels with all options") {
  gemm_problem p{dtype::bf16, 16, 4096, 4096, 0};
  CHECK(!choose(p, h200).skinny.any);
  p.prologue = true;
  CHECK(choose(p, h200).skinny.any);
  p.prologue = false, p.plain = false;  // an activation or a residual is not rare
  CHECK(!choose(p, h200).skinny.any);
  p.plain = true, p.n = 4095;
  CHECK(choose(p, h200).skinny.any);
}
TEST_CASE("choose: the workspace is enough for every rank up to the largest") {
  for (const int largest : {16, 64, 128, 256, 1024})
    for (const dtype type : {dtype::bf16, dtype::f32})
      for (int rank = 16; rank <= largest; rank *= 2)
        for (const long long m : {1, 300, 4096})
          CHECK(chosen(m, 4096, 4096, rank, h200, type).workspace_bytes() <= workspace_bound(m, largest));
  CHECK(workspace_bound(4096, 256) <= 4096 * 64 * 36);
}
TEST_CASE("choose: blocks wait for each other only if all are resident") {
  CHECK(owners_are_resident(8, 8, 16, 64));
  CHECK(!owners_are_resident(8, 8, 16, 56));
  CHECK(chosen(4096, 4096, 4096, 16, sliver).path == gemm_path::gemm_after_shrink);  // a sliver of a GPU
  CHECK(chosen(256, 4096, 4096, 16, sliver).path == gemm_path::gemm);      // one row of tiles: its owners start first
  CHECK(chosen(512, 256, 4096, 16).path == gemm_path::gemm_after_shrink);  // too few tiles
  CHECK(chosen(512, 4096, 256, 16).path ==
        gemm_path::gemm_after_shrink);  // the inner axis is too short to share the shrink
}
TEST_CASE("choose: wgrads are fused if they take no longer than the dgrad's tiles") {
  auto fused_wgrads = [](long long m, int out, int in, int rank, const target& on = h200) {
    gemm_problem p{dtype::bf16, m, in, out, rank};
    p.nn = p.stores_shrink = true;
    p.fused_wgrads[0] = {out, rank, false}, p.fused_wgrads[1] = {in, rank, true};
    return choose(p, on);
  };
  CHECK(fused_wgrads(4096, 4096, 4096, 16).fused_wgrads == 3);
  CHECK(fused_wgrads(4096, 4096, 4096, 16).pairs == 64);
  CHECK(fused_wgrads(4096, 4096, 4096, 16).wgrad_blocks == 4);
  CHECK(fused_wgrads(16384, 4096, 4096, 16).fused_wgrads == 3);
  CHECK(fused_wgrads(4096, 4096, 4096, 64).fused_wgrads ==
        1);  // the wgrad that reads T = dy B would take longer than the tiles
  CHECK(fused_wgrads(4096, 14336, 4096, 64).fused_wgrads == 3);  // tiles with a longer inner axis take longer
  CHECK(fused_wgrads(512, 4096, 4096, 16).fused_wgrads == 0);    // narrow tiles
  CHECK(fused_wgrads(4096, 4096, 4096, 256).fused_wgrads == 0);
  CHECK(fused_wgrads(4096, 4096, 4096, 16, a100).fused_wgrads == 0);
  gemm_problem counted{dtype::bf16, 4096, 4096, 4096, 64};
  counted.nn = counted.stores_shrink = true;
  counted.fused_wgrads[0] = {4096, 64, false}, counted.fused_wgrads[1] = {4096, 64, true};
  CHECK(gemm_kernels(counted, h200) == 2);
  counted.outputs_shrink = true, counted.rank = counted.fused_wgrads[0].rank = counted.fused_wgrads[1].rank = 60;
  CHECK(gemm_kernels(counted, h200) == 3);  // padded rows are copied for the caller
}
TEST_CASE("choose: a sum per column is fused into a dgrad with a factor of its input, if it is short enough") {
  gemm_problem p{dtype::bf16, 4096, 4096, 4096, 0};
  p.nn = p.prologue = true, p.fused_wgrads[0] = {4096, 0, false};
  const gemm_choice c = choose(p, h200);
  CHECK((c.path == gemm_path::gemm && c.fused_wgrads == 1 && c.wgrad_blocks == 4 && c.pairs == 64));
  p.fused_wgrads[0].columns = 8192;  // belongs to another GEMM
  CHECK(choose(p, h200).fused_wgrads == 0);
  p.fused_wgrads[0].columns = 4096,
  p.output_rotation = 16;  // also fused into a dgrad with a rotation, if a kernel has both
  CHECK((choose(p, h200).fused_wgrads == 1 && rotation_inside_gemm(p, h200)));
  gemm_kernel_mask without = every_gemm_kernel();
  without.gemms &= ~(1U << gemm_kernel_mask::rotation_bit(true));
  CHECK((choose(p, h200, without).fused_wgrads == 0 && !rotation_inside_gemm(p, h200, without)));
  p.output_rotation = 0, p.prologue = false;
  CHECK(choose(p, h200).fused_wgrads == 0);
  p.prologue = true, p.m = 512;
  CHECK(choose(p, h200).fused_wgrads == 0);
}
TEST_CASE("choose: the shapes of the skinny GEMM give one wave") {
  const int square = 4096, wide = 14336, heads[] = {4096, 1024, 1024}, gate_up[] = {14336, 14336};
  const skinny_choice s = choose_skinny(&square, 1, 1, 4096, 16, 132), w = choose_skinny(&wide, 1, 16, 4096, 16, 132);
  CHECK((s.rows == 64 && s.splits == 2));
  CHECK((w.rows == 112 && w.splits == 1));
  for (const skinny_choice& c :
       {s, w, choose_skinny(heads, 3, 1, 4096, 16, 132), choose_skinny(gate_up, 2, 1, 4096, 16, 132)}) {
    CHECK(c.tiles * c.splits <= 132);
    CHECK(c.tiles * c.splits > 120);
  }
  CHECK(choose_skinny(&square, 1, 1, 48, 16, 132).splits == 1);  // a single step of the inner axis cannot be split
  const skinny_choice any = choose_skinny(&square, 1, 1, 48, 64, 132, true);
  CHECK((any.any && any.rows == fallback_rows));  // this kernel allows splits without a step
}
TEST_CASE("choose: GEMMs with one input are one kernel if each is skinny, with equal padded ranks") {
  gemm_problem qkv[] = {
      {dtype::bf16, 16, 4096, 4096, 16}, {dtype::bf16, 16, 1024, 4096, 16}, {dtype::bf16, 16, 1024, 4096, 16}};
  const skinny_choice c = choose_grouped(qkv, 3, h200);
  CHECK((c.rows == 96 && c.splits == 2 && c.tiles == 65));
  CHECK(choose_grouped(qkv, 3, a100).rows == 0);
  qkv[1].rank = 0;
  CHECK(choose_grouped(qkv, 3, h200).rows == 0);
  qkv[1].rank = 16, qkv[2].n = 1023;
  CHECK(choose_grouped(qkv, 3, h200).rows == 0);
  qkv[2].n = 1024;
  for (gemm_problem& p : qkv) p.m = 65;
  CHECK(choose_grouped(qkv, 3, h200).rows == 0);
}
TEST_CASE(
    "choose: few outputs of many tokens run as a skinny GEMM with swapped operands, unless there is an epilogue") {
  CHECK(chosen(4096, 16, 4096, 0).path == gemm_path::swap_ab);
  CHECK(chosen(4096, 65, 4096, 0).path != gemm_path::swap_ab);
  gemm_problem p{dtype::bf16, 4096, 16, 4096, 0};
  p.epilogue_steps = true;
  CHECK(choose(p, h200).path == gemm_path::gemm);
}
TEST_CASE("choose: GEMMs that are too narrow to fill the device use split-K") {
  const gemm_choice c = chosen(4096, 256, 4096, 0);
  CHECK((c.path == gemm_path::split_k && c.splits == 2 && c.one_block_per_sm && c.launches == 1));
  CHECK_FALSE(chosen(2048, 256, 4096, 0).one_block_per_sm);   // clusters of four
  CHECK(chosen(8192, 256, 4096, 0).path == gemm_path::gemm);  // 128 tiles
  CHECK(chosen(4096, 128, 4096, 0).splits == 4);
  CHECK(chosen(4096, 264, 4096, 0).path == gemm_path::gemm);
  CHECK(chosen(4096, 256, 4096, 0, a100).path == gemm_path::mma);
  gemm_problem p{dtype::bf16, 4096, 256, 4096, 0};
  p.nn = true;
  CHECK(choose(p, h200).path == gemm_path::gemm);
  const gemm_choice branch = chosen(4096, 4096, 4096, 256);
  CHECK((branch.path == gemm_path::gemm_after_shrink && branch.splits == 2 && branch.launches == 2));
}
TEST_CASE("choose: with several waves of tiles that share a branch, the next kernel does not start early") {
  CHECK_FALSE(chosen(4096, 4096, 4096, 16).early);
  CHECK(chosen(4096, 4096, 4096, 0).early);
  CHECK(chosen(512, 4096, 4096, 16).early);    // one wave
  CHECK(chosen(4096, 4096, 4096, 256).early);  // the shrink is a separate launch
}
TEST_CASE("choose: a weight in NN layout, and a stored shrink result") {
  gemm_problem p{dtype::bf16, 16, 4096, 4096, 16};
  p.nn = true;
  const gemm_choice few = choose(p, h200);
  CHECK((few.path == gemm_path::skinny && few.skinny.nn && few.skinny.rows == 64 && few.skinny.splits == 2));
  CHECK(choose(p, a100).path == gemm_path::mma);
  CHECK(gemm_kernels(p, h200) == 1);
  p.stores_shrink = true;
  CHECK(choose(p, h200) == few);
  p.n = 14336;  // as many tiles as fill the device once
  CHECK((choose(p, h200).skinny.rows == 128 && choose(p, h200).skinny.splits == 1));
  p.n = 4096, p.m = 65;
  CHECK(choose(p, h200).path == gemm_path::gemm);
  p.m = 16, p.prologue = true, p.rank = 0;  // a factor per column of dy
  CHECK(choose(p, h200).path == gemm_path::gemm);
  p.prologue = false, p.rank = 16;
  p.n = 4092;  // rows do not begin at multiples of 16 bytes
  CHECK(choose(p, h200).path == gemm_path::simt);
  p.nn = false, p.n = 4096;  // forward in training
  CHECK((choose(p, h200).path == gemm_path::skinny && !choose(p, h200).skinny.nn));
  p.stores_pre_epilogue = true;
  CHECK(choose(p, h200).path == gemm_path::gemm);
  p.stores_pre_epilogue = false;
  const gemm_kernel_mask own = gemm_kernels_for({.n = 4096, .k = 4096, .rank = 16, .nn = true});
  p.nn = true, p.m = 4096;
  CHECK(choose(p, h200, own).path == gemm_path::gemm);
  CHECK(choose(p, sliver, own).path == gemm_path::gemm_after_shrink);
}
TEST_CASE("choose: wgrads use as many thread blocks as there are multiprocessors") {
  const gemm_kernel_mask all = every_gemm_kernel();
  const wgrad_choice c = choose_wgrad({dtype::bf16, 4096, 4096, 16}, h200, all);
  CHECK((c.rank == 16 && c.splits == 4));
  CHECK(choose_wgrad({dtype::bf16, 4096, 4096, 64}, h200, all).rank == 64);
  const wgrad_choice wide = choose_wgrad({dtype::bf16, 4096, 4096, 256}, h200, all);
  CHECK((wide.rank == wide_tile_rank && wide.splits == 2 && wide.one_block_per_sm));
  CHECK_FALSE(choose_wgrad({dtype::bf16, 2048, 2048, 256}, h200, all).one_block_per_sm);   // clusters of four
  CHECK_FALSE(choose_wgrad({dtype::bf16, 4096, 14336, 256}, h200, all).one_block_per_sm);  // 224 tiles
  CHECK(choose_wgrad({dtype::bf16, 4096, 8192, 256}, h200, all).one_block_per_sm);         // 128
  CHECK_FALSE(choose_wgrad({dtype::bf16, 4096, 4096, 16}, h200, all).one_block_per_sm);
  CHECK(choose_wgrad({dtype::bf16, 4096, 14336, 16}, h200, all).splits == 1);
  CHECK(choose_wgrad({dtype::bf16, 100, 4096, 16}, h200, all).splits == 2);  // two steps of 64 tokens
  CHECK(choose_wgrad({dtype::f32, 4096, 4096, 16}, h200, all).rank == 0);
  CHECK(choose_wgrad({dtype::bf16, 4096, 4096, 16, false}, h200, all).rank == 0);
  CHECK(choose_wgrad({dtype::bf16, 4096, 4096, 16}, a100, all).rank == 0);
}
TEST_CASE("choose: the wgrads of A and of B share a launch") {
  const gemm_kernel_mask all = every_gemm_kernel();
  const wgrad_problem both[2] = {{dtype::bf16, 512, 4096, 16}, {dtype::bf16, 512, 4096, 16}};
  const wgrad_choice c = choose_wgrads(both, 2, h200, all);
  CHECK((c.rank == 16 && c.splits == 2));  // 64 tiles
  const wgrad_problem other[2] = {{dtype::bf16, 512, 4096, 16}, {dtype::bf16, 512, 4096, 64}};
  CHECK(choose_wgrads(other, 2, h200, all).rank == 0);  // kernels of other ranks
  const wgrad_problem wide[2] = {{dtype::bf16, 512, 4096, 256}, {dtype::bf16, 512, 4096, 256}};
  CHECK(choose_wgrads(wide, 2, h200, all).rank == 0);
  const wgrad_problem odd[2] = {{dtype::bf16, 512, 4092, 16}, {dtype::bf16, 512, 4096, 16}};
  CHECK(choose_wgrads(odd, 2, h200, all).rank == 0);  // rows without padding do not begin at multiples of 16 bytes
  gemm_problem dgrad{dtype::bf16, 512, 4096, 4096, 16};
  dgrad.nn = dgrad.stores_shrink = true;
  dgrad.fused_wgrads[0] = {4096, 16, false}, dgrad.fused_wgrads[1] = {4096, 16, true};
  CHECK(gemm_kernels(dgrad, h200) == 2);
  dgrad.m = 16;
  CHECK(gemm_kernels(dgrad, h200) == 2);
  dgrad.fused_wgrads[1].columns = 0;
  CHECK(gemm_kernels(dgrad, h200) == 2);
}
TEST_CASE("choose: every kernel has its own bit") {
  const gemm_kernel_mask all = every_gemm_kernel();
  // 3 token counts, 5 shapes, 4 ranks; 224 rows have no memory for rank 64; mma.sync.
  CHECK(std::popcount(all.skinny) == 57 + 1);
  CHECK(std::popcount(all.skinny_nn) == 2 * 4);  // 2 shapes, 4 ranks
  // 2 tiles, 2 layouts of W, 4 ranks and a prologue; wgrads of 3 ranks, also fused; two of a wide rank and dots;
  // rotations.
  CHECK(std::popcount(all.gemms) == 2 * 2 * 5 + 3 + 3 + 3 + 2);
  CHECK(!all.has_skinny(8, shape_index(224, false), 64));
}
TEST_CASE("choose: a layer type compiles the kernels that its sizes need, and they are chosen") {
  for (const int rank : {0, 16, 64, 256})
    for (const bool prologue : {false, true}) {
      if (prologue && rank > 0) continue;
      for (const int n : {1024, 4096, 14336})
        for (const long long m : {1, 16, 64, 65, 512, 4096}) {
          gemm_problem p{dtype::bf16, m, n, 4096, rank};
          p.prologue = prologue;
          const gemm_kernel_mask own = gemm_kernels_for({.n = n, .k = 4096, .rank = rank, .prologue = prologue});
          CHECK(std::popcount(own.skinny) + std::popcount(own.gemms) <= 11);
          for (const target& on : {h200, device_target("", 90, 114, 57)}) {
            const gemm_choice c = choose(p, on, own), best = choose(p, on);
            CHECK(c.path == best.path);
            CHECK(c.skinny.rows == best.skinny.rows);
            if (c.path == gemm_path::gemm || c.path == gemm_path::gemm_after_shrink) CHECK(c.tile_n == best.tile_n);
          }
        }
    }
}
TEST_CASE("choose: kernels that are not compiled are not chosen") {
  const gemm_kernel_mask own = gemm_kernels_for({.n = 4096, .k = 4096, .rank = 16}), none;
  gemm_problem p{dtype::bf16, 16, 4096, 4096, 16};
  CHECK(choose(p, h200, none).path == gemm_path::simt);
  CHECK(choose(p, h200, own).path == gemm_path::skinny);
  p.plain = false;  // an activation does not change the kernel
  CHECK(choose(p, h200, own).path == gemm_path::skinny);
  p.plain = true, p.m = 4096;
  CHECK(choose(p, sliver, own).path == gemm_path::gemm_after_shrink);
}
TEST_CASE("choose: the slices of the owners cover the inner axis once, whatever its length") {
  for (int steps = 8; steps < 70; ++steps)
    for (const int owners : {4, 8}) {
      gemm_args g{};
      g.owners = owners;
      std::vector<int> seen(static_cast<std::size_t>(steps), 0);
      for (int o = 0; o < owners; ++o) {
        const k_slice s = g.slice(o, steps);
        CHECK(s.from < s.to);
        for (int i = s.from; i < s.to; ++i) ++seen[static_cast<std::size_t>((s.start + i) % steps)];
      }
      for (const int n : seen) CHECK(n == 1);
    }
}
TEST_CASE("choose: the order of the tiles visits each once") {
  for (const int m : {1, 300, 4096, 5000})
    for (const int n : {64, 1000, 4096}) {
      gemm_args g{};
      g.m = m, g.n = n, g.tile_n = 256, g.group = 8;
      std::vector<int> seen(static_cast<std::size_t>(g.m_pairs() * g.n_tiles()), 0);
      for (int t = 0; t < g.m_pairs() * g.n_tiles(); ++t) {
        const tile_coord p = g.tile_at(t, 0);
        ++seen[static_cast<std::size_t>(p.m_block / 2 * g.n_tiles() + p.n_tile)];
      }
      for (const int times : seen) CHECK(times == 1);
    }
}
TEST_CASE("choose: gate, up and their elementwise product are one kernel if its tiles fill the device") {
  gemm_problem both[2];
  for (gemm_problem& p : both) p.m = 16, p.n = 14336, p.k = 4096, p.rank = 2 * max_gated_rank;
  const skinny_choice c = choose_gated(both, true, sm_90);
  CHECK(choose_gated(both, false, sm_90).rows == 0);
  CHECK((c.gated && c.rows == gated_tile_rows && c.splits == 1 && c.tiles == 128 && c.tokens == 16));
  both[0].rank = both[1].rank = 64;
  CHECK(choose_gated(both, false, sm_90).rows == 0);
  both[0].rank = both[1].rank = 0;
  CHECK(choose_gated(both, false, sm_90).gated);
  both[1].n = 14338;
  CHECK(choose_gated(both, false, sm_90).rows == 0);
  both[0].n = both[1].n = 512;
  CHECK(choose_gated(both, false, sm_90).rows == 0);
  both[0].n = both[1].n = 14336, both[0].m = both[1].m = 65;
  CHECK(choose_gated(both, false, sm_90).rows == 0);
}
TEST_CASE("choose: adapters of one launch get one rank, small ones of gate and up separate columns") {
  const int uneven[] = {16, 0, 32}, large[] = {16, 128}, gate[] = {16, 0}, none[] = {0, 0}, wide_gate[] = {16, 32};
  CHECK(grouped_rank(uneven, 3, false).rank == 32);
  CHECK(grouped_rank(large, 2, false).rank == 0);
  CHECK((grouped_rank(gate, 2, true).rank == 32 && grouped_rank(gate, 2, true).separate));
  CHECK((grouped_rank(none, 2, true).rank == 0 && !grouped_rank(none, 2, true).separate));
  CHECK((grouped_rank(wide_gate, 2, true).rank == 32 && !grouped_rank(wide_gate, 2, true).separate));
}
