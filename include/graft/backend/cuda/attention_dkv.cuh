// SPDX-License-Identifier: Apache-2.0
// The first half of attention's backward pass, sm_90a: the gradients of keys and values. With P = softmax(Q Kᵀ / √head) from
// the sums that forward left, and D = <dO, O> of each row, over all rows that look at a key and all heads that share it,
//     dP = dO Vᵀ        dS = P ⊙ (dP - D)        dV = Pᵀ dO        dK = dSᵀ Q / √head
// It leaves dS in memory, 16 bits a number, for the second half (attention_dq.cuh): four products here and one there,
// where a second half of its own would multiply S and dP again.
// Two thread blocks, a cluster, have 128 keys: one warp each produces, two warpgroups have 64 keys each. A step is 64 rows
// of one head; the blocks take the steps in turn, each the first of every other head, and at the end one of them adds up dK and the other one dV, always in
// the same order. No atomics: the same bits every time.
#pragma once
#include <graft/backend/cuda/attention_notes.cuh>
#include <graft/backend/cuda/attention_tiles.cuh>

namespace graft::cuda {

struct key_grad_maps {
  CUtensorMap q, d_out, k, v, dk, dv;
};
struct key_grad_args {
  int rows, heads, group;
  float scale;
  attention_notes notes;
  score_piece piece;
};

template <class T, int Head> struct key_grad_block {
  using shape = key_grad_shape<Head>;
  static constexpr int keys = shape::keys;

  const key_grad_maps& maps;
  const key_grad_args& g;
  std::uint32_t base;
  // [4]: how many steps a tile has, for each of two tiles; then for each stage which dS it is, and eight times the block of
  // rows, 1 where all of it look at the whole tile, and 2 and 4 where any look at its first and at its last 64 keys
  int* notes;
  tile_deal deal;
  int rank, blocks;

  __device__ std::uint32_t kv_full(int i) const { return base + shape::barriers + 8 * i; }
  __device__ std::uint32_t kv_empty(int i) const { return kv_full(2 + i); }
  __device__ std::uint32_t arrived(int w) const { return kv_full(4 + w); }
  __device__ std::uint32_t ready() const { return kv_full(6); }
  __device__ std::uint32_t full(int i) const { return kv_full(7 + i); }
  __device__ std::uint32_t empty(int i) const { return full(shape::stages + i); }
  __device__ std::uint32_t stage(int i) const { return base + shape::ring + i * shape::stage; }
  __device__ std::uint32_t vectors(int i) const { return base + shape::vectors + i * shape::numbers; }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2; ++i)
        ptx::barrier_init(kv_full(i), 1), ptx::barrier_init(kv_empty(i), 2), ptx::barrier_init(arrived(i), 1);
      ptx::barrier_init(ready(), 2);
      for (int i = 0; i < shape::stages; ++i)
        ptx::barrier_init(full(i), 1),
            ptx::barrier_init(empty(i), 256);  // a stage is free when everybody has read its numbers
      ptx::barrier_init_fence();
    }
    ptx::cluster_sync();
  }

  __device__ bool take(int round, int& tile, int& column) const {
    if (!deal.take(round, tile, column)) return false;
    tile += g.piece.tile;
    return true;
  }
  // Which of 32 blocks of rows, one for each lane, look at the tile.
  __device__ unsigned looking(int tile, int block, int4& bounds) const {
    bounds = block < blocks ? g.notes.bounds[block] : make_int4(INT_MAX, 0, INT_MAX, 0);
    return __ballot_sync(~0U, bounds.x < (tile + 1) * keys && bounds.y > tile * keys);
  }
  __device__ void produce() const {
    const int lane = static_cast<int>(threadIdx.x);
    int at = 0, tile, column;
    std::uint32_t phase = 1;
    int4 bounds;
#pragma unroll 1
    for (int i = 0; take(i, tile, column); ++i) {
      int steps = 0;
#pragma unroll 1
      for (int b = 0; b < blocks; b += 32) steps += __popc(looking(tile, b + lane, bounds));
      if (lane == 0) {
        const int which = i & 1;
        ptx::barrier_wait(kv_empty(which), (i >> 1 & 1) ^ 1);
        const int firsts = (g.group + 1 - rank) / 2;  // heads whose first step is this block's
        notes[which] = firsts * ((steps + 1) / 2) + (g.group - firsts) * (steps / 2);
        ptx::barrier_expect(kv_full(which), 2 * shape::tile);
#pragma unroll 1
        for (int w = 0; w < 4; ++w)
          ptx::load_box(base + which * 2 * shape::tile + w * shape::rows_bytes, w < 2 ? &maps.k : &maps.v,
                        tile * keys + w % 2 * 64, (g.piece.column + column) * shape::chunks, kv_full(which));
      }
#pragma unroll 1
      for (int in_group = 0; in_group < g.group; ++in_group) {
        const int head = (g.piece.column + column) * g.group + in_group;
        int turn = (rank + in_group) & 1;  // 0 where the next step is this block's
#pragma unroll 1
        for (int b = 0; b < blocks; b += 32) {
          unsigned wanted = looking(tile, b + lane, bounds);
          const unsigned whole = __ballot_sync(~0U, bounds.z <= tile * keys && bounds.w >= (tile + 1) * keys);
          const unsigned upper = __ballot_sync(~0U, bounds.y > tile * keys + 64),
                         lower = __ballot_sync(~0U, bounds.x < tile * keys + 64);
#pragma unroll 1
          for (; wanted != 0; wanted &= wanted - 1, turn ^= 1) {
            if (turn != 0) continue;
            const int bit = __ffs(static_cast<int>(wanted)) - 1, block = b + bit;
            if ((whole >> bit & 1) == 0) ptx::bring(g.notes.spans + block * 64 + 2 * lane);  // for the mask
            if (lane == 0) {
              ptx::barrier_wait(empty(at), phase);
              notes[4 + 2 * at] =
                  ((column * g.group + in_group) * blocks + block) * g.piece.tiles + tile - g.piece.tile;
              notes[5 + 2 * at] = 8 * block + static_cast<int>(whole >> bit & 1) +
                                  static_cast<int>(lower >> bit & 1) * 2 + static_cast<int>(upper >> bit & 1) * 4;
              ptx::barrier_expect(full(at), shape::stage + shape::numbers);
              ptx::load_box(stage(at), &maps.q, block * 64, head * shape::chunks, full(at));
              ptx::load_box(stage(at) + shape::rows_bytes, &maps.d_out, block * 64, head * shape::chunks, full(at));
              ptx::load_bytes(vectors(at), g.notes.numbers + (static_cast<long long>(head) * blocks + block) * 128,
                              shape::numbers, full(at));
            }
            if (++at == shape::stages) at = 0, phase ^= 1;
          }
        }
      }
    }
  }

  // Scores of rows that do not look at the thread's two keys; rows are columns here.
  __device__ __forceinline__ void mask(float (&s)[32], int key, int row) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int4 look = *reinterpret_cast<const int4*>(g.notes.spans + row + j * 8);  // of two rows
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int k = key + 8 * h;
        if (k < look.x || k >= look.y) s[4 * j + 2 * h] = -INFINITY;
        if (k < look.z || k >= look.w) s[4 * j + 2 * h + 1] = -INFINITY;
      }
    }
  }
  // dS of a warp, 16 keys and 64 rows, for the second half; rows that others read again stay in the L2 cache.
  __device__ __forceinline__ void leave(const std::uint32_t (&ds)[4][4], int tile, int at) const {
    uint4* const to = reinterpret_cast<uint4*>(g.piece.ds + static_cast<long long>(tile) * score_tile) + at;
#pragma unroll
    for (int e = 0; e < 4; ++e) __stcs(to + e * 32, make_uint4(ds[e][0], ds[e][1], ds[e][2], ds[e][3]));
  }
  __device__ void consume() const {
    const int group = warpgroup() - 1, warp = static_cast<int>(threadIdx.x / 32 % 4),
              lane = static_cast<int>(threadIdx.x % 32), thread = static_cast<int>(threadIdx.x % 128);
    const bool leader = thread == 0;
    const int own_key = group * 64 + warp * 16 + lane / 4, own_column = lane % 4 * 2;
    const int own_score = (group * 4 + warp) * 128 + lane;
    const float c = g.scale * log2_e;
    constexpr std::uint32_t next_rows = 64 * shape::pitch;
    int at = 0, tile, column;
    std::uint32_t phase = 0;
    float s[32], dp[32], dk[Head / 2], dv[Head / 2];
    std::uint32_t p[4][4], ds[4][4];
#pragma unroll 1
    for (int i = 0; take(i, tile, column); ++i) {
      const int which = i & 1;
      const std::uint32_t k = base + which * 2 * shape::tile + group * shape::rows_bytes, v = k + shape::tile;
      ptx::barrier_wait(kv_full(which), i >> 1 & 1);
      const int steps = notes[which];
      int before = -1;
      bool any = false;
#pragma unroll 1
      for (int n = 0; n < steps; ++n) {
        const std::uint32_t q = stage(at), d_out = q + shape::rows_bytes, numbers = vectors(at) + own_column * 4;
        ptx::barrier_wait(full(at), phase);
        const int note = notes[5 + 2 * at];
        if ((note >> (1 + group) & 1) == 0) {  // nobody looks at these 64 keys
          if (before >= 0) wgmma_wait<0>(), ptx::barrier_arrive(empty(before));
          before = -1;
          ptx::barrier_arrive(empty(at));
          if (++at == shape::stages) at = 0, phase ^= 1;
          continue;
        }
        multiply_heads<T, Head, 64>(s, k, next_rows, q, next_rows);  // Sᵀ
        wgmma_wait<1>();  // the sums of the step before are done: its P and dS are free, and its stage
        if (before >= 0) ptx::barrier_arrive(empty(before));
        multiply_heads<T, Head, 64>(dp, v, next_rows, d_out, next_rows);  // dPᵀ
        wgmma_wait<1>(), pin(s);
        if ((note & 1) == 0) mask(s, tile * keys + own_key, note / 8 * 64 + own_column);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 sum = ptx::load_shared_float2(numbers + j * 32);
#pragma unroll
          for (int e = 0; e < 4; ++e) s[4 * j + e] = exp2_fast(fmaf(s[4 * j + e], c, e % 2 == 0 ? -sum.x : -sum.y));
        }
        pack_rows<T>(p, s);
        multiply_rows<T, Head>(dv, p, d_out, next_rows, any);
        wgmma_wait<1>(), pin(dp);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 d = ptx::load_shared_float2(numbers + 256 + j * 32);
#pragma unroll
          for (int e = 0; e < 4; ++e) s[4 * j + e] *= dp[4 * j + e] - (e % 2 == 0 ? d.x : d.y);
        }
        pack_rows<T>(ds, s);
        leave(ds, notes[4 + 2 * at], own_score);
        multiply_rows<T, Head>(dk, ds, q, next_rows, any);
        before = at, any = true;
        if (++at == shape::stages) at = 0, phase ^= 1;
      }
      wgmma_wait<0>(), pin(dk), pin(dv);
      if (!any) {
#pragma unroll
        for (int e = 0; e < Head / 2; ++e) dk[e] = dv[e] = 0;
      }
      if (before >= 0) ptx::barrier_arrive(empty(before));
      // K and V of this tile are read when both warpgroups of a block have said so: the other block's sums take their place.
      ptx::named_barrier(1 + group, 128);
      if (leader) ptx::barrier_arrive_at(ready(), rank ^ 1), ptx::barrier_expect(arrived(group), shape::tile);
      ptx::barrier_wait(ready(), i & 1);
      const std::uint32_t box = base + which * 2 * shape::tile + group * shape::tile, mine = box + thread * 16;
