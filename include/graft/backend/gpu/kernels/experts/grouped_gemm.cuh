// SPDX-License-Identifier: Apache-2.0
// Grouped GEMM of a mixture of experts: the sorted rows of each expert times its own matrix, and the gradients of those
// matrices (aᵀ b over the rows of each expert), for any routing. This file has the problem, how a CTA finds
// its tile, the kernel in float, and which kernel runs; grouped_gemm_mma.cuh has the tensor-core kernel.
//
// Tiles        The rows of an expert are known on the device only, and the grid is launched for the most tiles that
//              there can be. A CTA finds the first row of each expert by bisection in the routing table,
//              counts tiles, and takes the tile with its number; a block without a tile ends. No expert's rows are
//              padded in memory: a tile reads and writes its own rows alone.
// Order        Blocks take bands of 16 row tiles before the next columns, so that x stays in L2 and the matrix
//              of an expert is read once by neighboring blocks.
// Gradients    One block per tile of an expert's matrix; an expert without rows gets zeros.
// Measured     H200, four layers in the shape of Mixtral-8x7B, bf16: a captured token step of 64 rows takes 1.38 of the
//              time to read the weights that it touches, of one row 1.84; a prompt of 2048 tokens takes 5.1 of the time
//              of its products at 760 Tflop/s (bench/results/gpu-experts.json).
#pragma once
#include <cub/block/block_scan.cuh>
#include <graft/backend/gpu/kernels/experts/routing.cuh>
#include <graft/backend/gpu/kernels/gemm/batched.cuh>

namespace graft::gpu {

inline constexpr int max_experts = 1024;  // bounded by shared memory, which holds the first row of every expert

template <class Real> struct grouped_products {
  tensor<Real> out, a, b;
  routing_table<Real> routing;
  long long experts = 0;  // matrices
  expert_range mine;      // rows of other experts become zero
  bool is_wgrad = false;
  bool tb = false;               // the experts' matrices are transposed
  expert_branch<Real> branch{};  // low-rank branch that is added, if branch.a is set

  __host__ __device__ long long cols() const { return is_wgrad ? b.d[3] : out.d[3]; }
  __host__ __device__ bool has_branch() const { return branch.a.p.at != nullptr; }
  // The product of one expert with `count` sorted rows from `first` on.
  __host__ __device__ products<Real> of(long long expert, long long first, long long count) const {
    products<Real> p{};
    p.stack[0] = p.stack[1] = 1;
    if (is_wgrad) {
      const long long m = a.d[3], n = b.d[3];
      p.a = {a.p + first * m, 1, m, {}}, p.b = {b.p + first * n, 1, n, {}};
      p.c = out.p + expert * m * n, p.rows = m, p.cols = n, p.depth = count;
    } else {
      p = of_rows(a, b, tb, expert, first, count);
    }
    return p;
  }
  // The expand U Bᵀ of the same sorted rows, which is added to the product.
  __host__ __device__ products<Real> of_branch(long long expert, long long first, long long count) const {
    return of_rows(branch.a, branch.b, branch.tb, expert, first, count);
  }

 private:
  __host__ __device__ products<Real> of_rows(const tensor<Real>& rows, const tensor<Real>& matrices, bool transposed,
                                             long long expert, long long first, long long count) const {
    products<Real> p{};
    const long long k = rows.d[3], n = out.d[3];
    p.stack[0] = p.stack[1] = 1;
    p.a = {rows.p + first * k, k, 1, {}};
    p.b = {matrices.p + expert * matrices.area(), transposed ? k : 1, transposed ? 1 : n, {}};
    p.c = out.p + first * n, p.rows = count, p.cols = n, p.depth = k;
    return p;
  }
};

// ---- The tile of a CTA

struct expert_tile {
  int expert;        // -1: none
  int first, count;  // the expert's sorted rows
  int row0, col0;    // the tile's first row and column in the result of the expert
};

inline constexpr int row_tiles_per_band = 16;

// The number of row tiles is at most one more per expert than the rows fill.
inline long long most_row_tiles(long long rows, long long experts, int tile_rows) {
  return min_of(rows, rows / tile_rows + experts);
}

// All threads of the block call it. `number` counts tiles in the order of the head of this file.
template <int Threads, class Real>
__device__ expert_tile find_row_tile(const grouped_products<Real>& p, long long number, int tile_rows, int tile_cols) {
  using scan = cub::BlockScan<int, Threads>;
  __shared__ typename scan::TempStorage memory;
  __shared__ int begins[max_experts + 1];
  __shared__ expert_tile found;
  const int experts = static_cast<int>(p.experts), col_tiles = static_cast<int>((p.cols() + tile_cols - 1) / tile_cols);
  constexpr int each = (max_experts + Threads - 1) / Threads;
  const int per_thread = (experts + Threads - 1) / Threads, from = static_cast<int>(threadIdx.x) * per_thread;
  for (int e = static_cast<int>(threadIdx.x); e <= experts; e += Threads)
    begins[e] = static_cast<int>(p.routing.begin(p.mine.first + e));
  if (threadIdx.x == 0) found.expert = -1;
  __syncthreads();
  int tiles[each], own = 0;
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int e = from + i;
    tiles[i] = i < per_thread && e < experts ? (begins[e + 1] - begins[e] + tile_rows - 1) / tile_rows : 0;
    own += tiles[i];
  }
  int before = 0, all = 0;
  scan(memory).ExclusiveSum(own, before, all);
  // Tiles are visited in bands of row_tiles_per_band row tiles; the last band may be shorter.
  const long long band = number / (static_cast<long long>(row_tiles_per_band) * col_tiles);
  const long long in_band = number - band * row_tiles_per_band * col_tiles;
  const long long left = all - band * row_tiles_per_band;
  const int height = static_cast<int>(left < row_tiles_per_band ? left : row_tiles_per_band);
  if (height > 0 && in_band < static_cast<long long>(height) * col_tiles) {
    const int slot = static_cast<int>(band * row_tiles_per_band + in_band % height),
              col = static_cast<int>(in_band / height);
#pragma unroll
    for (int i = 0; i < each; ++i) {
      if (slot >= before && slot < before + tiles[i]) {
        const int e = from + i;
        found = {e, begins[e], begins[e + 1] - begins[e], (slot - before) * tile_rows, col * tile_cols};
      }
      before += tiles[i];
    }
  }
  __syncthreads();
  return found;
}
// The tile of a gradient; blocks of a row of tiles are neighbors.
template <class Real>
__device__ expert_tile find_wgrad_tile(const grouped_products<Real>& p, long long number, int tile_rows,
                                       int tile_cols) {
  __shared__ int ends[2];
  const long long col_tiles = (p.cols() + tile_cols - 1) / tile_cols,
                  row_tiles = (p.a.d[3] + tile_rows - 1) / tile_rows;
  const long long expert = number / (col_tiles * row_tiles), at = number % (col_tiles * row_tiles);
  if (threadIdx.x < 2) ends[threadIdx.x] = static_cast<int>(p.routing.begin(p.mine.first + expert + threadIdx.x));
  __syncthreads();
  return {static_cast<int>(expert), ends[0], ends[1] - ends[0], static_cast<int>(at / col_tiles) * tile_rows,
          static_cast<int>(at % col_tiles) * tile_cols};
}
template <int Threads, class Real>
__device__ expert_tile find_tile(const grouped_products<Real>& p, long long number, int tile_rows, int tile_cols) {
  return p.is_wgrad ? find_wgrad_tile(p, number, tile_rows, tile_cols)
                    : find_row_tile<Threads>(p, number, tile_rows, tile_cols);
}
// The CTAs of a launch.
template <class Real> long long blocks_of(const grouped_products<Real>& p, int tile_rows, int tile_cols) {
  const long long col_tiles = (p.cols() + tile_cols - 1) / tile_cols;
  return col_tiles * (p.is_wgrad ? p.experts * ((p.a.d[3] + tile_rows - 1) / tile_rows)
                                 : most_row_tiles(p.routing.rows, p.experts, tile_rows));
}

