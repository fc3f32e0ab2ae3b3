// SPDX-License-Identifier: Apache-2.0
// stream_codes: up to 32 tokens on a weight that is codes, sm_90a. The codes pass through once, at the speed of memory, and
// become numbers in the registers from which the tensor cores read them; y = post(x Wᵀ + (x Aᵀ) Bᵀ).
//
// A cluster of four thread blocks takes tiles of 64 rows in turn; each block has a quarter of the inner axis, each of its
// warpgroups a half of that. x stays in shared memory. A lane reads sixteen neighbouring codes of a row for every 64
// columns, and x is laid out so that those are its share of four products: nothing else is exchanged. Codes of four bits
// are looked up two at a time in a table of 256 pairs, which every lane has for itself: its address is one instruction.
// Scales are made by four warps of their own, whatever they are stored as, and multiply the sums of 64 columns. A warp
// sends its 16 rows to the block that finishes them, which adds the parts in a fixed order while the next tile is summed.
#pragma once
#include <cuda_fp8.h>
#include <graft/backend/cuda/code_choice.h>
#include <graft/backend/cuda/codes.cuh>
#include <graft/backend/cuda/gemm_shape.h>
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/backend/cuda/wgmma.cuh>

namespace graft::cuda {

struct code_args {
  coded from;
  const void* x;
  void* y;
  const void* residual;
  adapter_slot slot;
  activation act;
  int m, n, k;
  int steps, own_steps, part_steps;  // of 64 columns: all, those of a part, and those with the empty ones behind them
  int tiles, stages;
  std::uint32_t x_at, ring_at, scales_at, inbox_at, s_at, barriers_at;  // in shared memory
};

template <class T, bool FourBits, int Tokens> struct code_block {
  static constexpr int per_stage = FourBits ? 4 : 2;  // steps of 64 columns in 128 bytes of a row
  static constexpr int consumers = code_groups * 128, feeders = FourBits ? 128 : 0, threads = consumers + feeders + 32;
  static constexpr std::uint32_t stage = 64 * 128, unit = Tokens / 8 * 512;  // unit: 16 rows, as sums
  using sums = float[Tokens / 2];
  using left = std::uint32_t[4][4];  // 64 columns of 16 rows

  const CUtensorMap& map;
  const code_args& g;
  std::uint32_t base;  // the block's own number in the cluster, in the highest byte
  int rank_in_cluster, first_tile, tile_step;

  __device__ std::uint32_t table() const { return base + static_cast<std::uint32_t>(code_table_at); }
  __device__ std::uint32_t full(int q) const { return base + g.barriers_at + 8 * q; }
  __device__ std::uint32_t empty(int q) const { return full(g.stages + q); }
  __device__ std::uint32_t received(int slot) const { return full(2 * g.stages + slot); }
  // A warpgroup has the slots of its own parity.
  __device__ int slot_of(int group, int i) const { return i % (g.stages / code_groups) * code_groups + group; }
  __device__ std::uint32_t phase_of(int i) const { return i / (g.stages / code_groups) % 2; }
  __device__ int side_steps() const { return 64 / g.slot.rank; }  // of A, in a stage
  __device__ int side_stages() const { return g.slot.rank == 0 ? 0 : g.part_steps / side_steps(); }
  __device__ int tile_stages() const { return g.part_steps / per_stage; }
  __device__ int own_tiles() const { return first_tile < g.tiles ? (g.tiles - first_tile - 1) / tile_step + 1 : 0; }
  __device__ int first_step(int group) const { return (rank_in_cluster * code_groups + group) * g.own_steps; }

  __device__ void start() const {
    const int i = static_cast<int>(threadIdx.x);
    if (i < 2 * g.stages + 2) {
      ptx::barrier_init(full(i), i < g.stages ? (FourBits ? 2 : 1) : i < 2 * g.stages ? 4 : 1);
      ptx::barrier_init_fence();
      if (i >= 2 * g.stages) ptx::barrier_expect(full(i), code_parts * unit);
    }
    if constexpr (FourBits)
      for (int word = i; word < 256 * 32; word += threads) {
        const int byte = word / 32;
        ptx::store_shared(table() + byte * 256 + word % 32 * 4,
                          pack<T>(g.from.table[byte >> 4], g.from.table[byte & 15]));
      }
    ptx::cluster_sync();
    ptx::let_next_kernel_start();
  }

  // ---- a thread that requests codes and A -----------------------------------------------------------------------------
  __device__ void request() const {
    const int side = side_stages(), per_tile = tile_stages(), all = side + own_tiles() * per_tile;
    for (int i = 0; i < all; ++i)
      for (int group = 0; group < code_groups; ++group) {
        const int q = slot_of(group, i);
        if (i >= g.stages / code_groups) ptx::barrier_wait(empty(q), phase_of(i) ^ 1);
        if (i < side) {
          const int step = first_step(group) + i * side_steps(), left_over = g.steps - step;
          const int here = left_over < 0 ? 0 : left_over < side_steps() ? left_over : side_steps();
          const std::uint32_t bytes = here * g.slot.rank * 128;
          if (FourBits) ptx::barrier_arrive(full(q));  // in the place of the scales
          ptx::barrier_expect(full(q), bytes);
          if (bytes > 0)
            ptx::load_bytes(base + g.ring_at + q * stage,
                            static_cast<const char*>(g.slot.a_tiles) + static_cast<long long>(step) * g.slot.rank * 128,
                            bytes, full(q));
        } else {
          const int c = i - side, tile = first_tile + c / per_tile * tile_step;
          ptx::barrier_expect(full(q), stage);
          // The map counts in pairs of bytes.
          ptx::load_tile(base + g.ring_at + q * stage, &map,
                         (first_step(group) + c % per_tile * per_stage) * (64 / per_stage), tile * 64, full(q),
                         ptx::evict_first);
        }
      }
  }
  // ---- four warps that make scales: two rows a lane, four steps --------------------------------------------------------
  __device__ void load_scales(float (&to)[2][4], int c, int group) const {
    const int per_tile = tile_stages(), lane = threadIdx.x % 32;
    const int row0 = (first_tile + c / per_tile * tile_step) * 64, step0 = first_step(group) + c % per_tile * per_stage;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int row = row0 + lane + 32 * h, step = step0 + u;
        to[h][u] = row < g.n && step < g.steps
                       ? g.from.scale(g.from.place_of_scale(static_cast<long long>(row) * g.k + step * 64LL))
                       : 0.0F;
      }
  }
  __device__ void feed() const {
    const int warp = (static_cast<int>(threadIdx.x) - consumers) / 32, lane = threadIdx.x % 32;
    const int side = side_stages(), all = own_tiles() * tile_stages() * code_groups;
    float now[2][4], next[2][4];
    if (warp < all) load_scales(now, warp / code_groups, warp % code_groups);
    for (int c = warp; c < all; c += 4) {
      if (c + 4 < all) load_scales(next, (c + 4) / code_groups, (c + 4) % code_groups);
      const int i = side + c / code_groups, q = slot_of(c % code_groups, i);
      if (i >= g.stages / code_groups) ptx::barrier_wait(empty(q), phase_of(i) ^ 1);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        ptx::store_shared(base + g.scales_at + q * 1024 + (lane + 32 * h) * 16,
                          make_uint4(__float_as_uint(now[h][0]), __float_as_uint(now[h][1]), __float_as_uint(now[h][2]),
                                     __float_as_uint(now[h][3])));
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(full(q));
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int u = 0; u < 4; ++u) now[h][u] = next[h][u];
    }
  }

  // ---- warpgroups -----------------------------------------------------------------------------------------------------
  // x of this block in the order in which lanes have the codes: of 64 columns, lane t of a quad has 16 t to 16 t + 15, and
  // four of them in each product.
  __device__ void load_x() const {
    const int all = code_groups * g.part_steps * Tokens * 8;
    for (int i = threadIdx.x; i < all; i += consumers) {
      const int eight = i % 8, token = i / 8 % Tokens, at = i / (8 * Tokens), group = at / g.part_steps,
                inside = at % g.part_steps, step = first_step(group) + inside;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (token < g.m && inside < g.own_steps && step < g.steps) {
        const long long column = step * 64LL + eight * 8;
        v = __ldg(
            reinterpret_cast<const uint4*>(static_cast<const T*>(g.x) + static_cast<long long>(token) * g.k + column));
        if (g.slot.pre != nullptr) {
          const uint4 by = __ldg(reinterpret_cast<const uint4*>(static_cast<const T*>(g.slot.pre) + column));
          v = make_uint4(times<T>(v.x, by.x), times<T>(v.y, by.y), times<T>(v.z, by.z), times<T>(v.w, by.w));
        }
      }
      const std::uint32_t row = base + g.x_at + at * Tokens * 128 + token * 128 + eight / 2 * 4;
      const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) ptx::store_shared(row + (((eight % 2 * 4 + w) ^ (token % 8)) << 4), words[w]);
    }
    ptx::fence_async_shared();
    ptx::named_barrier(1, consumers);
  }
  // Sixteen codes of a row as pairs.
  __device__ __forceinline__ void decode(std::uint32_t (&pairs)[8], std::uint32_t row, int step, int lane) const {
    const int t = lane % 4, turn = lane / 4;
    if constexpr (FourBits) {
      uint2 codes;
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                   : "=r"(codes.x), "=r"(codes.y)
                   : "r"(row + (((2 * step + t / 2) ^ turn) << 4) + t % 2 * 8));
      const std::uint32_t mine = table() + lane * 4;
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        pairs[b] = ptx::load_shared(__byte_perm(codes.x, mine, 0x7604 | b << 4));
        pairs[4 + b] = ptx::load_shared(__byte_perm(codes.y, mine, 0x7604 | b << 4));
      }
    } else {
      const uint4 codes = ptx::load_shared_uint4(row + (((4 * step + t) ^ turn) << 4));
      const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) four_bytes(words[w], pairs[2 * w], pairs[2 * w + 1]);
    }
  }
  __device__ __forceinline__ void four_bytes(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) const {
    float v[4];
    if (g.from.how.codes == dtype::int8) {  // 2^23 + 128 + code has the code in its last places
#pragma unroll
      for (int b = 0; b < 4; ++b)
        v[b] = __uint_as_float(__byte_perm(word ^ 0x80808080U, 0x4B000000U, 0x7650 | b)) - 8388736.0F;
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto two = static_cast<__nv_fp8x2_storage_t>(word >> (16 * h));
        const float2 f = __half22float2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3));
        v[2 * h] = f.x, v[2 * h + 1] = f.y;
      }
    }
    low = pack<T>(v[0], v[1]), high = pack<T>(v[2], v[3]);
  }
  __device__ __forceinline__ void decode_rows(left& a, std::uint32_t tile, int step, int warp, int lane) const {
    std::uint32_t upper[8], lower[8];
    const std::uint32_t row = tile + (warp * 16 + lane / 4) * 128;
    decode(upper, row, step, lane), decode(lower, row + 8 * 128, step, lane);
#pragma unroll
    for (int s = 0; s < 4; ++s)
      a[s][0] = upper[2 * s], a[s][1] = lower[2 * s], a[s][2] = upper[2 * s + 1], a[s][3] = lower[2 * s + 1];
  }
  __device__ __forceinline__ void multiply(sums& acc, const left& a, std::uint32_t x, bool keep) const {
    const std::uint64_t right = tile_descriptor(x);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) wgmma<T, Tokens>::registers(acc, a[s], right + 2 * s, keep || s > 0);
    wgmma_commit();
  }
  // S of this part, [token][rank] in shared memory.
  __device__ void shrink(int group, int warp, int lane, std::uint32_t s_tile) const {
    sums acc = {};
    const int rank = g.slot.rank, turn = lane / 4, t = lane % 4;
    for (int i = 0; i < side_stages(); ++i) {
      const int q = slot_of(group, i);
      ptx::barrier_wait(full(q), phase_of(i));
      for (int j = 0; j < side_steps(); ++j) {
        const int inside = i * side_steps() + j;
        if (first_step(group) + inside >= g.steps) break;
        left a = {};
        if (warp * 16 < rank) {
          const std::uint32_t row = base + g.ring_at + q * stage + j * rank * 128 + (warp * 16 + turn) * 128;
#pragma unroll
          for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const uint4 v = ptx::load_shared_uint4(row + h * 8 * 128 + (((2 * t + half) ^ turn) << 4));
              a[2 * half][h] = v.x, a[2 * half][2 + h] = v.y, a[2 * half + 1][h] = v.z, a[2 * half + 1][2 + h] = v.w;
            }
        }
        multiply(acc, a, x_tile(group, inside), true);
        wgmma_wait<0>();
      }
      if (lane == 0) ptx::barrier_arrive(empty(q));
    }
    const auto pitch = static_cast<std::uint32_t>(rank * 2);
    if (warp * 16 < rank)
