// SPDX-License-Identifier: Apache-2.0
// Rotations of few rows before skinny GEMMs (OFT), several in one launch: x R_i for the products that read x (Q, K and
// V; gate and up), 16-bit x, blocks of a size that divides 32, sm_80 and later.
//
//   y_i = x R_i      x, y_i [rows, columns]
//
// Tile         A warp computes 32 columns of 16 rows by mma.sync m16n8k16; grid (column blocks, rotations, row blocks).
// Latency      A token step waits for this kernel: R does not depend on the previous kernel and is loaded before the
//              wait for it (`early`); dependents are launched at once, so that they prefetch their weights.
// Measured     H200, token step of a four-layer Llama-3-8B shape, one sequence: 501 µs with OFT on all projections,
//              1.04 of the step with LoRA (docs/performance.md).
#pragma once
#include <graft/backend/gpu/dispatch/skinny.h>
#include <graft/backend/gpu/kernels/rotation/mma_operand.cuh>
#include <graft/backend/gpu/runtime/device.h>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

// The rotations of one launch; all tensors have the sizes of `x`.
template <class Real> struct skinny_rotations {
  int count = 0;
  tensor<Real> x, out[max_segments], q[max_segments];
  bool transposed[max_segments] = {};
  bool early = false;  // no q was written since the last call, so R may be loaded before griddepcontrol.wait
};

struct rotate_skinny_args {
  struct one {
    void* y;
    element_ptr<float> q;
    rotation r;
  };
  const void* x;
  int rows, columns;
  bool early;
  one rotation_args[max_segments];
};

inline constexpr int rotate_skinny_warps = 4;
template <class T>
__global__ void __launch_bounds__(32 * rotate_skinny_warps)
    rotate_skinny_kernel(const __grid_constant__ rotate_skinny_args g) {
#if __CUDA_ARCH__ >= 800
#if __CUDA_ARCH__ >= 900
  ptx::launch_dependents();
  if (!g.early) ptx::wait_for_dependency();
#endif
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int first = (static_cast<int>(blockIdx.x) * rotate_skinny_warps + warp) * 32;
  const rotate_skinny_args::one& rotation_args = g.rotation_args[blockIdx.y];
  right_tile right = {};
  if (first < g.columns) {
    if (is_vectorizable(rotation_args.q, rotation_args.r)) {
      right_vectors vectors;
      const long long block = rotation_args.r.shared() ? 0 : first / 32;
      load_right(vectors, static_cast<const float*>(rotation_args.q.at) + block * 1024, 32, rotation_args.r.transposed,
                 lane);
      pack_right<T>(right, vectors, rotation_args.r.transposed);
    } else {
      gather_right<T>(right, rotation_args.q, rotation_args.r, first, first, lane);
    }
  }
#if __CUDA_ARCH__ >= 900
  ptx::wait_for_dependency();
#endif
  if (first >= g.columns) return;
  uint4 x[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = static_cast<int>(blockIdx.z) * 16 + lane / 4 + 8 * h;
    const long long at = static_cast<long long>(row) * g.columns + first + 8 * (lane % 4);
    x[h] = make_uint4(0, 0, 0, 0);
    if (row < g.rows) x[h] = *reinterpret_cast<const uint4*>(static_cast<const T*>(g.x) + at);
  }
  rotated_rows acc = {};
  rotate_rows16<T>(acc, x[0], x[1], right);
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (const int row = static_cast<int>(blockIdx.z) * 16 + lane / 4 + 8 * h; row < g.rows)
      *reinterpret_cast<uint4*>(static_cast<T*>(rotation_args.y) + static_cast<long long>(row) * g.columns + first +
                                8 * (lane % 4)) = packed_row<T>(acc, h);
#endif
}

template <class On, class Real> status rotate_skinny(const On& /*on*/, const skinny_rotations<Real>& /*all*/) {
  return fail("several rotations in one launch need a stream");
}
template <runs_on_stream On> status rotate_skinny(const On& on, const skinny_rotations<float>& all) {
  rotate_skinny_args g{};
  g.x = all.x.p.at, g.early = all.early;
  g.rows = static_cast<int>(all.x.rows()), g.columns = static_cast<int>(all.x.d[3]);
  for (int k = 0; k < all.count; ++k)
    g.rotation_args[k] = {all.out[k].p.at, all.q[k].p, rotation(all.q[k], all.x.d[3], all.transposed[k])};
  const int columns = 32 * rotate_skinny_warps;
  const dim3 grid(static_cast<unsigned>((g.columns + columns - 1) / columns), static_cast<unsigned>(all.count),
                  static_cast<unsigned>((g.rows + 15) / 16));
  auto run = [&](auto* kernel) { return launch_pdl(on.stream, kernel, grid, columns, "rotate", g); };
  return all.x.p.type == dtype::bf16 ? run(&rotate_skinny_kernel<__nv_bfloat16>) : run(&rotate_skinny_kernel<__half>);
}

}  // namespace graft::gpu
