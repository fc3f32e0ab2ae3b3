// SPDX-License-Identifier: Apache-2.0
// x R for 16-bit x [rows, columns] and a block-diagonal R (OFT, composed BOFT), sm_80 and later, at copy speed. A launch
// rotates x by one R or by several: y_i = x R_i for the products that read x (Q, K and V; gate and up).
//
// R has blocks of a size that divides 32, or of 64 or 128. Butterfly factors that stay within 32 columns are first
// composed in float and rounded once (compose).
//
// Tile         A warp computes 64 columns of the result, or 32 for blocks of 64 and 128. It holds its part of R in
//              registers as the B operand of mma.sync m16n8k16 and streams rows of x past it, double-buffered. 8 warps.
// Work split   grid (column blocks, row blocks, rotations), sized so that all CTAs are resident at once and load R once.
// Latency      A token step waits for this kernel: R is loaded before the wait for the previous kernel where it does not
//              depend on it (`early`), and dependents are launched at once, so that they prefetch their weights.
// Layout       Inner and outer index are permuted so that a thread's share of a row is 16 contiguous bytes in x, in the
//              result and in R (mma_operand.cuh): no shared memory, no shuffles.
// Measured     H200, OFT with blocks of 32, 4096 x 4096, 4096 tokens: forward takes 1.14 of the bare product
//              (docs/performance.md).
#pragma once
#include <graft/backend/gpu/dispatch/skinny.h>
#include <graft/backend/gpu/kernels/rotation/mma_operand.cuh>
#include <graft/backend/gpu/runtime/device.h>

namespace graft::gpu {

// Rotations of one x in one launch: all tensors have its sizes, and the blocks of every R divide 32.
template <class Real> struct grouped_rotations {
  int count = 0;
  tensor<Real> x, out[max_segments], q[max_segments];
  bool transposed[max_segments] = {};
  bool early = false;  // no q was written since the last call, so R may be loaded before griddepcontrol.wait
};

struct rotate_args {
  struct one {
    void* y;
    element_ptr<float> q;
    rotation r;
  };
  const void* x;
  long long rows;
  int block_rows;  // rows per CTA
  bool early;
  one each[max_segments];
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
#if __CUDA_ARCH__ >= 900
  ptx::launch_dependents();
  if (!g.early) ptx::wait_for_dependency();
#endif
  const element_ptr<float> r_at = g.each[blockIdx.z].q;
  const rotation& r = g.each[blockIdx.z].r;
  constexpr int tiles = Depth == 1 ? 2 : 1, inner = Depth == 1 ? tiles : Depth;  // tiles of x that a warp reads
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32), q = lane % 4;
  const long long first = (static_cast<long long>(blockIdx.x) * rotate_rows_warps + warp) * 32 * tiles;
  if (first >= r.in) {
#if __CUDA_ARCH__ >= 900
    ptx::wait_for_dependency();
#endif
    return;
  }
  const long long from = first / (32 * inner) * (32 * inner);
  const bool second = first + 32 < r.in;  // the last warp may have one tile only
  right_tile right[tiles][Depth] = {};
  const bool whole = is_vectorizable(r_at, r);
  const long long block = r.shared() ? 0 : first / r.b;
  right_vectors vectors[tiles] = {};
  auto prefetch = [&](int c, int d) {
    const long long down = 32 * d, along = first - from;  // position within the block of R
    load_right(vectors[c],
               static_cast<const float*>(r_at.at) + (block + (r.shared() ? 0 : c)) * r.b * r.b +
                   (Depth == 1     ? 0
                    : r.transposed ? along * r.b + down
                                   : down * r.b + along),
               static_cast<int>(r.b), r.transposed, lane);
  };
  if (!whole) {
#pragma unroll
    for (int c = 0; c < tiles; ++c)
#pragma unroll
      for (int d = 0; d < Depth; ++d)
        if (c == 0 || second)
          gather_right<T>(right[c][d], r_at, r, (Depth == 1 ? first + 32 * c : from) + 32 * d, first + 32 * c, lane);
  } else if constexpr (Depth > 1) {
#pragma unroll
    for (int d = 0; d < Depth; ++d) prefetch(0, d), pack_right<T>(right[0][d], vectors[0], r.transposed);
  } else {
    prefetch(0, 0);
    if (second) prefetch(1, 0);
  }
  const long long begin = static_cast<long long>(blockIdx.y) * g.block_rows;
  const int rows = static_cast<int>(begin + g.block_rows < g.rows ? g.block_rows : g.rows - begin);
  const T* const x_at = static_cast<const T*>(g.x) + begin * r.in + from + 8 * q;
  T* const y_at = static_cast<T*>(g.each[blockIdx.z].y) + begin * r.in + first + 8 * q;
  const auto pitch = static_cast<int>(r.in);
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
        const T* const at = x_at + static_cast<long long>(row) * pitch;
#pragma unroll
        for (int d = 0; d < inner; ++d)
          to.v[k][h][d] = ptx::load_streaming(at + 32 * d, row < rows && (d == 0 || Depth > 1 || second));
      }
  };
  auto rotate_tile = [&](const rows_of_x& x, int row0) {
#pragma unroll
    for (int k = 0; k < at_once; ++k)
#pragma unroll
      for (int c = 0; c < tiles; ++c) {
        rotated_rows acc = {};
#pragma unroll
        for (int d = 0; d < Depth; ++d)
          rotate_rows16<T>(acc, x.v[k][0][Depth == 1 ? c : d], x.v[k][1][Depth == 1 ? c : d], right[c][d]);
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (const int row = row0 + 16 * k + 8 * h; row < rows && (c == 0 || second))
            *reinterpret_cast<uint4*>(y_at + static_cast<long long>(row) * pitch + 32 * c) = packed_row<T>(acc, h);
      }
  };
  rows_of_x even, odd;
