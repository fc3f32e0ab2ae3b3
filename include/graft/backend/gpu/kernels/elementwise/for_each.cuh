// SPDX-License-Identifier: Apache-2.0
// Grid mappings for functors: a thread per element, a warp per row, a thread column per output column, a CTA
// per matrix. A functor also runs on the host, so that tests can compare: threads that cooperate are a team, and
// single_thread is a team of one. Every output has one owner and every sum a fixed order, so results are bitwise
// deterministic.
//
// The reductions of teams are not cub::WarpReduce and cub::BlockReduce: a functor is compiled once for the device and
// for the host, the number of threads of a block is chosen at run time, where CUB takes it as a template argument, and
// every thread gets the result, where CUB gives it to the first one.
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/runtime/launch.h>
#include <graft/core/algorithm.h>

#include <type_traits>

namespace graft::gpu {

struct single_thread {
  int rank = 0, size = 1;
  __host__ __device__ bool is_leader() const { return true; }
  __host__ __device__ bool owns() const { return true; }  // whether this thread's item exists, see column_team
  __host__ __device__ void sync() const {}
  template <class Real> __host__ __device__ Real sum(Real v) const { return v; }
  template <class Real> __host__ __device__ Real most(Real v) const { return v; }
  __host__ __device__ int sum_of_lower_ranks(int) const { return 0; }
  __host__ __device__ unsigned ballot(bool v) const { return v ? 1 : 0; }  // one bit per thread
  __host__ __device__ long long largest(double, long long at) const { return at; }
  template <int> __host__ __device__ double* team_shared_memory() const { return nullptr; }
};
template <class Real> __device__ Real warp_sum(Real v) {
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffU, v, d);
  return v;
}
struct warp_team {
  int rank, size = 32;
  __device__ bool is_leader() const { return rank == 0; }
  template <class Real> __device__ Real sum(Real v) const { return warp_sum(v); }
  template <class Real> __device__ Real most(Real v) const {
    for (int d = 16; d > 0; d /= 2) {
      const Real other = __shfl_xor_sync(0xffffffffU, v, d);
      v = other > v ? other : v;
    }
    return v;
  }
  __device__ unsigned ballot(bool v) const { return __ballot_sync(0xffffffffU, v); }
};
// A block of 32 columns by `height` threads; each column is a team. Threads past the last column only take part in
// barriers.
struct column_team {
  static constexpr int height = 16;
  int rank;
  bool inside;
  int size = height;
  __device__ bool is_leader() const { return rank == 0 && inside; }
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
  __device__ bool is_leader() const { return rank == 0; }
  __device__ void sync() const { __syncthreads(); }
  template <class Real> __device__ Real sum(Real v) const {
    __shared__ Real partial[32];
    v = warp_sum(v);
    __syncthreads();
    if (rank % 32 == 0) partial[rank / 32] = v;
    __syncthreads();
    Real total = 0;
    for (int w = 0; w < size / 32; ++w) total += partial[w];
    return total;
  }
  template <class Real> __device__ Real most(Real v) const {
    __shared__ Real partial[32];
    v = warp_team{rank % 32}.most(v);
    __syncthreads();
    if (rank % 32 == 0) partial[rank / 32] = v;
    __syncthreads();
    for (int w = 0; w < size / 32; ++w) v = partial[w] > v ? partial[w] : v;
    return v;
  }
  // The sum over the threads of lower rank.
  __device__ int sum_of_lower_ranks(int v) const {
    __shared__ int partial[32];
    int inclusive = v;
    for (int d = 1; d < 32; d *= 2)
      if (const int other = __shfl_up_sync(0xffffffffU, inclusive, d); rank % 32 >= d) inclusive += other;
    __syncthreads();
    if (rank % 32 == 31) partial[rank / 32] = inclusive;
    __syncthreads();
    int before = inclusive - v;
    for (int w = 0; w < rank / 32; ++w) before += partial[w];
    return before;
  }
  // The index of the largest value of any thread; among equal values the smallest index.
  __device__ long long largest(double value, long long at) const {
    __shared__ double values[32];
    __shared__ long long indices[32];
    for (int d = 16; d > 0; d /= 2)
      take(value, at, __shfl_down_sync(0xffffffffU, value, d), __shfl_down_sync(0xffffffffU, at, d));
    __syncthreads();
    if (rank % 32 == 0) values[rank / 32] = value, indices[rank / 32] = at;
    __syncthreads();
    value = values[0], at = indices[0];
    for (int w = 1; w < size / 32; ++w) take(value, at, values[w], indices[w]);
    return at;
  }
  // Shared memory of `Count` doubles for this team; null for teams without shared memory.
  template <int Count> __device__ double* team_shared_memory() const {
    __shared__ alignas(16) double memory[Count];
    return memory;
  }
  __device__ static void take(double& value, long long& at, double other, long long index) {
    if (other > value || (other == value && index < at)) value = other, at = index;
  }
};

