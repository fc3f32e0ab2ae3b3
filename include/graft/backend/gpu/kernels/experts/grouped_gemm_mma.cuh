// SPDX-License-Identifier: Apache-2.0
// Grouped GEMM of a mixture of experts on tensor cores, sm_80 and later, by mma.sync m16n8k16: operands of 16 bits, or
// one of 16 bits and one of float, which is rounded when it is loaded; float accumulators.
//
//   y [rows, n] = x [rows, k] W(expert)ᵀ or W(expert)    dW(expert) [m, n] = aᵀ b over the rows of the expert
//
// Tiles        Rows x Cols of a result per CTA, 64 of K per step. 16 x 64 for the few rows of decode, where
//              the launch reads each matrix once and is bound by memory; 128 x 128 for prefill and training; 64 x 32
//              for x Aᵀ of a low-rank branch; 64 x 64 for dy B of one, and for gradients, whose sides are a rank or a
//              layer's width.
// Pipeline     Stages of shared memory filled by cp.async in boxes of 64 rows of 128 bytes, K-major or MN-major as the
//              operand lies in memory; a matrix without 16-byte alignment (a rank that is no multiple of eight) is read
//              element by element.
// Branch       U and B of a low-rank branch extend the K loop, as in gemm/sm80_mma.cuh.
#pragma once
#include <graft/backend/gpu/kernels/experts/grouped_gemm.cuh>
#include <graft/backend/gpu/kernels/gemm/batched_mma.cuh>

