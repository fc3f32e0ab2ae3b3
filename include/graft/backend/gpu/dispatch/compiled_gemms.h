// SPDX-License-Identifier: Apache-2.0
// Which GEMM, skinny GEMM and wgrad kernels a program has compiled, as bit masks. There are about seventy per element
// type, and compiling all of them takes a minute; a layer type names those that its sizes can use, and dispatch chooses
// among them.
#pragma once
#include <graft/backend/gpu/dispatch/skinny.h>

#include <cstdint>
#include <initializer_list>

namespace graft::gpu {

// GEMM variants: ranks 0, 16, 32 and 64, then one with a prologue (a factor per column of x); first_nn begins the same
// five for the NN layout, whose weight is stored [in, out].
constexpr int rank_index(int rank) { return rank <= 0 ? 0 : rank <= 16 ? 1 : rank <= 32 ? 2 : 3; }
constexpr int token_index(int tokens) { return tokens <= 8 ? 0 : tokens <= 16 ? 1 : 2; }
inline constexpr int gemm_variant_count = 10, with_prologue = 4, first_nn = 5, skinny_shape_count = 5,
                     fallback_shape = 4, ranks = 4;
// Tile width of the kernels for ranks above 64: the wide wgrad and the split-K GEMM.
inline constexpr int wide_tile_rank = 128;
constexpr int wgrad_index(int rank) { return rank > 64 ? ranks : rank_index(rank); }

struct gemm_kernel_mask {
  std::uint64_t skinny = 0;  // skinny GEMMs, then the skinny NN GEMM and mma.sync GEMMs
  // Bits in this order: GEMMs, wgrads, GEMMs with fused wgrads, the wide wgrad, the split-K GEMM, the GEMM with a fused
  // column-wise wgrad (rank 0), GEMMs with a fused rotation.
  std::uint32_t gemms = 0;

  static constexpr int gemm_bit(int tile_n, int variant) { return (tile_n == 256 ? gemm_variant_count : 0) + variant; }
  static constexpr int skinny_bit(int tokens, int shape, int rank) {
    return (token_index(tokens) * skinny_shape_count + shape) * ranks + rank_index(rank);
  }
  constexpr bool has_gemm(int tile_n, int variant) const { return (gemms >> gemm_bit(tile_n, variant) & 1) != 0; }
  constexpr bool has_skinny(int tokens, int shape, int rank) const {
    return (skinny >> skinny_bit(tokens, shape, rank) & 1) != 0;
  }
  static constexpr int skinny_nn_bit = 3 * skinny_shape_count * ranks;  // in `skinny`: the skinny GEMM with NN layout
  constexpr bool has_skinny_nn() const { return (skinny >> skinny_nn_bit & 1) != 0; }
  constexpr void add_skinny_nn() { skinny |= std::uint64_t{1} << skinny_nn_bit; }
  // In `skinny`: mma.sync GEMMs on sm_90 too, for sizes that the wgmma kernels do not support.
  static constexpr int mma_bit = skinny_nn_bit + 1;
  constexpr bool has_mma() const { return (skinny >> mma_bit & 1) != 0; }
  constexpr void add_mma() { skinny |= std::uint64_t{1} << mma_bit; }
  static constexpr int wide_wgrad_bit = 2 * (gemm_variant_count + ranks - 1), split_k_bit = wide_wgrad_bit + 1;
  static constexpr int wgrad_bit(int rank) {
    return rank > 64 ? wide_wgrad_bit : 2 * gemm_variant_count + rank_index(rank) - 1;
  }
  constexpr bool has_split_k() const { return (gemms >> split_k_bit & 1) != 0; }
  constexpr void add_split_k() { gemms |= 1U << split_k_bit; }
  constexpr bool has_wgrad_kernel(int rank) const { return (gemms >> wgrad_bit(rank) & 1) != 0; }
  constexpr void add_wgrad(int rank) { gemms |= 1U << wgrad_bit(rank); }
  static constexpr int fused_wgrad_bit(int rank) { return rank == 0 ? split_k_bit + 1 : wgrad_bit(rank) + ranks - 1; }
  constexpr bool has_fused_wgrad(int rank) const { return (gemms >> fused_wgrad_bit(rank) & 1) != 0; }
  constexpr void add_fused_wgrad(int rank) { gemms |= 1U << fused_wgrad_bit(rank); }
  // The GEMM with a rotation fused into its epilogue, with and without a prologue.
  static constexpr int rotation_bit(bool prologue) { return prologue ? 31 : 30; }
  constexpr bool has_fused_rotation(bool prologue) const { return (gemms >> rotation_bit(prologue) & 1) != 0; }
  constexpr void add_fused_rotation(bool prologue) { gemms |= 1U << rotation_bit(prologue); }
  constexpr void add_gemm(int tile_n, int variant) { gemms |= 1U << gemm_bit(tile_n, variant); }
  constexpr void add_skinny(int tokens, int shape, int rank) {
    skinny |= std::uint64_t{1} << skinny_bit(tokens, shape, rank);
  }
  friend constexpr bool operator==(const gemm_kernel_mask&, const gemm_kernel_mask&) = default;
  constexpr gemm_kernel_mask operator|(const gemm_kernel_mask& o) const { return {skinny | o.skinny, gemms | o.gemms}; }
};

constexpr gemm_kernel_mask every_gemm_kernel() {
  gemm_kernel_mask l;
  for (const int rank : {0, 16, 32, 64}) {
    for (const int tile : {128, 256}) l.add_gemm(tile, rank_index(rank)), l.add_gemm(tile, first_nn + rank_index(rank));
    if (rank > 0) l.add_wgrad(rank), l.add_fused_wgrad(rank);
    for (const int tokens : {8, 16, 64})
      for (int shape = 0; shape < skinny_shape_count; ++shape)
        if (skinny_shapes[shape].rows + rank <= 256) l.add_skinny(tokens, shape, rank);
  }
  l.add_fused_rotation(false), l.add_fused_rotation(true), l.add_skinny_nn(), l.add_mma();
  for (const int tile : {128, 256}) l.add_gemm(tile, with_prologue), l.add_gemm(tile, first_nn + with_prologue);
  l.add_wgrad(wide_tile_rank), l.add_split_k(), l.add_fused_wgrad(0);
  return l;
}

}  // namespace graft::gpu
