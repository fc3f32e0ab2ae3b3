// SPDX-License-Identifier: Apache-2.0
// x R for 16-bit x [rows, columns] and a block-diagonal R (OFT, composed BOFT), sm_80 and later, at copy speed.
//
// R has blocks of a size that divides 32, or of 64 or 128. Butterfly factors that stay within 32 columns are first
// composed in float and rounded once (compose).
//
// Tile         A warp computes 64 columns of the result, or 32 for blocks of 64 and 128. It holds its part of R in
//              registers as the B operand of mma.sync m16n8k16 and streams rows of x past it, double-buffered. 8 warps.
// Work split   grid (column blocks, row blocks), sized so that all CTAs are resident at once and load R only once.
// Layout       Inner and outer index are permuted so that a thread's share of a row is 16 contiguous bytes in x, in the
//              result and in R (mma_operand.cuh): no shared memory, no shuffles.
// Measured     H200, OFT with blocks of 32, 4096 x 4096, 4096 tokens: forward takes 1.14 of the bare product
//              (docs/performance.md).
#pragma once
#include <graft/backend/gpu/kernels/rotation/mma_operand.cuh>
#include <graft/backend/gpu/runtime/device.h>

namespace graft::gpu {

struct rotate_args {
  const void* x;
  void* y;
  element_ptr<float> q;
  rotation r;
  long long rows;
  int block_rows;  // rows per CTA
};

inline constexpr int rotate_rows_warps = 8;
// Rows per CTA so that all CTAs are resident at once, two per SM; later CTAs would load R after the others have ended.
inline int rows_per_block(long long rows, long long column_blocks, int sm_count) {
  const long long down = 2 * sm_count / column_blocks > 1 ? 2 * sm_count / column_blocks : 1;
  return static_cast<int>((rows + 32 * down - 1) / (32 * down) * 32);
}

inline int rotation_depth(const rotation& r) {  // tiles of 32 of the inner axis per 32 columns; 0: not this kernel
  if (r.in % 32 != 0 || r.factors > 1) return 0;
  return 32 % r.b == 0 ? 1 : r.b == 64 ? 2 : r.b == 128 ? 4 : 0;
}

// Depth is rotation_depth(). A warp has `tiles` tiles of 32 columns; with Depth 1 it accesses 128 bytes of a row.
template <class T, int Depth>
__global__ void __launch_bounds__(32 * rotate_rows_warps, Depth == 4 ? 1 : 2)
    rotate_rows_kernel(const __grid_constant__ rotate_args g) {
#if __CUDA_ARCH__ >= 800
  pdl_begin();
  constexpr int tiles = Depth == 1 ? 2 : 1, inner = Depth == 1 ? tiles : Depth;  // tiles of x that a warp reads
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32), q = lane % 4;
  const long long first = (static_cast<long long>(blockIdx.x) * rotate_rows_warps + warp) * 32 * tiles;
  if (first >= g.r.in) return;
  const long long from = first / (32 * inner) * (32 * inner);
  const bool second = first + 32 < g.r.in;  // the last warp may have one tile only
  right_tile right[tiles][Depth] = {};
  const bool whole = is_vectorizable(g.q, g.r);
  const long long block = g.r.shared() ? 0 : first / g.r.b;
  right_vectors vectors[tiles] = {};
  auto prefetch = [&](int c, int d) {
    const long long down = 32 * d, along = first - from;  // position within the block of R
    load_right(vectors[c],
               static_cast<const float*>(g.q.at) + (block + (g.r.shared() ? 0 : c)) * g.r.b * g.r.b +
                   (Depth == 1       ? 0
                    : g.r.transposed ? along * g.r.b + down
                                     : down * g.r.b + along),
               static_cast<int>(g.r.b), g.r.transposed, lane);
  };
  if (!whole) {
#pragma unroll
    for (int c = 0; c < tiles; ++c)
#pragma unroll
      for (int d = 0; d < Depth; ++d)
        if (c == 0 || second)
          gather_right<T>(right[c][d], g.q, g.r, (Depth == 1 ? first + 32 * c : from) + 32 * d, first + 32 * c, lane);
  } else if constexpr (Depth > 1) {
#pragma unroll
    for (int d = 0; d < Depth; ++d) prefetch(0, d), pack_right<T>(right[0][d], vectors[0], g.r.transposed);
  } else {
    prefetch(0, 0);
    if (second) prefetch(1, 0);
  }
  const long long begin = static_cast<long long>(blockIdx.y) * g.block_rows;
  const int rows = static_cast<int>(begin + g.block_rows < g.rows ? g.block_rows : g.rows - begin);
  const T* const x_at = static_cast<const T*>(g.x) + begin * g.r.in + from + 8 * q;
  T* const y_at = static_cast<T*>(g.y) + begin * g.r.in + first + 8 * q;
  constexpr int at_once = 4 / inner, step = 16 * at_once;  // groups of 16 rows
  struct rows_of_x {
    uint4 v[at_once][2][inner];
  };
  auto load = [&](rows_of_x& to, int row0) {
#pragma unroll
    for (int k = 0; k < at_once; ++k)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row0 + 16 * k + 8 * h;
        const T* const at = x_at + row * g.r.in;
#pragma unroll
        for (int d = 0; d < inner; ++d)
          to.v[k][h][d] = ptx::load_streaming(at + 32 * d, row < rows && (d == 0 || Depth > 1 || second));
      }
  };
  auto rotation_op = [&](const rows_of_x& x, int row0) {
#pragma unroll
    for (int k = 0; k < at_once; ++k)
#pragma unroll
      for (int c = 0; c < tiles; ++c) {
        float acc[4][4] = {};
#pragma unroll
        for (int d = 0; d < Depth; ++d) {
          const uint4 low = x.v[k][0][Depth == 1 ? c : d], high = x.v[k][1][Depth == 1 ? c : d];
          const std::uint32_t left[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
          for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int t = 0; t < 4; ++t) ptx::mma_m16n8k16<T>(acc[t], left[s], right[c][d][s][t]);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (const int row = row0 + 16 * k + 8 * h; row < rows && (c == 0 || second))
            *reinterpret_cast<uint4*>(y_at + row * g.r.in + 32 * c) = make_uint4(
                pack<T>(acc[0][2 * h], acc[1][2 * h]), pack<T>(acc[2][2 * h], acc[3][2 * h]),
                pack<T>(acc[0][2 * h + 1], acc[1][2 * h + 1]), pack<T>(acc[2][2 * h + 1], acc[3][2 * h + 1]));
      }
  };
  rows_of_x even, odd;
  load(even, lane / 4);
  if (Depth == 1 && whole)  // the loads of R were issued before those of x
#pragma unroll
    for (int c = 0; c < tiles; ++c) pack_right<T>(right[c][0], vectors[c], g.r.transposed);
#pragma unroll 1
  for (int row0 = lane / 4; row0 < rows + lane / 4; row0 += 2 * step) {  // all lanes iterate equally often
    load(odd, row0 + step);
    rotation_op(even, row0);
    load(even, row0 + 2 * step);
    rotation_op(odd, row0 + step);
  }
#endif
}

