// SPDX-License-Identifier: Apache-2.0
// Which kernel runs a product whose rows have adapters of their own: the stream kernel that does it in one launch, or none,
// and then the bare product is followed by a launch that does the rest, in one of two ways. Knows nothing of CUDA.
#pragma once
#include <graft/backend/cuda/choose.h>
#include <graft/backend/cuda/mixed_record.h>

namespace graft::cuda {

inline constexpr int mixed_shapes = 3;  // the first of stream_kernels
constexpr int mixed_tokens(long long m) { return m <= 16 ? 16 : max_mixed_rows; }
// Kernels for one segment come first, and then those for several.
constexpr int mixed_index(int tokens, int rows, int segments) {
  return (segments > 1 ? 2 * mixed_shapes : 0) + (tokens <= 16 ? 0 : mixed_shapes) + shape_index(rows, false);
}

// For products with one input as segments of one launch. `rows` is 0 where there is none: its thread blocks exchange sums,
// so that all of them must run at the same time.
constexpr stream_choice choose_mixed(const product_shape* all, int count, const target& device) {
  int n[max_segments] = {};
  if (count > max_segments || !is_hopper(device)) return {};
  for (int i = 0; i < count; ++i) {
    const product_shape& p = all[i];
    const bool copies = is_16_bit(p.type) && p.k % 8 == 0 && p.aligned && !p.across;
    if (!copies || p.m > max_mixed_rows || p.n % 2 != 0 || p.k < 128) return {};
    n[i] = p.n;
  }
  stream_choice c = choose_stream(n, count, all[0].m, all[0].k, 0, device.processors, false, (1U << mixed_shapes) - 1);
  c.tokens = mixed_tokens(all[0].m);
  const bool resident = c.splits == 1 ? c.tiles <= device.processors : c.tiles <= device.resident_pairs;
  return resident ? c : stream_choice{};
}

// Stages of weights in flight. What the helpers of a block ask for waits behind them: with 64 rows and tokens, 16 KB
// each, and 32 steps of the inner axis, seven take 11.4 µs with 8 adapters and 14.2 with 32, six 11.1 and 13.9, five 11.5
// and 13.3. A block with many steps has time: its helpers are done long before the weights are, and more in flight are
// better. Room for them is taken from the cache in front of shared memory, where the helpers of several segments find x
// again.
constexpr int mixed_stages(int kilobytes, int rows, int tokens) {
  const int n = kilobytes * 1024 / ((rows + tokens) * 128);
  return n < 4 ? 4 : n;
}
constexpr int most_mixed_kilobytes(int tokens, int segments) { return tokens <= 16 || segments > 1 ? 80 : 112; }
constexpr int mixed_stages(const stream_choice& c, int k, int segments) {
  const bool is_long = (k + 63) / 64 / c.splits >= 64;
  const int most = most_mixed_kilobytes(c.tokens, segments);
  return mixed_stages(is_long || most < 96 ? most : 96, c.rows, c.tokens);
}

// More rows by one launch of gemm, with room for `rank` in each block of them; no pairs where there is none.
constexpr linear_choice choose_mixed_gemm(product_shape p, int rank, const target& device) {
  const bool copies = is_16_bit(p.type) && p.k % 8 == 0 && p.n % 8 == 0 && p.aligned && !p.across;
  linear_choice c;
  p.rank = rank;
  if (rank == 0 || p.m <= max_mixed_rows || !copies || !is_hopper(device)) return {};
  return choose_gemm(p, device, every_kernel(), c) && c.how == way::gemm ? c : linear_choice{};
}

// The launch behind the bare product by tiles of sixteen rows, and by parts of the outputs where there are few tiles; no
// tiles where the sizes are not theirs.
struct mixed_tiling {
  long long tiles = 0, parts = 1;
};
constexpr mixed_tiling tile_mixed(const product_shape& p, const target& device) {
  if (!is_16_bit(p.type) || device.capability < 80 || p.n % 8 != 0 || p.k % 8 != 0 || !p.aligned) return {};
  const long long tiles = (p.m + 15) / 16, most = (p.n + 511) / 512, wanted = 2LL * device.processors / tiles;
  return {tiles, wanted < 1 ? 1 : wanted < most ? wanted : most};
}

}  // namespace graft::cuda
