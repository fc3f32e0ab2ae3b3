// SPDX-License-Identifier: Apache-2.0
// The stream family in numbers: how many rows a thread block takes, in how many parts the inner axis is cut, and what lies
// where in shared memory. All of it is decided at run time, so that few kernels serve all shapes and ranks.
#pragma once
#include <graft/backend/cuda/gemm_shape.h>

namespace graft::cuda {

inline constexpr int max_segments = 4, max_stream_rank = 64, max_stream_tokens = 64;

struct stream_segment {
  int index, n, first_tile;
  const adapter_slot* slot;
  void* y;
  const void* residual;
};
struct stream_layout {  // offsets in bytes
  std::uint32_t stage, b, s, inbox, barriers, bytes;
  int stages;
};
struct stream_maps {
  CUtensorMap x, w[max_segments];
};
struct stream_args {
  int m, k, rank, rows, splits, segments;
  bool by_row;     // y is [row][token]: the rows are tokens and the tokens are the rows of A
  bool keep_rows;  // the rows are read again soon
  activation act;
  stream_layout at;
  stream_segment segment[max_segments];
};

struct stream_choice {
  int tokens = 0, blocks = 0;  // the kernel: width of the products, 64-row operands per step
  int rows = 0, splits = 0, tiles = 0;
};

inline int padded_tokens(long long m) { return m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64; }

// Rows and splits that keep every multiprocessor busy once. What counts is the rows that pass through the busiest one, those
// of x and A as much as those of W; an exchange between two blocks costs about a sixteenth of what is exchanged.
inline stream_choice choose_stream(const int* n, int segments, long long m, int k, int rank, int processors) {
  stream_choice best;
  double least = 0;
  const int tokens = padded_tokens(m);
  for (int splits = 1; splits <= 4 && splits <= (k + 63) / 64; splits *= 2)
    for (int rows = 16 * splits; rows + rank <= 256; rows += 16 * splits) {
      const int blocks = rows + rank <= 64 ? 1 : rows + rank <= 128 ? 2 : 4;
      if (blocks * tokens > 128) continue;  // accumulators: 64 registers and no more
      int tiles = 0;
      for (int s = 0; s < segments; ++s) tiles += (n[s] + rows - 1) / rows;
      const int waves = (tiles * splits + processors - 1) / processors;
      const double exchange = splits == 1 ? 0 : splits == 2 ? rows / 16.0 : rows / 8.0 + 8;
      const double time = waves * (static_cast<double>(rows + rank + tokens) / splits + exchange);
      if (best.rows == 0 || time <= least) best = {tokens, blocks, rows, splits, tiles}, least = time;
    }
  return best;
}

inline stream_layout lay_out(const stream_choice& c, int rank) {
  stream_layout at{};
  at.stage = static_cast<std::uint32_t>(c.rows + rank + c.tokens) * 128;
  const auto units = static_cast<std::uint32_t>(c.rows / 16 / c.splits);
  const std::uint32_t b = static_cast<std::uint32_t>(c.blocks) * 64 * rank * 2;
  const std::uint32_t s = static_cast<std::uint32_t>(c.tokens) * rank * 2;
  const std::uint32_t inbox =
      static_cast<std::uint32_t>(c.splits - 1) * units * static_cast<std::uint32_t>(c.tokens / 8) * 512;
  // A 64-row operand may reach past the last stage: what is read there is dropped, but it must be shared memory.
  const std::uint32_t reach =
      static_cast<std::uint32_t>(c.blocks) * 64 * 128 > at.stage ? c.blocks * 64 * 128 - at.stage : 0;
  const std::uint32_t behind = (b + s + inbox + 1023) / 1024 * 1024;
  const std::uint32_t pad = behind > reach ? behind : (reach + 1023) / 1024 * 1024;
  at.stages = static_cast<int>((shared_memory_limit - 1024 - 512 - pad) / at.stage);
  if (at.stages > 24) at.stages = 24;
  at.b = static_cast<std::uint32_t>(at.stages) * at.stage;
  at.s = at.b + b;
  at.inbox = (at.s + s + 127) / 128 * 128;
  at.barriers = at.b + pad + 128;
  at.bytes = at.barriers + 512 + 1024;
  return at;
}

}  // namespace graft::cuda
