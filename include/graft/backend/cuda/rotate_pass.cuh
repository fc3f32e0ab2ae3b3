// SPDX-License-Identifier: Apache-2.0
// x R for 16-bit x and a block-diagonal R, at the speed of a copy: blocks of a size that divides 32, or of 32, 64 or 128.
// Several butterfly factors that stay within 32 columns are composed in float first, and rounded once.
//
// A warp makes 64 columns of the result, or 32. It keeps its part of R in registers, as the right operand of mma.sync, and takes
// rows of x past it, 64 at a time. Inner and outer index are permuted so that what a thread has of a row is 16 contiguous
// bytes in x, in the result and in R: no shared memory, no shuffles.
#pragma once
#include <graft/backend/cuda/device.h>
#include <graft/backend/cuda/rotate_right.cuh>

namespace graft::cuda {

struct rotate_args {
  const void* x;
  void* y;
  cells<float> q;
  rotation r;
  long long rows;
  int block_rows;  // of a thread block
};

inline constexpr int pass_warps = 8;
// All thread blocks are there at once, two on a processor: none brings its part of R when the others have ended.
inline int pass_rows(long long rows, long long across, int processors) {
  const long long down = 2 * processors / across > 1 ? 2 * processors / across : 1;
  return static_cast<int>((rows + 32 * down - 1) / (32 * down) * 32);
}

inline int pass_depth(const rotation& r) {  // inner tiles of 32 for 32 columns; 0: not this kernel
  if (r.in % 32 != 0 || r.factors > 1) return 0;
  return 32 % r.b == 0 ? 1 : r.b == 64 ? 2 : r.b == 128 ? 4 : 0;
}

// `Tiles` tiles of 32 columns a warp: a row is read and written in pieces of 128 bytes. Depth inner tiles for each.
template <class T, int Depth>
__global__ void __launch_bounds__(32 * pass_warps, Depth == 4 ? 1 : 2)
    rotate_pass(const __grid_constant__ rotate_args g) {
#if __CUDA_ARCH__ >= 800
  take_turn();
  constexpr int tiles = Depth == 1 ? 2 : 1, inner = Depth == 1 ? tiles : Depth;  // tiles of x that a warp reads
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32), q = lane % 4;
  const long long first = (static_cast<long long>(blockIdx.x) * pass_warps + warp) * 32 * tiles;
  if (first >= g.r.in) return;
  const long long from = first / (32 * inner) * (32 * inner);
  const bool second = first + 32 < g.r.in;  // the last warp may have one tile only
  right_tile right[tiles][Depth] = {};
  const bool whole = in_pieces(g.q, g.r);
  const long long block = g.r.shared() ? 0 : first / g.r.b;
  right_pieces pieces[tiles] = {};
  auto ask = [&](int c, int d) {
    const long long down = 32 * d, along = first - from;  // in its block, where the block has several tiles
    load_right(pieces[c],
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
    for (int d = 0; d < Depth; ++d) ask(0, d), pack_right<T>(right[0][d], pieces[0], g.r.transposed);
  } else {
    ask(0, 0);
    if (second) ask(1, 0);
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
          to.v[k][h][d] = ptx::load_once(at + 32 * d, row < rows && (d == 0 || Depth > 1 || second));
      }
  };
  auto turn = [&](const rows_of_x& x, int row0) {
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
            for (int t = 0; t < 4; ++t) mma::multiply<T>(acc[t], left[s], right[c][d][s][t]);
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
  if (Depth == 1 && whole)  // R was asked for before the first rows, and is here before them
#pragma unroll
    for (int c = 0; c < tiles; ++c) pack_right<T>(right[c][0], pieces[c], g.r.transposed);
#pragma unroll 1
  for (int row0 = lane / 4; row0 < rows + lane / 4; row0 += 2 * step) {  // the same number of turns for all lanes
    load(odd, row0 + step);
    turn(even, row0);
    load(even, row0 + 2 * step);
    turn(odd, row0 + step);
  }
#endif
}

namespace detail {
template <class T> status launch_pass(cudaStream_t stream, rotate_args g, int depth, int processors) {
  const long long columns = 32LL * pass_warps * (depth == 1 ? 2 : 1);
  const long long across = (g.r.in + columns - 1) / columns;
  g.block_rows = pass_rows(g.rows, across, processors);
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>((g.rows + g.block_rows - 1) / g.block_rows));
  auto run = [&](auto* kernel) { return launch_chained(stream, kernel, grid, 32 * pass_warps, "rotate", g); };
  return depth == 1 ? run(&rotate_pass<T, 1>) : depth == 2 ? run(&rotate_pass<T, 2>) : run(&rotate_pass<T, 4>);
}
}  // namespace detail

// Several factors as one: [in / 32][32][32] at `to`, and behind it room for as many.
template <class On, class Real> status compose(const On& on, const cells<Real>& q, const rotation& r, Real* to) {
  return on.matrices(r.in / rotation::wide, rotation::wide * rotation::wide, composed<Real>{q, r, to}, "compose");
}
// x R by the pass where it can be, else row by row by teams of threads. Two launches where factors are not yet composed.
template <class Real> struct turn {
  tensor<Real> out, x, q;
  bool transposed;
  Real *scratch, *composed = nullptr;
};
template <class On, class Real> status rotate_rows(const On& on, const rotated<Real>& r) {
  return on.matrices(r.x.rows(), r.r.in, r, "rotate");
}
template <streams On> status rotate_rows(const On& on, const rotated<float>& r) {
  const dtype type = r.x.p.type;
  const int depth = pass_depth(r.r);
  auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  const auto capability = attribute_of_device(cudaDevAttrComputeCapabilityMajor),
             processors = attribute_of_device(cudaDevAttrMultiProcessorCount);
  const bool passes = depth > 0 && type == r.out.p.type && type != dtype::f32 && aligned(r.x.p.at) &&
                      aligned(r.out.p.at) && r.x.rows() > 0 && capability && *capability >= 8 && processors;
  if (!passes) return on.matrices(r.x.rows(), r.r.in, r, "rotate");
  const rotate_args g{r.x.p.at, r.out.p.at, r.q, r.r, r.x.rows(), 0};
  return type == dtype::bf16 ? detail::launch_pass<__nv_bfloat16>(on.stream, g, depth, *processors)
                             : detail::launch_pass<__half>(on.stream, g, depth, *processors);
}
template <class On, class Real> status rotate(const On& on, const turn<Real>& t) {
  const rotation r(t.q, t.x.d[3], t.transposed);
  if (!r.composes()) return rotate_rows(on, rotated<Real>{t.out, t.x, t.q.p, r, t.scratch});
  Real* const one = t.composed != nullptr ? t.composed : t.scratch;
  if (t.composed == nullptr)
    if (status s = compose(on, t.q.p, r, one); !s) return s;
  return rotate_rows(on, rotated<Real>{t.out, t.x, cells<Real>(one), {r.in, rotation::wide}, nullptr});
}

}  // namespace graft::cuda
