// SPDX-License-Identifier: Apache-2.0
// Batched GEMM of small matrices on tensor cores, sm_80 and later: c = a b for a stack of matrices, or Σ a b over the
// stack (LoKr), where an operand is stored in 16 bits. The other operand is rounded to that type when it is loaded.
//
// Tiles        A block of four warps computes 64 x 64 of a result, 64 of K per step, by mma.sync m16n8k16.
// Pipeline     3 stages of shared memory run on over all matrices of the block, so that the next matrix loads while the
//              current one is multiplied. An operand that all matrices share is loaded once.
// Arguments    The products struct and the grid are those of batched.cuh, which chooses between this kernel and its
//              own.
#pragma once
#include <graft/backend/gpu/arch/mma_sync.cuh>
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/tile/epilogue.cuh>
#include <graft/backend/gpu/tile/vector8.cuh>

namespace graft::gpu {

namespace stacked {
inline constexpr int tile_size = 64, deep = 64, stages = 3, threads = 128, tile_bytes = tile_size * deep * 2;

// Byte offset of 16-byte vector `vec` of a 128-byte row, swizzled against bank conflicts of copies and ldmatrix.
__device__ __forceinline__ std::uint32_t swizzled_offset(int row, int vec) {
  return static_cast<std::uint32_t>(row * 128 + ((vec ^ (row & 7)) << 4));
}
// Loads a tile of one operand: K-major where the inner axis is contiguous (`inner` is 1), otherwise MN-major. A float
// operand is rounded to T on the way.
template <class T, class Factor>
__device__ __forceinline__ void fill(std::uint32_t to, const element_ptr<float>& matrix, const Factor& f,
                                     long long from, long long end, long long k0, long long depth) {
  const bool along = f.inner == 1;
  const long long row0 = along ? from : k0, rows = along ? end : depth, col0 = along ? k0 : from,
                  cols = along ? depth : end, pitch = along ? f.step : f.inner;
#pragma unroll
  for (int e = threadIdx.x; e < tile_size * 8; e += threads) {
    const int row = e / 8, vec = e % 8;
    const bool inside = row0 + row < rows && col0 + vec * 8 < cols;
    const long long at = inside ? (row0 + row) * pitch + col0 + vec * 8 : 0;
    if (matrix.type != dtype::f32) {
      ptx::copy_async16(to + swizzled_offset(row, vec), static_cast<const T*>(matrix.at) + at, inside ? 16 : 0);
      continue;
    }
    float v[8] = {};
    if (inside) load_vec8(v, matrix, at);
    const uint4 bits = narrow_vec8<dtype_of<T>>(v);
    ptx::store_shared(to + swizzled_offset(row, vec), bits);
  }
}
// ldmatrix fragments: 16 rows of the left operand (left) or 16 columns of the right operand (right), 16 of K deep;
// `along`: the tile is K-major.
__device__ __forceinline__ void left(std::uint32_t (&a)[4], std::uint32_t tile, bool along, int first, int k,
                                     int lane) {
  if (along)
    ptx::load_matrix(a, tile + swizzled_offset(first + lane % 16, k * 2 + lane / 16));
  else
    ptx::load_matrix_trans(a, tile + swizzled_offset(k * 16 + lane % 8 + lane / 16 * 8, first / 8 + lane / 8 % 2));
}
__device__ __forceinline__ void right(std::uint32_t (&b)[4], std::uint32_t tile, bool along, int first, int k,
                                      int lane) {
  if (along)
    ptx::load_matrix(b, tile + swizzled_offset(first + lane % 8 + lane / 16 * 8, k * 2 + lane / 8 % 2));
  else
    ptx::load_matrix_trans(b, tile + swizzled_offset(k * 16 + lane % 8 + lane / 8 % 2 * 8, first / 8 + lane / 16));
}
// Transposes among four lanes: each holds two neighboring columns of a row in each of four 8-column tiles, and
// afterwards all eight columns of one tile.
__device__ __forceinline__ void exchange(std::uint32_t (&v)[4], int lane) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if ((k & bit) != 0) continue;
      const bool high = (lane & bit) != 0;
      const std::uint32_t got = __shfl_xor_sync(~0U, high ? v[k] : v[k + bit], bit);
      if (high)
        v[k] = got;
      else
        v[k + bit] = got;
    }
}
// Stores rows [row0, row0 + 16) from a warp's accumulators as T, in 16-byte vectors.
template <class T, class Products> __device__ __forceinline__ bool can_store_vec8(const Products& p) {
  return p.c.type == dtype_of<T> && p.accumulate == 0 && p.scale.at == nullptr && p.cols % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(p.c.at) % 16 == 0;
}
template <class T, class Products>
__device__ __forceinline__ void store_vec8_rows(const Products& p, long long m, long long row0, long long col0,
                                                const float (&acc)[8][4], int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const long long r = row0 + lane / 4 + 8 * h;
#pragma unroll
    for (int four = 0; four < 2; ++four) {
      std::uint32_t v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = pack<T>(acc[4 * four + j][2 * h], acc[4 * four + j][2 * h + 1]);
      exchange(v, lane);
      const long long c = col0 + (4 * four + lane % 4) * 8;
      if (r < p.rows && c < p.cols)
        *reinterpret_cast<uint4*>(static_cast<T*>(p.c.at) + (m * p.rows + r) * p.cols + c) =
            make_uint4(v[0], v[1], v[2], v[3]);
    }
  }
}
}  // namespace stacked