#pragma unroll
      for (int e = 0; e < Head / 8; ++e) {
        const float4 v4 = make_float4(dv[4 * e], dv[4 * e + 1], dv[4 * e + 2], dv[4 * e + 3]),
                     k4 = make_float4(dk[4 * e], dk[4 * e + 1], dk[4 * e + 2], dk[4 * e + 3]);
        ptx::store_at(mine + e * 2048, arrived(group), rank ^ 1, rank == 0 ? v4 : k4);
      }
      ptx::barrier_wait(arrived(group), i & 1);
#pragma unroll
      for (int e = 0; e < Head / 8; ++e) {
        const float4 other = ptx::load_shared_float4(mine + e * 2048);
        const float add[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
        for (int z = 0; z < 4; ++z) dk[4 * e + z] = add[z] + (rank == 0 ? dk[4 * e + z] : dv[4 * e + z]);
      }
      const float factor = rank == 0 ? g.scale : 1;
      store_rows<T, Head>(rank == 0 ? &maps.dk : &maps.dv, dk, factor, factor, box, tile * keys + group * 64,
                          g.piece.column + column, 1 + group);
      if (leader) ptx::stores_have_read<0>(), ptx::barrier_arrive(kv_empty(which));
    }
    if (leader) ptx::stores_done();
  }
};

