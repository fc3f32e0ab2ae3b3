// SPDX-License-Identifier: Apache-2.0
// One thread block per row, for norms of long rows (1024 to 8192 columns): the block reads the row once and keeps it in
// registers, `Vectors` vectors of eight elements per thread. With few rows a block has many threads with one vector
// each, for latency; with many rows it has few threads with four vectors, for occupancy. Sums have the same order in
// both cases: a tree over every 32 neighboring vectors, and these sums one after the other. cub::BlockReduce is not
// used, because the order of its sums follows from the number of threads.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/tile/vector8.cuh>

namespace graft::gpu {

inline constexpr long long min_block_row = 1024, max_block_row = 8192;

inline bool takes_block_per_row(long long n) { return n >= min_block_row && n <= max_block_row && n % 8 == 0; }
// Are there enough rows that a few warps per row keep the device busy?
inline bool has_many_rows(long long rows) { return rows > 512; }
template <int Vectors> unsigned threads_of_row(long long n) {
  return static_cast<unsigned>(((n + 8 * Vectors - 1) / (8 * Vectors) + 31) / 32 * 32);
}

// Eight elements in their storage type; 16-bit types need half of the registers of float.
template <dtype Type> struct stored_vec8 {
  uint4 bits;
  __device__ void load(const element_ptr<float>& from, long long first) {
    bits = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(from.at) + first);
  }
  __device__ void read(float (&to)[8]) const { widen_vec8<Type>(to, bits); }
};
template <> struct stored_vec8<dtype::f32> {
  float v[8];
  __device__ void load(const element_ptr<float>& from, long long first) { load_vec8(v, {from.at, dtype::f32}, first); }
  __device__ void read(float (&to)[8]) const {
    for (int e = 0; e < 8; ++e) to[e] = v[e];
  }
};

template <dtype Type, int Vectors> struct row_vectors {
  using row_registers = stored_vec8<Type>[Vectors];
  static constexpr int max_trees = static_cast<int>(max_block_row / 256) + 4;
  long long n;  // columns
  int rank, size;

  // Calls f(k, c) for each vector k of this thread; c is its first column.
  template <class F> __device__ void each(const F& f) const {
#pragma unroll
    for (int k = 0; k < Vectors; ++k)
      if (const long long c = 8LL * (rank + k * size); c < n) f(k, c);
  }
  __device__ void load(row_registers& to, const element_ptr<float>& from, long long first) const {
    each([&](int k, long long c) { to[k].load(from, first + c); });
  }
  // Sums f(k, c), which returns the sums (x, y) of one vector, over the row.
  template <class F> __device__ float2 sums(const F& f) const {
    __shared__ float2 trees[max_trees];
    float2 partial[Vectors] = {};
    each([&](int k, long long c) { partial[k] = f(k, c); });
    const int warps = size / 32, warp = rank / 32;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Vectors; ++k) {
      const float2 tree = make_float2(warp_sum(partial[k].x), warp_sum(partial[k].y));
      if (rank % 32 == 0) trees[k * warps + warp] = tree;
    }
    __syncthreads();
    float2 all = make_float2(0, 0);
    for (int k = 0; k < Vectors * warps; ++k) all.x += trees[k].x, all.y += trees[k].y;
    return all;
  }
};
// Loads the gains of eight columns, or ones if there are none.
__device__ __forceinline__ void read_factors(float (&to)[8], const element_ptr<float>& from, long long first) {
  if (from.at != nullptr) return load_vec8(to, from, first);
  for (float& v : to) v = 1;
}

// Runs F<Type, Vectors>{of} with a block per row. Returns false if there is no kernel for the type of x or for the row
// length, or if `fits` is false.
template <template <dtype, int> class F, class Of>
result<bool> run_block_per_row(const on_stream& on, const Of& of, bool fits, const char* name) {
  const long long rows = of.x.rows(), n = of.x.d[3];
  if (!fits || !takes_block_per_row(n)) return false;
  auto run = [&](auto few, auto many) -> result<bool> {
    const status s = has_many_rows(rows) ? on.blocks(rows, threads_of_row<4>(n), many, name)
                                         : on.blocks(rows, threads_of_row<1>(n), few, name);
    if (!s) return s.failure();
    return true;
  };
  if (of.x.p.type == dtype::f32) return run(F<dtype::f32, 1>{of}, F<dtype::f32, 4>{of});
  if (of.x.p.type == dtype::bf16) return run(F<dtype::bf16, 1>{of}, F<dtype::bf16, 4>{of});
  return false;
}

}  // namespace graft::gpu
