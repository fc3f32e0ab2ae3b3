// SPDX-License-Identifier: Apache-2.0
// A matrix of every token between two that all tokens share, and what sums over the tokens make of it (LoKr):
//     D = L Z R        Z, D: a matrix of each token in 16 bits; L, R known before the data
//     E = Σ Z (X Rᵀ)ᵀ,   F = Σ (L Z)ᵀ X       the gradients of the two, where Z is dy and X has the shape of D
// No matrix has a side above 64. Four warps take a token, a warp 16 rows of each product: what one product leaves in its
// accumulators is, rounded to 16 bits, the left operand of the next, so that nothing between Z and D is stored, and warps
// meet only where a matrix has come. L and R stay in shared memory, L also in registers; L Z is computed a second time, turned,
// where F needs it with its rows. E and F stay in accumulators over all tokens of a block and are added up in the order of the blocks by a
// second kernel: the same bits every time.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/stack_products.cuh>

namespace graft::cuda {

namespace chained {
using stacked::side, stacked::tile_bytes;
inline constexpr int groups = 2, group_threads = 128, threads = groups * group_threads, stages = 3;
constexpr int bytes_of(bool sums) { return (2 + groups * stages * (sums ? 2 : 1)) * tile_bytes + 128; }
}  // namespace chained

// Blocks that share the tokens: one to a multiprocessor, or two where nothing is summed. As many on every device, so that
// the sums are the same.
constexpr long long chain_blocks(long long tokens, bool sums = true) {
  const long long needed = (tokens + chained::groups - 1) / chained::groups, most = sums ? 132 : 264;
  return needed < 1 ? 1 : needed < most ? needed : most;
}

struct chain_args {
  const void* z = nullptr;
  const void* x = nullptr;  // none: nothing is summed
  void* d = nullptr;
  cells<float> l, r;                                   // in any type
  bool l_turned = false, r_turned = false;             // stored as Lᵀ, as Rᵀ
  int l_rows = 0, z_rows = 0, z_cols = 0, r_cols = 0;  // L is [l_rows, z_rows], R [z_cols, r_cols]
  long long tokens = 0;
  float* partial = nullptr;  // of E and F, for each block
  cells<float> e, f;

  __host__ __device__ long long entries() const {
    return static_cast<long long>(z_rows) * l_rows + static_cast<long long>(z_cols) * r_cols;
  }
};

namespace chained {
// All of one matrix that tokens share, row after row. Its numbers are all asked for at once: nothing else runs meanwhile.
template <class T>
__device__ __forceinline__ void bring_shared(std::uint8_t* tile, const cells<float>& from, int rows, int cols,
                                             bool turned) {
  constexpr int each = side * side / threads;
  const int down = turned ? cols : rows, across = turned ? rows : cols;  // as it is stored
  float v[each];
  from.as_stored([&](const auto& p) {
#pragma unroll
    for (int n = 0; n < each; ++n) {
      const int e = static_cast<int>(threadIdx.x) + n * threads, row = e / side, col = e % side;
      v[n] = row < down && col < across ? p[row * across + col] : 0.0F;
    }
  });
#pragma unroll
  for (int n = 0; n < each; ++n) {
    const int e = static_cast<int>(threadIdx.x) + n * threads, row = turned ? e % side : e / side,
              col = turned ? e / side : e % side;
    *reinterpret_cast<T*>(tile + stacked::place(row, col / 8) + col % 8 * 2) = static_cast<T>(v[n]);
  }
}
template <class T>
__device__ __forceinline__ void bring(std::uint32_t to, const void* from, int rows, int cols, int thread) {
#pragma unroll
  for (int n = 0; n < side * 8 / group_threads; ++n) {
    const int e = thread + n * group_threads, row = e / 8, piece = e % 8;
    const bool inside = row < rows && piece * 8 < cols;
    mma::copy(to + stacked::place(row, piece), static_cast<const T*>(from) + (inside ? row * cols + piece * 8 : 0),
              inside ? 16 : 0);
  }
}
// The threads of a group. A number that the compiler knows costs a block no more barriers than it has.
__device__ __forceinline__ void meet(int group) {
  if (group == 0)
    asm volatile("bar.sync 1, %0;" ::"n"(group_threads) : "memory");
  else
    asm volatile("bar.sync 2, %0;" ::"n"(group_threads) : "memory");
}
using sums = float[8][4];            // 16 rows of 64, as the lanes of a warp have them
using rows16 = std::uint32_t[4][4];  // the same as a left operand, 64 terms deep

// All of the right operand that the next 16 terms need is asked for before these are multiplied.
template <class T>
__device__ __forceinline__ void multiply(sums& to, const rows16& a, std::uint32_t tile, bool along, int lane) {
  rows16 b[2];
  auto ask = [&](int k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) stacked::right(b[k % 2][j], tile, along, j * 16, k, lane);
  };
  ask(0);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < 3) ask(k + 1);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      mma::multiply<T>(to[2 * j], a[k], b[k % 2][j]), mma::multiply<T>(to[2 * j + 1], a[k], b[k % 2][j] + 2);
  }
}
__device__ __forceinline__ void take_rows(rows16& a, std::uint32_t tile, bool along, int first, int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k) stacked::left(a[k], tile, along, first, k, lane);
}
template <class T> __device__ __forceinline__ void round_rows(rows16& a, const sums& from) {
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
// The sums of all groups of a block, in their order, to `to` [rows, cols] or turned.
__device__ __forceinline__ void add_groups(float* to, float* shared, int rows, int cols, bool turned, int first,
                                           const sums& mine, int group, int lane) {
  for (int g = 0; g < groups; ++g) {
    __syncthreads();
    if (g == group)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = first + lane / 4 + 8 * (e / 2), col = j * 8 + lane % 4 * 2 + e % 2;
          float* const at = shared + (turned ? col * (side + 1) + row : row * (side + 1) + col);
          *at = (g == 0 ? 0.0F : *at) + mine[j][e];
        }
  }
  __syncthreads();
  const int across = turned ? rows : cols, down = turned ? cols : rows;
  for (int e = static_cast<int>(threadIdx.x); e < down * across; e += threads)
    to[e] = shared[e / across * (side + 1) + e % across];
  __syncthreads();
}
}  // namespace chained