namespace graft::gpu {

template <int Rows, int Cols, int WarpsM, int WarpsN, int Stages, int BlocksPerSm> struct grouped_mma_shape {
  static constexpr int rows = Rows, cols = Cols, deep = 64, stages = Stages, warps_m = WarpsM, warps_n = WarpsN;
  static constexpr int threads = 32 * WarpsM * WarpsN, blocks_per_sm = BlocksPerSm;
  static constexpr int warp_rows = Rows / WarpsM, warp_cols = Cols / WarpsN;
  static constexpr int a_bytes = Rows * 128, stage_bytes = a_bytes + Cols * 128, bytes = Stages * stage_bytes;
};
using grouped_decode = grouped_mma_shape<16, 64, 1, 4, 6, 3>;
using grouped_prefill = grouped_mma_shape<128, 128, 2, 4, 3, 2>;
using grouped_shrink = grouped_mma_shape<64, 32, 4, 1, 4, 4>;
using grouped_square = grouped_mma_shape<64, 64, 2, 2, 3, 4>;

namespace detail {

// Loads the tiles of one operand: Count rows (or columns) of a product from `from` on, 64 of K per step. A thread
// copies one vector of 16 bytes of every (Threads / 8)-th line. K-major: a line is a row of the tile. MN-major: a line
// is one element of K, in boxes of 64 columns. Both fill lines of 128 bytes one below the other.
template <class T, int Count, int Threads> struct operand_tiles {
  static constexpr int lines_apart = Threads / 8, vectors = Count * 8 / Threads;
  static_assert(Count * 8 % Threads == 0 && (64 % lines_apart == 0 || lines_apart % 64 == 0));

  element_ptr<float> matrix;  // matrix of the expert
  long long pitch;            // elements from line to line
  int from, end, depth;
  bool along, copies;  // K-major; cp.async can copy it

  __device__ __forceinline__ operand_tiles(const factor<float>& f, int first, long long last, long long deep)
      : matrix(f.p),
        pitch(f.inner == 1 ? f.step : f.inner),
        from(first),
        end(static_cast<int>(last)),
        depth(static_cast<int>(deep)),
        along(f.inner == 1),
        copies((f.inner == 1 || f.step == 1) && f.p.type == dtype_of<T> && has_vectors()) {}

  __device__ __forceinline__ void fill(std::uint32_t to, int k0) const {
    if (!copies) return fill_rounded(to, matrix, pitch, from, end, depth, along, has_vectors(), k0);
    const int line = static_cast<int>(threadIdx.x) / 8, vec = static_cast<int>(threadIdx.x) % 8;
    const auto* const p = static_cast<const T*>(matrix.at);
    const std::uint32_t at = to + stacked::swizzled_offset(line, vec);  // lines that are 8 n apart are swizzled alike
    if (along) {
      const bool inside = k0 + vec * 8 < depth;
      const T* const first = p + (from + line) * pitch + k0 + vec * 8;
#pragma unroll
      for (int i = 0; i < vectors; ++i) {
        const bool reads = inside && from + line + i * lines_apart < end;
        ptx::copy_async16(at + i * lines_apart * 128, reads ? first + i * lines_apart * pitch : p, reads ? 16 : 0);
      }
    } else {
#pragma unroll
      for (int i = 0; i < vectors; ++i) {
        const int k = k0 + line + i * lines_apart % 64, column = from + i * lines_apart / 64 * 64 + vec * 8;
        const bool reads = k < depth && column < end;
        ptx::copy_async16(at + i * lines_apart * 128, reads ? p + k * pitch + column : p, reads ? 16 : 0);
      }
    }
  }

 private:
  __device__ __forceinline__ bool has_vectors() const {
    return reinterpret_cast<std::uintptr_t>(matrix.at) % 16 == 0 && pitch % 8 == 0 && (along ? depth : end) % 8 == 0;
  }
  // Loads float or unaligned operands element by element. They are small (A and B of a branch), so the loads are
  // synchronous. Vectors inside the matrix come first, so that the loads of a thread are in flight together and zeros
  // need none.
  __device__ __noinline__ static void fill_rounded(std::uint32_t to, element_ptr<float> matrix, long long pitch,
                                                   int from, int end, int depth, bool along, bool aligned, int k0) {
    constexpr int boxes = Count < 64 ? 1 : Count / 64;
#pragma unroll 2
    for (int e = static_cast<int>(threadIdx.x); e < Count * 8; e += Threads) {
      const int line = along ? e % Count : e / (8 * boxes), vec = along ? e / Count : e % 8,
                box = along ? 0 : e / 8 % boxes;
      const int row = (along ? from : k0) + line, rows = along ? end : depth,
                col = (along ? k0 : from + box * 64) + vec * 8, cols = along ? depth : end;
      const int inside = row < rows && col < cols ? min_of(cols - col, 8) : 0;
      const long long at = row * pitch + col;
      float x[8] = {};
      if (aligned && inside > 0)
        load_vec8(x, matrix, at);
      else
        for (int i = 0; i < 8; ++i) x[i] = i < inside ? matrix[at + i] : 0.0F;
      ptx::store_shared(to + box * 8192 + stacked::swizzled_offset(line, vec), narrow_vec8<dtype_of<T>>(x));
    }
  }
};
// Fragments of an operand in a stage; `first` is the row (or column) in the tile.
__device__ __forceinline__ void left_fragment(std::uint32_t (&a)[4], std::uint32_t tile, bool along, int first, int k,
                                              int lane) {
  stacked::left(a, along ? tile : tile + first / 64 * 8192, along, along ? first : first % 64, k, lane);
}
__device__ __forceinline__ void right_fragment(std::uint32_t (&b)[4], std::uint32_t tile, bool along, int first, int k,
                                               int lane) {
  stacked::right(b, along ? tile : tile + first / 64 * 8192, along, along ? first : first % 64, k, lane);
}

}  // namespace detail

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_per_sm)
    grouped_mma_kernel(const __grid_constant__ grouped_products<float> g) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t base = (ptx::shared_address(raw) + 127) & ~127U;
  pdl_begin();
  const expert_tile at = find_tile<Shape::threads>(g, blockIdx.x, Shape::rows, Shape::cols);
  if (at.expert < 0) return;
  const products<float> p = g.of(at.expert, at.first, at.count);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int warp_row = warp / Shape::warps_n * Shape::warp_rows, warp_col = warp % Shape::warps_n * Shape::warp_cols;
  detail::operand_tiles<T, Shape::rows, Shape::threads> a_tiles(p.a, at.row0, p.rows, p.depth);
  detail::operand_tiles<T, Shape::cols, Shape::threads> b_tiles(p.b, at.col0, p.cols, p.depth);
  const bool a_along = a_tiles.along, base_along = b_tiles.along;
  const int base_steps = static_cast<int>((p.depth + Shape::deep - 1) / Shape::deep);
  int steps = base_steps;
  if (g.has_branch()) steps += static_cast<int>((g.branch.a.d[3] + Shape::deep - 1) / Shape::deep);

  auto fill = [&](int step) {
    if (step < steps) {
      if (step == base_steps) {
        const products<float> more = g.of_branch(at.expert, at.first, at.count);
        a_tiles = {more.a, at.row0, more.rows, more.depth}, b_tiles = {more.b, at.col0, more.cols, more.depth};
      }
      const std::uint32_t to = base + step % Shape::stages * Shape::stage_bytes;
      const int k0 = (step < base_steps ? step : step - base_steps) * Shape::deep;
      a_tiles.fill(to, k0), b_tiles.fill(to + Shape::a_bytes, k0);
    }
    ptx::commit_copies();
  };
  constexpr int m_tiles = Shape::warp_rows / 16, n_pairs = Shape::warp_cols / 16;
  float acc[m_tiles][2 * n_pairs][4] = {};
  for (int s = 0; s < Shape::stages - 1; ++s) fill(s);
  for (int step = 0; step < steps; ++step) {
    ptx::wait_for_copies<Shape::stages - 2>();
    __syncthreads();
    fill(step + Shape::stages - 1);
    const std::uint32_t a_tile = base + step % Shape::stages * Shape::stage_bytes, b_tile = a_tile + Shape::a_bytes;
    const bool b_along = step < base_steps ? base_along : g.branch.tb;
#pragma unroll
    for (int k = 0; k < Shape::deep / 16; ++k) {
      std::uint32_t a[m_tiles][4], b[n_pairs][4];
#pragma unroll
      for (int i = 0; i < m_tiles; ++i) detail::left_fragment(a[i], a_tile, a_along, warp_row + i * 16, k, lane);
#pragma unroll
      for (int j = 0; j < n_pairs; ++j) detail::right_fragment(b[j], b_tile, b_along, warp_col + j * 16, k, lane);
#pragma unroll
      for (int i = 0; i < m_tiles; ++i)
#pragma unroll
        for (int j = 0; j < 2 * n_pairs; ++j) ptx::mma_m16n8k16<T>(acc[i][j], a[i], &b[j / 2][j % 2 * 2]);
    }
  }
  const bool pairs = p.c.type == dtype_of<T> && p.cols % 2 == 0 && reinterpret_cast<std::uintptr_t>(p.c.at) % 4 == 0;