namespace detail {
template <class T> status launch_rotate_rows(cudaStream_t stream, rotate_args g, int depth, int sm_count) {
  const long long columns = 32LL * rotate_rows_warps * (depth == 1 ? 2 : 1);
  const long long column_blocks = (g.r.in + columns - 1) / columns;
  g.block_rows = rows_per_block(g.rows, column_blocks, sm_count);
  const dim3 grid(static_cast<unsigned>(column_blocks),
                  static_cast<unsigned>((g.rows + g.block_rows - 1) / g.block_rows));
  auto run = [&](auto* kernel) { return launch_pdl(stream, kernel, grid, 32 * rotate_rows_warps, "rotate", g); };
  return depth == 1   ? run(&rotate_rows_kernel<T, 1>)
         : depth == 2 ? run(&rotate_rows_kernel<T, 2>)
                      : run(&rotate_rows_kernel<T, 4>);
}
}  // namespace detail

// Composes butterfly factors into blocks [in / 32][32][32] at `to`, which must have space for twice as many.
template <class On, class Real> status compose(const On& on, const element_ptr<Real>& q, const rotation& r, Real* to) {
  return on.matrices(r.in / rotation::composed_width, rotation::composed_width * rotation::composed_width,
                     compose_functor<Real>{q, r, to}, "compose");
}
// Operands of x R. It runs by rotate_rows_kernel where that applies, else a row per team of threads (rotated). A call
// takes two launches where butterfly factors must be composed first.
template <class Real> struct rotation_op {
  tensor<Real> out, x, q;
  bool transposed;
  Real *scratch, *composed = nullptr;
};
template <class On, class Real> status rotate_rows(const On& on, const rotate_functor<Real>& r) {
  return on.matrices(r.x.rows(), r.r.in, r, "rotate");
}
template <runs_on_stream On> status rotate_rows(const On& on, const rotate_functor<float>& r) {
  const dtype type = r.x.p.type;
  const int depth = rotation_depth(r.r);
  auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  const auto capability = device_attribute(cudaDevAttrComputeCapabilityMajor),
             sm_count = device_attribute(cudaDevAttrMultiProcessorCount);
  const bool passes = depth > 0 && type == r.out.p.type && type != dtype::f32 && aligned(r.x.p.at) &&
                      aligned(r.out.p.at) && r.x.rows() > 0 && capability && *capability >= 8 && sm_count;
  if (!passes) return on.matrices(r.x.rows(), r.r.in, r, "rotate");
  const rotate_args g{r.x.p.at, r.out.p.at, r.q, r.r, r.x.rows(), 0};
  return type == dtype::bf16 ? detail::launch_rotate_rows<__nv_bfloat16>(on.stream, g, depth, *sm_count)
                             : detail::launch_rotate_rows<__half>(on.stream, g, depth, *sm_count);
}
template <class On, class Real> status rotate(const On& on, const rotation_op<Real>& t) {
  const rotation r(t.q, t.x.d[3], t.transposed);
  if (!r.composes()) return rotate_rows(on, rotate_functor<Real>{t.out, t.x, t.q.p, r, t.scratch});
  Real* const one = t.composed != nullptr ? t.composed : t.scratch;
  if (t.composed == nullptr)
    if (status s = compose(on, t.q.p, r, one); !s) return s;
  return rotate_rows(
      on, rotate_functor<Real>{t.out, t.x, element_ptr<Real>(one), {r.in, rotation::composed_width}, nullptr});
}

}  // namespace graft::gpu
