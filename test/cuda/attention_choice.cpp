// SPDX-License-Identifier: Apache-2.0
// Which attention kernels are chosen, without a GPU.
#include <doctest/doctest.h>
#include <graft/targets.h>

using namespace graft;

TEST_CASE("attention_choice: what no kernel takes is a node of its own") {
  const target t = sm_90;
  CHECK(cuda::choose_attention({dtype::bf16, 10, 72, 4, 4}, t).how == cuda::attention_way::node);
  CHECK(cuda::choose_attention({dtype::f32, 10, 128, 4, 4}, t).how == cuda::attention_way::node);
  CHECK(cuda::choose_attention({dtype::bf16, 64, 128, 32, 8, true}, t).how == cuda::attention_way::decode);
  CHECK(cuda::choose_attention({dtype::bf16, 65, 128, 32, 8, true}, t).how == cuda::attention_way::prefill);
  CHECK(cuda::choose_attention({dtype::bf16, 1, 128, 32, 1, true}, t).how == cuda::attention_way::prefill);
  CHECK(cuda::choose_attention_grad({dtype::bf16, 100, 128, 8, 1}, t).launches == 4);
}
TEST_CASE("attention_choice: devices before and after sm_90, and gradients of large heads, take mma.sync") {
  for (const int capability : {80, 86, 89, 100, 120}) {
    const target t = cuda::device_target("", capability, 108, 54);
    const auto prompt = cuda::choose_attention({dtype::bf16, 1000, 128, 32, 8}, t);
    CHECK((prompt.mma && prompt.how == cuda::attention_way::prefill && prompt.launches == 1));
    const auto step = cuda::choose_attention({dtype::bf16, 1, 128, 32, 8, true}, t);
    CHECK((step.mma && step.how == cuda::attention_way::decode && step.parts == 16 && step.launches == 3));
    const auto full = cuda::choose_attention({dtype::bf16, 64, 128, 32, 8, true}, t);
    CHECK((full.mma && full.parts == 1 && full.launches == 2));
    CHECK(cuda::choose_attention({dtype::bf16, 1, 64, 32, 1, true}, t).how == cuda::attention_way::prefill);
    const auto back = cuda::choose_attention_grad({dtype::bf16, 1000, 128, 32, 8}, t);
    CHECK((back.mma && back.launches == 3));
    for (long long rows = 1; rows <= 64; ++rows) {  // what is reserved for the most rows is enough for fewer
      const cuda::attention_size p{dtype::bf16, rows, 128, 32, 8, true}, most{dtype::bf16, 4096, 128, 32, 8, true};
      CHECK(rows * 32 * cuda::choose_attention(p, t).parts * 130 * 4 <= cuda::room_of_decode(most, t));
    }
  }
  CHECK(cuda::choose_attention({dtype::bf16, 10, 128, 4, 4}, cuda::device_target("", 75, 40, 20)).how ==
        cuda::attention_way::node);
  CHECK(cuda::choose_attention_grad({dtype::bf16, 100, 256, 8, 1}, sm_90).mma);
  CHECK(!cuda::choose_attention({dtype::bf16, 100, 256, 8, 1}, sm_90).mma);
  CHECK(!cuda::choose_attention_grad({dtype::bf16, 100, 128, 8, 1}, sm_90).mma);
}
TEST_CASE("attention_choice: decode fills the processors with parts of a row's keys, and no more") {
  const auto parts = [](long long rows, int head = 128) {
    return cuda::choose_attention({dtype::bf16, rows, head, 32, 8, true}, sm_90).parts;
  };
  CHECK(parts(1) == 8);
  CHECK(parts(2) == 6);  // sixteen clusters of eight do not fit
  CHECK(parts(4) == 4);
  CHECK(parts(8) == 2);
  CHECK(parts(16) == 1);
  CHECK(parts(64) == 1);
  const auto parts_of_long = [](long long rows, long long places) {
    cuda::attention_size p{dtype::bf16, rows, 128, 32, 8, true};
    p.places = places;
    return cuda::choose_attention(p, sm_90).parts;
  };
  CHECK(parts_of_long(4, 4 * 1064) == 4);
  CHECK(parts_of_long(4, 4 * 3000) == 6);  // 32 clusters of four, and thirty fit
  CHECK(parts_of_long(1, 8000) == 8);
  const auto small = [](long long rows, long long places, int head = 128) {
    cuda::attention_size p{dtype::bf16, rows, head, 32, 8, true};
    p.places = places;
    return cuda::choose_attention(p, sm_90).small;
  };
  CHECK_FALSE(small(16, 16 * 104));
  CHECK(small(32, 32 * 104));
  CHECK_FALSE(small(32, 32 * 1000));  // two for each processor
  CHECK(small(64, 64 * 1000));
  CHECK_FALSE(small(64, 64 * 1000, 256));
  const auto long_ring = [](long long rows, long long places) {
    cuda::attention_size p{dtype::bf16, rows, 128, 32, 8, true};
    p.places = places;
    return cuda::choose_attention(p, sm_90).long_ring;
  };
  CHECK_FALSE(long_ring(1, 1024));
  CHECK(long_ring(1, 1064));
  CHECK(long_ring(1, 8000));
  CHECK(long_ring(2, 16000));  // sixteen clusters of six: of eight, fifteen fit
  CHECK(long_ring(8, 8 * 2000));
  CHECK(long_ring(16, 16 * 1000));
  CHECK_FALSE(long_ring(16, 16 * 128));
  CHECK_FALSE(long_ring(32, 32 * 1000));
}
TEST_CASE(
    "attention_choice: decode of long rows is in equal pieces, a few less than processors where rows are then cut "
    "alike") {
  const auto pieces = [](long long rows, long long places_of_row, int head = 128) {
    cuda::attention_size p{dtype::bf16, rows, head, 32, 8, true};
    p.places = rows * places_of_row;
    return cuda::choose_attention(p, sm_90).spread;
  };
  CHECK(pieces(1, 8191) == 0);
  CHECK(pieces(1, 8192) == 128);
  CHECK(pieces(1, 8192, 64) == 128);
  CHECK(pieces(1, 1 << 20, 256) == 0);
  CHECK(pieces(3, 8192) == 120);
  CHECK(pieces(4, 4095) == 0);
  CHECK(pieces(4, 4096) == 128);
  CHECK(pieces(6, 4096) == 132);  // 96 or 144 would be cut alike
  CHECK(pieces(16, 1023) == 0);
  CHECK(pieces(16, 1024) == 128);
  CHECK(pieces(17, 1024) == 132);
  CHECK(pieces(33, 1024) == 132);
  CHECK(pieces(64, 1024) == 128);
  const target t = sm_90;
  for (long long rows = 1; rows <= 64; ++rows) {  // what is reserved for the most rows is enough for fewer
    const cuda::attention_size p{dtype::bf16, rows, 128, 32, 8, true}, most{dtype::bf16, 4096, 128, 32, 8, true};
    const int blocks = cuda::choose_spread(p, t).spread;
    CHECK((blocks > 0 && blocks <= t.processors));
    CHECK(blocks * 4 * 132 * 4 <= cuda::room_of_decode(most, t));
    CHECK(rows * 8 * 4 <= cuda::counters_of_decode(most));
  }
}
TEST_CASE("attention_choice: two heads of queries that share keys are a cluster") {
  CHECK(cuda::choose_attention({dtype::bf16, 2048, 128, 32, 8}, sm_90).cluster == 2);
  CHECK(cuda::choose_attention({dtype::bf16, 2048, 128, 28, 4}, sm_90).cluster == 1);
  CHECK(cuda::choose_attention({dtype::bf16, 2048, 64, 32, 8}, sm_90).cluster == 1);
  CHECK(cuda::choose_attention({dtype::bf16, 2048, 128, 32, 8}, sm_90).blocks == 132);
  CHECK(cuda::choose_attention({dtype::bf16, 100, 128, 4, 2}, sm_90).blocks == 4);
}
TEST_CASE("attention_choice: the room of a gradient holds its parts one behind the other") {
  const cuda::attention_room r = cuda::room_of_attention_grad({dtype::bf16, 1000, 128, 32, 8}, sm_90);
  CHECK(r.out == 0);
  CHECK(r.sums >= 1000LL * 32 * 128 * 2);
  CHECK(r.numbers - r.sums >= 1000LL * 32 * 4);
  CHECK(r.spans - r.numbers >= 32LL * 1024 * 2 * 4);
  CHECK(r.bounds - r.spans >= 1024LL * 8);
  CHECK(r.scores - r.bounds >= 16LL * 16);
  CHECK(r.partial - r.scores == 32LL * 16 * 8 * cuda::score_tile_bytes);
  CHECK(r.bytes == r.partial);
  CHECK(cuda::room_of_attention_grad({dtype::bf16, 1000, 256, 32, 8}, sm_90).bytes ==
        cuda::room_of_attention_grad({dtype::bf16, 1000, 256, 32, 8}, sm_90).scores);  // by mma.sync without dS
}
TEST_CASE(
    "attention_choice: dS of as few heads as keep the processors busy, and of parts of the keys where it is long") {
  const auto pieces = [](long long rows, int groups = 8) {
    return cuda::score_pieces_of({dtype::bf16, rows, 128, 4 * groups, groups}, sm_90);
  };
  CHECK(pieces(100).columns == 8);
  CHECK(pieces(2048).columns == 8);
  CHECK(pieces(4096).columns == 4);
  CHECK(pieces(8192).columns == 2);
  CHECK(pieces(8192).count == 4);
  CHECK(pieces(8192).bytes == 8LL * 8192 * 8192 * 2);
  CHECK(pieces(16384).columns == 1);
  CHECK(pieces(16384).tiles == 128);
  CHECK(pieces(32768).tiles == 64);
  CHECK(pieces(32768).count == 8 * 4);
  CHECK(pieces(32768).bytes == 2LL << 30);
  CHECK(pieces(8192, 1).columns == 1);
  for (long long rows = 1; rows < 9000; rows += 61) {  // what the largest call has is enough for smaller ones
    cuda::attention_size p{dtype::bf16, rows, 128, 32, 8};
    p.score_bytes = pieces(9000).bytes;
    const cuda::score_pieces s = cuda::score_pieces_of(p, sm_90);
    CHECK(s.bytes <= p.score_bytes);
    CHECK((s.columns >= 1 && s.columns <= 8 && s.tiles == (rows + 127) / 128));
  }
}
TEST_CASE("attention_choice: where probabilities are dropped it is a node, which can") {
  for (const int span_rows : {3, 5}) {
    builder g;
    const id qkv = g.leaf(op::input, "x", 0, 2, {1}, {1}, {256}, {48 * 128});
    const id span = g.leaf(op::ids, "span", 0, 2, {1}, {1}, {span_rows}, {256});
    const id out = make::attention(g, qkv, span, none_id, {32 * 128}, {128});
    g.give(out, "y");
    const graph made(g);
    const cuda::attention_size p = cuda::attention_size_of(made, out, {}, dtype::bf16);
    CHECK(cuda::choice_of(made, out, p, sm_90).how ==
          (span_rows == 3 ? cuda::attention_way::prefill : cuda::attention_way::node));
  }
}
