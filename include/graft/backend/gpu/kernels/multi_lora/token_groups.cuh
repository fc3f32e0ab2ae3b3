// SPDX-License-Identifier: Apache-2.0
// Groups the tokens of a multi-LoRA batch by adapter record, inside each CTA of the skinny kernel: at most eight tokens
// of one record per group, the narrow operand of mma.sync.
//
// Up to 64 tokens in any order. Every CTA finds the groups itself, so that nothing must be prepared when rows change
// their adapters. Layers that are segments of one launch have the same groups.
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/dispatch/skinny.h>
#include <graft/backend/gpu/kernels/multi_lora/adapter_record.h>

namespace graft::gpu {

// The record tables of the segments of a launch, and the record index of each row.
struct record_tables {
  const adapter_record* records[max_segments];
  const std::int64_t* of_row;
  int segments;
};

// Loads the record index of row h; -1: none. Everything else waits for it, so a CTA loads it first; volatile asm keeps
// the compiler from moving the load to its use.
__device__ __forceinline__ std::int64_t load_record_index(const record_tables& all, int m, int h) {
  std::int64_t index = -1;
  if (h >= 0 && h < m && h < max_multi_lora_rows) index = ptx::load_early(all.of_row + h);
  return index;
}

// The groups, in shared memory. With several segments a CTA needs A and rank of all, because it shrinks for all.
template <int Segments> struct alignas(16) token_groups {
  const float* scale[max_multi_lora_rows];
  const float* shift[max_multi_lora_rows];
  const void *a[Segments][max_multi_lora_rows],
      *b[max_multi_lora_rows];  // per group; B of this CTA's segment
  int rank[Segments][max_multi_lora_rows];
  int key[max_multi_lora_rows];                // per token: its record, where that has a low-rank branch; else -1
  signed char token[max_multi_lora_rows * 8];  // [group][8]; -1: none
  unsigned first_of_group[2], widest[2], epilogue_steps[2];  // per warp of 32 tokens

  __device__ int count() const { return __popc(first_of_group[0]) + __popc(first_of_group[1]); }
  // log2 of the chunks of 16 in the largest rank, rounded up to a power of two.
  __device__ int chunk_bits() const {
    const unsigned rank = widest[0] > widest[1] ? widest[0] : widest[1];
    return rank <= 16 ? 0 : rank <= 32 ? 1 : 2;
  }
  __device__ bool any_epilogue() const { return (epilogue_steps[0] | epilogue_steps[1]) != 0; }

  // Thread h of `Threads` >= 64 threads calls this; they synchronize on `Barrier`. `index` is the record of row h.
  template <int Barrier, int Threads>
  __device__ __forceinline__ void find(const record_tables& all, int own, int m, int h, std::int64_t index) {
    constexpr unsigned warp = 0xffffffffU;
    for (int i = h; i < max_multi_lora_rows * 2; i += Threads) reinterpret_cast<int*>(token)[i] = -1;
    const void *my_a[Segments], *my_b = nullptr;
    int my_rank[Segments], largest = 0;
    if (h < max_multi_lora_rows) {
      const bool inside = h < m;
      const adapter_record& r = all.records[own][index];
      scale[h] = r.scale, shift[h] = r.shift, my_b = r.b;
#pragma unroll
      for (int s = 0; s < Segments; ++s) {
        my_a[s] = nullptr, my_rank[s] = 0;
        if ((Segments > 1 && s >= all.segments) || index < 0) continue;
        const adapter_record& there = Segments > 1 ? all.records[s][index] : r;
        my_a[s] = there.a, my_rank[s] = static_cast<int>(there.rank);
        largest = largest < my_rank[s] ? my_rank[s] : largest;
      }
      key[h] = largest > 0 ? static_cast<int>(index) : -1;
      const unsigned most = __reduce_max_sync(warp, static_cast<unsigned>(largest));
      const unsigned any = __ballot_sync(warp, inside && (r.scale != nullptr || r.shift != nullptr));
      if (h % 32 == 0) widest[h / 32] = most, epilogue_steps[h / 32] = any;
    }
    ptx::named_barrier(Barrier, Threads);
    std::uint64_t same = 0;
    int before = 0;
    bool first = false;
    if (h < max_multi_lora_rows) {
      const int mine = key[h];
#pragma unroll
      for (int i = 0; i < max_multi_lora_rows; ++i) same |= static_cast<std::uint64_t>(key[i] == mine) << i;
      before = __popcll(same & ((std::uint64_t{1} << h) - 1));
      first = mine >= 0 && before % 8 == 0;
      const unsigned heads = __ballot_sync(warp, first);
      if (h % 32 == 0) first_of_group[h / 32] = heads;
    }
    ptx::named_barrier(Barrier, Threads);
    if (h < max_multi_lora_rows && key[h] >= 0) {
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

}  // namespace graft::gpu
