// SPDX-License-Identifier: Apache-2.0
// The stream family in numbers: what lies where in the shared memory of a thread block, and what it is given. A layer of
// few tokens runs for ten microseconds: a size that is only known at run time costs a visible part of that.
#pragma once
#include <graft/backend/cuda/gemm_shape.h>
#include <graft/backend/cuda/stream_choice.h>

namespace graft::cuda {

// A thread block multiplies Rows rows of W and Rank rows of A with up to Tokens tokens, on one of Splits parts of the
// inner axis; Beside bytes are for warps that do something else, with Most stages in flight, more where they are small.
// Offsets in bytes.
template <int Tokens, int Rows, int Splits, int Rank, int Beside = 0, int Most = (Rows == 64 ? 15 : 12)>
struct stream_shape {
  static constexpr int threads = Rank > 0 ? 224 : 192;    // a warpgroup, and a warp for each of W, x and the adapter
  static constexpr int blocks = (Rows + Rank + 63) / 64;  // 64-row operands
  static constexpr int units = Rows / 16, owned = units / Splits;
  // Of two blocks that meet, each finishes every other eight of the tokens, so that all warps have a share. Where eight are
  // all, it is half of the rows, on which other warps beside them count as well.
  static constexpr bool by_tokens = Splits == 2 && Tokens > 8 && Beside == 0;
  static constexpr int finished = by_tokens ? Tokens / 2 : Tokens;
  static constexpr std::uint32_t pitch = Rank * 2;
  static constexpr std::uint32_t w = Rows * 128, a = Rank * 128, x = Tokens * 128, stage = w + a + x;
  static constexpr std::uint32_t b_bytes = blocks * 64 * Rank * 2, s_bytes = Tokens * Rank * 2;
  static constexpr std::uint32_t inbox_bytes = (Splits - 1) * owned * (Tokens / 8) * 512;
  // A 64-row operand may reach past the last stage: what is read there is dropped, but it must be shared memory.
  static constexpr std::uint32_t reach = blocks * 64 * 128 > stage ? blocks * 64 * 128 - stage : 0;
  static constexpr std::uint32_t behind = b_bytes + s_bytes + inbox_bytes;
  static constexpr std::uint32_t pad = ((behind > reach ? behind : reach) + 1023) / 1024 * 1024;
  static constexpr int fitting = (shared_memory_limit - 1024 - 512 - Beside - pad) / stage;
  // Enough to cover the latency of memory, and so many that the next kernel's block does not fit beside this one: it
  // would take its share of the bandwidth before it is its turn. More only make the first x wait behind more requests.
  // Beside other warps there are registers for one block alone, and what they ask for waits behind every stage.
  static constexpr int crowd = (116 * 1024 - pad) / stage + 1;
  static constexpr bool adjusts = Beside > 0;  // a launch may use fewer of them
  static constexpr int wanted = Beside > 0 ? Most : crowd > Most ? crowd : Most;
  static constexpr int stages = fitting < wanted ? fitting : wanted;
  // Of W before the kernel ahead has finished. x is asked for then, and waits behind all of them: with many tokens that is
  // what a block waits for, and the rest comes when x is on its way.
  static constexpr int before_x = Splits == 2 && Tokens > 16 && Beside == 0 ? 80 * 1024 / w : stages;
  static constexpr std::uint32_t b_at = stages * stage, s_at = b_at + b_bytes, inbox = s_at + s_bytes;
  static constexpr std::uint32_t barrier_bytes = 512, barriers = b_at + pad, beside = barriers + barrier_bytes;
  static constexpr std::uint32_t bytes = beside + Beside + 1024;
  // Room for the barriers, and behind them a factor for each token where there are few.
  static_assert(8 * (3 * stages + 2) + 4 * most_normed_tokens <= barrier_bytes);
  static_assert(units % Splits == 0 && stages >= 2 && bytes <= shared_memory_limit && inbox % 128 == 0);
};

struct stream_segment {
  void* y;
  adapter_slot slot;
  const void* residual;
  int n;
  activation act;
};
struct stream_maps {
  CUtensorMap x[max_segments], w[max_segments];
};
// A norm behind y, or ahead of x (stream_norm.cuh).
struct norm_behind {
  const void* gain = nullptr;  // null: none
  void* scaled = nullptr;      // y ⊙ gain
  float* squares = nullptr;    // [m][n / 16]
  bool in_float = false;       // the gain; else in the type of the layer
};
struct norm_ahead {
  const float* squares = nullptr;  // [m][k / 16]; null: none
  const float* eps = nullptr;
};
// The first line of the parameters is all that a block needs to begin.
struct stream_args {
  int m, k_steps;
  std::uint32_t x_bytes;         // of x in a stage: eights of tokens, not all that there is room for
  int first_tile[max_segments];  // of each segment; beyond the last one larger than any tile
  int ring;                      // stages in use, where a kernel lets a launch choose
  bool by_row;                   // y is [row][token]: the rows are tokens and the tokens are the rows of A
  bool gated;                    // tiles have rows of the first two segments, and store the product of both
  stream_segment segment[max_segments];
  norm_ahead ahead;    // of x
  norm_behind behind;  // of the first segment
};

}  // namespace graft::cuda
