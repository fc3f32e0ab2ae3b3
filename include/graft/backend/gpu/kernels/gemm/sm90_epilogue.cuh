// SPDX-License-Identifier: Apache-2.0
// Epilogue of the sm90 GEMM: y = act(scale ⊙ acc + shift) + residual from the accumulators of one tile.
//
// 64 columns at a time are rounded to T and go through shared memory to y by stmatrix and TMA stores. Where the
// pre-epilogue sums are stored as well, the same columns of the accumulators are stored to `before` first.
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/gemm/sm90_layout.h>
#include <graft/backend/gpu/tile/epilogue.cuh>
#include <graft/backend/gpu/tile/pipeline.cuh>

namespace graft::gpu {

// State of a consumer thread: its position in the block and in the pipeline.
struct gemm_consumer {
  int group, thread, warp, lane;  // warpgroup 0 or 1; thread, warp and lane inside it
  wgmma_pipeline_state at;
  int step = 0;      // k step of the tile
  pipeline_state u;  // pipeline position of the shrink result
};

// The residual of a tile. The producer loads it through the pipeline after the last k step, so that its latency
// overlaps with the mainloop: 128 x 64 at a time, in the order in which the epilogue stores columns.
template <class T, int TileN, class Block> struct tile_residual {
  using shape = typename Block::shape;
  static constexpr bool rotates = false;  // tile_rotation (sm90_fused_rotation.cuh) sets it to true

  const Block& block;
  gemm_consumer& c;

  __device__ __forceinline__ void add_to(float (&acc)[TileN / 2], int chunk) const {
    const int index_in_stage = chunk % shape::residual_chunks_per_stage, row = c.warp * 16 + c.lane % 16;
    if (index_in_stage == 0) block.ring().consumer_wait(c.at);
    const std::uint32_t from =
        block.stage(c.at.stage) + index_in_stage * shape::residual_chunk + (c.group * 64 + row) * 128;
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
      std::uint32_t v[4];
      ptx::load_matrix(v, from + (((2 * kk + c.lane / 16) ^ (row & 7)) << 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = unpack<T>(v[i]);
        acc[chunk * 32 + kk * 8 + 2 * i] += two.x, acc[chunk * 32 + kk * 8 + 2 * i + 1] += two.y;
      }
    }
  }
  // The last chunk of a stage releases the stage.
  __device__ __forceinline__ void release_chunk(int chunk, reads_done done) const {
    if (chunk % shape::residual_chunks_per_stage != shape::residual_chunks_per_stage - 1 && chunk + 1 != TileN / 64)
      return;
    block.release(c, c.at.stage, done);
    c.at.advance(shape::stages);
  }
};

// Scale or shift of the columns that are stored next: Round chunks of 64 columns.
template <int Round> struct column_values { float2 v[8 * Round]; };

// Stores a tile of accumulators. HasActivation false leaves the activation code out.
template <class T, int TileN, class Shape, bool HasActivation> struct tile_writer {
  static constexpr int round = Shape::round;

  const CUtensorMap& y;
  const CUtensorMap& before;  // destination of the accumulators before scale and shift
  bool stores_pre_epilogue;
  const epilogue_args<T>& epilogue;
  std::uint32_t chunks_at;
  const gemm_consumer& c;
  const tile_coord& at;

  __device__ __forceinline__ void load(column_values<round>& to, const float* from, int chunk) const {
    from += at.n_tile * TileN + chunk * 64 + (c.lane % 4) * 2;
#pragma unroll
    for (int j = 0; j < 8 * round; ++j) to.v[j] = __ldg(reinterpret_cast<const float2*>(from + 8 * j));
  }
  // Stores chunks c0 to c0 + round - 1. of(chunk, j) points to this thread's four results of column group j (eight
  // columns) of a chunk. With `in_turns` the shared memory written next was last used `chunks` stores ago, otherwise by
  // the preceding store. What the results were computed from has been read when it returns.
  template <class Of>
  __device__ __forceinline__ reads_done store(const CUtensorMap& to, const Of& of, int c0, bool in_turns) const {
    const std::uint32_t out = chunks_at + c.group * Shape::chunks * Shape::chunk;
    const int row = c.warp * 16 + (c.lane % 8) + 8 * ((c.lane / 8) & 1);
    if (c.thread == 0) {  // wait until the earlier TMA store from this shared memory has read it
      if (c0 == 0 || !in_turns)
        ptx::wait_for_store_reads<0>();
      else
        ptx::wait_for_store_reads<Shape::chunks - 1>();
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
    const reads_done done = barrier_done(2 + c.group, 128);
    if (c.thread == 0) {
#pragma unroll
      for (int chunk = c0; chunk < c0 + round; ++chunk)
        ptx::store_tile(&to, at.n_tile * TileN + chunk * 64, at.m_block * 128 + c.group * 64,
                        out + (chunk % Shape::chunks) * Shape::chunk);
    }
    return done;
  }
  __device__ __forceinline__ void activate(float (&acc)[TileN / 2], int c0) const {
    if (epilogue.act == activation::relu) {  // one instruction per element
#pragma unroll
      for (int e = c0 * 32; e < (c0 + round) * 32; ++e) acc[e] = fmaxf(acc[e], 0.0F);
      return;
    }
#pragma unroll
    for (int e = c0 * 32; e < (c0 + round) * 32; e += 4) {
      const float4 v = activate_vec4(epilogue.act, make_float4(acc[e], acc[e + 1], acc[e + 2], acc[e + 3]));
      acc[e] = v.x, acc[e + 1] = v.y, acc[e + 2] = v.z, acc[e + 3] = v.w;
    }
  }
  // `scale` holds the factors of the first round. `residual` is a tile_residual or a tile_rotation.
  template <class Residual>
  __device__ __forceinline__ void operator()(float (&acc)[TileN / 2], column_values<round>& scale,
                                             const Residual& residual) const {
    const auto own = [&](int chunk, int j) { return acc + chunk * 32 + j * 4; };
#pragma unroll
    for (int c0 = 0; c0 < TileN / 64; c0 += round) {
      if (stores_pre_epilogue) store(before, own, c0, false);
      if constexpr (Residual::rotates)
        store_rotated(acc, residual, c0);
      else
        store_epilogue(acc, scale, residual, c0);
    }
  }

 private:
  template <class Rotation>
  __device__ __forceinline__ void store_rotated(const float (&acc)[TileN / 2], const Rotation& fused_rotation,
                                                int chunk) const {
    static_assert(round == 1);
    float rotated_acc[2][16];
    fused_rotation.of(rotated_acc, acc, chunk);
    const reads_done done = store(
        y, [&](int, int j) { return rotated_acc[j / 4] + j % 4 * 4; }, chunk, !stores_pre_epilogue);
    fused_rotation.release_chunk(chunk, done);
  }
  template <class Residual>
  __device__ __forceinline__ void store_epilogue(float (&acc)[TileN / 2], column_values<round>& scale,
                                                 const Residual& residual, int c0) const {
    if (epilogue.scale != nullptr) {
#pragma unroll
      for (int e = 0; e < round * 32; ++e) acc[c0 * 32 + e] *= e & 1 ? scale.v[e / 4].y : scale.v[e / 4].x;
      if (c0 + round < TileN / 64) load(scale, epilogue.scale, c0 + round);
    }
    if (epilogue.shift != nullptr) {
      column_values<round> shift;
      load(shift, epilogue.shift, c0);
#pragma unroll
      for (int e = 0; e < round * 32; ++e) acc[c0 * 32 + e] += e & 1 ? shift.v[e / 4].y : shift.v[e / 4].x;
    }
    if (HasActivation && epilogue.act != activation::none) activate(acc, c0);
    if (epilogue.residual != nullptr)
#pragma unroll
      for (int chunk = c0; chunk < c0 + round; ++chunk) residual.add_to(acc, chunk);
    const reads_done done = store(
        y, [&](int chunk, int j) { return acc + chunk * 32 + j * 4; }, c0, !stores_pre_epilogue);
    if (epilogue.residual != nullptr)
#pragma unroll
      for (int chunk = c0; chunk < c0 + round; ++chunk) residual.release_chunk(chunk, done);
  }
};

}  // namespace graft::gpu