// Programmatic dependent launch: allows the next kernel to start, then waits until the previous kernel's writes are
// visible.
__device__ __forceinline__ void pdl_begin() {
#if __CUDA_ARCH__ >= 900
  ptx::launch_dependents();
  ptx::wait_for_dependency();
#endif
}
template <class Element> __global__ void each_element(long long n, Element e) {
  pdl_begin();
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) e(i);
}
template <class Row> __global__ void each_row(long long n, Row r) {
  pdl_begin();
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (long long i = static_cast<long long>(blockIdx.x) * warps + warp; i < n;
       i += static_cast<long long>(gridDim.x) * warps)
    r(i, warp_team{static_cast<int>(threadIdx.x) % 32});
}
template <class Column> __global__ void each_column(long long n, Column c) {
  pdl_begin();
  for (long long i = static_cast<long long>(blockIdx.x) * 32; i < n; i += static_cast<long long>(gridDim.x) * 32) {
    const long long own = i + threadIdx.x;
    c(own < n ? own : n - 1, column_team{static_cast<int>(threadIdx.y), own < n});
  }
}
template <class Matrix> __global__ void each_matrix(long long n, Matrix m) {
  pdl_begin();
  for (long long i = blockIdx.x; i < n; i += gridDim.x) {
    m(i, block_team{static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)});
    __syncthreads();
  }
}

// The number of blocks for n items, at most 65536, which fills any device several times; kernels loop over the rest.
inline unsigned blocks_for(long long n, long long per_block) {
  return static_cast<unsigned>(min_of((n + per_block - 1) / per_block, 1LL << 16));
}
template <class Element> status each(cudaStream_t stream, long long n, const Element& e, const char* name) {
  if (n <= 0) return ok;
  return launch_pdl(stream, &each_element<Element>, blocks_for(n, 256), 256, name, n, e);
}

// Runs functors on a stream. A test replaces it by a loop on the host.
struct on_stream {
  cudaStream_t stream;

  template <class Element> status elements(long long n, const Element& e, const char* name) const {
    return each(stream, n, e, name);
  }
  template <class Row> status rows(long long n, const Row& r, const char* name) const {
    if (n <= 0) return ok;
    return launch_pdl(stream, &each_row<Row>, blocks_for(n, 4), 128, name, n, r);
  }
  template <class Column> status columns(long long n, const Column& c, const char* name) const {
    if (n <= 0) return ok;
    return launch_pdl(stream, &each_column<Column>, blocks_for(n, 32), dim3(32, column_team::height), name, n, c);
  }
  // `work` is the number of items that a block can process in parallel; it determines the block size, 32 to 256
  // threads.
  template <class Matrix> status matrices(long long n, long long work, const Matrix& m, const char* name) const {
    return blocks(n, static_cast<unsigned>(between((work + 31) / 32 * 32, 32LL, 256LL)), m, name);
  }
  template <class Matrix> status blocks(long long n, unsigned threads, const Matrix& m, const char* name) const {
    if (n <= 0) return ok;
    return launch_pdl(stream, &each_matrix<Matrix>, blocks_for(n, 1), threads, name, n, m);
  }
};
// Constrains the GPU-only variants of an operation. They are templates because nvcc compiles the kernels of every
// non-template function, even if nothing calls it.
template <class On>
concept runs_on_stream = std::is_same_v<On, on_stream>;

}  // namespace graft::gpu
