// SPDX-License-Identifier: Apache-2.0
// Dispatch of multi-LoRA batches, in which every row has an adapter of its own (as Punica's BGMV/SGMV): up to 64 rows
// by one skinny GEMM launch, more rows by one tiled GEMM launch, and otherwise by the base GEMM followed by a launch
// for the adapters. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/gemm.h>
#include <graft/backend/gpu/kernels/multi_lora/adapter_record.h>

namespace graft::gpu {

inline constexpr int multi_lora_shapes = 3;  // the first three of skinny_shapes
constexpr int multi_lora_tokens(long long m) { return m <= 16 ? 16 : max_multi_lora_rows; }
// The index of a kernel: those for one segment come first, then those for several.
constexpr int multi_lora_index(int tokens, int rows, int segments) {
  return (segments > 1 ? 2 * multi_lora_shapes : 0) + (tokens <= 16 ? 0 : multi_lora_shapes) + shape_index(rows, false);
}

// The skinny GEMM for products that read one x, as segments of one launch. `rows` is 0 if there is none: CTAs
// exchange sums, so all of them must be resident at the same time.
constexpr skinny_choice choose_multi_lora(const gemm_problem* all, int count, const target& device) {
  int n[max_segments] = {};
  if (count > max_segments || !is_hopper(device)) return {};
  for (int i = 0; i < count; ++i) {
    const gemm_problem& p = all[i];
    const bool copies = is_16_bit(p.type) && p.k % 8 == 0 && p.aligned && !p.nn;
    if (!copies || p.m > max_multi_lora_rows || p.n % 2 != 0 || p.k < 128) return {};
    n[i] = p.n;
  }
  skinny_choice c =
      choose_skinny(n, count, all[0].m, all[0].k, 0, device.sm_count, false, (1U << multi_lora_shapes) - 1);
  c.tokens = multi_lora_tokens(all[0].m);
  const bool resident =
      c.splits == 1 ? c.tiles <= device.sm_count : c.tiles <= device.can<gemm_launch>().resident_pairs;
  return resident ? c : skinny_choice{};
}

// Pipeline stages of weights. Loads of the helper warps, which compute the low-rank branch, queue after the weights in
// flight: with 64 rows and tokens (16 KB per stage) and 32 k steps, seven stages take 11.4 µs with 8 adapters and 14.2
// µs with 32, six take 11.1 and 13.9, five 11.5 and 13.3. In a block with many k steps the helpers finish long before
// the weights, and more stages are better. Shared memory for stages is taken from the L1 cache, in which helpers of
// several segments find x.
constexpr int multi_lora_stages(int kilobytes, int rows, int tokens) {
  const int n = kilobytes * 1024 / ((rows + tokens) * 128);
  return n < 4 ? 4 : n;
}
constexpr int multi_lora_kilobytes(int tokens, int segments) { return tokens <= 16 || segments > 1 ? 80 : 112; }
constexpr int multi_lora_stages(const skinny_choice& c, int k, int segments) {
  const bool is_long = (k + 63) / 64 / c.splits >= 64;
  const int most = multi_lora_kilobytes(c.tokens, segments);
  return multi_lora_stages(is_long || most < 96 ? most : 96, c.rows, c.tokens);
}

// The tiled GEMM for more than 64 rows; `rank` is the sum of the ranks of the adapters in a block of rows. gemm_choice::pairs
// is 0 if there is none.
constexpr gemm_choice choose_multi_lora_gemm(gemm_problem p, int rank, const target& device) {
  const bool copies = is_16_bit(p.type) && p.k % 8 == 0 && p.n % 8 == 0 && p.aligned && !p.nn;
  gemm_choice c;
  p.rank = rank;
  if (rank == 0 || p.m <= max_multi_lora_rows || !copies || !is_hopper(device)) return {};
  return choose_gemm(p, device, every_gemm_kernel(), c) && c.path == gemm_path::gemm ? c : gemm_choice{};
}

// The work split of the adapter launch after the base GEMM: tiles of 16 rows, and splits of the outputs if there are
// few tiles. `tiles` is 0 if the sizes do not fit its mma.sync kernel.
struct multi_lora_tiling {
  long long tiles = 0, splits = 1;
};
constexpr multi_lora_tiling tile_multi_lora(const gemm_problem& p, const target& device) {
  if (!is_16_bit(p.type) || device.capability < 80 || p.n % 8 != 0 || p.k % 8 != 0 || !p.aligned) return {};
  const long long tiles = (p.m + 15) / 16, most = (p.n + 511) / 512, wanted = 2LL * device.sm_count / tiles;
  return {tiles, wanted < 1 ? 1 : wanted < most ? wanted : most};
}

}  // namespace graft::gpu
