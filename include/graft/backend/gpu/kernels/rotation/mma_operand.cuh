// SPDX-License-Identifier: Apache-2.0
// A 32 x 32 tile of a block-diagonal R of one factor as the B operand of mma.sync m16n8k16, and its product with x.
//
// Inner and outer index are permuted so that a thread's share of a row is 16 contiguous bytes in x, in x R and, for
// float blocks, in R. With q = lane % 4 the registers [s][t][h] hold
//     inner elements 8q + 4s + 2h + {0, 1} of column 4 (lane / 4) + t
// and the thread that has rows lane / 4 and lane / 4 + 8 of x has 8 adjacent columns of them, from 8q on.
#pragma once
#include <graft/backend/gpu/arch/mma_sync.cuh>
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/arch/wgmma.cuh>
#include <graft/backend/gpu/kernels/rotation/butterfly.cuh>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

using right_tile = std::uint32_t[2][4][2];  // [s][t][h]

// Vectors of four columns of R, or of Rᵀ, for a tile within one float block; all loads are in flight at once.
using right_vectors = float4[8];
__device__ inline void load_right(right_vectors& v, const float* from, int pitch, bool transposed, int lane) {
  const int q = lane % 4, group = lane / 4;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    v[i] = __ldg(reinterpret_cast<const float4*>(transposed ? from + (4 * group + i / 2) * pitch + 8 * q + 4 * (i % 2)
                                                            : from + (8 * q + i) * pitch + 4 * group));
}
template <class T> __device__ inline void pack_right(right_tile& to, const right_vectors& v, bool transposed) {
  auto at = [&](int i, int k) { return k == 0 ? v[i].x : k == 1 ? v[i].y : k == 2 ? v[i].z : v[i].w; };
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const int s = e / 8, t = e / 2 % 4, h = e % 2, i = 4 * s + 2 * h;
    to[s][t][h] =
        transposed ? pack<T>(at(2 * t + s, 2 * h), at(2 * t + s, 2 * h + 1)) : pack<T>(at(i, t), at(i + 1, t));
  }
}
// Returns true if R is stored so that load_right applies.
__device__ inline bool is_vectorizable(const element_ptr<float>& q, const rotation& r) {
  return r.b % 32 == 0 && q.type == dtype::f32 && reinterpret_cast<std::uintptr_t>(q.at) % 16 == 0;
}
// Entry (i, j) of R. Indices are 32-bit, because 32 entries are computed before the first row.
__device__ inline float single_entry(const element_ptr<float>& q, const rotation& r, unsigned i, unsigned j) {
  const auto b = static_cast<unsigned>(r.b);
  const unsigned block = j / b, down = i - block * b, along = j - block * b;
  if (down >= b) return 0;  // outside the block; `down` wraps around where i precedes it
  return q[(r.shared() ? 0 : block) * b * b + (r.transposed ? along * b + down : down * b + along)];
}
// Loads any tile entry by entry: rows of R from `row` on, columns from `column` on.
template <class T>
__device__ inline void gather_right(right_tile& to, const element_ptr<float>& q, const rotation& r, long long row,
                                    long long column, int lane) {
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const int i = 8 * (lane % 4) + 4 * (e / 8) + 2 * (e % 2), j = 4 * (lane / 4) + e / 2 % 4;
    auto entry = [&](int k) {
      return single_entry(q, r, static_cast<unsigned>(row + k), static_cast<unsigned>(column + j));
    };
    to[e / 8][e / 2 % 4][e % 2] = pack<T>(entry(i), entry(i + 1));
  }
}

// Packs R for the rotation fused into a GEMM epilogue (gemm/sm90_fused_rotation.cuh): [columns][32], each row with the
// entries of that column, in the swizzled layout of shared memory.
template <class T> struct pack_rotation {
  element_ptr<float> q;
  rotation r;
  T* to;

  __device__ void operator()(long long i) const {
    const auto column = static_cast<unsigned>(i / 32), k = static_cast<unsigned>(i % 32);
    to[tile_offset(static_cast<int>(column), static_cast<int>(k), 64) / 2] =
        from_float<T>(single_entry(q, r, column / 32 * 32 + k, column));
  }
};

// acc += x R for 16 rows of x and a tile; this thread has 16 bytes of two rows, `low` and `high`.
using rotated_rows = float[4][4];
template <class T>
__device__ inline void rotate_rows16(rotated_rows& acc, const uint4& low, const uint4& high, const right_tile& right) {
  const std::uint32_t left[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
  for (int s = 0; s < 2; ++s)
#pragma unroll
    for (int t = 0; t < 4; ++t) ptx::mma_m16n8k16<T>(acc[t], left[s], right[s][t]);
}
template <class T> __device__ inline uint4 packed_row(const rotated_rows& acc, int h) {
  return make_uint4(pack<T>(acc[0][2 * h], acc[1][2 * h]), pack<T>(acc[2][2 * h], acc[3][2 * h]),
                    pack<T>(acc[0][2 * h + 1], acc[1][2 * h + 1]), pack<T>(acc[2][2 * h + 1], acc[3][2 * h + 1]));
}

}  // namespace graft::gpu
