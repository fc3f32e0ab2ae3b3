// SPDX-License-Identifier: Apache-2.0
// Kronecker chain (LoKr): a matrix per token between two that all tokens share, and the gradients of these two.
//
//   D = L Z R             Z [tokens, z_rows, z_cols] and D [tokens, l_rows, r_cols] have 16 bits; L [l_rows, z_rows]
//   E = Σ Z (X Rᵀ)ᵀ       and R [z_cols, r_cols] are precomputed. In backward Z is dy, X has the shape of D, and E
//   F = Σ (L Z)ᵀ X        [z_rows, l_rows] and F [z_cols, r_cols] sum over the tokens. No dimension exceeds 64.
//
// Work split   A block has two groups of four warps; a group takes one token of every 2 · blocks. Matrices are 64 x 64
//              tiles padded with zeros; a warp computes 16 rows of each product by mma.sync.
// Pipeline     Three cp.async stages per group for Z (and X). L and R stay in shared memory, L also in registers.
// Phases       Per token: wait for its stage, a barrier of the group, load the token after next, then the products.
//              The accumulators of a product, rounded to 16 bits, are the left operand of the next one, so nothing
//              between Z and D is stored. F needs rows of (L Z)ᵀ, so L Z is computed a second time, transposed.
// Reduction    E and F stay in accumulators over all tokens of a group; a block adds its groups in order, and a second
//              kernel adds the blocks in a fixed order. The number of blocks does not depend on the device, so results
//              are bitwise deterministic.
// Measured     H200, LoKr r16, 4096 x 4096, 4096 tokens: forward takes 1.15 of the bare product, forward and backward
//              1.32 of the bare pair (docs/performance.md).
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/kernels/gemm/batched_mma.cuh>

namespace graft::gpu {

namespace chain_gemm {
using stacked::tile_size, stacked::tile_bytes;
inline constexpr int groups = 2, group_threads = 128, threads = groups * group_threads, stages = 3;
constexpr int bytes_of(bool sums) { return (2 + groups * stages * (sums ? 2 : 1)) * tile_bytes + 128; }
}  // namespace chain_gemm

// The number of blocks: one per SM of an H200, or two without sums. It is the same on every device, so that
// sums have the same order.
constexpr long long chain_blocks(long long tokens, bool sums = true) {
  const long long needed = (tokens + chain_gemm::groups - 1) / chain_gemm::groups, most = sums ? 132 : 264;
  return needed < 1 ? 1 : needed < most ? needed : most;
}

struct chain_args {
  const void* z = nullptr;
  const void* x = nullptr;  // null: D only, no sums
  void* d = nullptr;
  element_ptr<float> l, r;                             // any element type
  bool l_transposed = false, r_transposed = false;     // stored as Lᵀ, as Rᵀ
  int l_rows = 0, z_rows = 0, z_cols = 0, r_cols = 0;  // L is [l_rows, z_rows], R [z_cols, r_cols]
  long long tokens = 0;
  float* partial = nullptr;  // partial sums of E and F, [blocks, entries()]
  element_ptr<float> e, f;

