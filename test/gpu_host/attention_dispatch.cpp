// SPDX-License-Identifier: Apache-2.0
// Dispatch of the attention kernels, tested without a GPU.
#include <doctest/doctest.h>
#include <graft/targets.h>

using namespace graft;

TEST_CASE("attention dispatch: sizes without a kernel run as a single node") {
  const target t = sm_90;
  CHECK(gpu::choose_attention({dtype::bf16, 10, 72, 4, 4}, t).path == gpu::attention_path::node);
  CHECK(gpu::choose_attention({dtype::f32, 10, 128, 4, 4}, t).path == gpu::attention_path::node);
  CHECK(gpu::choose_attention({dtype::bf16, 64, 128, 32, 8, true}, t).path == gpu::attention_path::decode);
  CHECK(gpu::choose_attention({dtype::bf16, 65, 128, 32, 8, true}, t).path == gpu::attention_path::prefill);
  CHECK(gpu::choose_attention({dtype::bf16, 1, 128, 32, 1, true}, t).path == gpu::attention_path::prefill);
  CHECK(gpu::choose_attention_grad({dtype::bf16, 100, 128, 8, 1}, t).launches == 4);
}
TEST_CASE("attention dispatch: devices before and after sm_90, and gradients of large heads, use mma.sync") {
  for (const int capability : {80, 86, 89, 100, 120}) {
    const target t = gpu::device_target("", capability, 108, 54);
    const auto prompt = gpu::choose_attention({dtype::bf16, 1000, 128, 32, 8}, t);
    CHECK((prompt.mma && prompt.path == gpu::attention_path::prefill && prompt.launches == 1));
    const auto step = gpu::choose_attention({dtype::bf16, 1, 128, 32, 8, true}, t);
    CHECK((step.mma && step.path == gpu::attention_path::decode && step.kv_splits == 16 && step.launches == 3));
    const auto full = gpu::choose_attention({dtype::bf16, 64, 128, 32, 8, true}, t);
    CHECK((full.mma && full.kv_splits == 1 && full.launches == 2));
    CHECK(gpu::choose_attention({dtype::bf16, 1, 64, 32, 1, true}, t).path == gpu::attention_path::prefill);
    const auto back = gpu::choose_attention_grad({dtype::bf16, 1000, 128, 32, 8}, t);
    CHECK((back.mma && back.launches == 3));
    for (long long rows = 1; rows <= 64; ++rows) {  // the workspace of the most rows is enough for fewer
      const gpu::attention_size p{dtype::bf16, rows, 128, 32, 8, true}, most{dtype::bf16, 4096, 128, 32, 8, true};
      CHECK(rows * 32 * gpu::choose_attention(p, t).kv_splits * 130 * 4 <= gpu::decode_workspace_bytes(most, t));
    }
  }
  CHECK(gpu::choose_attention({dtype::bf16, 10, 128, 4, 4}, gpu::device_target("", 75, 40, 20)).path ==
        gpu::attention_path::node);
  CHECK(gpu::choose_attention_grad({dtype::bf16, 100, 256, 8, 1}, sm_90).mma);
  CHECK(!gpu::choose_attention({dtype::bf16, 100, 256, 8, 1}, sm_90).mma);
  CHECK(!gpu::choose_attention_grad({dtype::bf16, 100, 128, 8, 1}, sm_90).mma);
}
TEST_CASE("attention dispatch: decode splits the keys of a row until the SMs are filled") {
  const auto kv_splits = [](long long rows, int head = 128) {
    return gpu::choose_attention({dtype::bf16, rows, head, 32, 8, true}, sm_90).kv_splits;
  };
  CHECK(kv_splits(1) == 8);
  CHECK(kv_splits(2) == 6);  // sixteen clusters of eight are not resident
  CHECK(kv_splits(4) == 4);
  CHECK(kv_splits(8) == 2);
  CHECK(kv_splits(16) == 1);
  CHECK(kv_splits(64) == 1);
  const auto splits_of_long = [](long long rows, long long slots) {
    gpu::attention_size p{dtype::bf16, rows, 128, 32, 8, true};
    p.slots = slots;
    return gpu::choose_attention(p, sm_90).kv_splits;
  };
  CHECK(splits_of_long(4, 4 * 1064) == 4);
  CHECK(splits_of_long(4, 4 * 3000) == 6);  // 32 clusters of four, of which thirty are resident
  CHECK(splits_of_long(1, 8000) == 8);
  const auto small = [](long long rows, long long slots, int head = 128) {
    gpu::attention_size p{dtype::bf16, rows, head, 32, 8, true};
    p.slots = slots;
    return gpu::choose_attention(p, sm_90).small;
  };
  CHECK_FALSE(small(16, 16 * 104));
  CHECK(small(32, 32 * 104));
  CHECK_FALSE(small(32, 32 * 1000));  // two blocks per SM
  CHECK(small(64, 64 * 1000));
  CHECK_FALSE(small(64, 64 * 1000, 256));
  const auto long_pipeline = [](long long rows, long long slots) {
    gpu::attention_size p{dtype::bf16, rows, 128, 32, 8, true};
    p.slots = slots;
    return gpu::choose_attention(p, sm_90).long_pipeline;
  };
  CHECK_FALSE(long_pipeline(1, 1024));
  CHECK(long_pipeline(1, 1064));
  CHECK(long_pipeline(1, 8000));
  CHECK(long_pipeline(2, 16000));  // sixteen clusters of six; of eight only fifteen are resident
  CHECK(long_pipeline(8, 8 * 2000));
  CHECK(long_pipeline(16, 16 * 1000));
  CHECK_FALSE(long_pipeline(16, 16 * 128));
  CHECK_FALSE(long_pipeline(32, 32 * 1000));
}
TEST_CASE("attention dispatch: split-KV in equal chunks, fewer than SMs if that cuts all rows alike") {
  const auto chunks = [](long long rows, long long slots_per_row, int head = 128) {
    gpu::attention_size p{dtype::bf16, rows, head, 32, 8, true};
    p.slots = rows * slots_per_row;
    return gpu::choose_attention(p, sm_90).split_kv_blocks;
  };
  CHECK(chunks(1, 8191) == 0);
  CHECK(chunks(1, 8192) == 128);
  CHECK(chunks(1, 8192, 64) == 128);
  CHECK(chunks(1, 1 << 20, 256) == 0);
  CHECK(chunks(3, 8192) == 120);
  CHECK(chunks(4, 4095) == 0);
  CHECK(chunks(4, 4096) == 128);
  CHECK(chunks(6, 4096) == 132);  // only 96 or 144 would cut all rows alike
  CHECK(chunks(16, 1023) == 0);
  CHECK(chunks(16, 1024) == 128);
  CHECK(chunks(17, 1024) == 132);
  CHECK(chunks(33, 1024) == 132);
  CHECK(chunks(64, 1024) == 128);
  const target t = sm_90;
  for (long long rows = 1; rows <= 64; ++rows) {  // the workspace of the most rows is enough for fewer
    const gpu::attention_size p{dtype::bf16, rows, 128, 32, 8, true}, most{dtype::bf16, 4096, 128, 32, 8, true};
    const int blocks = gpu::choose_split_kv(p, t).split_kv_blocks;
    CHECK((blocks > 0 && blocks <= t.sm_count));
    CHECK(blocks * 4 * 132 * 4 <= gpu::decode_workspace_bytes(most, t));
    CHECK(rows * 8 * 4 <= gpu::decode_counter_bytes(most));
  }
}
TEST_CASE("attention dispatch: two query heads that share keys are a cluster") {
  CHECK(gpu::choose_attention({dtype::bf16, 2048, 128, 32, 8}, sm_90).cluster == 2);
  CHECK(gpu::choose_attention({dtype::bf16, 2048, 128, 28, 4}, sm_90).cluster == 1);
  CHECK(gpu::choose_attention({dtype::bf16, 2048, 64, 32, 8}, sm_90).cluster == 1);
  CHECK(gpu::choose_attention({dtype::bf16, 2048, 128, 32, 8}, sm_90).blocks == 132);
  CHECK(gpu::choose_attention({dtype::bf16, 100, 128, 4, 2}, sm_90).blocks == 4);
}
TEST_CASE("attention dispatch: the sections of the backward workspace follow each other") {
  const gpu::attention_backward_workspace r =
      gpu::attention_backward_workspace_of({dtype::bf16, 1000, 128, 32, 8}, sm_90);
  CHECK(r.out == 0);
  CHECK(r.lse >= 1000LL * 32 * 128 * 2);
  CHECK(r.numbers - r.lse >= 1000LL * 32 * 4);
  CHECK(r.ranges - r.numbers >= 32LL * 1024 * 2 * 4);
  CHECK(r.key_bounds - r.ranges >= 1024LL * 8);
  CHECK(r.scores - r.key_bounds >= 16LL * 16);
  CHECK(r.partial - r.scores == 32LL * 16 * 8 * gpu::ds_tile_bytes);
  CHECK(r.bytes == r.partial);
  CHECK(gpu::attention_backward_workspace_of({dtype::bf16, 1000, 256, 32, 8}, sm_90).bytes ==
        gpu::attention_backward_workspace_of({dtype::bf16, 1000, 256, 32, 8}, sm_90).scores);  // mma.sync needs no dS
}
TEST_CASE("attention dispatch: dS has slabs of as few heads as fill the SMs, and of keys if it is long") {
  const auto chunks = [](long long rows, int kv_heads = 8) {
    return gpu::ds_slabs_of({dtype::bf16, rows, 128, 4 * kv_heads, kv_heads}, sm_90);
  };
  CHECK(chunks(100).columns == 8);
  CHECK(chunks(2048).columns == 8);
  CHECK(chunks(4096).columns == 4);
  CHECK(chunks(8192).columns == 2);
  CHECK(chunks(8192).count == 4);
  CHECK(chunks(8192).bytes == 8LL * 8192 * 8192 * 2);
  CHECK(chunks(16384).columns == 1);
  CHECK(chunks(16384).tiles == 128);
  CHECK(chunks(32768).tiles == 64);
  CHECK(chunks(32768).count == 8 * 4);
  CHECK(chunks(32768).bytes == 2LL << 30);
  CHECK(chunks(8192, 1).columns == 1);
  for (long long rows = 1; rows < 9000; rows += 61) {  // the bytes of the largest call are enough for smaller ones
    gpu::attention_size p{dtype::bf16, rows, 128, 32, 8};
    p.ds_bytes = chunks(9000).bytes;
    const gpu::ds_slabs s = gpu::ds_slabs_of(p, sm_90);
    CHECK(s.bytes <= p.ds_bytes);
    CHECK((s.columns >= 1 && s.columns <= 8 && s.tiles == (rows + 127) / 128));
  }
}
TEST_CASE("attention dispatch: soft caps and sinks have kernels, in rows of whole 16-byte vectors") {
  for (const target& t : {sm_90, gpu::device_target("", 80, 108, 54)})
    for (const int head : gpu::attention_heads) {
      gpu::attention_size prompt{dtype::bf16, 1000, head, 64, 8}, step{dtype::bf16, 4, head, 64, 8, true};
      const auto plain_prompt = gpu::choose_attention(prompt, t), plain_step = gpu::choose_attention(step, t),
                 plain_grad = gpu::choose_attention_grad(prompt, t);
      CHECK(plain_prompt.path == gpu::attention_path::prefill);
      CHECK(plain_step.path == gpu::attention_path::decode);
      CHECK(plain_grad.path == gpu::attention_path::prefill);
      for (gpu::attention_size* p : {&prompt, &step}) p->soft_cap = 50, p->sinks = true;
      CHECK(gpu::choose_attention(prompt, t) == plain_prompt);
      CHECK(gpu::choose_attention(step, t) == plain_step);
      CHECK(gpu::choose_attention_grad(prompt, t) == plain_grad);
      CHECK(prompt.row_elements() == 80 * head + 64);
      for (gpu::attention_size* p : {&prompt, &step}) p->heads = 12, p->kv_heads = 4;
      CHECK(gpu::choose_attention(prompt, t).path == gpu::attention_path::node);
      CHECK(gpu::choose_attention(step, t).path == gpu::attention_path::node);
      prompt.sinks = false;
      CHECK(gpu::choose_attention(prompt, t).path == gpu::attention_path::prefill);
    }
}
TEST_CASE("attention dispatch: the options of an attention node reach the kernels") {
  for (const bool sinks : {false, true})
    for (const double cap : {0.0, 50.0}) {
      builder g;
      const id qkv = g.leaf(op::input, "x", 0, 2, {1}, {1}, {256}, {80 * 64 + (sinks ? 64 : 0)});
      const id span = g.leaf(op::ids, "attention_range", 0, 2, {1}, {1}, {3}, {256});
      const id up = g.leaf(op::input, "dy", 0, 2, {1}, {1}, {256}, {64 * 64});
      const id out = make_node::attention(g, qkv, span, none_id, {64 * 64}, {64}, 0, {cap, sinks});
      const id grad = make_node::attention_grad(g, qkv, span, up, out);
      g.add_output(out, "y"), g.add_output(grad, "dx");
      const graph made(g);
      for (const id i : {out, grad}) {
        const gpu::attention_size p = gpu::attention_size_of(made, i, {}, dtype::bf16);
        CHECK((p.heads == 64 && p.kv_heads == 8 && p.soft_cap == cap && p.sinks == sinks));
        CHECK(gpu::choice_of(made, i, p, sm_90).path == gpu::attention_path::prefill);
      }
    }
}
TEST_CASE("attention dispatch: with dropout of probabilities attention runs as a single node") {
  for (const int span_rows : {3, 5}) {
    builder g;
    const id qkv = g.leaf(op::input, "x", 0, 2, {1}, {1}, {256}, {48 * 128});
    const id span = g.leaf(op::ids, "attention_range", 0, 2, {1}, {1}, {span_rows}, {256});
    const id out = make_node::attention(g, qkv, span, none_id, {32 * 128}, {128});
    g.add_output(out, "y");
    const graph made(g);
    const gpu::attention_size p = gpu::attention_size_of(made, out, {}, dtype::bf16);
    CHECK(gpu::choice_of(made, out, p, sm_90).path ==
          (span_rows == 3 ? gpu::attention_path::prefill : gpu::attention_path::node));
  }
}