#if __CUDA_ARCH__ >= 900
  ptx::wait_for_dependency();  // the loads of R are in flight
#endif
  load(even, lane / 4);
  if (Depth == 1 && whole)  // the loads of R were issued before those of x
#pragma unroll
    for (int c = 0; c < tiles; ++c) pack_right<T>(right[c][0], vectors[c], r.transposed);
#pragma unroll 1
  for (int row0 = lane / 4; row0 < rows + lane / 4; row0 += 2 * step) {  // all lanes iterate equally often
    load(odd, row0 + step);
    rotate_tile(even, row0);
    load(even, row0 + 2 * step);
    rotate_tile(odd, row0 + step);
  }
#endif
}

namespace detail {
template <class T> status launch_rotate_rows(cudaStream_t stream, rotate_args g, int count, int sm_count) {
  const int depth = rotation_depth(g.each[0].r);
  const long long columns = 32LL * rotate_rows_warps * (depth == 1 ? 2 : 1);
  const long long column_blocks = (g.each[0].r.in + columns - 1) / columns;
  g.block_rows = rows_per_block(g.rows, column_blocks * count, sm_count);
  const dim3 grid(static_cast<unsigned>(column_blocks),
                  static_cast<unsigned>((g.rows + g.block_rows - 1) / g.block_rows), static_cast<unsigned>(count));
  auto run = [&](auto* kernel) { return launch_pdl(stream, kernel, grid, 32 * rotate_rows_warps, "rotate", g); };
  return depth == 1   ? run(&rotate_rows_kernel<T, 1>)
         : depth == 2 ? run(&rotate_rows_kernel<T, 2>)
                      : run(&rotate_rows_kernel<T, 4>);
}
// A template, so that only programs that rotate compile the kernels of both types.
template <runs_on_stream On>
status launch_rotate_rows(const On& on, dtype type, const rotate_args& g, int count, int sm_count) {
  return type == dtype::bf16 ? launch_rotate_rows<__nv_bfloat16>(on.stream, g, count, sm_count)
                             : launch_rotate_rows<__half>(on.stream, g, count, sm_count);
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
  auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  const auto capability = device_attribute(cudaDevAttrComputeCapabilityMajor),
             sm_count = device_attribute(cudaDevAttrMultiProcessorCount);
  const bool passes = rotation_depth(r.r) > 0 && type == r.out.p.type && type != dtype::f32 && aligned(r.x.p.at) &&
                      aligned(r.out.p.at) && r.x.rows() > 0 && capability && *capability >= 8 && sm_count;
  if (!passes) return on.matrices(r.x.rows(), r.r.in, r, "rotate");
  return detail::launch_rotate_rows(on, type, {r.x.p.at, r.x.rows(), 0, false, {{r.out.p.at, r.q, r.r}}}, 1, *sm_count);
}
template <class On, class Real> status rotate_grouped(const On& /*on*/, const grouped_rotations<Real>& /*all*/) {
  return fail("several rotations in one launch need a stream");
}
template <runs_on_stream On> status rotate_grouped(const On& on, const grouped_rotations<float>& all) {
  const auto sm_count = device_attribute(cudaDevAttrMultiProcessorCount);
  if (!sm_count) return sm_count.failure();
  rotate_args g{all.x.p.at, all.x.rows(), 0, all.early, {}};
  for (int k = 0; k < all.count; ++k)
    g.each[k] = {all.out[k].p.at, all.q[k].p, rotation(all.q[k], all.x.d[3], all.transposed[k])};
  return detail::launch_rotate_rows(on, all.x.p.type, g, all.count, *sm_count);
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
