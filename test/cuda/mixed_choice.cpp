// SPDX-License-Identifier: Apache-2.0
// Which kernel takes a batch that mixes adapters: one whose thread blocks all run at the same time, or none.
#include <doctest/doctest.h>
#include <graft/backend/cuda/mixed_choice.h>
#include <graft/backend/cuda/targets.h>

using namespace graft;
using namespace graft::cuda;

namespace {

const target h200 = device_target("", 90, 132, 66), a100 = device_target("", 80, 108, 54),
             sliver = device_target("", 90, 16, 8);

stream_choice chosen(long long m, int n, int k, const target& on = h200, dtype type = dtype::bf16) {
  const product_shape p{type, m, n, k, 0};
  return choose_mixed(&p, 1, on);
}

}  // namespace

TEST_CASE("choose_mixed: projections of a large model are one launch, whose blocks are all resident") {
  for (const long long m : {1, 16, 17, 64})
    for (const int n : {1024, 4096, 6144, 14336}) {
      const stream_choice c = chosen(m, n, 4096);
      CAPTURE(m);
      CAPTURE(n);
      CHECK(c.rows > 0);
      CHECK(c.tokens >= m);
      CHECK(c.tiles * c.rows >= n);
      CHECK(c.tiles * c.splits <= 132);
      CHECK(mixed_index(c.tokens, c.rows, 1) == (m <= 16 ? 0 : mixed_shapes) + shape_index(c.rows, false));
      CHECK(mixed_index(c.tokens, c.rows, 3) == mixed_index(c.tokens, c.rows, 1) + 2 * mixed_shapes);
    }
  CHECK(chosen(64, 4096, 4096).rows == 64);
  CHECK(chosen(64, 14336, 4096).rows == 112);
}

TEST_CASE("choose_mixed: Q, K and V are segments of one launch; gate and up would not all be resident") {
  const product_shape qkv[] = {
      {dtype::bf16, 64, 4096, 4096, 0}, {dtype::bf16, 64, 1024, 4096, 0}, {dtype::bf16, 64, 1024, 4096, 0}};
  const stream_choice c = choose_mixed(qkv, 3, h200);
  CHECK(c.rows == 96);
  CHECK(c.tiles == 65);
  const product_shape gate_up[] = {{dtype::bf16, 64, 14336, 4096, 0}, {dtype::bf16, 64, 14336, 4096, 0}};
  CHECK(choose_mixed(gate_up, 2, h200).rows == 0);
}

TEST_CASE("mixed_stages: more weights in flight where a block has many steps, and no more than there is room for") {
  CHECK(mixed_stages(chosen(64, 4096, 4096), 4096, 1) == 6);
  CHECK(mixed_stages(chosen(64, 4096, 4096), 4096, 3) == 5);
  CHECK(mixed_stages(chosen(64, 4096, 14336), 14336, 1) == 7);
  CHECK(mixed_stages(chosen(64, 4096, 14336), 14336, 2) == 5);
  CHECK(mixed_stages(chosen(64, 14336, 4096), 4096, 1) == 5);
  CHECK(mixed_stages(chosen(16, 4096, 14336), 14336, 1) == 8);
  for (const long long m : {1, 16, 17, 64})
    for (const int n : {64, 1024, 4096, 6144, 14336})
      for (const int k : {128, 4096, 14336, 100000})
        for (const int segments : {1, 3}) {
          const stream_choice c = chosen(m, n, k);
          const int most = mixed_stages(most_mixed_kilobytes(c.tokens, segments), c.rows, c.tokens);
          CHECK(mixed_stages(c, k, segments) >= 4);
          CHECK(mixed_stages(c, k, segments) <= most);
        }
}

TEST_CASE("mixed tiles: sixteen rows each, and parts of the outputs where they are few") {
  const auto tiled = [](long long m, int n, dtype type = dtype::bf16) {
    return tile_mixed({type, m, n, 4096, 0}, h200);
  };
  CHECK(tiled(4096, 4096).tiles == 256);
  CHECK(tiled(4096, 4096).parts == 1);
  CHECK(tiled(100, 4096).tiles == 7);
  CHECK(tiled(100, 4096).parts == 8);
  CHECK(tiled(4096, 4095).tiles == 0);
  CHECK(tiled(4096, 4096, dtype::f32).tiles == 0);
}

TEST_CASE("choose_mixed: nothing where blocks would wait for some that do not run, or sizes do not fit") {
  CHECK(chosen(64, 128256, 4096).rows == 0);
  CHECK(chosen(64, 4096, 4096, sliver).rows == 0);
  CHECK(chosen(64, 4096, 4096, a100).rows == 0);
  CHECK(chosen(65, 4096, 4096).rows == 0);
  CHECK(chosen(64, 4095, 4096).rows == 0);
  CHECK(chosen(64, 4096, 64).rows == 0);
  CHECK(chosen(64, 4096, 4100).rows == 0);
  CHECK(chosen(64, 4096, 4096, h200, dtype::f32).rows == 0);
}
