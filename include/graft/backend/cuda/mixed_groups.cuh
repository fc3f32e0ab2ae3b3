// SPDX-License-Identifier: Apache-2.0
// Up to 64 tokens with records of their own, in groups: at most eight tokens of one record each, which is what the narrow
// operand of mma.sync holds. Every thread block finds the groups by itself: tokens need no order, and there is nothing to
// prepare when rows change their adapters. Layers that are segments of one launch have the same groups.
#pragma once
#include <graft/backend/cuda/mixed_record.h>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/backend/cuda/stream_choice.h>

namespace graft::cuda {

// Where the records of each segment lie, and which of them the rows have.
struct mixed_tables {
  const mixed_record* records[max_segments];
  const std::int64_t* of_row;
  int segments;
};

// The record of row h. Everything else waits for it, so a block asks before it does anything, and may go on meanwhile: a
// load that the compiler does not move to where its result is read.
__device__ __forceinline__ std::int64_t ask_record(const mixed_tables& all, int m, int h) {
  std::int64_t index = -1;
  if (h >= 0 && h < m && h < max_mixed_rows)
    asm volatile("ld.global.s64 %0, [%1];" : "=l"(index) : "l"(all.of_row + h));
  return index;
}

// In shared memory. One segment, or up to Segments: a block looks at the records of all of them.
template <int Segments> struct alignas(16) mixed_groups {
  const float* scale[max_mixed_rows];
  const float* shift[max_mixed_rows];
  const void *a[Segments][max_mixed_rows], *b[max_mixed_rows];  // of each group; B in the segment of this block
  int rank[Segments][max_mixed_rows];
  int key[max_mixed_rows];                          // of each token: its record, where that has a side branch; else -1
  signed char token[max_mixed_rows * 8];            // of each group; -1: none
  unsigned first_of_group[2], widest[2], posts[2];  // by warp

  __device__ int count() const { return __popc(first_of_group[0]) + __popc(first_of_group[1]); }
  // Chunks of the largest rank, sixteen each, are a power of two: this one.
  __device__ int chunk_bits() const {
    const unsigned rank = widest[0] > widest[1] ? widest[0] : widest[1];
    return rank <= 16 ? 0 : rank <= 32 ? 1 : 2;
  }
  __device__ bool any_post() const { return (posts[0] | posts[1]) != 0; }

  // By thread h of Threads, at least 64, which meet at a barrier of theirs; `index` is the record of row h.
  template <int Barrier, int Threads>
  __device__ __forceinline__ void find(const mixed_tables& all, int own, int m, int h, std::int64_t index) {
    constexpr unsigned warp = 0xffffffffU;
    for (int i = h; i < max_mixed_rows * 2; i += Threads) reinterpret_cast<int*>(token)[i] = -1;
    const void *my_a[Segments], *my_b = nullptr;
    int my_rank[Segments], largest = 0;
    if (h < max_mixed_rows) {
      const bool inside = h < m;
      const mixed_record& r = all.records[own][index];
      scale[h] = r.scale, shift[h] = r.shift, my_b = r.b;
#pragma unroll
      for (int s = 0; s < Segments; ++s) {
        my_a[s] = nullptr, my_rank[s] = 0;
        if ((Segments > 1 && s >= all.segments) || index < 0) continue;
        const mixed_record& there = Segments > 1 ? all.records[s][index] : r;
        my_a[s] = there.a, my_rank[s] = static_cast<int>(there.rank);
        largest = largest < my_rank[s] ? my_rank[s] : largest;
      }
      key[h] = largest > 0 ? static_cast<int>(index) : -1;
      const unsigned most = __reduce_max_sync(warp, static_cast<unsigned>(largest));
      const unsigned any = __ballot_sync(warp, inside && (r.scale != nullptr || r.shift != nullptr));
      if (h % 32 == 0) widest[h / 32] = most, posts[h / 32] = any;
    }
    ptx::named_barrier(Barrier, Threads);
    std::uint64_t same = 0;
    int before = 0;
    bool first = false;
    if (h < max_mixed_rows) {
      const int mine = key[h];
#pragma unroll
      for (int i = 0; i < max_mixed_rows; ++i) same |= static_cast<std::uint64_t>(key[i] == mine) << i;
      before = __popcll(same & ((std::uint64_t{1} << h) - 1));
      first = mine >= 0 && before % 8 == 0;
      const unsigned heads = __ballot_sync(warp, first);
      if (h % 32 == 0) first_of_group[h / 32] = heads;
    }
    ptx::named_barrier(Barrier, Threads);
    if (h < max_mixed_rows && key[h] >= 0) {
      const std::uint64_t firsts = first_of_group[0] | static_cast<std::uint64_t>(first_of_group[1]) << 32;
      std::uint64_t rest = same;
      for (int i = before & ~7; i > 0; --i) rest &= rest - 1;
      const int head = __ffsll(static_cast<long long>(rest)) - 1;
      const int group = __popcll(firsts & ((std::uint64_t{1} << head) - 1));
      token[group * 8 + before % 8] = static_cast<signed char>(h);
      if (first) {
        b[group] = my_b;
#pragma unroll
        for (int s = 0; s < Segments; ++s) a[s][group] = my_a[s], rank[s][group] = my_rank[s];
      }
    }
    ptx::named_barrier(Barrier, Threads);
  }
};

}  // namespace graft::cuda
