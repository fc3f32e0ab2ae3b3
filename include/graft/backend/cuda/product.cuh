// SPDX-License-Identifier: Apache-2.0
// Matrix products for every size, stack and transposition, c = a b, or c += sign a b: on the ordinary cores, or on the
// tensor cores where an operand has 16 bits (stack_products.cuh). A block
// computes 64 x 64 of a result, 16 terms at a time out of shared memory, a thread 4 x 4 of that. A transposed operand
// is one with its steps exchanged; either way neighbouring threads load along the step of 1.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/stack_products.cuh>
#include <graft/backend/cuda/targets.h>
#include <graft/backend/cuda/tensor.cuh>
#include <graft/core/few_numbers.h>

namespace graft::cuda {

// One operand: `step` leads to the next row (of a) or column (of b) of the result, `inner` to the next term of the sum,
// outer[] to the next matrix along the two axes of the stack, 0 where it is read again.
template <class Real> struct factor {
  cells<Real> p;
  long long step, inner, outer[2];
};
template <class Real> struct products {
  factor<Real> a, b;
  cells<Real> c;  // matrices of rows x cols, one after the other
  long long rows, cols, depth;
  long long stack[2];    // products to compute
  bool sum = false;      // all into one result
  int accumulate = 0;    // 0: overwrite, +1 or -1: add or subtract
  cells<Real> scale{};   // one number, or none
  bool stacked = false;  // an operand is a stack of matrices

  __host__ __device__ long long count() const { return stack[0] * stack[1]; }
  __host__ __device__ cells<Real> matrix(const factor<Real>& f, long long m) const {
    return f.p + m / stack[1] * f.outer[0] + m % stack[1] * f.outer[1];
  }
  __host__ __device__ void store(long long m, long long row, long long col, Real v) const {
    const long long to = (m * rows + row) * cols + col;
    if (scale.at != nullptr) v *= scale[0];
    c.put(to, accumulate == 0 ? v : accumulate < 0 ? c[to] - v : c[to] + v);
  }
};

struct product_mode {
  bool ta = false, tb = false, sum = false;
  int accumulate = 0;
};
template <class Real> products<Real> products_of(tensor<Real> out, tensor<Real> a, tensor<Real> b, product_mode m) {
  // One product for the whole stack; and Σ aᵀ b over a stack is one tall product.
  const bool flat = !m.ta && !m.sum && b.matrices() == 1;
  const bool tall = m.sum && m.ta && !m.tb && a.matrices() == b.matrices();
  const bool stacked = a.matrices() > 1 || b.matrices() > 1;
  for (tensor<Real>* t : {&a, &b})
    if ((flat && t == &a) || tall) t->d[2] *= t->matrices(), t->d[0] = t->d[1] = 1;
  auto side = [](const tensor<Real>& t, bool by_column) {
    return factor<Real>{t.p,
                        by_column ? 1 : t.d[3],
                        by_column ? t.d[3] : 1,
                        {t.d[0] == 1 ? 0 : t.d[1] * t.area(), t.d[1] == 1 ? 0 : t.area()}};
  };
  return {side(a, m.ta),
          side(b, !m.tb),
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

inline constexpr int product_side = 64, product_depth = 16, product_threads = 256;

// Two spare columns: threads that load along the depth write to different banks.
template <class Real> using product_tile = Real[product_depth][product_side + 2];

// Four elements a thread: 16 neighbours along the depth where that is contiguous, else 64 along the side of the tile.
template <class Real>
__device__ void load_factor(product_tile<Real>& to, const cells<Real>& matrix, const factor<Real>& f, long long from,
                            long long end, long long k0, long long depth) {
  const bool along = f.inner == 1;
  const int t = static_cast<int>(threadIdx.x), next_k = along ? 0 : product_threads / product_side,
            next_i = along ? product_threads / product_depth : 0;
  matrix.as_stored([&](const auto& p) {
    int k = along ? t % product_depth : t / product_side, i = along ? t / product_depth : t % product_side;
    for (int e = 0; e < product_side * product_depth / product_threads; ++e, k += next_k, i += next_i) {
      const bool inside = from + i < end && k0 + k < depth;
      to[k][i] = inside ? p[(from + i) * f.step + (k0 + k) * f.inner] : Real(0);
    }
  });
}

// The terms of a result are shared by gridDim.y blocks, each of which leaves its part in `partial`, or are all one block's.
template <class Real>
__global__ void __launch_bounds__(product_threads) tiled_products(products<Real> p, Real* partial) {
  __shared__ product_tile<Real> left, right;
  const long long across = (p.cols + product_side - 1) / product_side;
  const long long row0 = blockIdx.x / across * product_side, col0 = blockIdx.x % across * product_side;
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  const long long results = p.sum ? 1 : p.count(), each = p.sum ? p.count() : 1;
  for (long long m = blockIdx.z; m < results; m += gridDim.z) {
    Real acc[4][4] = {};
    const long long deep = (p.depth + product_depth - 1) / product_depth, all = deep * each;
    for (long long step = all * blockIdx.y / gridDim.y; step < all * (blockIdx.y + 1) / gridDim.y; ++step) {
      const long long s = m * each + step / deep, k0 = step % deep * product_depth;
      __syncthreads();
      load_factor(left, p.matrix(p.a, s), p.a, row0, p.rows, k0, p.depth);
      load_factor(right, p.matrix(p.b, s), p.b, col0, p.cols, k0, p.depth);
      __syncthreads();
      for (int k = 0; k < product_depth; ++k) {
        Real x[4], y[4];
        for (int i = 0; i < 4; ++i) x[i] = left[k][ty + 16 * i], y[i] = right[k][tx + 16 * i];
        for (int i = 0; i < 4; ++i)
          for (int j = 0; j < 4; ++j) acc[i][j] += x[i] * y[j];
      }
    }
#pragma unroll 1
    for (int i = 0; i < 4; ++i)  // each row comes to the place of the first: registers have no index
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (const long long r = row0 + ty + 16 * i, c = col0 + tx + 16 * j; r < p.rows && c < p.cols) {
          if (partial == nullptr)
            p.store(m, r, c, acc[0][j]);
          else
            partial[((blockIdx.y * results + m) * p.rows + r) * p.cols + c] = acc[0][j];
        }
        for (int k = 0; k < 3; ++k) acc[k][j] = acc[k + 1][j];
      }
  }
}
// An entry of the results from its parts, in their order.
template <class Real> struct product_parts {
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

// One entry of one result, by one thread or by a team that shares the terms: for results that fill no tiles.
template <class Real> struct product_entry {
  products<Real> p;

  __host__ __device__ Real terms(long long i, long long first, long long step) const {
    const long long m = i / (p.rows * p.cols), row = i / p.cols % p.rows, col = i % p.cols;
    const long long each = p.sum ? p.count() : 1;
    Real sum = 0;
    for (long long s = m * each; s < (m + 1) * each; ++s) {
      const cells<Real> a = p.matrix(p.a, s) + row * p.a.step, b = p.matrix(p.b, s) + col * p.b.step;
      constexpr int ahead = 8;  // loads in flight together
      long long k = first;
      for (; k + (ahead - 1) * step < p.depth; k += ahead * step) {
        Real x[ahead], y[ahead];
        a.load(x, k * p.a.inner, step * p.a.inner), b.load(y, k * p.b.inner, step * p.b.inner);
        for (int e = 0; e < ahead; ++e) sum += x[e] * y[e];
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
    if (t.leads()) put(i, sum);
  }
};

// The types of 16 bits whose operands meet on the tensor cores. A layer type has those of its own numbers: operands of the
// other one, which its caller may bring, are multiplied on the ordinary cores.
enum class narrow_types : unsigned char { bf16 = 1, f16 = 2, both = 3 };
constexpr bool has_type(narrow_types all, dtype one) {
  return (static_cast<int>(all) & (one == dtype::bf16 ? 1 : 2)) != 0;
}
constexpr narrow_types narrow_types_of(dtype computes) {
  return computes == dtype::bf16 ? narrow_types::bf16 : computes == dtype::f16 ? narrow_types::f16 : narrow_types::both;
}

// Stacks of matrices, a wide one times a narrow one, and large ones (RandLoRA's 4096 x 4096 take 11 ms on the ordinary
// cores): what the tensor cores are worth rounding an operand for.
template <class Real> bool takes_tensor_cores(const products<Real>& p) {
  const long long least = smaller_of(p.rows, p.cols);
  return p.stacked || (p.depth >= 256 && (least <= product_side || least >= 512));
}
// The same as stacks for those. A flat product is a stack of 64 rows each; a block goes through many matrices.
template <class T> status launch_stacks(const on_stream& on, dim3 grid, products<float> p, float* partial) {
  const bool flat = p.count() == 1 && !p.sum && partial == nullptr;
  if (flat && p.rows % product_side == 0 && p.cols <= product_side && p.depth <= stacked::deep) {
    p.stack[1] = p.rows / product_side, p.rows = product_side, p.a.outer[1] = product_side * p.a.step;
    grid = dim3(1, 1, static_cast<unsigned>(smaller_of(p.stack[1], 65535LL)));
  }
  grid.z = smaller_of(grid.z, 528U);
  return launch(on.stream, &stacked_products<T, products<float>>, grid, stacked::threads, "matmul", p, partial);
}
template <class Real, narrow_types Narrow>
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

// `scratch`: room for the parts of products with very many terms; null: they are made in one.
template <class Real, narrow_types Narrow = narrow_types::both>
status multiply(const on_stream& on, const products<Real>& p, Real* scratch = nullptr) {
  const long long results = p.sum ? 1 : p.count();
  const long long entries = p.rows * p.cols * results;
  if (entries == 0) return ok;
  const int parts = scratch == nullptr ? 1 : parts_of_terms(p.rows, p.cols, results, p.depth * (p.sum ? p.count() : 1));
  const bool narrow = p.rows < 16 || p.cols < 16;  // most of a tile would be empty
  if (narrow && p.depth <= 64 && !p.sum) return on.elements(entries, product_entry<Real>{p}, "matmul");
  // Few entries with many terms: a block of threads for each, where its tiles would leave most of the device idle.
  if (p.depth >= 512 && entries <= 4096 && parts == 1)
    return on.matrices(entries, p.depth, product_entry<Real>{p}, "matmul");
  const long long tiles = (p.rows + product_side - 1) / product_side * ((p.cols + product_side - 1) / product_side);
  if (tiles > 0x7fffffffLL) return fail("a product of ", p.rows, " x ", p.cols, " has more tiles than a grid");
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(parts),
                  static_cast<unsigned>(smaller_of(results, 65535LL)));
  Real* const partial = parts > 1 ? scratch : nullptr;
  if (status s = launch_tiles<Real, Narrow>(on, grid, p, partial); !s) return s;
  return parts == 1 ? status(ok) : on.elements(entries, product_parts<Real>{p, scratch, entries, parts}, "matmul");
}

}  // namespace graft::cuda
