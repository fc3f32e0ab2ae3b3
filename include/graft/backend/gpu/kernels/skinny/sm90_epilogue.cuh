// SPDX-License-Identifier: Apache-2.0
// Epilogue of the skinny GEMM for more than 16 tokens: activation, residual and 16-byte stores by way of shared memory.
//
// A thread's accumulators are two rows of two tokens each. Stored directly they would be 4-byte stores of 16
// contiguous bytes per token, which with 64 tokens take longer than waiting for the last weights. Instead the float
// sums go to shared memory, and each thread finishes eight neighbouring outputs of a token at a time.
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/skinny/sm90_layout.h>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

// Pitch in floats from one token to the next, which avoids bank conflicts of lanes that store sums.
constexpr int sum_pitch(int rows) { return rows + 4; }

// Writes the accumulators of all warps to shared memory at the block's base, as [token][row]; tokens are those that the
// block finishes, consecutively.
template <class Block>
__device__ __forceinline__ void sums_to_smem(const Block& block, const typename Block::sums& acc) {
  constexpr int pitch = sum_pitch(Block::all_rows);
  static_assert(pitch % 16 == 4);
  if (Block::shape::pitch == 0) ptx::named_barrier(1, 128);  // no warp reads the stages; expand() has waited too
  const int warp = threadIdx.x / 32;
  const std::uint32_t own = block.base + 4 * (threadIdx.x % 4 * 2 * pitch + warp * 16 + threadIdx.x % 32 / 4);
#pragma unroll
  for (int j = 0; j < Block::finished / 8; ++j) {
    if (block.token_tile_of(j) >= block.token_tiles()) break;
#pragma unroll
    for (int b = 0; b < Block::row_blocks; ++b)
      if (b * 4 + warp < Block::shape::units)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          ptx::store_shared(own + 4 * ((8 * j + i % 2) * pitch + b * 64 + i / 2 * 8),
                            __float_as_uint(acc[b][4 * j + i]));
  }
}

// A tile of Rows outputs from row0 on, stored by 128 threads. token(t) maps the block's local token t to a token of the
// call.
template <class T, int Rows, int Tokens> struct skinny_tile {
  static constexpr int in_token = Rows / 8, each = (Tokens * in_token + 127) / 128;
  using vectors = uint4[each];

  const skinny_segment& seg;
  int m, row0;

  // Whether vectors of eight outputs are 16-byte aligned; otherwise they are stored in pairs.
  __device__ bool is_aligned() const {
    const auto at = reinterpret_cast<std::uintptr_t>(seg.y) | reinterpret_cast<std::uintptr_t>(seg.residual);
    return seg.n % 8 == 0 && at % 16 == 0;
  }
  // Calls f(i, local token, column, at) for each vector of this thread inside y; `at` is its element offset in y.
  template <class TokenOf, class F> __device__ __forceinline__ void each_vec(const TokenOf& token, const F& f) const {
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int p = static_cast<int>(threadIdx.x) + 128 * i, local_token = p / in_token, column = p % in_token * 8;
      if (Tokens * in_token % 128 != 0 && p >= Tokens * in_token) break;
      if (token(local_token) < m && row0 + column < seg.n)
        f(i, local_token, column, static_cast<long long>(token(local_token)) * seg.n + row0 + column);
    }
  }
  // Loads the residual as soon as the preceding kernel has finished.
  template <class TokenOf> __device__ __forceinline__ void load_residual(vectors& to, const TokenOf& token) const {
    ptx::wait_for_dependency();
    const bool aligned16 = is_aligned();
    each_vec(token, [&](int i, int, int column, long long at) {
      const T* const from = static_cast<const T*>(seg.residual) + at;
      if (aligned16) {
        to[i] = *reinterpret_cast<const uint4*>(from);
        return;
      }
      std::uint32_t pair[4] = {};
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (row0 + column + 2 * e < seg.n) pair[e] = *reinterpret_cast<const std::uint32_t*>(from + 2 * e);
      to[i] = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    });
  }
  // Finishes and stores the tile from floats in shared memory, `pitch` per token.
  template <class TokenOf>
  __device__ __forceinline__ void store(std::uint32_t tile, int pitch, const vectors& residual,
                                        const TokenOf& token) const {
    const bool aligned16 = is_aligned();
    each_vec(token, [&](int i, int local_token, int column, long long at) {
      const std::uint32_t from = tile + 4 * static_cast<std::uint32_t>(local_token * pitch + column);
      float4 low = ptx::load_shared_float4(from), high = ptx::load_shared_float4(from + 16);
      if (seg.act != activation::none) low = activate_vec4(seg.act, low), high = activate_vec4(seg.act, high);
      if (seg.residual != nullptr) {
        const float2 a = unpack<T>(residual[i].x), b = unpack<T>(residual[i].y), c = unpack<T>(residual[i].z),
                     d = unpack<T>(residual[i].w);
        low.x += a.x, low.y += a.y, low.z += b.x, low.w += b.y;
        high.x += c.x, high.y += c.y, high.z += d.x, high.w += d.y;
      }
      const uint4 out =
          make_uint4(pack<T>(low.x, low.y), pack<T>(low.z, low.w), pack<T>(high.x, high.y), pack<T>(high.z, high.w));
      T* const to = static_cast<T*>(seg.y) + at;
      if (aligned16) {
        *reinterpret_cast<uint4*>(to) = out;
        return;
      }
      const std::uint32_t pair[4] = {out.x, out.y, out.z, out.w};
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (row0 + column + 2 * e < seg.n) *reinterpret_cast<std::uint32_t*>(to + 2 * e) = pair[e];
    });
  }
};

}  // namespace graft::gpu
