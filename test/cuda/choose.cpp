// SPDX-License-Identifier: Apache-2.0
// Which kernels are chosen: a function of sizes and device, so it is tested where there is no GPU.
#include <doctest/doctest.h>
#include <graft/backend/cuda/gemm_shape.h>
#include <graft/backend/cuda/kernels_for.h>
#include <graft/backend/cuda/targets.h>

#include <bit>
#include <vector>

using namespace graft;
using namespace graft::cuda;

namespace {

const target h200 = device_target("", 90, 132, 66), a100 = device_target("", 80, 108, 54),
             sliver = device_target("", 90, 16, 8);

linear_choice chosen(long long m, int n, int k, int rank, const target& on = h200, dtype type = dtype::bf16) {
  return choose({type, m, n, k, rank}, on);
}

}  // namespace

TEST_CASE("choose: few tokens stream, many are multiplied in tiles, each with its adapter in one launch") {
  for (const long long m : {1, 8, 16, 33, 64}) CHECK(chosen(m, 4096, 4096, 16).how == way::stream);
  for (const long long m : {65, 512, 4096, 16384}) {
    CHECK(chosen(m, 4096, 4096, 16).how == way::gemm);
    CHECK(chosen(m, 4096, 4096, 16).launches == 1);
  }
  CHECK(chosen(4096, 4096, 4096, 256).how == way::gemm_two);  // more accumulators than there are registers
  CHECK(chosen(4096, 4096, 4096, 256).launches == 2);
}
TEST_CASE("choose: sizes that the copy engine cannot address, and other devices") {
  CHECK(chosen(16, 4096, 4095, 16).how == way::simt);
  CHECK(chosen(16, 4095, 4096, 16).how == way::stream);
  CHECK(chosen(512, 4095, 4096, 16).how == way::mma);
  CHECK(choose({dtype::bf16, 512, 4096, 4096, 16, false}, h200).how == way::simt);  // not aligned
  CHECK(chosen(16, 4096, 4096, 16, a100).how == way::mma);
  CHECK(chosen(512, 4096, 4096, 16, h200, dtype::f32).how == way::simt);
}
TEST_CASE("choose: what is rarely wanted takes the kernels that can do everything") {
  product_shape p{dtype::bf16, 16, 4096, 4096, 0};
  CHECK(!choose(p, h200).stream.any);
  p.pre = true;
  CHECK(choose(p, h200).stream.any);
  p.pre = false, p.plain = false;  // an activation or a residual is not rare
  CHECK(!choose(p, h200).stream.any);
  p.plain = true, p.n = 4095;
  CHECK(choose(p, h200).stream.any);
}
TEST_CASE(
    "choose: the workspace is enough for every rank up to the largest one, and not reserved for parts of large S") {
  for (const int largest : {16, 64, 128, 256, 1024})
    for (const dtype type : {dtype::bf16, dtype::f32})
      for (int rank = 16; rank <= largest; rank *= 2)
        for (const long long m : {1, 300, 4096})
          CHECK(chosen(m, 4096, 4096, rank, h200, type).workspace_bytes() <= workspace_bound(m, largest));
  CHECK(workspace_bound(4096, 256) <= 4096 * 64 * 36);
}
TEST_CASE("choose: blocks that wait for each other only where they are all resident") {
  CHECK(owners_are_resident(8, 8, 16, 64));
  CHECK(!owners_are_resident(8, 8, 16, 56));
  CHECK(chosen(4096, 4096, 4096, 16, sliver).how == way::gemm_two);  // a sliver of a GPU
  CHECK(chosen(256, 4096, 4096, 16, sliver).how == way::gemm);       // one row of tiles: its owners come first
  CHECK(chosen(512, 256, 4096, 16).how == way::gemm_two);            // too few tiles to share the work
  CHECK(chosen(512, 4096, 256, 16).how == way::gemm_two);            // too short an inner axis to share
}
TEST_CASE("choose: sums run beside a data gradient as long as its tiles take") {
  auto beside = [](long long m, int out, int in, int rank, const target& on = h200) {
    product_shape p{dtype::bf16, m, in, out, rank};
    p.across = p.keeps = true;
    p.beside[0] = {out, rank, false}, p.beside[1] = {in, rank, true};
    return choose(p, on);
  };
  CHECK(beside(4096, 4096, 4096, 16).beside == 3);
  CHECK(beside(4096, 4096, 4096, 16).pairs == 64);
  CHECK(beside(4096, 4096, 4096, 16).beside_blocks == 4);
  CHECK(beside(16384, 4096, 4096, 16).beside == 3);
  CHECK(beside(4096, 4096, 4096, 64).beside == 1);   // the one that waits for S would take longer than the tiles
  CHECK(beside(4096, 14336, 4096, 64).beside == 3);  // deeper tiles take longer
  CHECK(beside(512, 4096, 4096, 16).beside == 0);    // narrow tiles
  CHECK(beside(4096, 4096, 4096, 256).beside == 0);
  CHECK(beside(4096, 4096, 4096, 16, a100).beside == 0);
  product_shape counted{dtype::bf16, 4096, 4096, 4096, 64};
  counted.across = counted.keeps = true;
  counted.beside[0] = {4096, 64, false}, counted.beside[1] = {4096, 64, true};
  CHECK(product_kernels(counted, h200) == 2);
  counted.gives_side = true, counted.rank = counted.beside[0].rank = counted.beside[1].rank = 60;
  CHECK(product_kernels(counted, h200) == 3);  // rows with padding are copied for the caller
}
TEST_CASE(
    "choose: a sum per column runs beside a data gradient with a factor of its input, as long as its tiles take") {
  product_shape p{dtype::bf16, 4096, 4096, 4096, 0};
  p.across = p.pre = true, p.beside[0] = {4096, 0, false};
  const linear_choice c = choose(p, h200);
  CHECK((c.how == way::gemm && c.beside == 1 && c.beside_blocks == 4 && c.pairs == 64));
  p.beside[0].columns = 8192;  // of another product
  CHECK(choose(p, h200).beside == 0);
  p.beside[0].columns = 4096,
  p.turned = 16;  // and beside one with a rotation behind it, where there is a kernel for both
  CHECK((choose(p, h200).beside == 1 && turns_inside(p, h200)));
  kernel_list without = every_kernel();
  without.gemms &= ~(1U << kernel_list::turn_bit(true));
  CHECK((choose(p, h200, without).beside == 0 && !turns_inside(p, h200, without)));
  p.turned = 0, p.pre = false;
  CHECK(choose(p, h200).beside == 0);
  p.pre = true, p.m = 512;
  CHECK(choose(p, h200).beside == 0);
}
TEST_CASE("choose: the shapes of the stream kernels keep the device busy once") {
  const int square = 4096, wide = 14336, heads[] = {4096, 1024, 1024}, gate_up[] = {14336, 14336};
  const stream_choice s = choose_stream(&square, 1, 1, 4096, 16, 132), w = choose_stream(&wide, 1, 16, 4096, 16, 132);
  CHECK((s.rows == 64 && s.splits == 2));
  CHECK((w.rows == 112 && w.splits == 1));
  for (const stream_choice& c :
       {s, w, choose_stream(heads, 3, 1, 4096, 16, 132), choose_stream(gate_up, 2, 1, 4096, 16, 132)}) {
    CHECK(c.tiles * c.splits <= 132);
    CHECK(c.tiles * c.splits > 120);
  }
  CHECK(choose_stream(&square, 1, 1, 48, 16, 132).splits == 1);  // one step of the inner axis cannot be split
  const stream_choice any = choose_stream(&square, 1, 1, 48, 64, 132, true);
  CHECK((any.any && any.rows == any_rows));  // a part may be without a step there
}
TEST_CASE("choose: products with one input are one kernel where each streams, with the same padded rank") {
  product_shape qkv[] = {
      {dtype::bf16, 16, 4096, 4096, 16}, {dtype::bf16, 16, 1024, 4096, 16}, {dtype::bf16, 16, 1024, 4096, 16}};
  const stream_choice c = choose_together(qkv, 3, h200);
  CHECK((c.rows == 96 && c.splits == 2 && c.tiles == 65));
  CHECK(choose_together(qkv, 3, a100).rows == 0);
  qkv[1].rank = 0;
  CHECK(choose_together(qkv, 3, h200).rows == 0);
  qkv[1].rank = 16, qkv[2].n = 1023;
  CHECK(choose_together(qkv, 3, h200).rows == 0);
  qkv[2].n = 1024;
  for (product_shape& p : qkv) p.m = 65;
  CHECK(choose_together(qkv, 3, h200).rows == 0);
}
TEST_CASE("choose: few outputs of many tokens stream along the tokens, unless something stands behind the product") {
  CHECK(chosen(4096, 16, 4096, 0).how == way::narrow);
  CHECK(chosen(4096, 65, 4096, 0).how != way::narrow);
  product_shape p{dtype::bf16, 4096, 16, 4096, 0};
  p.posts = true;
  CHECK(choose(p, h200).how == way::gemm);
}
TEST_CASE("choose: products that are too narrow to fill the device are cut along their depth") {
  const linear_choice c = chosen(4096, 256, 4096, 0);
  CHECK((c.how == way::by_parts && c.parts == 2 && c.parts_alone && c.launches == 1));
  CHECK_FALSE(chosen(2048, 256, 4096, 0).parts_alone);  // clusters of four
  CHECK(chosen(8192, 256, 4096, 0).how == way::gemm);   // 128 tiles
  CHECK(chosen(4096, 128, 4096, 0).parts == 4);
  CHECK(chosen(4096, 264, 4096, 0).how == way::gemm);
  CHECK(chosen(4096, 256, 4096, 0, a100).how == way::mma);
  product_shape p{dtype::bf16, 4096, 256, 4096, 0};
  p.across = true;
  CHECK(choose(p, h200).how == way::gemm);
  const linear_choice branch = chosen(4096, 4096, 4096, 256);
  CHECK((branch.how == way::gemm_two && branch.parts == 2 && branch.launches == 2));
}
TEST_CASE("choose: where tiles of several waves make a side branch together, all of them begin together") {
  CHECK_FALSE(chosen(4096, 4096, 4096, 16).early);
  CHECK(chosen(4096, 4096, 4096, 0).early);
  CHECK(chosen(512, 4096, 4096, 16).early);    // one wave
  CHECK(chosen(4096, 4096, 4096, 256).early);  // S is a launch of its own
}
TEST_CASE("choose: a weight that lies across, and a side branch that is kept") {
  product_shape p{dtype::bf16, 16, 4096, 4096, 16};
  p.across = true;
  CHECK(choose(p, h200).how == way::gemm);
  CHECK(choose(p, a100).how == way::mma);
  CHECK_FALSE(streams_across(p, h200));  // a side branch
  p.rank = 0;
  CHECK(streams_across(p, h200));
  CHECK(product_kernels(p, h200) == 1);
  p.posts = true;
  CHECK_FALSE(streams_across(p, h200));
  p.posts = false, p.m = 17;
  CHECK_FALSE(streams_across(p, h200));
  p.m = 16, p.type = dtype::f32;
  CHECK_FALSE(streams_across(p, h200));
  p.type = dtype::bf16, p.rank = 16;
  p.n = 4092;  // its rows begin at no multiple of 16 bytes
  CHECK(choose(p, h200).how == way::simt);
  p.across = false, p.keeps = true, p.n = 4096;
  CHECK(choose(p, h200).how == way::gemm);
  const kernel_list own = kernels_for(4096, 4096, 16, false, true);
  p.across = true, p.m = 4096;
  CHECK(choose(p, h200, own).how == way::gemm);
  CHECK(choose(p, sliver, own).how == way::gemm_two);
}
TEST_CASE("choose: sums over tokens take as many thread blocks as there are multiprocessors") {
  const kernel_list all = every_kernel();
  const sum_choice c = choose_sum({dtype::bf16, 4096, 4096, 16}, h200, all);
  CHECK((c.rank == 16 && c.parts == 4));
  CHECK(choose_sum({dtype::bf16, 4096, 4096, 64}, h200, all).rank == 64);
  const sum_choice wide = choose_sum({dtype::bf16, 4096, 4096, 256}, h200, all);
  CHECK((wide.rank == wide_rank && wide.parts == 2 && wide.alone));
  CHECK_FALSE(choose_sum({dtype::bf16, 2048, 2048, 256}, h200, all).alone);   // clusters of four
  CHECK_FALSE(choose_sum({dtype::bf16, 4096, 14336, 256}, h200, all).alone);  // 224 tiles
  CHECK(choose_sum({dtype::bf16, 4096, 8192, 256}, h200, all).alone);         // 128
  CHECK_FALSE(choose_sum({dtype::bf16, 4096, 4096, 16}, h200, all).alone);
  CHECK(choose_sum({dtype::bf16, 4096, 14336, 16}, h200, all).parts == 1);
  CHECK(choose_sum({dtype::bf16, 100, 4096, 16}, h200, all).parts == 2);  // two steps of 64 tokens
  CHECK(choose_sum({dtype::f32, 4096, 4096, 16}, h200, all).rank == 0);
  CHECK(choose_sum({dtype::bf16, 4096, 4096, 16, false}, h200, all).rank == 0);
  CHECK(choose_sum({dtype::bf16, 4096, 4096, 16}, a100, all).rank == 0);
}
TEST_CASE("choose: every kernel has a bit of its own") {
  const kernel_list all = every_kernel();
  // 3 numbers of tokens, 5 shapes, 4 ranks; 224 rows leave no room for 64; few rows by a weight that lies across; mma.sync
  CHECK(std::popcount(all.streams) == 57 + 2);
  CHECK(all.has_across());
  // 2 tiles, W either way, 4 ranks and a pre slot; sums of 3 ranks, and beside; two of a wide rank and dots; rotations
  CHECK(std::popcount(all.gemms) == 2 * 2 * 5 + 3 + 3 + 3 + 2);
  CHECK(!all.has_stream(8, shape_index(224, false), 64));
}
TEST_CASE("choose: a layer type compiles the kernels that its sizes want, and they are taken") {
  for (const int rank : {0, 16, 64, 256})
    for (const bool pre : {false, true}) {
      if (pre && rank > 0) continue;
      for (const int n : {1024, 4096, 14336})
        for (const long long m : {1, 16, 64, 65, 512, 4096}) {
          product_shape p{dtype::bf16, m, n, 4096, rank};
          p.pre = pre;
          const kernel_list own = kernels_for(n, 4096, rank, pre);
          CHECK(std::popcount(own.streams) + std::popcount(own.gemms) <= 11);
          for (const target& on : {h200, device_target("", 90, 114, 57)}) {
            const linear_choice c = choose(p, on, own), best = choose(p, on);
            CHECK(c.how == best.how);
            CHECK(c.stream.rows == best.stream.rows);
            if (c.how == way::gemm || c.how == way::gemm_two) CHECK(c.tile_n == best.tile_n);
          }
        }
    }
}
TEST_CASE("choose: what is not compiled is not chosen") {
  const kernel_list own = kernels_for(4096, 4096, 16, false), none;
  product_shape p{dtype::bf16, 16, 4096, 4096, 16};
  CHECK(choose(p, h200, none).how == way::simt);
  CHECK(choose(p, h200, own).how == way::stream);
  p.plain = false;  // an activation: the same kernels
  CHECK(choose(p, h200, own).how == way::stream);
  p.plain = true, p.m = 4096;
  CHECK(choose(p, sliver, own).how == way::gemm_two);
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
        const tile_place p = g.place(t, 0);
        ++seen[static_cast<std::size_t>(p.m_block / 2 * g.n_tiles() + p.n_tile)];
      }
      for (const int times : seen) CHECK(times == 1);
    }
}
TEST_CASE("choose: two layers with their product in one kernel, where its tiles fill the device") {
  product_shape both[2];
  for (product_shape& p : both) p.m = 16, p.n = 14336, p.k = 4096, p.rank = 2 * gated_rank;
  const stream_choice c = choose_gated(both, true, sm_90);
  CHECK(choose_gated(both, false, sm_90).rows == 0);
  CHECK((c.gated && c.rows == gated_rows && c.splits == 1 && c.tiles == 128 && c.tokens == 16));
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
TEST_CASE("choose: adapters of one launch get one rank, small ones of a gate columns of their own") {
  const int uneven[] = {16, 0, 32}, large[] = {16, 128}, gate[] = {16, 0}, none[] = {0, 0}, wide_gate[] = {16, 32};
  CHECK(rank_together(uneven, 3, false).rank == 32);
  CHECK(rank_together(large, 2, false).rank == 0);
  CHECK((rank_together(gate, 2, true).rank == 32 && rank_together(gate, 2, true).apart));
  CHECK((rank_together(none, 2, true).rank == 0 && !rank_together(none, 2, true).apart));
  CHECK((rank_together(wide_gate, 2, true).rank == 32 && !rank_together(wide_gate, 2, true).apart));
}