  __host__ __device__ long long entries() const {
    return static_cast<long long>(z_rows) * l_rows + static_cast<long long>(z_cols) * r_cols;
  }
};

namespace chain_gemm {
// Loads L or R into a shared memory tile. All loads of a thread are in flight together, because nothing else runs yet.
template <class T>
__device__ __forceinline__ void load_shared_operand(std::uint8_t* tile, const element_ptr<float>& from, int rows,
                                                    int cols, bool is_transposed) {
  constexpr int each = tile_size * tile_size / threads;
  const int stored_rows = is_transposed ? cols : rows, stored_cols = is_transposed ? rows : cols;  // shape in memory
  float v[each];
  from.as_stored([&](const auto& p) {
#pragma unroll
    for (int n = 0; n < each; ++n) {
      const int e = static_cast<int>(threadIdx.x) + n * threads, row = e / tile_size, col = e % tile_size;
      v[n] = row < stored_rows && col < stored_cols ? p[row * stored_cols + col] : 0.0F;
    }
  });
#pragma unroll
  for (int n = 0; n < each; ++n) {
    const int e = static_cast<int>(threadIdx.x) + n * threads, row = is_transposed ? e % tile_size : e / tile_size,
              col = is_transposed ? e / tile_size : e % tile_size;
    *reinterpret_cast<T*>(tile + stacked::swizzled_offset(row, col / 8) + col % 8 * 2) = static_cast<T>(v[n]);
  }
}
// Starts the cp.async copies of one token's matrix by the threads of a group.
template <class T>
__device__ __forceinline__ void load_matrix_tile(std::uint32_t to, const void* from, int rows, int cols, int thread) {
#pragma unroll
  for (int n = 0; n < tile_size * 8 / group_threads; ++n) {
    const int e = thread + n * group_threads, row = e / 8, vec = e % 8;
    const bool inside = row < rows && vec * 8 < cols;
    ptx::copy_async16(to + stacked::swizzled_offset(row, vec),
                      static_cast<const T*>(from) + (inside ? row * cols + vec * 8 : 0), inside ? 16 : 0);
  }
}
// A barrier of one group. The barrier number is a constant, because with a variable one the compiler reserves all
// barriers.
__device__ __forceinline__ void group_barrier(int group) {
  if (group == 0)
    ptx::named_barrier<1, group_threads>();
  else
    ptx::named_barrier<2, group_threads>();
}
using sums = float[8][4];                 // accumulators of 16 x 64 results of a warp
using a_fragments = std::uint32_t[4][4];  // left operand fragments, 16 rows by 64 of K

// to += a · tile. The right operand fragments of the next 16 of K are loaded before the current ones are multiplied.
template <class T>
__device__ __forceinline__ void multiply(sums& to, const a_fragments& a, std::uint32_t tile, bool along, int lane) {
  a_fragments b[2];
  auto prefetch = [&](int k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) stacked::right(b[k % 2][j], tile, along, j * 16, k, lane);
  };
  prefetch(0);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < 3) prefetch(k + 1);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      ptx::mma_m16n8k16<T>(to[2 * j], a[k], b[k % 2][j]), ptx::mma_m16n8k16<T>(to[2 * j + 1], a[k], b[k % 2][j] + 2);
  }
}
__device__ __forceinline__ void load_a_fragments(a_fragments& a, std::uint32_t tile, bool along, int first, int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k) stacked::left(a[k], tile, along, first, k, lane);
}
template <class T> __device__ __forceinline__ void round_rows(a_fragments& a, const sums& from) {
#pragma unroll
  for (int k = 0; k < 4; ++k)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      a[k][2 * half] = pack<T>(from[2 * k + half][0], from[2 * k + half][1]);
      a[k][2 * half + 1] = pack<T>(from[2 * k + half][2], from[2 * k + half][3]);
    }
}
template <class T>
__device__ __forceinline__ void store_rows(T* to, int rows, int cols, int first, const sums& from, int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int four = 0; four < 2; ++four) {
      std::uint32_t v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = pack<T>(from[4 * four + j][2 * h], from[4 * four + j][2 * h + 1]);
      stacked::exchange(v, lane);
      const int row = first + lane / 4 + 8 * h, col = (4 * four + lane % 4) * 8;
      if (row < rows && col < cols)
        *reinterpret_cast<uint4*>(to + row * cols + col) = make_uint4(v[0], v[1], v[2], v[3]);
    }
}
// Adds the sums of all groups of a block in order and stores them to `to`, [rows, cols] or transposed.
__device__ __forceinline__ void add_groups(float* to, float* shared, int rows, int cols, bool is_transposed, int first,
                                           const sums& mine, int group, int lane) {
  for (int g = 0; g < groups; ++g) {
    __syncthreads();
    if (g == group)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = first + lane / 4 + 8 * (e / 2), col = j * 8 + lane % 4 * 2 + e % 2;
          float* const at = shared + (is_transposed ? col * (tile_size + 1) + row : row * (tile_size + 1) + col);
          *at = (g == 0 ? 0.0F : *at) + mine[j][e];
        }
  }
  __syncthreads();
  const int stored_cols = is_transposed ? rows : cols, stored_rows = is_transposed ? cols : rows;
  for (int e = static_cast<int>(threadIdx.x); e < stored_rows * stored_cols; e += threads)
    to[e] = shared[e / stored_cols * (tile_size + 1) + e % stored_cols];
  __syncthreads();
}
}  // namespace chain_gemm