#pragma unroll
  for (int i = 0; i < m_tiles; ++i)
#pragma unroll
    for (int j = 0; j < 2 * n_pairs; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const long long row = at.row0 + warp_row + i * 16 + lane / 4 + 8 * h,
                        col = at.col0 + warp_col + j * 8 + lane % 4 * 2;
        if (row >= p.rows || col >= p.cols) continue;
        const float first = acc[i][j][2 * h], second = acc[i][j][2 * h + 1];
        if (pairs) {
          *reinterpret_cast<std::uint32_t*>(static_cast<T*>(p.c.at) + row * p.cols + col) = pack<T>(first, second);
        } else {
          p.c.put(row * p.cols + col, first);
          if (col + 1 < p.cols) p.c.put(row * p.cols + col + 1, second);
        }
      }
#endif
}

template <class T, class Shape> status launch_grouped_mma(cudaStream_t stream, const grouped_products<float>& g) {
  const auto kernel = &grouped_mma_kernel<T, Shape>;
  constexpr int bytes = Shape::bytes + 128;  // aligned to the rows of a box
  const auto* const entry = reinterpret_cast<const void*>(kernel);
  if (status s = check(cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "grouped GEMM");
      !s)
    return s;
  const long long blocks = blocks_of(g, Shape::rows, Shape::cols);
  if (blocks > 0x7fffffffLL) return fail("a grouped GEMM has more tiles than a grid; call with fewer tokens");
  grouped_products<float> argument = g;
  void* arguments[] = {&argument};
  cudaLaunchAttribute early = pdl_attribute();
  const cudaLaunchConfig_t config{static_cast<unsigned>(blocks), Shape::threads, bytes, stream, &early,
                                  device_has_pdl() ? 1U : 0U};
  return launch(config, entry, arguments, "grouped GEMM");
}

}  // namespace graft::gpu
