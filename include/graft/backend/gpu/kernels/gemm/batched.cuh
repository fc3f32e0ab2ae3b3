// SPDX-License-Identifier: Apache-2.0
// Batched GEMM (strided batched, cublasGemmStridedBatched) for every size, batch and transposition: c = a b, or c += sign · a b, in Real (float or double), or on
// tensor cores where an operand is stored in 16 bits (batched_mma.cuh).
//
// Tiles        tiled_products: a block of 256 threads computes 64 x 64 of a result, 16 of K per step from shared
//              memory; a thread 4 x 4. Small results take a thread or a team per entry (product_entry).
// Transposed   operands have their strides exchanged; neighboring threads always load along the stride of 1.
// Reduction    Split-K partial sums are added by a second launch in the order of the splits: deterministic.
#pragma once
#include <graft/backend/gpu/dispatch/nodes.h>
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/kernels/gemm/batched_mma.cuh>
#include <graft/backend/gpu/tile/tensor.cuh>
#include <graft/core/algorithm.h>

namespace graft::gpu {

// One operand by its strides: `step` to the next row (of a) or column (of b) of the result, `inner` to the next element
// of K, outer[] to the next matrix along the two batch axes (0: broadcast).
template <class Real> struct factor {
  element_ptr<Real> p;
  long long step, inner, outer[2];
};
template <class Real> struct products {
  factor<Real> a, b;
  element_ptr<Real> c;  // contiguous matrices of rows x cols
  long long rows, cols, depth;
  long long stack[2];         // batch sizes
  bool sum = false;           // all products are added into one result
  int accumulate = 0;         // 0: overwrite, +1 or -1: add or subtract
  element_ptr<Real> scale{};  // one number; null: 1
  bool stacked = false;       // an operand has more than one matrix

  __host__ __device__ long long count() const { return stack[0] * stack[1]; }
  __host__ __device__ element_ptr<Real> matrix(const factor<Real>& f, long long m) const {
    return f.p + m / stack[1] * f.outer[0] + m % stack[1] * f.outer[1];
  }
  __host__ __device__ void store(long long m, long long row, long long col, Real v) const {
    const long long to = (m * rows + row) * cols + col;
    if (scale.at != nullptr) v *= scale[0];
    c.put(to, accumulate == 0 ? v : accumulate < 0 ? c[to] - v : c[to] + v);
  }
};

struct matmul_mode {
  bool ta = false, tb = false, sum = false;
  int accumulate = 0;
};
template <class Real> products<Real> products_of(tensor<Real> out, tensor<Real> a, tensor<Real> b, matmul_mode m) {
  // A batch with one common b is a single product (flat), and so is Σ aᵀ b over a batch (tall).
  const bool flat = !m.ta && !m.sum && b.matrices() == 1;
  const bool tall = m.sum && m.ta && !m.tb && a.matrices() == b.matrices();
  const bool stacked = a.matrices() > 1 || b.matrices() > 1;
  for (tensor<Real>* t : {&a, &b})
    if ((flat && t == &a) || tall) t->d[2] *= t->matrices(), t->d[0] = t->d[1] = 1;
  auto operand = [](const tensor<Real>& t, bool by_column) {
    return factor<Real>{t.p,
                        by_column ? 1 : t.d[3],
                        by_column ? t.d[3] : 1,
                        {t.d[0] == 1 ? 0 : t.d[1] * t.area(), t.d[1] == 1 ? 0 : t.area()}};
  };
  return {operand(a, m.ta),
          operand(b, !m.tb),
          out.p,
          m.ta ? a.d[3] : a.d[2],
          m.tb ? b.d[2] : b.d[3],
          m.ta ? a.d[2] : a.d[3],
          {a.d[0] == 1 ? b.d[0] : a.d[0], a.d[1] == 1 ? b.d[1] : a.d[1]},
          m.sum,
          m.accumulate,
          {},
          stacked};
}

inline constexpr int product_tile_size = 64, product_tile_depth = 16, product_threads = 256;

// Two padding columns avoid bank conflicts of threads that load along K.
template <class Real> using product_tile = Real[product_tile_depth][product_tile_size + 2];

// Loads a tile, four elements per thread: 16 neighboring threads along K where K is contiguous, otherwise 64 along
// rows or columns of the result.
template <class Real>
__device__ void load_factor(product_tile<Real>& to, const element_ptr<Real>& matrix, const factor<Real>& f,
                            long long from, long long end, long long k0, long long depth) {
  const bool along = f.inner == 1;
  const int t = static_cast<int>(threadIdx.x), next_k = along ? 0 : product_threads / product_tile_size,
            next_i = along ? product_threads / product_tile_depth : 0;
  matrix.as_stored([&](const auto& p) {
    int k = along ? t % product_tile_depth : t / product_tile_size,
        i = along ? t / product_tile_depth : t % product_tile_size;
    for (int e = 0; e < product_tile_size * product_tile_depth / product_threads; ++e, k += next_k, i += next_i) {
      const bool inside = from + i < end && k0 + k < depth;
      to[k][i] = inside ? p[(from + i) * f.step + (k0 + k) * f.inner] : Real(0);
    }
  });
}

// Adds the products of two tiles to the sums of a thread, which are 16 rows and 16 columns apart.
template <class Real>
__device__ __forceinline__ void add_products(Real (&acc)[4][4], const product_tile<Real>& left,
                                             const product_tile<Real>& right) {
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  for (int k = 0; k < product_tile_depth; ++k) {
    Real x[4], y[4];
    for (int i = 0; i < 4; ++i) x[i] = left[k][ty + 16 * i], y[i] = right[k][tx + 16 * i];
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) acc[i][j] += x[i] * y[j];
  }
}
// Calls store(row, column, sum) for the sums of a thread that are inside the result.
template <class Real, class Store>
__device__ __forceinline__ void store_products(Real (&acc)[4][4], long long row0, long long col0, long long rows,
                                               long long cols, const Store& store) {
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
#pragma unroll 1
  for (int i = 0; i < 4; ++i)  // rows are shifted through acc[0], because registers cannot be indexed
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (const long long r = row0 + ty + 16 * i, c = col0 + tx + 16 * j; r < rows && c < cols) store(r, c, acc[0][j]);
      for (int k = 0; k < 3; ++k) acc[k][j] = acc[k + 1][j];
    }
}

