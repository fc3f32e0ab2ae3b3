// SPDX-License-Identifier: Apache-2.0
// Arguments of the sm_90 decode attention kernels: TMA maps of the KV cache, the rows of the call, and the key
// range of a CTA.
#pragma once
#include <graft/backend/gpu/kernels/attention/softmax_rows.cuh>

namespace graft::gpu {

// TMA maps of the cache [slots, keys and values of all KV heads]: `tile` boxes are 64 rows of one head; `row_box` boxes
// are 16 rows of one column chunk of a head, for the last tile of a range.
struct decode_maps {
  CUtensorMap tile, row_box;
};
// Rows that consist of heads, `pitch` elements from row to row.
template <class T> struct strided_heads {
  const T* p;
  long long pitch;
  __device__ const T* at(int row, long long column) const { return p + row * pitch + column; }
};
template <class T> struct decode_args {
  attention_ranges ranges;
  strided_heads<T> q, k, v;
  const float* angles;            // RoPE [positions][Head]: cosines, then sines; null: q and k are rotated already
  const std::int64_t* positions;  // [rows]
  T *cache, *out;
  int heads, kv_heads, group_size;  // query heads, KV heads, query heads per KV head
  float scale;
  int stages;                          // stages of all pipelines of a CTA
  int float4s_per_split;               // float4 columns of O that each KV split reduces and writes (decode.cuh)
  unsigned inverse_float4s_per_split;  // 2^20 / finished, rounded up: replaces a division by a multiplication
  // True where no kernel that may still run writes ranges, cache or angles, because a copy or the start of a graph
  // separates two calls: the kernel may then read them before griddepcontrol.wait and release its dependents early.
  bool no_pending_writes;
  // For decode_split_kv.cuh: partial results, and one counter per (row, KV head) that is zero between launches.
  float* workspace;
  std::uint32_t* counters;
  score_cap cap;
  attention_sinks sinks;  // of the query rows
};

// Keys [first, end) of a row, and the 64-key tiles [from, to) of them that a CTA processes.
struct decode_range {
  int first, end, from, to;
};

}  // namespace graft::gpu
