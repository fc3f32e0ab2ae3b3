// SPDX-License-Identifier: Apache-2.0
// The kernels of the stream family that there are, and which of them to take. Knows nothing of CUDA.
#pragma once

namespace graft::cuda {

inline constexpr int max_segments = 4, max_stream_rank = 64, max_stream_tokens = 64;
inline constexpr int most_normed_tokens = 16;  // of kernels that may stand around a norm

struct stream_choice {
  int tokens = 0, rows = 0, splits = 0, tiles = 0;
  bool any = false;    // the kernels that can do everything: one shape, for any inner size
  bool gated = false;  // half of the rows of a tile are of one layer and half of another: their product is stored
  friend constexpr bool operator==(const stream_choice&, const stream_choice&) = default;
};
inline constexpr int gated_rows = 224, gated_rank = 16;  // the shape that can, and the largest adapters of the two

// Products of one launch have adapters of one (padded) rank, the largest of theirs, with zeros where they have less. Small
// ones of two whose product is stored stand apart: in columns of their own of one that is twice as wide.
struct joint_rank {
  int rank = 0;  // 0: they stay as they are
  bool apart = false;
};
constexpr joint_rank rank_together(const int* padded, int count, bool gated) {
  int most = 0;
  for (int i = 0; i < count; ++i) most = padded[i] > most ? padded[i] : most;
  if (gated && most == gated_rank) return {2 * gated_rank, true};
  return {most > max_stream_rank ? 0 : most, false};
}

inline constexpr int any_rows = 64;
// The last one is for what is rarely wanted.
inline constexpr struct { int rows, splits; } stream_kernels[] = {{64, 2}, {96, 2}, {112, 1}, {224, 1}, {any_rows, 2}};
constexpr int shape_index(int rows, bool any) {
  return any ? 4 : rows == 64 ? 0 : rows == 96 ? 1 : rows == 112 ? 2 : 3;
}

constexpr int padded_tokens(long long m) { return m <= 8 ? 8 : m <= 16 ? 16 : 64; }

// What a choice costs, in rows that pass through the busiest multiprocessor.
constexpr int stream_time(int tiles, int rows, int splits, int rank, int tokens, int processors) {
  const int waves = (tiles * splits + processors - 1) / processors;
  return waves * ((rows + rank + tokens) / splits + (splits > 1 ? 4 : 0));
}

// Rows and splits that keep every multiprocessor busy once. What counts is the rows that pass through the busiest one,
// those of x and A as much as those of W; an exchange between two blocks costs as much as four rows.
// `shapes` has a bit for each of stream_kernels that may be taken.
constexpr stream_choice choose_stream(const int* n, int segments, long long m, int k, int rank, int processors,
                                      bool any = false, unsigned shapes = 0x1f) {
  stream_choice best;
  int least = 0;
  for (int shape = any ? 4 : 0; shape < (any ? 5 : 4); ++shape) {
    const auto& c = stream_kernels[shape];
    if ((shapes >> shape & 1) == 0 || (!any && (c.splits > (k + 63) / 64 || c.rows + rank > 256))) continue;
    int tiles = 0;
    for (int s = 0; s < segments; ++s) tiles += (n[s] + c.rows - 1) / c.rows;
    const int time = stream_time(tiles, c.rows, c.splits, rank, padded_tokens(m), processors);
    if (best.rows == 0 || time < least) best = {padded_tokens(m), c.rows, c.splits, tiles, any}, least = time;
  }
  return best;
}

}  // namespace graft::cuda
