// SPDX-License-Identifier: Apache-2.0
// The end of a stream product of many tokens. A thread has sums of two rows and two tokens here and there: stored from
// there, they were pieces of four bytes, sixteen bytes of a token to a request, and with 64 tokens such requests took
// longer than the sums had waited for their last weights. So the sums go to shared memory, in floats, and each thread
// finishes eight neighbouring outputs of a token at a time: activation, residual, and sixteen bytes to store.
#pragma once
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/backend/cuda/stream_shape.h>

namespace graft::cuda {

// Floats from one token to the next: lanes that hold sums write to different banks.
constexpr int sum_pitch(int rows) { return rows + 4; }

// The sums that the warps of a block have, [token][row] from its base on; tokens are the ones it finishes, one after the
// other.
template <class Block> __device__ __forceinline__ void share_sums(const Block& block, const typename Block::sums& acc) {
  constexpr int pitch = sum_pitch(Block::all_rows);
  static_assert(pitch % 16 == 4);
  if (Block::shape::pitch == 0) ptx::named_barrier(1, 128);  // nobody reads the stages any more
  const int warp = threadIdx.x / 32;
  const std::uint32_t own = block.base + 4 * (threadIdx.x % 4 * 2 * pitch + warp * 16 + threadIdx.x % 32 / 4);
#pragma unroll
  for (int j = 0; j < Block::finished / 8; ++j) {
    if (block.eight_of(j) >= block.eights()) break;
#pragma unroll
    for (int b = 0; b < Block::with_rows; ++b)
      if (b * 4 + warp < Block::shape::units)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          ptx::store_shared(own + 4 * ((8 * j + i % 2) * pitch + b * 64 + i / 2 * 8),
                            __float_as_uint(acc[b][4 * j + i]));
  }
}

// A tile of Rows outputs, from row0 on, by 128 threads. token(t) is the token of a call that lies at place t of Tokens.
template <class T, int Rows, int Tokens> struct stream_tile {
  static constexpr int in_token = Rows / 8, each = (Tokens * in_token + 127) / 128;
  using pieces = uint4[each];

  const stream_segment& seg;
  int m, row0;

  // Do all pieces begin at multiples of sixteen bytes? Else they are pairs.
  __device__ bool whole() const {
    const auto at = reinterpret_cast<std::uintptr_t>(seg.y) | reinterpret_cast<std::uintptr_t>(seg.residual);
    return seg.n % 8 == 0 && at % 16 == 0;
  }
  // f(i, place, column, at) for each piece of this thread that there is, `at` elements behind the beginning of y.
  template <class TokenOf, class F> __device__ __forceinline__ void each_piece(const TokenOf& token, const F& f) const {
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int p = static_cast<int>(threadIdx.x) + 128 * i, place = p / in_token, column = p % in_token * 8;
      if (Tokens * in_token % 128 != 0 && p >= Tokens * in_token) break;
      if (token(place) < m && row0 + column < seg.n)
        f(i, place, column, static_cast<long long>(token(place)) * seg.n + row0 + column);
    }
  }
  // Asked for as soon as the kernel before has finished.
  template <class TokenOf> __device__ __forceinline__ void load_residual(pieces& to, const TokenOf& token) const {
    ptx::wait_for_previous_kernel();
    const bool by_sixteen = whole();
    each_piece(token, [&](int i, int, int column, long long at) {
      const T* const from = static_cast<const T*>(seg.residual) + at;
      if (by_sixteen) {
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
  // From floats in shared memory, `pitch` of them to a token.
  template <class TokenOf>
  __device__ __forceinline__ void store(std::uint32_t tile, int pitch, const pieces& residual,
                                        const TokenOf& token) const {
    const bool by_sixteen = whole();
    each_piece(token, [&](int i, int place, int column, long long at) {
      const std::uint32_t from = tile + 4 * static_cast<std::uint32_t>(place * pitch + column);
      float4 low = ptx::load_shared_float4(from), high = ptx::load_shared_float4(from + 16);
      if (seg.act != activation::none) low = activate_four(seg.act, low), high = activate_four(seg.act, high);
      if (seg.residual != nullptr) {
        const float2 a = unpack<T>(residual[i].x), b = unpack<T>(residual[i].y), c = unpack<T>(residual[i].z),
                     d = unpack<T>(residual[i].w);
        low.x += a.x, low.y += a.y, low.z += b.x, low.w += b.y;
        high.x += c.x, high.y += c.y, high.z += d.x, high.w += d.y;
      }
      const uint4 out =
          make_uint4(pack<T>(low.x, low.y), pack<T>(low.z, low.w), pack<T>(high.x, high.y), pack<T>(high.z, high.w));
      T* const to = static_cast<T*>(seg.y) + at;
      if (by_sixteen) {
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

}  // namespace graft::cuda
