// SPDX-License-Identifier: Apache-2.0
// A tile of 32 x 32 of a block-diagonal R of one factor, as the right operand of mma.sync. Inner and outer index are
// permuted so that what a thread has of a row is 16 contiguous bytes in x, in x R and, of a block in float, in R:
//     inner element 8q + 4s + 2h + {0, 1} and column 4 (lane / 4) + t, with q = lane % 4
// and the thread that multiplies rows lane / 4 and lane / 4 + 8 of x has 8 neighbouring columns of them, from 8q on.
#pragma once
#include <graft/backend/cuda/gemm_mma.cuh>
#include <graft/backend/cuda/rotate.cuh>
#include <graft/backend/cuda/wgmma.cuh>

namespace graft::cuda {

using right_tile = std::uint32_t[2][4][2];  // [s][t][h]

// Where the tile is a part of a block in float: pieces of four columns of R, or of Rᵀ, all asked for at once.
using right_pieces = float4[8];
__device__ inline void load_right(right_pieces& v, const float* from, int pitch, bool transposed, int lane) {
  const int q = lane % 4, group = lane / 4;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    v[i] = __ldg(reinterpret_cast<const float4*>(transposed ? from + (4 * group + i / 2) * pitch + 8 * q + 4 * (i % 2)
                                                            : from + (8 * q + i) * pitch + 4 * group));
}
template <class T> __device__ inline void pack_right(right_tile& to, const right_pieces& v, bool transposed) {
  auto at = [&](int i, int k) { return k == 0 ? v[i].x : k == 1 ? v[i].y : k == 2 ? v[i].z : v[i].w; };
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const int s = e / 8, t = e / 2 % 4, h = e % 2, i = 4 * s + 2 * h;
    to[s][t][h] =
        transposed ? pack<T>(at(2 * t + s, 2 * h), at(2 * t + s, 2 * h + 1)) : pack<T>(at(i, t), at(i + 1, t));
  }
}
// Is R stored so that this can be?
__device__ inline bool in_pieces(const cells<float>& q, const rotation& r) {
  return r.b % 32 == 0 && q.type == dtype::f32 && reinterpret_cast<std::uintptr_t>(q.at) % 16 == 0;
}
// Entry (i, j) of the whole R. In 32 bit: it is asked for 32 times before the first row.
__device__ inline float single_entry(const cells<float>& q, const rotation& r, unsigned i, unsigned j) {
  const auto b = static_cast<unsigned>(r.b);
  const unsigned block = j / b, down = i - block * b, along = j - block * b;
  if (down >= b) return 0;  // another block's, also where i is before it
  return q[(r.shared() ? 0 : block) * b * b + (r.transposed ? along * b + down : down * b + along)];
}
// Any tile, entry by entry: rows of the whole R from `row` on, columns from `column` on.
template <class T>
__device__ inline void gather_right(right_tile& to, const cells<float>& q, const rotation& r, long long row,
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

// Of a rotation behind a product (gemm_turn.cuh): all of R as [columns][32], each row with what makes that column, as
// it lies in shared memory.
template <class T> struct pack_turn {
  cells<float> q;
  rotation r;
  T* to;

  __device__ void operator()(long long i) const {
    const auto column = static_cast<unsigned>(i / 32), k = static_cast<unsigned>(i % 32);
    to[tile_offset(static_cast<int>(column), static_cast<int>(k), 64) / 2] =
        from_float<T>(single_entry(q, r, column / 32 * 32 + k, column));
  }
};

// 16 rows of x, of which this thread has 16 bytes of two, times a tile: added to acc.
using turned_rows = float[4][4];
template <class T>
__device__ inline void turn_rows(turned_rows& acc, const uint4& low, const uint4& high, const right_tile& right) {
  const std::uint32_t left[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
  for (int s = 0; s < 2; ++s)
#pragma unroll
    for (int t = 0; t < 4; ++t) mma::multiply<T>(acc[t], left[s], right[s][t]);
}
template <class T> __device__ inline uint4 packed_row(const turned_rows& acc, int h) {
  return make_uint4(pack<T>(acc[0][2 * h], acc[1][2 * h]), pack<T>(acc[2][2 * h], acc[3][2 * h]),
                    pack<T>(acc[0][2 * h + 1], acc[1][2 * h + 1]), pack<T>(acc[2][2 * h + 1], acc[3][2 * h + 1]));
}

}  // namespace graft::cuda
