// SPDX-License-Identifier: Apache-2.0
// How work is spread over the device: a thread per element, a warp per row, a thread column per output column, a block
// per matrix. The work is a functor that runs on the host as well: threads that work together are a team, and `alone`
// is a team of one. One owner per output and a fixed order of every sum: a result is the same each time.
#pragma once
#include <graft/backend/cuda/launch.h>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/core/few_numbers.h>

#include <type_traits>

namespace graft::cuda {

struct alone {
  int rank = 0, size = 1;
  __host__ __device__ bool leads() const { return true; }
  __host__ __device__ bool owns() const { return true; }  // what it was given is its own
  __host__ __device__ void sync() const {}
  template <class Real> __host__ __device__ Real sum(Real v) const { return v; }
  template <class Real> __host__ __device__ Real most(Real v) const { return v; }
  __host__ __device__ unsigned votes(bool v) const { return v ? 1 : 0; }  // one bit a thread
  __host__ __device__ long long largest(double, long long at) const { return at; }
  template <int> __host__ __device__ double* near_memory() const { return nullptr; }
};
template <class Real> __device__ Real warp_sum(Real v) {
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffU, v, d);
  return v;
}
struct warp_team {
  int rank, size = 32;
  __device__ bool leads() const { return rank == 0; }
  template <class Real> __device__ Real sum(Real v) const { return warp_sum(v); }
  template <class Real> __device__ Real most(Real v) const {
    for (int d = 16; d > 0; d /= 2) {
      const Real other = __shfl_xor_sync(0xffffffffU, v, d);
      v = other > v ? other : v;
    }
    return v;
  }
  __device__ unsigned votes(bool v) const { return __ballot_sync(0xffffffffU, v); }
};
// 32 neighbours along a row, each with the threads below it; those beyond the last column only keep the others company.
struct column_team {
  static constexpr int height = 16;
  int rank;
  bool inside;
  int size = height;
  __device__ bool leads() const { return rank == 0 && inside; }
  __device__ bool owns() const { return inside; }
  template <class Real> __device__ Real sum(Real v) const {
    __shared__ Real cell[height][32];
    __syncthreads();
    cell[rank][threadIdx.x] = v;
    __syncthreads();
    Real total = 0;
    for (int k = 0; k < height; ++k) total += cell[k][threadIdx.x];
    return total;
  }
};
struct block_team {
  int rank, size;
  __device__ bool leads() const { return rank == 0; }
  __device__ void sync() const { __syncthreads(); }
  template <class Real> __device__ Real sum(Real v) const {
    __shared__ Real part[32];
    v = warp_sum(v);
    __syncthreads();
    if (rank % 32 == 0) part[rank / 32] = v;
    __syncthreads();
    Real total = 0;
    for (int w = 0; w < size / 32; ++w) total += part[w];
    return total;
  }
  template <class Real> __device__ Real most(Real v) const {
    __shared__ Real part[32];
    v = warp_team{rank % 32}.most(v);
    __syncthreads();
    if (rank % 32 == 0) part[rank / 32] = v;
    __syncthreads();
    for (int w = 0; w < size / 32; ++w) v = part[w] > v ? part[w] : v;
    return v;
  }
  // The place of the largest value that any thread brings; of equal ones the first.
  __device__ long long largest(double value, long long at) const {
    __shared__ double values[32];
    __shared__ long long places[32];
    for (int d = 16; d > 0; d /= 2)
      take(value, at, __shfl_down_sync(0xffffffffU, value, d), __shfl_down_sync(0xffffffffU, at, d));
    __syncthreads();
    if (rank % 32 == 0) values[rank / 32] = value, places[rank / 32] = at;
    __syncthreads();
    value = values[0], at = places[0];
    for (int w = 1; w < size / 32; ++w) take(value, at, values[w], places[w]);
    return at;
  }
  // So many doubles that only this team sees, beside its processor; none where a team has no such memory.
  template <int Count> __device__ double* near_memory() const {
    __shared__ alignas(16) double memory[Count];
    return memory;
  }
  __device__ static void take(double& value, long long& at, double other, long long place) {
    if (other > value || (other == value && place < at)) value = other, at = place;
  }
};

// How each of these kernels begins: the next one may be started, and what the one ahead wrote is there.
__device__ __forceinline__ void take_turn() {
#if __CUDA_ARCH__ >= 900
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
#endif
}
template <class Element> __global__ void each_element(long long n, Element e) {
  take_turn();
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) e(i);
}
template <class Row> __global__ void each_row(long long n, Row r) {
  take_turn();
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (long long i = static_cast<long long>(blockIdx.x) * warps + warp; i < n;
       i += static_cast<long long>(gridDim.x) * warps)
    r(i, warp_team{static_cast<int>(threadIdx.x) % 32});
}
template <class Column> __global__ void each_column(long long n, Column c) {
  take_turn();
  for (long long i = static_cast<long long>(blockIdx.x) * 32; i < n; i += static_cast<long long>(gridDim.x) * 32) {
    const long long own = i + threadIdx.x;
    c(own < n ? own : n - 1, column_team{static_cast<int>(threadIdx.y), own < n});
  }
}
template <class Matrix> __global__ void each_matrix(long long n, Matrix m) {
  take_turn();
  for (long long i = blockIdx.x; i < n; i += gridDim.x) {
    m(i, block_team{static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)});
    __syncthreads();
  }
}

// Enough blocks to fill any device several times over; what is left is the kernels' own stride.
inline unsigned blocks_for(long long n, long long per_block) {
  return static_cast<unsigned>(smaller_of((n + per_block - 1) / per_block, 1LL << 16));
}
template <class Element> status each(cudaStream_t stream, long long n, const Element& e, const char* name) {
  if (n <= 0) return ok;
  return launch_chained(stream, &each_element<Element>, blocks_for(n, 256), 256, name, n, e);
}

// Where an evaluator runs its functors. A test puts a loop on the host in its place.
struct on_stream {
  cudaStream_t stream;

  template <class Element> status elements(long long n, const Element& e, const char* name) const {
    return each(stream, n, e, name);
  }
  template <class Row> status rows(long long n, const Row& r, const char* name) const {
    if (n <= 0) return ok;
    return launch_chained(stream, &each_row<Row>, blocks_for(n, 4), 128, name, n, r);
  }
  template <class Column> status columns(long long n, const Column& c, const char* name) const {
    if (n <= 0) return ok;
    return launch_chained(stream, &each_column<Column>, blocks_for(n, 32), dim3(32, column_team::height), name, n, c);
  }
  // `work` is what a block has to do at once: small matrices take small blocks.
  template <class Matrix> status matrices(long long n, long long work, const Matrix& m, const char* name) const {
    return blocks(n, static_cast<unsigned>(between((work + 31) / 32 * 32, 32LL, 256LL)), m, name);
  }
  template <class Matrix> status blocks(long long n, unsigned threads, const Matrix& m, const char* name) const {
    if (n <= 0) return ok;
    return launch_chained(stream, &each_matrix<Matrix>, blocks_for(n, 1), threads, name, n, m);
  }
};
// What an evaluator does better on a stream than anywhere else is a template too: nvcc compiles the kernels behind every
// function that is none, also where nothing calls it.
template <class On>
concept streams = std::is_same_v<On, on_stream>;

}  // namespace graft::cuda