// Grid: x tiles of a result, y splits of the terms, z results, as for tiled_products (batched.cuh).
template <class T, class Products>
__global__ void __launch_bounds__(stacked::threads) stacked_products(Products p, float* partial) {
#if __CUDA_ARCH__ >= 800
  using namespace stacked;
  __shared__ alignas(128) std::uint8_t ring[stages * 2 * tile_bytes];
  const std::uint32_t base = ptx::shared_address(ring);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const long long tile_columns = (p.cols + tile_size - 1) / tile_size;
  const long long row0 = blockIdx.x / tile_columns * tile_size, col0 = blockIdx.x % tile_columns * tile_size;
  const long long results = p.sum ? 1 : p.count(), each = p.sum ? p.count() : 1, per = (p.depth + deep - 1) / deep;
  const long long lo = per * each * blockIdx.y / gridDim.y, range = per * each * (blockIdx.y + 1) / gridDim.y - lo;
  const long long mine = blockIdx.z < results ? (results - 1 - blockIdx.z) / gridDim.z + 1 : 0, steps = mine * range;
  const bool a_along = p.a.inner == 1, b_along = p.b.inner == 1;
  auto is_common = [&](const auto& f) { return per == 1 && f.outer[0] == 0 && f.outer[1] == 0; };
  const bool a_stays = is_common(p.a), b_stays = is_common(p.b);
  auto stage = [&](long long n, bool stays) {
    return base + (stays ? 0 : static_cast<std::uint32_t>(n % stages) * 2 * tile_bytes);
  };

  auto request = [&](long long n) {
    if (n < steps) {
      const long long step = lo + n % range, s = (blockIdx.z + n / range * gridDim.z) * each + step / per;
      const long long k0 = step % per * deep;
      if (n == 0 || !a_stays) fill<T>(stage(n, a_stays), p.matrix(p.a, s), p.a, row0, p.rows, k0, p.depth);
      if (n == 0 || !b_stays) fill<T>(stage(n, b_stays) + tile_bytes, p.matrix(p.b, s), p.b, col0, p.cols, k0, p.depth);
    }
    ptx::commit_copies();
  };
  float acc[8][4] = {};
  for (int n = 0; n < stages - 1; ++n) request(n);
  for (long long n = 0; n < steps; ++n) {
    ptx::wait_for_copies<stages - 2>();
    __syncthreads();
    request(n + stages - 1);
    const std::uint32_t a_tile = stage(n, a_stays), b_tile = stage(n, b_stays) + tile_bytes;
#pragma unroll
    for (int k = 0; k < deep / 16; ++k) {
      std::uint32_t a[4], b[4];
      left(a, a_tile, a_along, warp * 16, k, lane);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        right(b, b_tile, b_along, j * 16, k, lane);
        ptx::mma_m16n8k16<T>(acc[2 * j], a, b), ptx::mma_m16n8k16<T>(acc[2 * j + 1], a, b + 2);
      }
    }
    if ((n + 1) % range != 0) continue;
    const long long m = blockIdx.z + n / range * gridDim.z;
    if (partial == nullptr && can_store_vec8<T>(p))
      store_vec8_rows<T>(p, m, row0 + warp * 16, col0, acc, lane);
    else
#pragma unroll 1
      for (int j = 0; j < 8; ++j)  // column tiles are shifted through acc[0], because registers cannot be indexed
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const long long r = row0 + warp * 16 + lane / 4 + 8 * (e / 2), c = col0 + j * 8 + lane % 4 * 2 + e % 2;
          if (r < p.rows && c < p.cols) {
            if (partial == nullptr)
              p.store(m, r, c, acc[0][e]);
            else
              partial[((blockIdx.y * results + m) * p.rows + r) * p.cols + c] = acc[0][e];
          }
#pragma unroll
          for (int i = 0; i < 7; ++i) acc[i][e] = acc[i + 1][e];
        }
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[j][e] = 0;
  }
#endif
}

// The 16-bit operand type with which stacked_products can run this, or f32 if it cannot.
template <class Products> dtype stacked_type(const Products& p) {
  const dtype a = p.a.p.type, b = p.b.p.type, type = a != dtype::f32 ? a : b;
  bool fits = type != dtype::f32 && (b == type || b == dtype::f32) && p.depth >= 16 && p.rows >= 16 && p.cols >= 16;
  for (const auto* f : {&p.a, &p.b}) {
    const long long along = f->inner == 1 ? f->step : f->inner;
    fits = fits && is_aligned16(f->p) && (f->inner == 1 || f->step == 1) && along % 8 == 0 && f->outer[0] % 8 == 0 &&
           f->outer[1] % 8 == 0;
  }
  // The contiguous axis is read in vectors of eight elements.
  fits = fits && (p.a.inner == 1 ? p.depth : p.rows) % 8 == 0 && (p.b.inner == 1 ? p.depth : p.cols) % 8 == 0;
  return fits ? type : dtype::f32;
}

}  // namespace graft::gpu