template <class T, bool Sums>
__global__ void __launch_bounds__(chained::threads, Sums ? 1 : 2) chain_products(const chain_args g) {
#if __CUDA_ARCH__ >= 800
  using namespace chained;
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
      bring<T>(to, static_cast<const T*>(g.z) + token * z_size, g.z_rows, g.z_cols, thread);
      if constexpr (Sums)
        bring<T>(to + tile_bytes, static_cast<const T*>(g.x) + token * d_size, g.l_rows, g.r_cols, thread);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  for (int n = 0; n < stages - 1; ++n) request(begin + n * step, n);
  bring_shared<T>(tiles, g.l, g.l_rows, g.z_rows, g.l_turned);
  bring_shared<T>(tiles + tile_bytes, g.r, g.z_cols, g.r_cols, g.r_turned);
  __syncthreads();
  rows16 l, a;
  take_rows(l, l_tile, true, first, lane);
  sums e_sum = {}, f_sum = {};
  int stage = 0;
  for (long long token = begin; token < g.tokens; token += step, stage = stage + 1 == stages ? 0 : stage + 1) {
    asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2) : "memory");
    meet(group);
    request(token + (stages - 1) * step, stage == 0 ? stages - 1 : stage - 1);
    const std::uint32_t z = ring + static_cast<std::uint32_t>(stage * (Sums ? 2 : 1)) * tile_bytes, x = z + tile_bytes;
    {  // L Z, and that times R
      sums between = {}, d = {};
      multiply<T>(between, l, z, false, lane);
      round_rows<T>(a, between);
      multiply<T>(d, a, r_tile, false, lane);
      store_rows<T>(static_cast<T*>(g.d) + token * d_size, g.l_rows, g.r_cols, first, d, lane);
    }
    if constexpr (Sums) {
      sums between = {};  // X Rᵀ, whose rows are columns of E
      take_rows(a, x, true, first, lane);
      multiply<T>(between, a, r_tile, true, lane);
      round_rows<T>(a, between);
      multiply<T>(e_sum, a, z, true, lane);
      sums turned = {};  // (L Z)ᵀ, whose rows are those of F
      take_rows(a, z, false, first, lane);
      multiply<T>(turned, a, l_tile, true, lane);
      round_rows<T>(a, turned);
      multiply<T>(f_sum, a, x, false, lane);
    }
  }
  if constexpr (Sums) {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    auto* const shared = reinterpret_cast<float*>(tiles + 2 * tile_bytes);
    float* const to = g.partial + static_cast<long long>(blockIdx.x) * g.entries();
    add_groups(to, shared, g.l_rows, g.z_rows, true, first, e_sum, group, lane);
    add_groups(to + g.z_rows * g.l_rows, shared, g.z_cols, g.r_cols, false, first, f_sum, group, lane);
  }
#endif
}

// An entry of E or F from the parts of all blocks.
struct chain_parts {
  chain_args g;
  int parts;
  template <class Team> __device__ void operator()(long long i, Team t) const {
    float sum = 0;
    for (int k = t.rank; k < parts; k += t.size) sum += g.partial[k * g.entries() + i];
    sum = t.sum(sum);
    const long long of_e = static_cast<long long>(g.z_rows) * g.l_rows;
    if (t.leads()) i < of_e ? g.e.put(i, sum) : g.f.put(i - of_e, sum);
  }
};

namespace detail {
template <class T, bool Sums> status launch_chain(cudaStream_t stream, const chain_args& g) {
  const auto kernel = &chain_products<T, Sums>;
  constexpr int bytes = chained::bytes_of(Sums);
  thread_local int prepared_for = -1;
  if (const int device = device_now(); device != prepared_for) {
    if (status s = check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                         "shared memory of chained products");
        !s)
      return s;
    prepared_for = device;
  }
  const auto blocks = static_cast<unsigned>(chain_blocks(g.tokens, Sums));
  void* arguments[] = {const_cast<chain_args*>(&g)};
  const cudaLaunchConfig_t how{dim3(blocks), dim3(chained::threads), bytes, stream, nullptr, 0};
  if (status s = launch(how, reinterpret_cast<const void*>(kernel), arguments, "chained products"); !s || !Sums)
    return s;
  return on_stream{stream}.columns(g.entries(), chain_parts{g, static_cast<int>(blocks)}, "chained products");
}
}  // namespace detail

template <class T> status multiply_chain(cudaStream_t stream, const chain_args& g) {
  if (g.tokens == 0 && g.x == nullptr) return ok;
  return g.x != nullptr ? detail::launch_chain<T, true>(stream, g) : detail::launch_chain<T, false>(stream, g);
}

}  // namespace graft::cuda
