// SPDX-License-Identifier: Apache-2.0
// Which kernels of the stream and gemm families a program has compiled. There are some seventy for each element type, and
// compiling them takes a minute; a layer type names those that its sizes can want, and the choice is made among them.
#pragma once
#include <graft/backend/cuda/stream_choice.h>

#include <cstdint>
#include <initializer_list>

namespace graft::cuda {

// Ranks are 0, 16, 32 and 64; the fifth gemm kernel is the one with a pre slot. The same again for a weight that lies
// across, [in, out].
constexpr int rank_index(int rank) { return rank <= 0 ? 0 : rank <= 16 ? 1 : rank <= 32 ? 2 : 3; }
constexpr int token_index(int tokens) { return tokens <= 8 ? 0 : tokens <= 16 ? 1 : 2; }
inline constexpr int gemm_variants = 10, with_pre = 4, first_across = 5, stream_shapes = 5, any_shape = 4, ranks = 4;
// Of what has a rank far above these, in one thread block: a sum over tokens, and a product by parts of its depth.
inline constexpr int wide_rank = 128;
constexpr int sum_index(int rank) { return rank > 64 ? ranks : rank_index(rank); }

struct kernel_list {
  std::uint64_t streams = 0;  // a bit for each
  // And behind them the sums over tokens, the gemms with such sums beside them, the wide sum, the product by parts, and the
  // gemm with a sum per column beside it, which has no rank.
  std::uint32_t gemms = 0;

  static constexpr int gemm_bit(int tile_n, int variant) { return (tile_n == 256 ? gemm_variants : 0) + variant; }
  static constexpr int stream_bit(int tokens, int shape, int rank) {
    return (token_index(tokens) * stream_shapes + shape) * ranks + rank_index(rank);
  }
  constexpr bool has_gemm(int tile_n, int variant) const { return (gemms >> gemm_bit(tile_n, variant) & 1) != 0; }
  constexpr bool has_stream(int tokens, int shape, int rank) const {
    return (streams >> stream_bit(tokens, shape, rank) & 1) != 0;
  }
  static constexpr int across_bit = 3 * stream_shapes * ranks;  // of streams: few rows by a weight that lies across
  constexpr bool has_across() const { return (streams >> across_bit & 1) != 0; }
  constexpr void add_across() { streams |= std::uint64_t{1} << across_bit; }
  // Of streams: products by mma.sync also on the devices that have kernels of their own, where these take no such sizes.
  static constexpr int mma_bit = across_bit + 1;
  constexpr bool has_mma() const { return (streams >> mma_bit & 1) != 0; }
  constexpr void add_mma() { streams |= std::uint64_t{1} << mma_bit; }
  static constexpr int wide_sum_bit = 2 * (gemm_variants + ranks - 1), by_parts_bit = wide_sum_bit + 1;
  static constexpr int sum_bit(int rank) { return rank > 64 ? wide_sum_bit : 2 * gemm_variants + rank_index(rank) - 1; }
  constexpr bool has_by_parts() const { return (gemms >> by_parts_bit & 1) != 0; }
  constexpr void add_by_parts() { gemms |= 1U << by_parts_bit; }
  constexpr bool has_sum(int rank) const { return (gemms >> sum_bit(rank) & 1) != 0; }
  constexpr void add_sum(int rank) { gemms |= 1U << sum_bit(rank); }
  static constexpr int beside_bit(int rank) { return rank == 0 ? by_parts_bit + 1 : sum_bit(rank) + ranks - 1; }
  constexpr bool has_beside(int rank) const { return (gemms >> beside_bit(rank) & 1) != 0; }
  constexpr void add_beside(int rank) { gemms |= 1U << beside_bit(rank); }
  static constexpr int turn_bit(bool pre) { return pre ? 31 : 30; }  // the gemm with a rotation behind it
  constexpr bool has_turn(bool pre) const { return (gemms >> turn_bit(pre) & 1) != 0; }
  constexpr void add_turn(bool pre) { gemms |= 1U << turn_bit(pre); }
  constexpr void add_gemm(int tile_n, int variant) { gemms |= 1U << gemm_bit(tile_n, variant); }
  constexpr void add_stream(int tokens, int shape, int rank) {
    streams |= std::uint64_t{1} << stream_bit(tokens, shape, rank);
  }
  friend constexpr bool operator==(const kernel_list&, const kernel_list&) = default;
  constexpr kernel_list operator|(const kernel_list& o) const { return {streams | o.streams, gemms | o.gemms}; }
};

constexpr kernel_list every_kernel() {
  kernel_list l;
  for (const int rank : {0, 16, 32, 64}) {
    for (const int tile : {128, 256})
      l.add_gemm(tile, rank_index(rank)), l.add_gemm(tile, first_across + rank_index(rank));
    if (rank > 0) l.add_sum(rank), l.add_beside(rank);
    for (const int tokens : {8, 16, 64})
      for (int shape = 0; shape < stream_shapes; ++shape)
        if (stream_kernels[shape].rows + rank <= 256) l.add_stream(tokens, shape, rank);
  }
  l.add_turn(false), l.add_turn(true), l.add_across(), l.add_mma();
  for (const int tile : {128, 256}) l.add_gemm(tile, with_pre), l.add_gemm(tile, first_across + with_pre);
  l.add_sum(wide_rank), l.add_by_parts(), l.add_beside(0);
  return l;
}

}  // namespace graft::cuda
