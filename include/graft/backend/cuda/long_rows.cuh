// SPDX-License-Identifier: Apache-2.0
// A long row by a thread block that reads it once and keeps it, in pieces of eight elements: a thread has `Pieces` of them.
// Few rows take many threads each, so that they are soon done; many rows take few, so that many are on their way. Sums are
// the same bits either way: 32 neighbouring pieces are added up as a tree, and the trees one after the other.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/eights.cuh>

namespace graft::cuda {

inline constexpr long long shortest_long_row = 1024, longest_long_row = 8192;

inline bool is_long_row(long long n) { return n >= shortest_long_row && n <= longest_long_row && n % 8 == 0; }
// So many rows that each of them needs no more than a few warps to keep the device busy.
inline bool are_many_rows(long long rows) { return rows > 512; }
template <int Pieces> unsigned threads_of_row(long long n) {
  return static_cast<unsigned>(((n + 8 * Pieces - 1) / (8 * Pieces) + 31) / 32 * 32);
}

// Eight elements as they are stored: half the registers in 16 bits.
template <dtype Type> struct stored_eight {
  uint4 bits;
  __device__ void load(const cells<float>& from, long long first) {
    bits = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(from.at) + first);
  }
  __device__ void read(float (&to)[8]) const { widen_eight<Type>(to, bits); }
};
template <> struct stored_eight<dtype::f32> {
  float v[8];
  __device__ void load(const cells<float>& from, long long first) { load_eight(v, {from.at, dtype::f32}, first); }
  __device__ void read(float (&to)[8]) const {
    for (int e = 0; e < 8; ++e) to[e] = v[e];
  }
};

template <dtype Type, int Pieces> struct row_pieces {
  using kept = stored_eight<Type>[Pieces];
  static constexpr int most_trees = static_cast<int>(longest_long_row / 256) + 4;
  long long n;  // columns
  int rank, size;

  // Calls f with each piece of the thread and its first column.
  template <class F> __device__ void each(const F& f) const {
#pragma unroll
    for (int k = 0; k < Pieces; ++k)
      if (const long long c = 8LL * (rank + k * size); c < n) f(k, c);
  }
  __device__ void load(kept& to, const cells<float>& from, long long first) const {
    each([&](int k, long long c) { to[k].load(from, first + c); });
  }
  // Σ x and Σ y over the row, of what f says of each piece.
  template <class F> __device__ float2 sums(const F& f) const {
    __shared__ float2 trees[most_trees];
    float2 part[Pieces] = {};
    each([&](int k, long long c) { part[k] = f(k, c); });
    const int warps = size / 32, warp = rank / 32;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Pieces; ++k) {
      const float2 tree = make_float2(warp_sum(part[k].x), warp_sum(part[k].y));
      if (rank % 32 == 0) trees[k * warps + warp] = tree;
    }
    __syncthreads();
    float2 all = make_float2(0, 0);
    for (int k = 0; k < Pieces * warps; ++k) all.x += trees[k].x, all.y += trees[k].y;
    return all;
  }
};
// Factors of eight columns; ones where there are none.
__device__ __forceinline__ void read_factors(float (&to)[8], const cells<float>& from, long long first) {
  if (from.at != nullptr) return load_eight(to, from, first);
  for (float& v : to) v = 1;
}

// Runs F<Type, Pieces>{of} for every row by blocks, where x has one of the types that there are kernels for; false where it
// has not, or where rows are no long ones.
template <template <dtype, int> class F, class Of>
result<bool> by_long_rows(const on_stream& on, const Of& of, bool fits, const char* name) {
  const long long rows = of.x.rows(), n = of.x.d[3];
  if (!fits || !is_long_row(n)) return false;
  auto run = [&](auto few, auto many) -> result<bool> {
    const status s = are_many_rows(rows) ? on.blocks(rows, threads_of_row<4>(n), many, name)
                                         : on.blocks(rows, threads_of_row<1>(n), few, name);
    if (!s) return s.failure();
    return true;
  };
  if (of.x.p.type == dtype::f32) return run(F<dtype::f32, 1>{of}, F<dtype::f32, 4>{of});
  if (of.x.p.type == dtype::bf16) return run(F<dtype::bf16, 1>{of}, F<dtype::bf16, 4>{of});
  return false;
}

}  // namespace graft::cuda
