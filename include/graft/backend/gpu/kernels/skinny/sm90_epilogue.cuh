// SPDX-License-Identifier: Apache-2.0
// What the skinny GEMM does to its partial sums: split-K reduction, stores for more than 16 tokens, and the gated
// epilogue.
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/skinny/sm90_layout.h>
#include <graft/backend/gpu/tile/epilogue.cuh>
#include <graft/backend/gpu/tile/exchange.cuh>

namespace graft::gpu {

// ---- Split-K reduction

// Split-K reduction of the skinny GEMM: the blocks of a cluster hold partial sums of the same rows and tokens, and each
// finishes a share of them.
//
// Partial sums that another block finishes are written to its shared memory (st.async over DSMEM, counted on its
// mailbox) and added there in the order of the splits; a sum of two needs no order. With up to
// eight tokens the shares are units of 16 rows, each the sums of one warp (reduce_rows). With more tokens that would
// let half of the warps send while the other half finish, so two blocks take alternate groups of eight tokens of all
// rows (reduce_tokens).

// Every block finishes `owned` units of 16 rows for all tokens. Afterwards `acc` holds the sums of these units; the
// others are unchanged.
template <class Block>
__device__ __forceinline__ void reduce_rows(const Block& block, typename Block::accumulators& acc) {
  using shape = typename Block::shape;
  const int warp = threadIdx.x / 32, split = block.split;
  // Shared memory address, in the block that owns a unit, of the partial sums from block `from`: 512 bytes per eight
  // tokens.
  const auto receive_buffer = [&](int unit, int owner, int from) {
    const int sender = from < owner ? from : from - 1;
    return block.base + shape::receive_buffer +
           (sender * shape::owned + unit - owner * shape::owned) * Block::token_tile_count * 512 +
           (threadIdx.x % 32) * 16;
  };
#pragma unroll
  for (int b = 0; b < Block::row_blocks; ++b) {
    const int unit = b * 4 + warp, owner = unit / shape::owned;
    if (unit >= shape::units || owner == split) continue;
    const std::uint32_t to = receive_buffer(unit, owner, split);
#pragma unroll
    for (int j = 0; j < Block::token_tile_count; ++j)
      if (j < block.token_tiles())
        block.partials().send(to + j * 512, owner,
                              make_float4(acc[b][4 * j], acc[b][4 * j + 1], acc[b][4 * j + 2], acc[b][4 * j + 3]));
  }
  block.partials().wait();
#pragma unroll
  for (int b = 0; b < Block::row_blocks; ++b) {
    const int unit = b * 4 + warp;
    if (unit >= shape::units || unit / shape::owned != split) continue;
#pragma unroll
    for (int j = 0; j < Block::token_tile_count; ++j) {
      if (j >= block.token_tiles()) break;
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int s = 0; s < Block::all_splits; ++s) {
        float4 partial = make_float4(acc[b][4 * j], acc[b][4 * j + 1], acc[b][4 * j + 2], acc[b][4 * j + 3]);
        if (s != split) partial = ptx::load_shared_float4(receive_buffer(unit, split, s) + j * 512);
        add_to(sum, partial);
      }
      acc[b][4 * j] = sum.x, acc[b][4 * j + 1] = sum.y, acc[b][4 * j + 2] = sum.z, acc[b][4 * j + 3] = sum.w;
    }
  }
}

// Two blocks: of every two groups of eight tokens each block sends one and finishes the other.
template <class Block>
__device__ __forceinline__ void reduce_tokens(const Block& block, const typename Block::accumulators& acc,
                                              typename Block::sums& mine) {
  using shape = typename Block::shape;
  constexpr int own = Block::finished / 8;
  const int warp = threadIdx.x / 32;
  const std::uint32_t box = block.base + shape::receive_buffer + warp * own * 512 + threadIdx.x % 32 * 16;
#pragma unroll
  for (int b = 0; b < Block::row_blocks; ++b)
#pragma unroll
    for (int j = 0; j < own; ++j) {
      float other[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float even = acc[b][8 * j + i], odd = acc[b][8 * j + 4 + i];
        mine[b][4 * j + i] = block.split == 0 ? even : odd, other[i] = block.split == 0 ? odd : even;
      }
      if (b * 4 + warp < shape::units)
        block.partials().send(box + (b * 4 * own + j) * 512, block.split ^ 1,
                              make_float4(other[0], other[1], other[2], other[3]));
    }
  block.partials().wait();
#pragma unroll
  for (int b = 0; b < Block::row_blocks; ++b) {
    if (b * 4 + warp >= shape::units) continue;
#pragma unroll
    for (int j = 0; j < own; ++j) {
      const float4 other = ptx::load_shared_float4(box + (b * 4 * own + j) * 512);
      mine[b][4 * j] += other.x, mine[b][4 * j + 1] += other.y;
      mine[b][4 * j + 2] += other.z, mine[b][4 * j + 3] += other.w;
    }
  }
}