#pragma unroll
      for (int e = 0; e < Tokens / 2; ++e)
        ptx::store_shared(
            s_tile + tile_offset(e / 4 * 8 + t * 2 + (e & 1), warp * 16 + turn + 8 * ((e >> 1) & 1), pitch),
            static_cast<std::uint16_t>(pack<T>(acc[e], 0.0F)));
    ptx::fence_async_shared();
    ptx::named_barrier(2 + group, 128);
  }
  __device__ std::uint32_t x_tile(int group, int step) const {
    return base + g.x_at + (group * g.part_steps + step) * Tokens * 128;
  }
  // One tile of 64 rows on the columns of this warpgroup.
  __device__ __forceinline__ void accumulate(sums& total, int group, int warp, int lane, int& i) const {
    sums acc;
#pragma unroll
    for (float& v : total) v = 0;
    for (int st = 0; st < tile_stages(); ++st, ++i) {
      const int q = slot_of(group, i);
      ptx::barrier_wait(full(q), phase_of(i));
      const std::uint32_t tile = base + g.ring_at + q * stage;
      float scale[2][4];
      if constexpr (FourBits)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float4 v = ptx::load_shared_float4(base + g.scales_at + q * 1024 + (warp * 16 + lane / 4 + 8 * h) * 16);
          scale[h][0] = v.x, scale[h][1] = v.y, scale[h][2] = v.z, scale[h][3] = v.w;
        }
      left a[2];
      decode_rows(a[0], tile, 0, warp, lane);
#pragma unroll
      for (int u = 0; u < per_stage; ++u) {
        multiply(FourBits ? acc : total, a[u % 2], x_tile(group, st * per_stage + u), !FourBits);
        if (u + 1 < per_stage) {
          decode_rows(a[(u + 1) % 2], tile, u + 1, warp, lane);
        } else {
          __syncwarp();
          if (lane == 0) ptx::barrier_arrive(empty(q));
        }
        wgmma_wait<0>();
        if constexpr (FourBits)
#pragma unroll
          for (int e = 0; e < Tokens / 2; ++e) total[e] = fmaf(scale[(e >> 1) & 1][u], acc[e], total[e]);
      }
    }
  }
  // y of the 16 rows of a tile that are this block's, eight tokens a warp.
  __device__ void finish(int tile, int slot, int phase, int warp, int lane) const {
    if (warp >= Tokens / 8) return;
    ptx::barrier_wait(received(slot), phase);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int p = 0; p < code_parts; ++p) {
      const float4 part = ptx::load_shared_float4(inbox(slot, p) + warp * 512 + lane * 16);
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    const post_slot<T> post{g.slot.scale, g.slot.shift, static_cast<const T*>(g.residual), g.act, g.m, g.n};
    const float v[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int token = warp * 8 + lane % 4 * 2 + (e & 1);
      const int row = tile * 64 + rank_in_cluster * 16 + lane / 4 + 8 * (e >> 1);
      if (token < g.m && row < g.n)
        static_cast<T*>(g.y)[static_cast<long long>(token) * g.n + row] = from_float<T>(post(v[e], token, row));
    }
  }
  __device__ std::uint32_t inbox(int slot, int part) const {
    return base + g.inbox_at + (slot * code_parts + part) * unit;
  }

  __device__ void consume() const {
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int any_warp = threadIdx.x / 32, rank = g.slot.rank;
    const std::uint32_t s_tile = base + g.s_at + group * ((Tokens * rank * 2 + 1023) / 1024 * 1024);
    ptx::wait_for_previous_kernel();
    load_x();
    if (rank > 0) shrink(group, warp, lane, s_tile);
    int i = side_stages(), done = 0, before = 0;
    for (int tile = first_tile; tile < g.tiles; tile += tile_step, ++done) {
      const int row = tile * 64 + warp * 16 + lane / 4;
      std::uint32_t b[4][4];
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) {  // B as it lies, its rows those of the tile
          const int at = row + 8 * (e & 1);
          const bool inside = k * 16 < rank && at < g.n;
          const T* from = static_cast<const T*>(g.slot.b) + static_cast<long long>(at) * rank + k * 16 + lane % 4 * 2 +
                          8 * (e >> 1);
          b[k][e] = inside ? __ldg(reinterpret_cast<const unsigned*>(from)) : 0U;
        }
      float by_row[2] = {1, 1};
      if constexpr (!FourBits)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (row + 8 * h < g.n) {
            const float s = g.from.scale(g.from.how.scaled == scaled_by::row ? row + 8 * h : 0);
            by_row[h] = g.from.how.codes == dtype::int8 ? encodings::int8_codes::number(1, s) : s;
          }
      sums total;
      accumulate(total, group, warp, lane, i);
      if constexpr (!FourBits)
#pragma unroll
        for (int e = 0; e < Tokens / 2; ++e) total[e] *= by_row[(e >> 1) & 1];
      if (rank > 0) {
        const std::uint64_t s = tile_descriptor(s_tile, rank * 2);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (k * 16 < rank) wgmma<T, Tokens>::registers(total, b[k], s + 2 * k, true);
        wgmma_commit();
        wgmma_wait<0>();
      }
      if (done > 0) {
        const int last = done - 1;
        finish(before, last % 2, last / 2 % 2, any_warp, lane);
        if (threadIdx.x == 0) ptx::barrier_expect(received(last % 2), code_parts * unit);
      }
      before = tile;
      ptx::named_barrier(1, consumers);  // what is sent next overwrites what was finished the time before
      const int part = rank_in_cluster * code_groups + group;
#pragma unroll
      for (int j = 0; j < Tokens / 8; ++j)
        ptx::store_at(inbox(done % 2, part) + j * 512 + lane * 16, received(done % 2), warp,
                      make_float4(total[4 * j], total[4 * j + 1], total[4 * j + 2], total[4 * j + 3]));
    }
    if (done > 0) finish(before, (done - 1) % 2, (done - 1) / 2 % 2, any_warp, lane);
  }
};

template <class T, bool FourBits, int Tokens>
__global__ void __launch_bounds__(code_block<T, FourBits, Tokens>::threads, 1)
    stream_codes_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ code_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using block = code_block<T, FourBits, Tokens>;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t begins = ptx::shared_address(raw);
  if (begins % (1U << 24U) != code_memory_begins) __trap();  // nothing else may lie in front
  const block b{map,
                g,
                begins - static_cast<std::uint32_t>(code_memory_begins),
                static_cast<int>(blockIdx.x),
                static_cast<int>(blockIdx.y),
                static_cast<int>(gridDim.y)};
  b.start();
  if (threadIdx.x < block::consumers)
    b.consume();
  else if (threadIdx.x < block::consumers + block::feeders)
    b.feed();
  else if (threadIdx.x == block::consumers + block::feeders)
    b.request();
#endif
}

}  // namespace graft::cuda