template <class T, int Head>
__global__ void __launch_bounds__(384, 1)
    key_grad_kernel(const __grid_constant__ key_grad_maps maps, const __grid_constant__ key_grad_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using shape = key_grad_shape<Head>;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  std::uint8_t* const memory = raw + (base - at);
  const int blocks = 2 * ((g.rows + attention_rows - 1) / attention_rows);
  const tile_deal deal{g.piece.tiles, g.piece.columns, static_cast<int>(gridDim.x) / 2,
                       static_cast<int>(blockIdx.x) / 2, reinterpret_cast<std::uint16_t*>(memory + shape::order)};
  const key_grad_block<T, Head> block{
      maps, g, base, reinterpret_cast<int*>(memory + shape::notes), deal, static_cast<int>(blockIdx.x) % 2, blocks};
  if (deal.sorted()) {
    int2* const looks = reinterpret_cast<int2*>(memory);
    for (int b = static_cast<int>(threadIdx.x); b < blocks; b += static_cast<int>(blockDim.x))
      looks[b] = make_int2(g.notes.bounds[b].x, g.notes.bounds[b].y);
    __syncthreads();
    deal.sort(reinterpret_cast<int*>(looks + blocks), [&](int in_piece) {
      const int t = g.piece.tile + in_piece;
      int n = 0;
      for (int b = 0; b < blocks; ++b) n += looks[b].x < (t + 1) * shape::keys && looks[b].y > t * shape::keys;
      return n;
    });
  }
  block.start();
  if (threadIdx.x < 128) {
    ptx::give_registers<(Head < 128 ? 40 : 24)>();  // together no more than a block begins with
    if (threadIdx.x < 32) block.produce();
  } else {
    ptx::take_registers<(Head < 128 ? 232 : 240)>();
    block.consume();
  }
  ptx::cluster_sync();  // nobody leaves while the other block may still write to it
#endif
}

}  // namespace graft::cuda