// Grid: x tiles of a result, y splits of the terms (split-K), z results. With several splits each block stores its
// partial sums to `partial`; with one `partial` is null.
template <class Real>
__global__ void __launch_bounds__(product_threads) tiled_products(products<Real> p, Real* partial) {
  __shared__ product_tile<Real> left, right;
  const long long tile_columns = (p.cols + product_tile_size - 1) / product_tile_size;
  const long long row0 = blockIdx.x / tile_columns * product_tile_size,
                  col0 = blockIdx.x % tile_columns * product_tile_size;
  const long long results = p.sum ? 1 : p.count(), each = p.sum ? p.count() : 1;
  for (long long m = blockIdx.z; m < results; m += gridDim.z) {
    Real acc[4][4] = {};
    const long long deep = (p.depth + product_tile_depth - 1) / product_tile_depth, all = deep * each;
    for (long long step = all * blockIdx.y / gridDim.y; step < all * (blockIdx.y + 1) / gridDim.y; ++step) {
      const long long s = m * each + step / deep, k0 = step % deep * product_tile_depth;
      __syncthreads();
      load_factor(left, p.matrix(p.a, s), p.a, row0, p.rows, k0, p.depth);
      load_factor(right, p.matrix(p.b, s), p.b, col0, p.cols, k0, p.depth);
      __syncthreads();
      add_products(acc, left, right);
    }
    store_products(acc, row0, col0, p.rows, p.cols, [&](long long r, long long c, Real v) {
      if (partial == nullptr)
        p.store(m, r, c, v);
      else
        partial[((blockIdx.y * results + m) * p.rows + r) * p.cols + c] = v;
    });
  }
}
// Split-K reduction: adds the partial sums of one entry in the order of the splits.
template <class Real> struct product_partials {
  products<Real> p;
  const Real* partial;
  long long entries;
  int parts;
  __host__ __device__ void operator()(long long i) const {
    Real sum = 0;
    for (int k = 0; k < parts; ++k) sum += partial[k * entries + i];
    p.store(i / (p.rows * p.cols), i / p.cols % p.rows, i % p.cols, sum);
  }
};

// One entry of one result by a thread, or by a team that shares the terms: for results too small for tiles.
template <class Real> struct product_entry {
  products<Real> p;

  __host__ __device__ Real terms(long long i, long long first, long long step) const {
    const long long m = i / (p.rows * p.cols), row = i / p.cols % p.rows, col = i % p.cols;
    const long long each = p.sum ? p.count() : 1;
    Real sum = 0;
    for (long long s = m * each; s < (m + 1) * each; ++s) {
      const element_ptr<Real> a = p.matrix(p.a, s) + row * p.a.step, b = p.matrix(p.b, s) + col * p.b.step;
      constexpr int in_flight = 8;  // loads in flight together
      long long k = first;
      for (; k + (in_flight - 1) * step < p.depth; k += in_flight * step) {
        Real x[in_flight], y[in_flight];
        a.load(x, k * p.a.inner, step * p.a.inner), b.load(y, k * p.b.inner, step * p.b.inner);
        for (int e = 0; e < in_flight; ++e) sum += x[e] * y[e];
      }
      for (; k < p.depth; k += step) sum += a[k * p.a.inner] * b[k * p.b.inner];
    }
    return sum;
  }
  __host__ __device__ void put(long long i, Real v) const {
    p.store(i / (p.rows * p.cols), i / p.cols % p.rows, i % p.cols, v);
  }
  __host__ __device__ void operator()(long long i) const { put(i, terms(i, 0, 1)); }
  template <class Team> __host__ __device__ void operator()(long long i, Team t) const {
    const Real sum = t.sum(terms(i, t.rank, t.size));
    if (t.is_leader()) put(i, sum);
  }
};

