// SPDX-License-Identifier: Apache-2.0
// Dispatch of multi-LoRA batches: a kernel whose thread blocks are all resident, or none.
#include <doctest/doctest.h>
#include <graft/backend/gpu/dispatch/multi_lora.h>
#include <graft/backend/gpu/dispatch/targets.h>

using namespace graft;
using namespace graft::gpu;

namespace {

const target h200 = device_target("", 90, 132, 66), a100 = device_target("", 80, 108, 54),
             sliver = device_target("", 90, 16, 8);

skinny_choice chosen(long long m, int n, int k, const target& on = h200, dtype type = dtype::bf16) {
  const gemm_problem p{type, m, n, k, 0};
  return choose_multi_lora(&p, 1, on);
}

}  // namespace

TEST_CASE("multi-LoRA dispatch: projections of a large model are one launch, whose blocks are all resident") {
  for (const long long m : {1, 16, 17, 64})
    for (const int n : {1024, 4096, 6144, 14336}) {
      const skinny_choice c = chosen(m, n, 4096);
      CAPTURE(m);
      CAPTURE(n);
      CHECK(c.rows > 0);
      CHECK(c.tokens >= m);
      CHECK(c.tiles * c.rows >= n);
      CHECK(c.tiles * c.splits <= 132);
      CHECK(multi_lora_index(c.tokens, c.rows, 1) == (m <= 16 ? 0 : multi_lora_shapes) + shape_index(c.rows, false));
      CHECK(multi_lora_index(c.tokens, c.rows, 3) == multi_lora_index(c.tokens, c.rows, 1) + 2 * multi_lora_shapes);
    }
  CHECK(chosen(64, 4096, 4096).rows == 64);
  CHECK(chosen(64, 14336, 4096).rows == 112);
}

TEST_CASE("multi-LoRA dispatch: Q, K and V are segments of one launch; gate and up would not all be resident") {
  const gemm_problem qkv[] = {
      {dtype::bf16, 64, 4096, 4096, 0}, {dtype::bf16, 64, 1024, 4096, 0}, {dtype::bf16, 64, 1024, 4096, 0}};
  const skinny_choice c = choose_multi_lora(qkv, 3, h200);
  CHECK(c.rows == 96);
  CHECK(c.tiles == 65);
  const gemm_problem gate_up[] = {{dtype::bf16, 64, 14336, 4096, 0}, {dtype::bf16, 64, 14336, 4096, 0}};
  CHECK(choose_multi_lora(gate_up, 2, h200).rows == 0);
}

TEST_CASE("multi-LoRA dispatch: more stages if a block has many steps, within shared memory") {
  CHECK(multi_lora_stages(chosen(64, 4096, 4096), 4096, 1) == 6);
  CHECK(multi_lora_stages(chosen(64, 4096, 4096), 4096, 3) == 5);
  CHECK(multi_lora_stages(chosen(64, 4096, 14336), 14336, 1) == 7);
  CHECK(multi_lora_stages(chosen(64, 4096, 14336), 14336, 2) == 5);
  CHECK(multi_lora_stages(chosen(64, 14336, 4096), 4096, 1) == 5);
  CHECK(multi_lora_stages(chosen(16, 4096, 14336), 14336, 1) == 8);
  for (const long long m : {1, 16, 17, 64})
    for (const int n : {64, 1024, 4096, 6144, 14336})
      for (const int k : {128, 4096, 14336, 100000})
        for (const int segments : {1, 3}) {
          const skinny_choice c = chosen(m, n, k);
          const int most = multi_lora_stages(multi_lora_kilobytes(c.tokens, segments), c.rows, c.tokens);
          CHECK(multi_lora_stages(c, k, segments) >= 4);
          CHECK(multi_lora_stages(c, k, segments) <= most);
        }
}

TEST_CASE("multi-LoRA dispatch: tiles of sixteen rows, and splits of the outputs if there are few rows") {
  const auto tiled = [](long long m, int n, dtype type = dtype::bf16) {
    return tile_multi_lora({type, m, n, 4096, 0}, h200);
  };
  CHECK(tiled(4096, 4096).tiles == 256);
  CHECK(tiled(4096, 4096).splits == 1);
  CHECK(tiled(100, 4096).tiles == 7);
  CHECK(tiled(100, 4096).splits == 8);
  CHECK(tiled(4096, 4095).tiles == 0);
  CHECK(tiled(4096, 4096, dtype::f32).tiles == 0);
}

TEST_CASE("multi-LoRA dispatch: none if blocks would wait for others that are not resident, or sizes do not fit") {
  CHECK(chosen(64, 128256, 4096).rows == 0);
  CHECK(chosen(64, 4096, 4096, sliver).rows == 0);
  CHECK(chosen(64, 4096, 4096, a100).rows == 0);
  CHECK(chosen(65, 4096, 4096).rows == 0);
  CHECK(chosen(64, 4095, 4096).rows == 0);
  CHECK(chosen(64, 4096, 64).rows == 0);
  CHECK(chosen(64, 4096, 4100).rows == 0);
  CHECK(chosen(64, 4096, 4096, h200, dtype::f32).rows == 0);
}
