// SPDX-License-Identifier: Apache-2.0
// stream_codes: up to 32 tokens on a weight that is codes, sm_90a. The codes pass through once, at the speed of memory, and
// become numbers in the registers from which the tensor cores read them; y = post(x Wᵀ + (x Aᵀ) Bᵀ).
//
// A cluster of two or four thread blocks takes tiles of 64 rows in turn; each block has its share of the inner axis, each
// of its warpgroups a part of that. x stays in shared memory, laid out so that the codes a lane reads are its share of products
// and nothing else is exchanged. Scales multiply the sums of 64 columns. A warp sends its 16 rows to the block that
// finishes them, which adds the parts in a fixed order while the next tile is summed.
#pragma once
#include <graft/backend/cuda/code_pairs.cuh>
#include <graft/backend/cuda/code_ring.cuh>
#include <graft/backend/cuda/gemm_shape.h>
#include <graft/backend/cuda/wgmma.cuh>

namespace graft::cuda {

template <class T, bool FourBits, int Tokens, int Splits, int Groups> struct code_block {
  using ring = code_ring<T, FourBits, Tokens, Splits, Groups>;
  using turn = typename ring::turn;
  using sums = float[Tokens / 2];

  ring in;
  code_pairs<T, FourBits> to_pairs;

  // x of this block in the order in which lanes have the codes: of 64 columns, lane t of a quad has 16 t to 16 t + 15, and
  // four of them in each product. Rows without a token stay as they are: a column of sums is one token's alone.
  __device__ uint4 x_piece(int token, int at, int eight) const {
    const int group = at / in.g.part_steps, inside = at % in.g.part_steps, step = in.first_step(group) + inside;
    if (inside >= in.g.own_steps || step >= in.g.steps) return make_uint4(0, 0, 0, 0);
    const long long column = step * 64LL + eight * 8;
    const uint4 v = __ldg(reinterpret_cast<const uint4*>(static_cast<const T*>(in.g.x) +
                                                         static_cast<long long>(token) * in.g.k + column));
    if (in.g.slot.pre == nullptr) return v;
    const uint4 by = __ldg(reinterpret_cast<const uint4*>(static_cast<const T*>(in.g.slot.pre) + column));
    return make_uint4(times<T>(v.x, by.x), times<T>(v.y, by.y), times<T>(v.z, by.z), times<T>(v.w, by.w));
  }
  __device__ void load_x() const {
    constexpr int at_once = 4;
    const int steps = Groups * in.g.part_steps, all = steps * in.g.m * 8;
    for (int first = threadIdx.x; first < all; first += at_once * ring::consumers) {
      uint4 v[at_once];
#pragma unroll
      for (int k = 0; k < at_once; ++k)
        if (const int i = first + k * ring::consumers; i < all) v[k] = x_piece(i / 8 / steps, i / 8 % steps, i % 8);
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        const int i = first + k * ring::consumers, eight = i % 8, at = i / 8 % steps, token = i / 8 / steps;
        if (i >= all) break;
        const std::uint32_t row = in.base + in.g.x_at + at * Tokens * 128 + token * 128 + eight / 2 * 4;
        const std::uint32_t words[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
#pragma unroll
        for (int w = 0; w < 4; ++w) ptx::store_shared(row + (((eight % 2 * 4 + w) ^ (token % 8)) << 4), words[w]);
      }
    }
    ptx::fence_async_shared();
    ptx::named_barrier(1, ring::consumers);
  }
  __device__ __forceinline__ void multiply(sums& acc, const code_fragments& a, std::uint32_t x, bool keep) const {
    const std::uint64_t right = tile_descriptor(x);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) wgmma<T, Tokens>::registers(acc, a[s], right + 2 * s, keep || s > 0);
    wgmma_commit();
  }
  // A of one step as the tensor cores read it, in the order of x.
  __device__ __forceinline__ void load_side(code_fragments& a, std::uint32_t tile, int warp, int lane) const {
    const int turn_of_row = lane / 4, t = lane % 4;
    if (warp * 16 >= in.g.slot.rank) return;
    const std::uint32_t row = tile + (warp * 16 + turn_of_row) * 128;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 v = ptx::load_shared_uint4(row + h * 8 * 128 + (((2 * t + half) ^ turn_of_row) << 4));
        a[2 * half][h] = v.x, a[2 * half][2 + h] = v.y, a[2 * half + 1][h] = v.z, a[2 * half + 1][2 + h] = v.w;
      }
  }
  // S of this part, [token][rank] in shared memory.
  __device__ void shrink(int group, int warp, int lane, std::uint32_t s_tile, turn& at) const {
    sums acc = {};
    const int rank = in.g.slot.rank, turn_of_row = lane / 4, t = lane % 4, steps = in.side_steps();
    for (int i = 0; i < in.side; ++i, in.template advance<1>(at)) {
      const int q = at.slot * Groups + group;
      ptx::barrier_wait(in.full(q), at.phase);
      for (int j = 0; j < steps; ++j) {
        if (in.first_step(group) + i * steps + j >= in.g.steps) break;
        code_fragments a = {};
        load_side(a, in.at(q) + j * rank * 128, warp, lane);
        multiply(acc, a, x_tile(group, i * steps + j), true);
        wgmma_wait<0>();
      }
      if (lane == 0) ptx::barrier_arrive(in.empty(q));
    }
    const auto pitch = static_cast<std::uint32_t>(rank * 2);
    if (warp * 16 < rank)
#pragma unroll
      for (int e = 0; e < Tokens / 2; ++e)
        ptx::store_shared(
            s_tile + tile_offset(e / 4 * 8 + t * 2 + (e & 1), warp * 16 + turn_of_row + 8 * ((e >> 1) & 1), pitch),
            static_cast<std::uint16_t>(pack<T>(acc[e], 0.0F)));
    ptx::fence_async_shared();
    ptx::named_barrier(2 + group, 128);
  }
  __device__ std::uint32_t x_tile(int group, int step) const {
    return in.base + in.g.x_at + (group * in.g.part_steps + step) * Tokens * 128;
  }
  // One tile of 64 rows on the columns of this warpgroup.
  __device__ __forceinline__ void accumulate(sums& total, int group, int warp, int lane, turn& at) const {
    sums acc;
#pragma unroll
    for (float& v : total) v = 0;
    for (int st = 0; st < in.per_tile; ++st, in.template advance<1>(at)) {
      const int q = at.slot * Groups + group;
      ptx::barrier_wait(in.full(q), at.phase);
      const std::uint32_t tile = in.at(q);
      float scale[2][4];
      if constexpr (FourBits)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float4 v = ptx::load_shared_float4(in.scales_at(q) + (warp * 16 + lane / 4 + 8 * h) * 16);
          scale[h][0] = v.x, scale[h][1] = v.y, scale[h][2] = v.z, scale[h][3] = v.w;
        }
      code_fragments a[2];
      to_pairs.decode_rows(a[0], tile, 0, warp, lane);
#pragma unroll
      for (int u = 0; u < ring::per_stage; ++u) {
        multiply(FourBits ? acc : total, a[u % 2], x_tile(group, st * ring::per_stage + u), !FourBits);
        if (u + 1 < ring::per_stage) {
          to_pairs.decode_rows(a[(u + 1) % 2], tile, u + 1, warp, lane);
        } else {
          __syncwarp();
          if (lane == 0) ptx::barrier_arrive(in.empty(q));
        }
        wgmma_wait<0>();
        if constexpr (FourBits)
#pragma unroll
          for (int e = 0; e < Tokens / 2; ++e) total[e] = fmaf(scale[(e >> 1) & 1][u], acc[e], total[e]);
      }
    }
  }
  // y of the rows of a tile that are this block's, 16 of them and eight tokens a warp.
  __device__ void finish(int tile, int slot, int phase, int warp, int lane) const {
    constexpr int eighths = Tokens / 8;
    if (warp >= ring::own_units * eighths) return;
    const int own = warp / eighths, eighth = warp % eighths;
    ptx::barrier_wait(in.received(slot), phase);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int p = 0; p < ring::parts; ++p) {
      const float4 part = ptx::load_shared_float4(inbox(slot, p, own) + eighth * 512 + lane * 16);
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    const post_slot<T> post{in.g.slot.scale, in.g.slot.shift, static_cast<const T*>(in.g.residual),
                            in.g.act,        in.g.m,          in.g.n};
    const float v[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int token = eighth * 8 + lane % 4 * 2 + (e & 1);
      const int row = tile * 64 + (in.rank_in_cluster * ring::own_units + own) * 16 + lane / 4 + 8 * (e >> 1);
      if (token < in.g.m && row < in.g.n)
        static_cast<T*>(in.g.y)[static_cast<long long>(token) * in.g.n + row] = from_float<T>(post(v[e], token, row));
    }
  }
  __device__ std::uint32_t inbox(int slot, int part, int own) const {
    return in.base + in.g.inbox_at + ((slot * ring::parts + part) * ring::own_units + own) * ring::unit;
  }

  __device__ void consume() const {
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int any_warp = threadIdx.x / 32, rank = in.g.slot.rank;
    const std::uint32_t s_tile = in.base + in.g.s_at + group * ((Tokens * rank * 2 + 1023) / 1024 * 1024);
    ptx::wait_for_previous_kernel();
    load_x();
    turn at{0, 0};
    if (rank > 0) shrink(group, warp, lane, s_tile, at);
    int done = 0, before = 0;
    for (int tile = in.first_tile; tile < in.g.tiles; tile += in.tile_step, ++done) {
      const int row = tile * 64 + warp * 16 + lane / 4;
      const T* const b = static_cast<const T*>(in.g.slot.b) + static_cast<long long>(row) * rank;
      if (rank > 0 && lane % 4 == 0) {  // on its way while the tile is summed
        if (row < in.g.n) ptx::bring(b);
        if (row + 8 < in.g.n) ptx::bring(b + 8 * rank);
      }
      float by_row[2] = {1, 1};
      if constexpr (!FourBits)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (row + 8 * h < in.g.n) {
            const float s = in.g.from.scale(in.g.from.how.scaled == scaled_by::row ? row + 8 * h : 0);
            by_row[h] = in.g.from.how.codes == dtype::int8 ? encodings::int8_codes::number(1, s) : s;
          }
      sums total;
      accumulate(total, group, warp, lane, at);
      if constexpr (!FourBits)
#pragma unroll
        for (int e = 0; e < Tokens / 2; ++e) total[e] *= by_row[(e >> 1) & 1];
      if (rank > 0) {
        const std::uint64_t s = tile_descriptor(s_tile, rank * 2);
        for (int k = 0; k * 16 < rank; ++k) {
          std::uint32_t left[4];
#pragma unroll
          for (int e = 0; e < 4; ++e)  // B as it lies, its rows those of the tile
            left[e] = row + 8 * (e & 1) < in.g.n ? __ldg(reinterpret_cast<const unsigned*>(
                                                       b + 8 * (e & 1) * rank + k * 16 + lane % 4 * 2 + 8 * (e >> 1)))
                                                 : 0U;
          wgmma_fence();
          wgmma<T, Tokens>::registers(total, left, s + 2 * k, true);
          wgmma_commit();
          wgmma_wait<0>();
        }
      }
      if (done > 0) {
        const int last = done - 1;
        finish(before, last % 2, last / 2 % 2, any_warp, lane);
        if (threadIdx.x == 0) ptx::barrier_expect(in.received(last % 2), ring::parts * ring::own_units * ring::unit);
      }
      before = tile;
      ptx::named_barrier(1, ring::consumers);  // what is sent next overwrites what was finished the time before
      const int part = in.rank_in_cluster * Groups + group;
#pragma unroll
      for (int j = 0; j < Tokens / 8; ++j)
        ptx::store_at(inbox(done % 2, part, warp % ring::own_units) + j * 512 + lane * 16, in.received(done % 2),
                      warp / ring::own_units,
                      make_float4(total[4 * j], total[4 * j + 1], total[4 * j + 2], total[4 * j + 3]));
    }
    if (done > 0) finish(before, (done - 1) % 2, (done - 1) / 2 % 2, any_warp, lane);
  }
};

template <class T, bool FourBits, int Tokens, int Splits, int Groups>
__global__ void __launch_bounds__(code_ring<T, FourBits, Tokens, Splits, Groups>::threads, 1)
    stream_codes_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ code_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using block = code_block<T, FourBits, Tokens, Splits, Groups>;
  using ring = typename block::ring;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t begins = ptx::shared_address(raw);
  if (begins % (1U << 24U) != code_memory_begins) __trap();  // nothing else may lie in front
  const ring in(map, g, begins - static_cast<std::uint32_t>(code_memory_begins));
  in.start();
  if (threadIdx.x < ring::consumers)
    block{in, {g.from.how.codes, in.table()}}.consume();
  else
    in.feed();
#endif
}

}  // namespace graft::cuda