// The 16-bit types whose tensor-core kernels are compiled. A layer type compiles those of its own type; operands of the
// other type run without tensor cores.
enum class sixteen_bit_types : unsigned char { bf16 = 1, f16 = 2, both = 3 };
constexpr bool has_type(sixteen_bit_types all, dtype one) {
  return (static_cast<int>(all) & (one == dtype::bf16 ? 1 : 2)) != 0;
}
constexpr sixteen_bit_types sixteen_bit_types_of(dtype computes) {
  return computes == dtype::bf16  ? sixteen_bit_types::bf16
         : computes == dtype::f16 ? sixteen_bit_types::f16
                                  : sixteen_bit_types::both;
}

// Returns true if tensor cores are worth rounding an operand for: batches of matrices, a wide matrix times a narrow
// one, and large matrices (RandLoRA's 4096 x 4096 take 11 ms without tensor cores).
template <class Real> bool takes_tensor_cores(const products<Real>& p) {
  const long long least = min_of(p.rows, p.cols);
  return p.stacked || (p.depth >= 256 && (least <= product_tile_size || least >= 512));
}
// Launches stacked_products. A flat product is cut into a batch of 64-row matrices, so that a block pipelines over many
// of them.
template <class T> status launch_stacks(const on_stream& on, dim3 grid, products<float> p, float* partial) {
  const bool flat = p.count() == 1 && !p.sum && partial == nullptr;
  if (flat && p.rows % product_tile_size == 0 && p.cols <= product_tile_size && p.depth <= stacked::deep) {
    p.stack[1] = p.rows / product_tile_size, p.rows = product_tile_size, p.a.outer[1] = product_tile_size * p.a.step;
    grid = dim3(1, 1, static_cast<unsigned>(min_of(p.stack[1], 65535LL)));
  }
  grid.z = min_of(grid.z, 528U);
  return launch(on.stream, &stacked_products<T, products<float>>, grid, stacked::threads, "matmul", p, partial);
}
template <class Real, sixteen_bit_types Narrow>
status launch_tiles(const on_stream& on, const dim3& grid, const products<Real>& p, Real* partial) {
  if constexpr (dtype_of<Real> == dtype::f32) {
    const dtype type = takes_tensor_cores(p) ? stacked_type(p) : dtype::f32;
    if constexpr (has_type(Narrow, dtype::bf16))
      if (type == dtype::bf16) return launch_stacks<__nv_bfloat16>(on, grid, p, partial);
    if constexpr (has_type(Narrow, dtype::f16))
      if (type == dtype::f16) return launch_stacks<__half>(on, grid, p, partial);
  }
  return launch(on.stream, &tiled_products<Real>, grid, product_threads, "matmul", p, partial);
}

// `scratch`: memory for split-K partial sums of products with very many terms; null: no split.
template <class Real, sixteen_bit_types Narrow = sixteen_bit_types::both>
status multiply(const on_stream& on, const products<Real>& p, Real* scratch = nullptr) {
  const long long results = p.sum ? 1 : p.count();
  const long long entries = p.rows * p.cols * results;
  if (entries == 0) return ok;
  const int parts =
      scratch == nullptr ? 1 : splits_of_terms(p.rows, p.cols, results, p.depth * (p.sum ? p.count() : 1));
  const bool narrow = p.rows < 16 || p.cols < 16;  // most of a tile would be empty
  if (narrow && p.depth <= 64 && !p.sum) return on.elements(entries, product_entry<Real>{p}, "matmul");
  // Few entries with many terms get a CTA each, because tiles would leave most of the device idle.
  if (p.depth >= 512 && entries <= 4096 && parts == 1)
    return on.matrices(entries, p.depth, product_entry<Real>{p}, "matmul");
  const long long tiles =
      (p.rows + product_tile_size - 1) / product_tile_size * ((p.cols + product_tile_size - 1) / product_tile_size);
  if (tiles > 0x7fffffffLL) return fail("a product of ", p.rows, " x ", p.cols, " has more tiles than a grid");
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(parts),
                  static_cast<unsigned>(min_of(results, 65535LL)));
  Real* const partial = parts > 1 ? scratch : nullptr;
  if (status s = launch_tiles<Real, Narrow>(on, grid, p, partial); !s) return s;
  return parts == 1 ? status(ok) : on.elements(entries, product_partials<Real>{p, scratch, entries, parts}, "matmul");
}

}  // namespace graft::gpu
