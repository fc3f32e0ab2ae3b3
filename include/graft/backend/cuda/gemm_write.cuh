// SPDX-License-Identifier: Apache-2.0
// The way out of a gemm tile: post, then 64 columns at a time through shared memory to y by tensor stores; where they are
// wanted, the same columns before post in the same way first.
#pragma once
#include <graft/backend/cuda/gemm_shape.h>
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>

namespace graft::cuda {

// Factors or summands of the columns that are written next, Round chunks of 64.
template <int Round> struct column_values { float2 v[8 * Round]; };

// Acts: there may be an activation.
template <class T, int TileN, class Shape, bool Acts> struct tile_writer {
  static constexpr int round = Shape::round;

  const CUtensorMap& y;
  const CUtensorMap& before;  // where the accumulators go before post, if they are wanted
  bool stores_before;
  const post_slot<T>& post;
  std::uint32_t chunks_at;
  const gemm_consumer& c;
  const tile_place& at;

  __device__ __forceinline__ void load(column_values<round>& to, const float* from, int chunk) const {
    from += at.n_tile * TileN + chunk * 64 + (c.lane % 4) * 2;
#pragma unroll
    for (int j = 0; j < 8 * round; ++j) to.v[j] = __ldg(reinterpret_cast<const float2*>(from + 8 * j));
  }
  // `in_turns`: the part of shared memory that is written next was used `chunks` stores ago, else by the last one.
  // of(chunk, j): four results of this thread, of the eighth j of a chunk.
  template <class Of>
  __device__ __forceinline__ void store(const CUtensorMap& to, const Of& of, int c0, bool in_turns) const {
    const std::uint32_t out = chunks_at + c.group * Shape::chunks * Shape::chunk;
    const int row = c.warp * 16 + (c.lane % 8) + 8 * ((c.lane / 8) & 1);
    if (c.thread == 0) {  // the store that used this part of shared memory has read it
      if (c0 == 0 || !in_turns)
        ptx::stores_have_read<0>();
      else
        ptx::stores_have_read<Shape::chunks - 1>();
    }
    ptx::named_barrier(2 + c.group, 128);
#pragma unroll
    for (int chunk = c0; chunk < c0 + round; ++chunk)
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const float *v = of(chunk, j), *u = of(chunk, j + 1);
        const std::uint32_t packed[4] = {pack<T>(v[0], v[1]), pack<T>(v[2], v[3]), pack<T>(u[0], u[1]),
                                         pack<T>(u[2], u[3])};
        ptx::store_matrix(
            out + (chunk % Shape::chunks) * Shape::chunk + row * 128 + (((j + c.lane / 16) ^ (row & 7)) << 4), packed);
      }
    ptx::fence_async_shared();
    ptx::named_barrier(2 + c.group, 128);
    if (c.thread == 0) {
#pragma unroll
      for (int chunk = c0; chunk < c0 + round; ++chunk)
        ptx::store_tile(&to, at.n_tile * TileN + chunk * 64, at.m_block * 128 + c.group * 64,
                        out + (chunk % Shape::chunks) * Shape::chunk);
    }
  }
  __device__ __forceinline__ void activate(float (&acc)[TileN / 2], int c0) const {
    if (post.act == activation::relu) {  // one instruction each
#pragma unroll
      for (int e = c0 * 32; e < (c0 + round) * 32; ++e) acc[e] = fmaxf(acc[e], 0.0F);
      return;
    }
#pragma unroll
    for (int e = c0 * 32; e < (c0 + round) * 32; e += 4) {
      const float4 v = activate_four(post.act, make_float4(acc[e], acc[e + 1], acc[e + 2], acc[e + 3]));
      acc[e] = v.x, acc[e + 1] = v.y, acc[e + 2] = v.z, acc[e + 3] = v.w;
    }
  }
  // `scale` holds those of the first round; the residual, or a rotation in its place (gemm_turn.cuh).
  template <class Residual>
  __device__ __forceinline__ void operator()(float (&acc)[TileN / 2], column_values<round>& scale,
                                             const Residual& residual) const {
    const auto own = [&](int chunk, int j) { return acc + chunk * 32 + j * 4; };
#pragma unroll
    for (int c0 = 0; c0 < TileN / 64; c0 += round) {
      if (stores_before) store(before, own, c0, false);
      if constexpr (Residual::turns)
        store_turned(acc, residual, c0);
      else
        store_post(acc, scale, residual, c0);
    }
  }

 private:
  template <class Turn>
  __device__ __forceinline__ void store_turned(const float (&acc)[TileN / 2], const Turn& turn, int chunk) const {
    static_assert(round == 1);
    float turned[2][16];
    turn.of(turned, acc, chunk);
    store(
        y, [&](int, int j) { return turned[j / 4] + j % 4 * 4; }, chunk, !stores_before);
    turn.was_read(chunk);
  }
  template <class Residual>
  __device__ __forceinline__ void store_post(float (&acc)[TileN / 2], column_values<round>& scale,
                                             const Residual& residual, int c0) const {
    if (post.scale != nullptr) {
#pragma unroll
      for (int e = 0; e < round * 32; ++e) acc[c0 * 32 + e] *= e & 1 ? scale.v[e / 4].y : scale.v[e / 4].x;
      if (c0 + round < TileN / 64) load(scale, post.scale, c0 + round);
    }
    if (post.shift != nullptr) {
      column_values<round> shift;
      load(shift, post.shift, c0);
#pragma unroll
      for (int e = 0; e < round * 32; ++e) acc[c0 * 32 + e] += e & 1 ? shift.v[e / 4].y : shift.v[e / 4].x;
    }
    if (Acts && post.act != activation::none) activate(acc, c0);
    if (post.residual != nullptr)
#pragma unroll
      for (int chunk = c0; chunk < c0 + round; ++chunk) residual.add_to(acc, chunk);
    store(
        y, [&](int chunk, int j) { return acc + chunk * 32 + j * 4; }, c0, !stores_before);
    if (post.residual != nullptr)
#pragma unroll
      for (int chunk = c0; chunk < c0 + round; ++chunk) residual.was_read(chunk);
  }
};

}  // namespace graft::cuda