// ---- Stores

// Epilogue of the skinny GEMM for more than 16 tokens: activation, residual and 16-byte stores by way of shared memory.
//
// A thread's accumulators are two rows of two tokens each. Stored directly they would be 4-byte stores of 16
// contiguous bytes per token, which with 64 tokens take longer than waiting for the last weights. Instead the float
// sums go to shared memory, and each thread finishes eight neighboring outputs of a token at a time.

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

  const skinny_product& seg;
  int m, row0;

  // Returns true if vectors of eight outputs are 16-byte aligned; otherwise they are stored in pairs.
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

// ---- Gated epilogue

// Gated epilogue (SwiGLU, GeGLU) of the skinny GEMM, y = round(act(x W_gateᵀ)) ⊙ round(act(x W_upᵀ)), each layer with
// its own activation or none.
//
// A tile holds the sums of both layers in different warps, so they are exchanged through shared memory, and a loop over
// the tokens finishes four outputs of a few independent tokens at a time. The loop keeps the code small: unrolled over
// all sums of a thread, activations alone are a hundred kilobytes of instructions, which have to be fetched while W is
// being streamed.

// One branch on the activation for all values.
template <activation Act, int Count> __device__ __forceinline__ void activate_each(float4 (&v)[Count]) {
#pragma unroll
  for (float4& four : v) four = activate<Act>(four);
}
template <int Count> __device__ __forceinline__ void activate_each(activation what, float4 (&v)[Count]) {
  switch (what) {
    case activation::none: break;
    case activation::relu: return activate_each<activation::relu>(v);
    case activation::silu: return activate_each<activation::silu>(v);
    case activation::gelu: return activate_each<activation::gelu>(v);
    case activation::gelu_tanh: return activate_each<activation::gelu_tanh>(v);
  }
}

inline constexpr int gate_barrier = 3;  // named barrier: sums are in shared memory

// Finishes the tile after gate_barrier, by all epilogue_threads.
template <class T, int Tokens, class Block> __device__ __forceinline__ void finish_gated(const Block& block) {
  constexpr int half = Block::half, pitch = sum_pitch(2 * half);
  static_assert(half % 4 == 0);
  ptx::named_barrier(gate_barrier, Block::epilogue_threads);
  const int n = block.seg.n;
  const bool is_aligned = n % 4 == 0 && reinterpret_cast<std::uintptr_t>(block.seg.y) % 8 == 0;
  constexpr int tokens_per_thread = Tokens < 16 ? 1 : Tokens < 64 ? 2 : 4;  // tokens per thread
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < (block.g.m + tokens_per_thread - 1) / tokens_per_thread * (half / 4);
       i += Block::epilogue_threads) {
    const int token = i / (half / 4) * tokens_per_thread, column = i % (half / 4) * 4;
    float4 y[tokens_per_thread];
#pragma unroll
    for (float4& four : y) four = make_float4(1, 1, 1, 1);
#pragma unroll 1
    for (int layer = 0; layer < 2; ++layer) {
      float4 v[tokens_per_thread];
#pragma unroll
      for (int t = 0; t < tokens_per_thread; ++t)
        v[t] = ptx::load_shared_float4(block.base + 4 * ((token + t) * pitch + layer * half + column));
      activate_each(block.g.segment[layer].act, v);
#pragma unroll
      for (int t = 0; t < tokens_per_thread; ++t) {
        const float2 low = unpack<T>(pack<T>(v[t].x, v[t].y)), high = unpack<T>(pack<T>(v[t].z, v[t].w));
        y[t].x *= low.x, y[t].y *= low.y, y[t].z *= high.x, y[t].w *= high.y;
      }
    }
    const int row = block.row0 + column;
    auto* to = reinterpret_cast<std::uint32_t*>(static_cast<T*>(block.seg.y) + static_cast<long long>(token) * n + row);
#pragma unroll
    for (int t = 0; t < tokens_per_thread; ++t, to += n / 2) {
      if (token + t >= block.g.m) break;
      const uint2 four = make_uint2(pack<T>(y[t].x, y[t].y), pack<T>(y[t].z, y[t].w));
      if (row < n && is_aligned) *reinterpret_cast<uint2*>(to) = four;
      if (row < n && !is_aligned) to[0] = four.x;
      if (row + 2 < n && !is_aligned) to[1] = four.y;
    }
  }
}

template <class T, int Tokens, class Block>
__device__ __forceinline__ void store_gated(const Block& block, const typename Block::sums& acc) {
  sums_to_smem(block, acc);
  finish_gated<T, Tokens>(block);
}

}  // namespace graft::gpu
