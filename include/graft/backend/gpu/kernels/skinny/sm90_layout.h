// SPDX-License-Identifier: Apache-2.0
// Layout and arguments of the skinny GEMM (sm90.cuh): shared memory of a CTA, and kernel parameters. A launch
// takes about ten microseconds, so sizes are template parameters: a size known only at run time costs a visible part of
// that.
#pragma once
#include <cuda.h>
#include <graft/backend/gpu/dispatch/skinny.h>
#include <graft/backend/gpu/tile/adapter_args.h>
#include <graft/backend/gpu/tile/tile_order.h>

#include <cstdint>

namespace graft::gpu {

// Shared memory of a block that multiplies Rows rows of W and Rank rows of A with up to Tokens tokens, on one of Splits
// parts of K. ExtraBytes are reserved for warps with other work; Most is the wanted number of stages. Offsets in bytes.
template <int Tokens, int Rows, int Splits, int Rank, int ExtraBytes = 0, int Most = (Rows == 64 ? 15 : 12)>
struct skinny_shape {
  static constexpr int threads = Rank > 0 ? 224 : 192;    // consumer warpgroup; producer warps of W, x and adapter
  static constexpr int blocks = (Rows + Rank + 63) / 64;  // 64-row operands
  static constexpr int units = Rows / 16, owned = units / Splits;
  // With two splits each block finishes alternate groups of eight tokens, so that all warps have work. With eight
  // tokens, or with ExtraBytes (the extra warps rely on it), each block finishes half of the rows instead.
  static constexpr bool split_by_tokens = Splits == 2 && Tokens > 8 && ExtraBytes == 0;
  static constexpr int finished = split_by_tokens ? Tokens / 2 : Tokens;
  static constexpr std::uint32_t pitch = Rank * 2;
  static constexpr std::uint32_t w = Rows * 128, a = Rank * 128, x = Tokens * 128, stage = w + a + x;
  static constexpr std::uint32_t b_bytes = blocks * 64 * Rank * 2, u_bytes = Tokens * Rank * 2;
  static constexpr std::uint32_t receive_buffer_bytes = (Splits - 1) * owned * (Tokens / 8) * 512;
  // A 64-row wgmma operand may reach beyond the last stage. Its results are discarded, but the addresses must exist.
  static constexpr std::uint32_t reach = blocks * 64 * 128 > stage ? blocks * 64 * 128 - stage : 0;
  static constexpr std::uint32_t tail_bytes = b_bytes + u_bytes + receive_buffer_bytes;
  static constexpr std::uint32_t pad = ((tail_bytes > reach ? tail_bytes : reach) + 1023) / 1024 * 1024;
  static constexpr int fitting = (shared_memory_limit - 1024 - 512 - ExtraBytes - pad) / stage;
  // Enough stages to cover memory latency, and to keep a block of the next kernel from becoming resident on this SM,
  // where it would take bandwidth too early. More stages would delay the first x, which queues behind the requests for
  // W. With ExtraBytes registers already limit the SM to one block, and requests of the extra warps queue behind every
  // stage.
  static constexpr int stages_to_fill_sm = (116 * 1024 - pad) / stage + 1;
  static constexpr bool adjustable_stages = ExtraBytes > 0;  // a launch may use fewer of them
  static constexpr int wanted = ExtraBytes > 0 ? Most : stages_to_fill_sm > Most ? stages_to_fill_sm : Most;
  static constexpr int stages = fitting < wanted ? fitting : wanted;
  // Stages of W requested before griddepcontrol.wait. x is requested after it and queues behind them; with many tokens
  // x is the bottleneck, so the rest of W is requested after the wait as well.
  static constexpr int stages_before_x = Splits == 2 && Tokens > 16 && ExtraBytes == 0 ? 80 * 1024 / w : stages;
  static constexpr std::uint32_t b_at = stages * stage, u_at = b_at + b_bytes, receive_buffer = u_at + u_bytes;
  static constexpr std::uint32_t barrier_bytes = 512, barriers = b_at + pad, extra = barriers + barrier_bytes;
  static constexpr std::uint32_t bytes = extra + ExtraBytes + 1024;
  static_assert(8 * (3 * stages + 2) <= barrier_bytes);
  static_assert(units % Splits == 0 && stages >= 2 && bytes <= shared_memory_limit && receive_buffer % 128 == 0);
};

// One layer of a grouped launch.
struct skinny_product {
  void* y;
  adapter_args adapter;
  const void* residual;
  int n;
  activation act;
};
struct skinny_maps {
  CUtensorMap x[max_segments], w[max_segments];
};
// The members that a block needs to start are in the first cache line of the parameters.
struct skinny_args {
  int m, k_steps;
  std::uint32_t x_bytes;         // bytes of x per stage: tokens rounded up to eight
  int first_tile[max_segments];  // first tile of each segment; unused segments: beyond any tile
  int ring;                      // stages in use, for kernels whose launch may choose
  bool transposed_y;             // swap-AB: y is [row][token], rows are tokens of x and tokens are rows of the weight
  void* shrink_result;           // U [m, Rank] is stored here too, for wgrads; null: it is not
  bool gated;                    // tiles have rows of segments 0 and 1 and store act(gate) ⊙ act(up)
  skinny_product segment[max_segments];
};

}  // namespace graft::gpu
