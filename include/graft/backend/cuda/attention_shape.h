// SPDX-License-Identifier: Apache-2.0
// The attention families in numbers: how a head is cut into chunks that the copy engine and wgmma read, and how shared
// memory of a thread block is divided. A tile of rows or keys lies chunk after chunk, each chunk rows of 32, 64 or 128
// bytes that are swizzled over that span.
#pragma once
#include <graft/backend/cuda/gemm_shape.h>

#include <cstdint>

namespace graft::cuda {

inline constexpr int attention_rows = 128;  // of queries, half of them for each of two warpgroups
inline constexpr int dealt_rounds = 128;    // tiles of a thread block whose order is kept

// Three of a call's numbers for each row: spans (graph/rules_model.h).
struct row_spans {
  const long long* p;
  int rows;
  __device__ int first(int r) const { return static_cast<int>(p[r]); }
  __device__ int end(int r) const { return static_cast<int>(p[rows + r]); }
  __device__ int own(int r) const { return static_cast<int>(p[2LL * rows + r]); }
};

template <int Head> struct head_shape {
  static constexpr int chunk = Head % 64 == 0 ? 64 : Head % 32 == 0 ? 32 : 16, chunks = Head / chunk;
  static constexpr int steps = Head / 16, steps_per_chunk = chunk / 16;  // of a product along the head
  static constexpr std::uint32_t pitch = 2 * chunk;
  static constexpr std::uint32_t rows_bytes = 64 * Head * 2;  // of the rows of one warpgroup
  static_assert(Head % 16 == 0 && Head <= 256);
};

// Forward: rows of Q, which O takes the place of, and a ring of tiles of K and V in the order of their use.
template <int Head> struct prefill_shape : head_shape<Head> {
  using head = head_shape<Head>;
  static constexpr int keys = Head > 128 ? 64 : 128, q_buffers = Head > 128 ? 1 : 2;
  static constexpr std::uint32_t tile = keys * Head * 2, q = 2 * head::rows_bytes, ring = q_buffers * q;
  static constexpr std::uint32_t rest = 1024 + 2 * dealt_rounds + 512;  // alignment, order, notes and barriers
  static constexpr int fitting = static_cast<int>((shared_memory_limit - rest - ring) / tile);
  static constexpr int stages = fitting < 8 ? fitting : 8;
  static constexpr std::uint32_t order = ring + stages * tile, notes = order + 2 * dealt_rounds,
                                 barriers = notes + 16 * stages, bytes = ring + stages * tile + rest;
  static_assert(stages >= 4 && 16 * stages + 8 * (2 * q_buffers + 2 * stages) <= 512 && bytes <= shared_memory_limit);
};

// dS of 64 rows and 128 keys, pairs of numbers as the registers of two warpgroups had them: [8 times 16 keys][4 times 16
// rows][lane][4 matrices of 8 x 8].
inline constexpr int score_tile = 8 * 4 * 32 * 4;

// Gradient of the queries: a ring of 64 keys with dS of four blocks of 64 rows, and rows of dQ on their way out.
template <int Head> struct query_grad_shape : head_shape<Head> {
  using head = head_shape<Head>;
  static constexpr int keys = 64, blocks = 4;
  static constexpr std::uint32_t scores = 2 * score_tile, stage = head::rows_bytes + blocks * scores,
                                 ring = 2 * head::rows_bytes;
  static constexpr std::uint32_t rest = 1024 + 2 * dealt_rounds + 256;
  static constexpr int fitting = static_cast<int>((shared_memory_limit - rest - ring) / stage);
  static constexpr int stages = fitting < 6 ? fitting : 6;
  static constexpr std::uint32_t order = ring + stages * stage, notes = order + 2 * dealt_rounds,
                                 barriers = notes + 8 * stages, bytes = ring + stages * stage + rest;
  static_assert(Head <= 128 && stages >= 4 && 8 * stages + 16 * stages <= 256 && bytes <= shared_memory_limit);
};

// Gradient of keys and values: K and V of two tiles of 128 keys, and a ring of 64 rows of Q and of dO with two numbers
// for each row.
template <int Head> struct key_grad_shape : head_shape<Head> {
  using head = head_shape<Head>;
  static constexpr int keys = 128, step = 64;
  static constexpr std::uint32_t tile = keys * Head * 2, ring = 4 * tile, stage = 2 * head::rows_bytes,
                                 numbers = 8 * step;
  static constexpr std::uint32_t rest = 1024 + 2 * dealt_rounds + 256;
  static constexpr int fitting = static_cast<int>((shared_memory_limit - rest - ring) / (stage + numbers));
  static constexpr int stages = fitting < 6 ? fitting : 6;
  static constexpr std::uint32_t vectors = ring + stages * stage, order = vectors + stages * numbers,
                                 notes = order + 2 * dealt_rounds, barriers = notes + 16 + 8 * stages,
                                 bytes = vectors + stages * numbers + rest;
  static_assert(Head <= 128 && stages >= 3 && 16 + 8 * stages + 8 * (7 + 2 * stages) <= 256 &&
                bytes <= shared_memory_limit);
};

// Few rows over a cache: a ring of tiles of 64 keys or values; two thread blocks share a multiprocessor, so that one loads
// while the other one ends. Where there are so few blocks that each has one for itself, and long spans, the ring is twice as
// long; where there are more than fit, blocks have half the warps and half the ring, and whole rows. What it held, the sums
// of the warps take the place of. Four warps have a ring of their own, half of the stages where there are eight.
inline constexpr int most_decode_group = 8, most_decode_parts = 8;
constexpr int decode_stages(int head, bool long_ring = false) {
  if (head > 128) return 6;  // a thread block has a multiprocessor for itself in any case
  return 98304 / (64 * head * 2) / 2 * (long_ring ? 4 : 2);
}
template <int Head, int Warps = 8> struct decode_shape : head_shape<Head> {
  static constexpr int head = Head, keys = 64, warps = Warps, threads = 32 * (warps + 1),
                       resident = Head > 128 ? 1 : 16 / warps;
  static constexpr std::uint32_t tile = head_shape<Head>::rows_bytes;
  static constexpr int stages = decode_stages(Head) * warps / 8;
  static constexpr std::uint32_t sum_pitch = Head + 4;  // floats of a row of one warp
  static constexpr std::uint32_t sums = warps * most_decode_group * sum_pitch * 4, numbers = 512;
  // What the parts of a row write: a barrier, two numbers for each head, and a share of the columns from each.
  static constexpr std::uint32_t inbox = warps < 8 ? 16
                                                   : 16 + most_decode_parts * most_decode_group * 16 +
                                                         (most_decode_group * Head * 4 + most_decode_parts * 16);
  static constexpr std::uint32_t own = 4 * Head, turns = 4 * Head;  // key and value of the row itself, and its angles
  static constexpr std::uint32_t bytes_with(int n) { return n * (tile + 16) + inbox + own + turns + 1024; }
  static constexpr std::uint32_t bytes = bytes_with(stages);
  static constexpr std::uint32_t long_bytes = bytes_with(decode_stages(Head, true));
  static_assert(stages >= 3 * (warps / 4) && sums + numbers <= stages * tile &&
                resident * (bytes + 1024) <= 228 * 1024 && long_bytes <= shared_memory_limit);
};

// The same where a thread block has several rows and heads one after the other: sums of the warps, and what the next rows and
// heads bring, lie behind the ring, which goes on meanwhile. A piece of the list is not shorter than so many tiles.
inline constexpr int least_spread_cost = 5, brought_places = 4;
inline constexpr int spread_barriers = 16 * brought_places + 16;
constexpr int brought_bytes(int head) { return 32 + most_decode_group * (2 * head + 16) + 8 * head; }
constexpr int spread_stages(int head) {
  const int sums = 8 * most_decode_group * (head + 4) * 4 + 512,
            beside = 1024 + spread_barriers + 4 * head + brought_places * brought_bytes(head);
  return (shared_memory_limit - sums - beside) / (64 * head * 2 + 16) / 2 * 2;
}
template <int Head> struct spread_shape : head_shape<Head> {
  static constexpr int head = Head, keys = 64, warps = 8, threads = 32 * (warps + 2), stages = spread_stages(Head);
  static constexpr std::uint32_t tile = head_shape<Head>::rows_bytes, sum_pitch = Head + 4;
  static constexpr std::uint32_t sums = warps * most_decode_group * sum_pitch * 4, numbers = 512;
  static constexpr std::uint32_t inbox = spread_barriers, own = 4 * Head, turns = 4 * Head;
  static constexpr std::uint32_t query_pitch = 2 * Head + 16, brought = brought_bytes(Head);
  static constexpr std::uint32_t sums_at = stages * (tile + 16) + inbox + own + brought_places * brought,
                                 bytes = 1024 + sums_at + sums + numbers;
  static_assert(stages >= 6 && bytes <= shared_memory_limit);
};

}  // namespace graft::cuda
