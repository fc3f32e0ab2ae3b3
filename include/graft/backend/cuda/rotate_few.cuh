// SPDX-License-Identifier: Apache-2.0
// Several rotations of a few rows in one launch, ahead of the products that read them (Q, K and V; gate and up): x R_i for
// 16-bit x and blocks of a size that divides 32. x may be the product of two values element by element (gate and up, ahead
// of down). A token step waits for this kernel, so it does what it can before: R does not depend on the kernel ahead, and
// is asked for before that has ended; and the kernel behind is let in at once, to ask for its weights.
//
// A warp makes 32 columns of 16 rows.
#pragma once
#include <graft/backend/cuda/device.h>
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/rotate_right.cuh>
#include <graft/backend/cuda/stream_choice.h>

namespace graft::cuda {

// As they are asked for: all of the sizes of `x`.
template <class Real> struct turned_values {
  int count = 0;
  tensor<Real> x, out[max_segments], q[max_segments];
  cells<Real> other{};  // x ⊙ other; no address: x
  bool transposed[max_segments] = {};
  bool early = false;  // no q was written since the last call
};

struct turn_few_args {
  struct one {
    void* y;
    cells<float> q;
    rotation r;
  };
  const void *x, *other;
  int rows, columns;
  bool early;
  one turn[max_segments];
};

inline constexpr int few_turn_warps = 4;
template <class T>
__global__ void __launch_bounds__(32 * few_turn_warps) rotate_few(const __grid_constant__ turn_few_args g) {
#if __CUDA_ARCH__ >= 800
#if __CUDA_ARCH__ >= 900
  ptx::let_next_kernel_start();
  if (!g.early) ptx::wait_for_previous_kernel();
#endif
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int first = (static_cast<int>(blockIdx.x) * few_turn_warps + warp) * 32;
  const turn_few_args::one& turn = g.turn[blockIdx.y];
  right_tile right = {};
  if (first < g.columns) {
    if (in_pieces(turn.q, turn.r)) {
      right_pieces pieces;
      const long long block = turn.r.shared() ? 0 : first / 32;
      load_right(pieces, static_cast<const float*>(turn.q.at) + block * 1024, 32, turn.r.transposed, lane);
      pack_right<T>(right, pieces, turn.r.transposed);
    } else {
      gather_right<T>(right, turn.q, turn.r, first, first, lane);
    }
  }
#if __CUDA_ARCH__ >= 900
  ptx::wait_for_previous_kernel();
#endif
  if (first >= g.columns) return;
  uint4 x[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = static_cast<int>(blockIdx.z) * 16 + lane / 4 + 8 * h;
    const long long at = static_cast<long long>(row) * g.columns + first + 8 * (lane % 4);
    x[h] = make_uint4(0, 0, 0, 0);
    if (row >= g.rows) continue;
    x[h] = *reinterpret_cast<const uint4*>(static_cast<const T*>(g.x) + at);
    if (g.other == nullptr) continue;
    const uint4 y = *reinterpret_cast<const uint4*>(static_cast<const T*>(g.other) + at);
    auto multiplied = [](std::uint32_t a, std::uint32_t b) {
      const float2 u = unpack<T>(a), v = unpack<T>(b);
      return pack<T>(u.x * v.x, u.y * v.y);
    };
    x[h] =
        make_uint4(multiplied(x[h].x, y.x), multiplied(x[h].y, y.y), multiplied(x[h].z, y.z), multiplied(x[h].w, y.w));
  }
  turned_rows acc = {};
  turn_rows<T>(acc, x[0], x[1], right);
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (const int row = static_cast<int>(blockIdx.z) * 16 + lane / 4 + 8 * h; row < g.rows)
      *reinterpret_cast<uint4*>(static_cast<T*>(turn.y) + static_cast<long long>(row) * g.columns + first +
                                8 * (lane % 4)) = packed_row<T>(acc, h);
#endif
}

template <class On, class Real> status turn_few(const On& /*on*/, const turned_values<Real>& /*all*/) {
  return fail("several rotations in one launch need a stream");
}
template <streams On> status turn_few(const On& on, const turned_values<float>& all) {
  turn_few_args g{};
  g.x = all.x.p.at, g.other = all.other.at, g.early = all.early;
  g.rows = static_cast<int>(all.x.rows()), g.columns = static_cast<int>(all.x.d[3]);
  for (int k = 0; k < all.count; ++k)
    g.turn[k] = {all.out[k].p.at, all.q[k].p, rotation(all.q[k], all.x.d[3], all.transposed[k])};
  const int columns = 32 * few_turn_warps;
  const dim3 grid(static_cast<unsigned>((g.columns + columns - 1) / columns), static_cast<unsigned>(all.count),
                  static_cast<unsigned>((g.rows + 15) / 16));
  auto run = [&](auto* kernel) { return launch_chained(on.stream, kernel, grid, columns, "rotate", g); };
  return all.x.p.type == dtype::bf16 ? run(&rotate_few<__nv_bfloat16>) : run(&rotate_few<__half>);
}

}  // namespace graft::cuda
