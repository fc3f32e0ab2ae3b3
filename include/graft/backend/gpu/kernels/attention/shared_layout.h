// SPDX-License-Identifier: Apache-2.0
// Shared memory layouts and tile shapes of the attention kernels.
//
// A tile of rows or keys consists of column chunks one after the other; a row of a chunk has 32, 64 or 128 bytes and is
// swizzled over that span, as TMA and wgmma expect. Offsets are in bytes.
#pragma once
#include <graft/backend/gpu/tile/tile_order.h>

#include <cstdint>

namespace graft::gpu {

inline constexpr int attention_tile_rows = 128;  // query rows per tile, 64 for each of two warpgroups

// Attention ranges [3, rows] of a call (graph/rules_model.h): first key, end key, slot of the row's own key.
struct attention_ranges {
  const long long* p;
  int rows;
  __device__ int first(int r) const { return static_cast<int>(p[r]); }
  __device__ int end(int r) const { return static_cast<int>(p[rows + r]); }
  __device__ int own(int r) const { return static_cast<int>(p[2LL * rows + r]); }
};

// Sinks: in each row of q, k and v a score for each query head, which has no value but joins the denominator of the
// softmax; null: none. One owner of a row adds them, after its keys.
struct attention_sinks {
  const void* p;
  long long pitch;  // elements from row to row
};

// A soft cap: scores s = q · k / √d become cap tanh(s / cap). A kernel argument, so that it takes no registers.
struct score_cap {
  float largest;   // the cap
  float exponent;  // 2 log2(e) / (√d cap): tanh = 1 - 2 / (1 + 2^(exponent q · k))
  float inverse;   // 1 / (cap log2(e))
};

template <int Head> struct head_shape {
  static constexpr int chunk = Head % 64 == 0 ? 64 : Head % 32 == 0 ? 32 : 16, chunks = Head / chunk;
  static constexpr int steps = Head / 16, steps_per_chunk = chunk / 16;  // k16 steps over the columns of a head
  static constexpr std::uint32_t pitch = 2 * chunk;
  static constexpr std::uint32_t rows_bytes = 64 * Head * 2;  // 64 rows, one warpgroup
  static_assert(Head % 16 == 0 && Head <= 256);
};

// Prefill (prefill.cuh): Q, whose memory O reuses, and a pipeline of K and V tiles in the order of their use.
template <int Head> struct prefill_shape : head_shape<Head> {
  using head = head_shape<Head>;
  static constexpr int keys = Head > 128 ? 64 : 128, q_buffers = Head > 128 ? 1 : 2;
  static constexpr std::uint32_t tile = keys * Head * 2, q = 2 * head::rows_bytes, ring = q_buffers * q;
  static constexpr std::uint32_t rest =
      1024 + 2 * max_longest_first_tiles + 512;  // padding, order, stage info, barriers
  static constexpr int fitting = static_cast<int>((shared_memory_limit - rest - ring) / tile);
  static constexpr int stages = fitting < 8 ? fitting : 8;
  static constexpr std::uint32_t order = ring + stages * tile, stage_info = order + 2 * max_longest_first_tiles,
                                 barriers = stage_info + 16 * stages, bytes = ring + stages * tile + rest;
  static_assert(stages >= 4 && 16 * stages + 8 * (2 * q_buffers + 2 * stages) <= 512 && bytes <= shared_memory_limit);
};

// 32-bit words of dS for 64 rows x 128 keys: pairs of 16-bit values in the register order of the two warpgroups that
// computed them, [8 x 16 keys][4 x 16 rows][lane][4 matrices of 8 x 8].
inline constexpr int ds_tile = 8 * 4 * 32 * 4;

// dQ (backward_dq.cuh): staging rows of dQ, and a pipeline of 64 keys with dS of four blocks of 64 rows.
template <int Head> struct dq_shape : head_shape<Head> {
  using head = head_shape<Head>;
  static constexpr int keys = 64, blocks = 4;
  static constexpr std::uint32_t scores = 2 * ds_tile, stage = head::rows_bytes + blocks * scores,
                                 ring = 2 * head::rows_bytes;
  static constexpr std::uint32_t rest = 1024 + 2 * max_longest_first_tiles + 256;
  static constexpr int fitting = static_cast<int>((shared_memory_limit - rest - ring) / stage);
  static constexpr int stages = fitting < 6 ? fitting : 6;
  static constexpr std::uint32_t order = ring + stages * stage, stage_info = order + 2 * max_longest_first_tiles,
                                 barriers = stage_info + 8 * stages, bytes = ring + stages * stage + rest;
  static_assert(Head <= 128 && stages >= 4 && 8 * stages + 16 * stages <= 256 && bytes <= shared_memory_limit);
};

// dK and dV (backward_dkv.cuh): K and V of two tiles of 128 keys, and a pipeline of 64 rows of Q and dO with
// log-sum-exp and delta of each row.
template <int Head> struct dkv_shape : head_shape<Head> {
  using head = head_shape<Head>;
  static constexpr int keys = 128, step = 64;
  static constexpr std::uint32_t tile = keys * Head * 2, ring = 4 * tile, stage = 2 * head::rows_bytes,
                                 numbers = 8 * step;
  static constexpr std::uint32_t rest = 1024 + 2 * max_longest_first_tiles + 256;
  static constexpr int fitting = static_cast<int>((shared_memory_limit - rest - ring) / (stage + numbers));
  static constexpr int stages = fitting < 6 ? fitting : 6;
  static constexpr std::uint32_t vectors = ring + stages * stage, order = vectors + stages * numbers,
                                 stage_info = order + 2 * max_longest_first_tiles,
                                 barriers = stage_info + 16 + 8 * stages, bytes = vectors + stages * numbers + rest;
  static_assert(Head <= 128 && stages >= 3 && 16 + 8 * stages + 8 * (7 + 2 * stages) <= 256 &&
                bytes <= shared_memory_limit);
};

// Decode (decode.cuh): a pipeline of tiles of 64 keys or 64 values. Two CTAs share an SM, so that one loads while the
// other finishes. With few CTAs and long ranges a CTA has the SM to itself and twice the stages (long_pipeline); with
// more CTAs than fit at once, Warps is 4, the stages are half, four CTAs share an SM and none splits a row. Each group
// of four warps has a pipeline of its own. The partial sums of the warps reuse the stages.
inline constexpr int max_decode_group = 8, max_kv_splits = 8;
constexpr int decode_stages(int head, bool long_pipeline = false) {
  if (head > 128) return 6;  // one CTA per SM in any case
  return 98304 / (64 * head * 2) / 2 * (long_pipeline ? 4 : 2);
}
template <int Head, int Warps = 8> struct decode_shape : head_shape<Head> {
  static constexpr int head = Head, keys = 64, warps = Warps, threads = 32 * (warps + 1),
                       resident = Head > 128 ? 1 : 16 / warps;
  static constexpr std::uint32_t tile = head_shape<Head>::rows_bytes;
  static constexpr int stages = decode_stages(Head) * warps / 8;
  static constexpr std::uint32_t sum_pitch = Head + 4;  // floats per query head in the sums of a warp
  static constexpr std::uint32_t sums = warps * max_decode_group * sum_pitch * 4, numbers = 512;
  // Written by the other KV splits of the cluster: barriers, maximum and sum per head, values of some columns.
  static constexpr std::uint32_t receive_buffer =
      warps < 8 ? 16 : 16 + max_kv_splits * max_decode_group * 16 + (max_decode_group * Head * 4 + max_kv_splits * 16);
  // The row's new key and value, and its RoPE angles.
  static constexpr std::uint32_t own = 4 * Head, angle_bytes = 4 * Head;
  static constexpr std::uint32_t bytes_with(int n) {
    return n * (tile + 16) + receive_buffer + own + angle_bytes + 1024;
  }
  static constexpr std::uint32_t bytes = bytes_with(stages);
  static constexpr std::uint32_t long_bytes = bytes_with(decode_stages(Head, true));
  static_assert(stages >= 3 * (warps / 4) && sums + numbers <= stages * tile &&
                resident * (bytes + 1024) <= 228 * 1024 && long_bytes <= shared_memory_limit);
};

// Split-KV decode (decode_split_kv.cuh): a CTA processes several (row, head) items. The sums of the warps and the
// stages of the next items have memory after the pipeline, which keeps loading. There are at most cost / min_chunk_cost
// chunks, where a tile costs 1.
inline constexpr int min_chunk_cost = 5, item_stages = 4;
inline constexpr int split_kv_barrier_bytes = 16 * item_stages + 16;
constexpr int item_bytes(int head) { return 32 + max_decode_group * (2 * head + 16) + 8 * head; }
constexpr int split_kv_stages(int head) {
  const int sums = 8 * max_decode_group * (head + 4) * 4 + 512,
            extra = 1024 + split_kv_barrier_bytes + 4 * head + item_stages * item_bytes(head);
  return (shared_memory_limit - sums - extra) / (64 * head * 2 + 16) / 2 * 2;
}
template <int Head> struct split_kv_shape : head_shape<Head> {
  static constexpr int head = Head, keys = 64, warps = 8, threads = 32 * (warps + 2), stages = split_kv_stages(Head);
  static constexpr std::uint32_t tile = head_shape<Head>::rows_bytes, sum_pitch = Head + 4;
  static constexpr std::uint32_t sums = warps * max_decode_group * sum_pitch * 4, numbers = 512;
  static constexpr std::uint32_t receive_buffer = split_kv_barrier_bytes, own = 4 * Head, angle_bytes = 4 * Head;
  static constexpr std::uint32_t query_pitch = 2 * Head + 16, item = item_bytes(Head);
  static constexpr std::uint32_t sums_at = stages * (tile + 16) + receive_buffer + own + item_stages * item,
                                 bytes = 1024 + sums_at + sums + numbers;
  static_assert(stages >= 6 && bytes <= shared_memory_limit);
};

}  // namespace graft::gpu
