// SPDX-License-Identifier: Apache-2.0
// Skinny GEMM (1 to 64 tokens) shapes and heuristic: the tile shapes that are compiled and the choice among them. Needs
// no CUDA header. A tile is `rows` rows of W by all tokens; split-K divides k between the blocks of a cluster.
#pragma once

namespace graft::gpu {

inline constexpr int max_segments = 4, max_skinny_rank = 64, max_skinny_tokens = 64;

struct skinny_choice {
  int tokens = 0, rows = 0, splits = 0, tiles = 0;
  bool nn = false;     // the NN layout: W is stored [k, n]
  bool any = false;    // the fallback kernels: one shape that supports every slot and any k
  bool gated = false;  // gated epilogue (SwiGLU): half of a tile's rows are gate, half up; their product is stored
  friend constexpr bool operator==(const skinny_choice&, const skinny_choice&) = default;
};
// The tile shape with a gated epilogue, and the largest rank of gate and of up in it.
inline constexpr int gated_tile_rows = 224, max_gated_rank = 16;

// The products of a grouped GEMM have one common (padded) rank, the largest of theirs, and are padded with zeros. For a
// gated epilogue with ranks up to 16, gate and up use separate columns of a rank twice as large.
struct common_rank {
  int rank = 0;  // 0: the products keep their own ranks
  bool separate = false;
};
constexpr common_rank grouped_rank(const int* padded, int count, bool gated) {
  int most = 0;
  for (int i = 0; i < count; ++i) most = padded[i] > most ? padded[i] : most;
  if (gated && most == max_gated_rank) return {2 * max_gated_rank, true};
  return {most > max_skinny_rank ? 0 : most, false};
}

inline constexpr int fallback_rows = 64;
// The last shape is the fallback.
inline constexpr struct {
  int rows, splits;
} skinny_shapes[] = {{64, 2}, {96, 2}, {112, 1}, {224, 1}, {fallback_rows, 2}};
constexpr int shape_index(int rows, bool any) {
  return any ? 4 : rows == 64 ? 0 : rows == 96 ? 1 : rows == 112 ? 2 : 3;
}

// The tile shapes of the NN layout (dgrads: dx = dy W). Their rows are whole boxes of 64 columns of the stored weight.
// They have kernels for 64 tokens only: the loads depend on the tokens of the call, and a dgrad of few tokens waits for
// memory.
inline constexpr struct { int rows, splits; } skinny_nn_shapes[] = {{64, 2}, {128, 1}};
inline constexpr int skinny_nn_shape_count = 2;
constexpr int nn_shape_index(int rows) { return rows == 64 ? 0 : 1; }

constexpr int padded_tokens(long long m) { return m <= 8 ? 8 : m <= 16 ? 16 : 64; }

// The cost of a choice, in rows of W, A and x that the busiest SM loads. An exchange between two blocks of
// a split costs as much as four rows.
constexpr int skinny_cost(int tiles, int rows, int splits, int rank, int tokens, int sm_count) {
  const int waves = (tiles * splits + sm_count - 1) / sm_count;
  return waves * ((rows + rank + tokens) / splits + (splits > 1 ? 4 : 0));
}

// Chooses the shape with the least cost for `segments` products with n[s] outputs each. `shapes` has a bit for each
// entry of skinny_shapes that may be used; with `any`, only the fallback is considered.
constexpr skinny_choice choose_skinny(const int* n, int segments, long long m, int k, int rank, int sm_count,
                                      bool any = false, unsigned shapes = 0x1f) {
  skinny_choice best;
  int least = 0;
  for (int shape = any ? 4 : 0; shape < (any ? 5 : 4); ++shape) {
    const auto& c = skinny_shapes[shape];
    if ((shapes >> shape & 1) == 0 || (!any && (c.splits > (k + 63) / 64 || c.rows + rank > 256))) continue;
    int tiles = 0;
    for (int s = 0; s < segments; ++s) tiles += (n[s] + c.rows - 1) / c.rows;
    const int time = skinny_cost(tiles, c.rows, c.splits, rank, padded_tokens(m), sm_count);
    if (best.rows == 0 || time < least) best = {padded_tokens(m), c.rows, c.splits, tiles, false, any}, least = time;
  }
  return best;
}

// Chooses the shape with the least cost for one product whose weight has the NN layout.
constexpr skinny_choice choose_skinny_nn(int n, int k, int rank, int sm_count, unsigned shapes) {
  skinny_choice best;
  int least = 0;
  for (int shape = 0; shape < skinny_nn_shape_count; ++shape) {
    const auto& c = skinny_nn_shapes[shape];
    if ((shapes >> shape & 1) == 0 || c.splits > (k + 63) / 64) continue;
    const int tiles = (n + c.rows - 1) / c.rows,
              time = skinny_cost(tiles, c.rows, c.splits, rank, max_skinny_tokens, sm_count);
    if (best.rows == 0 || time < least) best = {max_skinny_tokens, c.rows, c.splits, tiles, true}, least = time;
  }
  return best;
}

}  // namespace graft::gpu