// ---- The kernel in float: the tiles of tiled_products (kernels/gemm/batched.cuh)

template <class Real>
__global__ void __launch_bounds__(product_threads) grouped_tiled_products(grouped_products<Real> g) {
  __shared__ product_tile<Real> left, right;
  pdl_begin();
  const expert_tile at = find_tile<product_threads>(g, blockIdx.x, product_tile_size, product_tile_size);
  if (at.expert < 0) return;
  Real acc[4][4] = {};
  products<Real> p = g.of(at.expert, at.first, at.count);
  for (int product = 0; product < (g.has_branch() ? 2 : 1); ++product) {
    if (product > 0) p = g.of_branch(at.expert, at.first, at.count);
    for (long long k0 = 0; k0 < p.depth; k0 += product_tile_depth) {
      __syncthreads();
      load_factor(left, p.a.p, p.a, at.row0, p.rows, k0, p.depth);
      load_factor(right, p.b.p, p.b, at.col0, p.cols, k0, p.depth);
      __syncthreads();
      add_products(acc, left, right);
    }
  }
  store_products(acc, at.row0, at.col0, p.rows, p.cols,
                 [&](long long row, long long col, Real v) { p.c.put(row * p.cols + col, v); });
}

// ---- Few rows times narrow matrices: U = x Aᵀ of decode

// One team per row and four columns, whose threads share K: tiles would leave most of the device idle, because there is
// one tile of columns.
struct narrow_grouped_products {
  grouped_products<float> g;
  static constexpr int columns = 4;

  static bool fits(const grouped_products<float>& g) {
    return !g.is_wgrad && g.tb && !g.has_branch() && g.cols() <= 32 && g.a.d[3] % 8 == 0 && is_aligned16(g.a.p) &&
           is_aligned16(g.b.p);
  }
  static long long teams(const grouped_products<float>& g) {
    return g.routing.rows * ((g.cols() + columns - 1) / columns);
  }
  template <class Team> __device__ void operator()(long long i, Team t) const {
    const long long k = g.a.d[3], n = g.out.d[3], each = (n + columns - 1) / columns, row = i / each,
                    first = i % each * columns, expert = g.routing.expert(row);
    if (!g.mine.has(expert)) return;
    const long long matrix = (expert - g.mine.first) * g.b.area();
    float sum[columns] = {};
    for (long long at = 8LL * t.rank; at < k; at += 8LL * t.size) {
      float x[8], w[8];
      load_vec8(x, g.a.p, row * k + at);
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        if (first + c >= n) continue;
        load_vec8(w, g.b.p, matrix + (first + c) * k + at);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[c] += x[e] * w[e];
      }
    }
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const float total = t.sum(sum[c]);
      if (t.is_leader() && first + c < n) g.out.p.put(row * n + first + c, total);
    }
  }
};

}  // namespace graft::gpu
