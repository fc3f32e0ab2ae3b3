// SPDX-License-Identifier: Apache-2.0
// S = x Aᵀ of stream_codes, by four warps beside those that read codes. A is cut into slices of the inner axis, 16 of
// its rows each, and a slice is the task of one thread block of the grid, so that A is read once; slices meet in device
// memory, and every block adds them up in their order. All blocks of the grid must be resident at the same time.
#pragma once
#include <graft/backend/cuda/code_units.cuh>

namespace graft::cuda {

template <class T, int Eights> struct code_side {
  static constexpr int warps = 4, threads = warps * 32, tokens = Eights * 8, slices = 16, among_us = 3;

  const code_args& g;
  std::uint32_t shared;  // sums of the warps first, then S: [token][rank]
  int block, blocks, thread, warp, row, quad;

  __device__ code_side(const code_args& with, std::uint32_t base, int of_us)
      : g(with),
        shared(base + with.side_at),
        block(static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x)),
        blocks(static_cast<int>(gridDim.x * gridDim.y)),
        thread(of_us),
        warp(of_us / 32),
        row(of_us % 32 / 4),
        quad(of_us % 4) {}

  __device__ void make() const {
    const int tasks = g.slot.rank / 16 * slices;
    for (int task = block; task < tasks; task += blocks) shrink(task);
    meet();
    gather();
  }

 private:
  // Eight columns of a row of A, which lies in tiles of [rank][64], swizzled; `lower`: eight rows further.
  __device__ uint4 a_piece(int task, int chunk, int lower) const {
    const int r = task / slices * 16 + row + 8 * lower;
    const long long tile = static_cast<long long>(chunk / 2) * g.slot.rank + r;
    return __ldg(reinterpret_cast<const uint4*>(static_cast<const char*>(g.slot.a_tiles) + tile * 128 +
                                                (((chunk % 2 * 4 + quad) ^ (r % 8)) << 4)));
  }
  __device__ void shrink(int task) const {
    constexpr int at_once = 2;  // of 32 columns
    const int part = task % slices * warps + warp, all = g.k / 32, begin = all * part / (slices * warps),
              end = all * (part + 1) / (slices * warps);
    float sums[Eights][4] = {};
    ptx::named_barrier(among_us, threads);  // the sums of the task before have been read
    for (int first = begin; first < end; first += at_once) {
      uint4 a[at_once][2], x[at_once][Eights];
#pragma unroll
      for (int c = 0; c < at_once; ++c)
        if (first + c < end) a[c][0] = a_piece(task, first + c, 0), a[c][1] = a_piece(task, first + c, 1);
      ptx::wait_for_previous_kernel();
#pragma unroll
      for (int c = 0; c < at_once; ++c)
#pragma unroll
        for (int n = 0; n < Eights; ++n) {
          const int token = n * 8 + row;
          x[c][n] = make_uint4(0, 0, 0, 0);
          if (first + c < end && token < g.m)
            x[c][n] = *reinterpret_cast<const uint4*>(static_cast<const T*>(g.x) + static_cast<long long>(token) * g.k +
                                                      (first + c) * 32 + quad * 8);
        }
#pragma unroll
      for (int c = 0; c < at_once; ++c) {
        if (first + c >= end) break;
        const std::uint32_t a0[4] = {a[c][0].x, a[c][1].x, a[c][0].y, a[c][1].y},
                            a1[4] = {a[c][0].z, a[c][1].z, a[c][0].w, a[c][1].w};
#pragma unroll
        for (int n = 0; n < Eights; ++n) {
          code_detail::multiply<T>(sums[n], a0, x[c][n].x, x[c][n].y);
          code_detail::multiply<T>(sums[n], a1, x[c][n].z, x[c][n].w);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < Eights; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        ptx::store_shared(shared + ((warp * tokens + n * 8 + quad * 2 + (e & 1)) * 16 + row + 8 * (e >> 1)) * 4,
                          __float_as_uint(sums[n][e]));
    ptx::named_barrier(among_us, threads);
    ptx::wait_for_previous_kernel();  // it may be this layer's: then the parts are its own until it ends
    for (int e = thread; e < tokens * 16; e += threads) {
      float v = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) v += __uint_as_float(ptx::load_shared(shared + (w * tokens * 16 + e) * 4));
      __stcg(g.side + task * tokens * 16 + e, v);
    }
  }
  // All parts are there; the last block that knows it leaves the counters as they were.
  __device__ void meet() const {
    ptx::named_barrier(among_us, threads);
    if (thread == 0) {
      ptx::wait_for_previous_kernel();
      __threadfence();
      ptx::add_release(g.counters, 1);
      while (ptx::load_acquire(g.counters) < static_cast<std::uint32_t>(blocks)) {}
      if (ptx::add_acquire_release(g.counters + 1, 1) + 1 == static_cast<std::uint32_t>(blocks))
        g.counters[0] = g.counters[1] = 0;
    }
    ptx::named_barrier(among_us, threads);
  }
  __device__ void gather() const {
    const int rank = g.slot.rank;
    for (int i = thread; i < rank * tokens / 4; i += threads) {  // four of a token's sixteen
      const int chunk = i / (tokens * 4), token = i / 4 % tokens, four = i % 4;
      float4 v[slices], all = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int s = 0; s < slices; ++s)
        v[s] = __ldcg(reinterpret_cast<const float4*>(g.side) + ((chunk * slices + s) * tokens + token) * 4 + four);
#pragma unroll
      for (int s = 0; s < slices; ++s) all.x += v[s].x, all.y += v[s].y, all.z += v[s].z, all.w += v[s].w;
      ptx::store_shared(
          shared + (token * rank + chunk * 16 + four * 4) * 4,
          make_uint4(__float_as_uint(all.x), __float_as_uint(all.y), __float_as_uint(all.z), __float_as_uint(all.w)));
    }
  }
};

}  // namespace graft::cuda