template <class T, bool Sums>
__global__ void __launch_bounds__(chain_gemm::threads, Sums ? 1 : 2) chain_kernel(const chain_args g) {
#if __CUDA_ARCH__ >= 800
  using namespace chain_gemm;
  extern __shared__ std::uint8_t memory[];
  std::uint8_t* const tiles = memory + (128 - ptx::shared_address(memory) % 128) % 128;
  const std::uint32_t l_tile = ptx::shared_address(tiles), r_tile = l_tile + tile_bytes;
  const int group = static_cast<int>(threadIdx.x) / group_threads,
            thread = static_cast<int>(threadIdx.x) % group_threads;
  const int first = thread / 32 * 16, lane = thread % 32;
  const std::uint32_t ring = l_tile + static_cast<std::uint32_t>(2 + group * stages * (Sums ? 2 : 1)) * tile_bytes;
  const long long z_size = static_cast<long long>(g.z_rows) * g.z_cols,
                  d_size = static_cast<long long>(g.l_rows) * g.r_cols;
  const long long begin = static_cast<long long>(blockIdx.x) * groups + group,
                  step = static_cast<long long>(gridDim.x) * groups;

  auto request = [&](long long token, int stage) {
    if (token < g.tokens) {
      const std::uint32_t to = ring + static_cast<std::uint32_t>(stage * (Sums ? 2 : 1)) * tile_bytes;
      load_matrix_tile<T>(to, static_cast<const T*>(g.z) + token * z_size, g.z_rows, g.z_cols, thread);
      if constexpr (Sums)
        load_matrix_tile<T>(to + tile_bytes, static_cast<const T*>(g.x) + token * d_size, g.l_rows, g.r_cols, thread);
    }
    ptx::commit_copies();
  };
  for (int n = 0; n < stages - 1; ++n) request(begin + n * step, n);
  load_shared_operand<T>(tiles, g.l, g.l_rows, g.z_rows, g.l_transposed);
  load_shared_operand<T>(tiles + tile_bytes, g.r, g.z_cols, g.r_cols, g.r_transposed);
  __syncthreads();
  a_fragments l, a;
  load_a_fragments(l, l_tile, true, first, lane);
  sums e_sum = {}, f_sum = {};
  int stage = 0;
  for (long long token = begin; token < g.tokens; token += step, stage = stage + 1 == stages ? 0 : stage + 1) {
    ptx::wait_for_copies<stages - 2>();
    group_barrier(group);
    request(token + (stages - 1) * step, stage == 0 ? stages - 1 : stage - 1);
    const std::uint32_t z = ring + static_cast<std::uint32_t>(stage * (Sums ? 2 : 1)) * tile_bytes, x = z + tile_bytes;
    {  // D = (L Z) R
      sums between = {}, d = {};
      multiply<T>(between, l, z, false, lane);
      round_rows<T>(a, between);
      multiply<T>(d, a, r_tile, false, lane);
      store_rows<T>(static_cast<T*>(g.d) + token * d_size, g.l_rows, g.r_cols, first, d, lane);
    }
    if constexpr (Sums) {
      sums between = {};  // X Rᵀ; the accumulators hold Eᵀ
      load_a_fragments(a, x, true, first, lane);
      multiply<T>(between, a, r_tile, true, lane);
      round_rows<T>(a, between);
      multiply<T>(e_sum, a, z, true, lane);
      sums is_transposed = {};  // (L Z)ᵀ
      load_a_fragments(a, z, false, first, lane);
      multiply<T>(is_transposed, a, l_tile, true, lane);
      round_rows<T>(a, is_transposed);
      multiply<T>(f_sum, a, x, false, lane);
    }
  }
  if constexpr (Sums) {
    ptx::wait_for_copies<0>();
    auto* const shared = reinterpret_cast<float*>(tiles + 2 * tile_bytes);
    float* const to = g.partial + static_cast<long long>(blockIdx.x) * g.entries();
    add_groups(to, shared, g.l_rows, g.z_rows, true, first, e_sum, group, lane);
    add_groups(to + g.z_rows * g.l_rows, shared, g.z_cols, g.r_cols, false, first, f_sum, group, lane);
  }
#endif
}

// Adds the partial sums of all blocks for one entry of E or F.
struct chain_partials {
  chain_args g;
  int parts;
  template <class Team> __device__ void operator()(long long i, Team t) const {
    float sum = 0;
    for (int k = t.rank; k < parts; k += t.size) sum += g.partial[k * g.entries() + i];
    sum = t.sum(sum);
    const long long of_e = static_cast<long long>(g.z_rows) * g.l_rows;
    if (t.is_leader()) i < of_e ? g.e.put(i, sum) : g.f.put(i - of_e, sum);
  }
};

namespace detail {
template <class T, bool Sums> status launch_chain(cudaStream_t stream, const chain_args& g) {
  const auto kernel = &chain_kernel<T, Sums>;
  constexpr int bytes = chain_gemm::bytes_of(Sums);
  thread_local int prepared_for = -1;
  if (const int device = current_device(); device != prepared_for) {
    if (status s = check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                         "shared memory of the Kronecker chain");
        !s)
      return s;
    prepared_for = device;
  }
  const auto blocks = static_cast<unsigned>(chain_blocks(g.tokens, Sums));
  void* arguments[] = {const_cast<chain_args*>(&g)};
  const cudaLaunchConfig_t config{dim3(blocks), dim3(chain_gemm::threads), bytes, stream, nullptr, 0};
  if (status s = launch(config, reinterpret_cast<const void*>(kernel), arguments, "Kronecker chain"); !s || !Sums)
    return s;
  return on_stream{stream}.columns(g.entries(), chain_partials{g, static_cast<int>(blocks)}, "Kronecker chain");
}
}  // namespace detail

// T is a 16-bit type.
template <class T> status multiply_chain(cudaStream_t stream, const chain_args& g) {
  if (g.tokens == 0 && g.x == nullptr) return ok;
  return g.x != nullptr ? detail::launch_chain<T, true>(stream, g) : detail::launch_chain<T, false>(stream, g);
}

}  // namespace graft::gpu
