// SPDX-License-Identifier: Apache-2.0
// The first half of attention's backward pass, sm_90a: the gradient of the queries. With P = softmax(Q Kᵀ / √head) from
// the sums that forward left, and D = <dO, O> of each row,
//     dP = dO Vᵀ        dS = P ⊙ (dP - D)        dQ = dS K / √head
// A thread block is organised as in attention_prefill.cuh, with rows of dO beside those of Q. It leaves what the second
// half (attention_dkv.cuh) reads: the sums and D of 64 rows together, and what rows look at, in 32 bits and for 64 at once.
#pragma once
#include <graft/backend/cuda/attention_rows.cuh>
#include <graft/backend/cuda/attention_tiles.cuh>

namespace graft::cuda {

struct query_grad_maps {
  CUtensorMap q, d_out, k, v, dq;
};
// What the first half leaves; rows are padded to whole tiles.
struct attention_notes {
  float* numbers;  // [heads][blocks of 64 rows]: 64 sums times log2(e), +inf where a row looks at nothing; then 64 D
  int2* spans;     // [rows]: first and end
  int4* bounds;  // [blocks of 64 rows]: all rows look at keys within x to y, and every row that looks at any at z to w
};
struct query_grad_args {
  row_spans spans;
  int heads, group;
  float scale;
  const void* out;    // [rows][heads * head]
  const float* sums;  // as forward left them
  attention_notes notes;
};

template <class T, int Head> struct query_grad_block {
  using shape = query_grad_shape<Head>;
  static constexpr int keys = shape::keys;

  const query_grad_maps& maps;
  const query_grad_args& g;
  std::uint32_t base;
  int2* notes;  // as in attention_prefill.cuh
  tile_deal deal;

  __device__ std::uint32_t q_full(int w) const { return base + shape::barriers + 8 * w; }
  __device__ std::uint32_t q_empty(int w) const { return q_full(2 + w); }
  __device__ std::uint32_t o_full(int w) const { return q_full(4 + w); }
  __device__ std::uint32_t o_empty(int w) const { return q_full(6 + w); }
  __device__ std::uint32_t full(int i) const { return q_full(8 + i); }
  __device__ std::uint32_t empty(int i) const { return full(shape::stages + i); }
  __device__ std::uint32_t stage(int i) const { return base + shape::ring + i * shape::tile; }
  __device__ std::uint32_t q_rows(int w) const { return base + 2 * w * shape::rows_bytes; }
  __device__ std::uint32_t o_rows(int w) const { return q_rows(w) + shape::rows_bytes; }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 8; ++i) ptx::barrier_init(q_full(i), 1);
      for (int i = 0; i < shape::stages; ++i) ptx::barrier_init(full(i), 1), ptx::barrier_init(empty(i), 8);
      ptx::barrier_init_fence();
    }
    __syncthreads();
  }

  // What 64 rows look at, by the warp that has them two to a lane.
  __device__ void note_bounds(const key_walk<keys>& walk, int tile, int lane) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int low = INT_MAX, high = 0, last_low = 0, first_high = INT_MAX;
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        const bool any = walk.high[i] > 0;
        low = ::min(low, walk.low[i]), high = ::max(high, walk.high[i]);
        if (any) last_low = ::max(last_low, walk.low[i]), first_high = ::min(first_high, walk.high[i]);
        g.notes.spans[tile * attention_rows + i * 32 + lane] = make_int2(walk.low[i], walk.high[i]);
      }
      low = __reduce_min_sync(~0U, low), high = __reduce_max_sync(~0U, high);
      last_low = __reduce_max_sync(~0U, last_low), first_high = __reduce_min_sync(~0U, first_high);
      if (lane == 0) g.notes.bounds[2 * tile + half] = make_int4(low, high, last_low, first_high);
    }
  }

  __device__ void produce() const {
    const int lane = static_cast<int>(threadIdx.x);
    int at = 0, tile, head;
    std::uint32_t phase = 1;
    auto put = [&](const CUtensorMap* map, int block, int2 note) {
      if (lane == 0) {
        ptx::barrier_wait(empty(at), phase);
        notes[at] = note;
        ptx::barrier_expect(full(at), shape::tile);
        ptx::load_box(stage(at), map, block * keys, head / g.group * shape::chunks, full(at));
      }
      if (++at == shape::stages) at = 0, phase ^= 1;
    };
#pragma unroll 1
    for (int i = 0; deal.take(i, tile, head); ++i) {
      const key_walk<keys> walk(g.spans, tile * attention_rows, lane);
      if (head == 0) note_bounds(walk, tile, lane);
      bool first = true;
#pragma unroll 1
      for (int now = ::max(0, walk.before(INT_MAX)), next; now >= 0; now = next) {
        next = walk.before(now * keys);
        const int whole = walk.whole(now) ? 1 : 0;
        put(&maps.k, now, make_int2(now * keys, whole + (next >= 0 ? 2 : 0)));
        put(&maps.v, now, make_int2(0, 0));
        if (lane == 0 && first) {
#pragma unroll 1
          for (int w = 0; w < 4; ++w) {  // Q of both warpgroups, then dO
            const std::uint32_t barrier = w < 2 ? q_full(w) : o_full(w - 2);
            ptx::barrier_wait(barrier + 16, (i & 1) ^ 1);
            ptx::barrier_expect(barrier, shape::rows_bytes);
            ptx::load_box(w < 2 ? q_rows(w) : o_rows(w - 2), w < 2 ? &maps.q : &maps.d_out,
                          tile * attention_rows + w % 2 * 64, head * shape::chunks, barrier);
          }
        }
        first = false;
      }
    }
  }

  // D of row r, four lanes a row; `row` is its place among the 64 of the warpgroup.
  __device__ float row_product(int r, int row, int head, std::uint32_t d_out, int part) const {
    constexpr int pieces = Head / 8, each = (pieces + 3) / 4;
    const T* const from = static_cast<const T*>(g.out) + (static_cast<long long>(r) * g.heads + head) * Head;
    uint4 o[each];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int piece = part + 4 * i;
      o[i] = ptx::load_once(from + piece * 8, r < g.spans.rows && piece < pieces);
    }
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int column = ::min(part + 4 * i, pieces - 1) * 8;  // where there is no such piece, o is zero
      const uint4 d = ptx::load_shared_uint4(d_out + column / shape::chunk * 64 * shape::pitch +
                                             tile_offset(row, column % shape::chunk, shape::pitch));
      const T *a = reinterpret_cast<const T*>(&o[i]), *b = reinterpret_cast<const T*>(&d);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum += to_float(a[e]) * to_float(b[e]);
    }
    sum += __shfl_xor_sync(~0U, sum, 1);
    return sum + __shfl_xor_sync(~0U, sum, 2);
  }

  __device__ void consume() const {
    const int group = static_cast<int>(threadIdx.x / 128) - 1, warp = static_cast<int>(threadIdx.x / 32 % 4),
              lane = static_cast<int>(threadIdx.x % 32);
    const bool leader = threadIdx.x % 128 == 0;
    const int in_group = warp * 16 + lane / 4, own_column = lane % 4 * 2;
    const float c = g.scale * log2_e;
    const int blocks = 2 * deal.tiles;
    constexpr std::uint32_t next_chunk = keys * shape::pitch, next_rows = 64 * shape::pitch;
    int at = 0, tile, head;
    std::uint32_t phase = 0;
    float s[keys / 2], dp[keys / 2], dq[Head / 2];
    std::uint32_t ds[keys / 16][4];
    thread_rows rows;
    auto advance = [&] {
      if (++at == shape::stages) at = 0, phase ^= 1;
    };
    auto release = [&](int which) {  // each warp for itself
      if (lane == 0) ptx::barrier_arrive(empty(which));
    };
#pragma unroll 1
    for (int i = 0; deal.take(i, tile, head); ++i) {
      float shift[2], d[2];
      const int row0 = tile * attention_rows + group * 64;
      rows.load(g.spans, row0 + in_group);
      ptx::barrier_wait(q_full(group), i & 1);
      int before = -1, more = 1;
#pragma unroll 1
      for (bool first = true; more != 0; first = false) {
        const int with_k = at;
        ptx::barrier_wait(full(at), phase);
        multiply_heads<T, Head, keys>(s, q_rows(group), next_rows, stage(at), next_chunk);
        const int2 note = read_note(notes + at, lane);
        more = note.y & 2;
        advance();
        wgmma_wait<1>();  // the sums of the block before are done: dS is free, and its K
        if (before >= 0) release(before);
        if (first) {
          ptx::barrier_wait(o_full(group), i & 1);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int r = row0 + in_group + 8 * h, block = 2 * tile + group;
            d[h] = row_product(r, in_group + 8 * h, head, o_rows(group), lane % 4);
            shift[h] = r < g.spans.rows ? -log2_e * g.sums[static_cast<long long>(head) * g.spans.rows + r] : -INFINITY;
            float* const to =
                g.notes.numbers + (static_cast<long long>(head) * blocks + block) * 128 + in_group + 8 * h;
            if (lane % 4 == 0) to[0] = -shift[h], to[64] = d[h];
          }
        }
        ptx::barrier_wait(full(at), phase);
        multiply_heads<T, Head, keys>(dp, o_rows(group), next_rows, stage(at), next_chunk);
        wgmma_wait<1>(), pin(s);
        if (leader && more == 0) ptx::barrier_arrive(q_empty(group));
        if ((note.y & 1) == 0) rows.mask(s, note.x + own_column);
#pragma unroll
        for (int e = 0; e < keys / 2; ++e) s[e] = exp2_fast(fmaf(s[e], c, shift[e / 2 % 2]));
        wgmma_wait<0>(), pin(dp);
        release(at);
        advance();
#pragma unroll
        for (int e = 0; e < keys / 2; ++e) s[e] *= dp[e] - d[e / 2 % 2];
        pack_rows<T>(ds, s);
        multiply_rows<T, Head>(dq, ds, stage(with_k), next_chunk, !first);
        before = with_k;
      }
      wgmma_wait<0>(), pin(dq);
      release(before);
      store_rows<T, Head>(&maps.dq, dq, g.scale, g.scale, o_rows(group), row0, head, 1 + group);
      if (leader) ptx::stores_have_read<0>(), ptx::barrier_arrive(o_empty(group));
    }
    if (leader) ptx::stores_done();
  }
};

template <class T, int Head>
__global__ void __launch_bounds__(384, 1)
    query_grad_kernel(const __grid_constant__ query_grad_maps maps, const __grid_constant__ query_grad_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using shape = query_grad_shape<Head>;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  std::uint8_t* const memory = raw + (base - at);
  const tile_deal deal{(g.spans.rows + attention_rows - 1) / attention_rows, g.heads, static_cast<int>(gridDim.x),
                       static_cast<int>(blockIdx.x), reinterpret_cast<std::uint16_t*>(memory + shape::order)};
  const query_grad_block<T, Head> block{maps, g, base, reinterpret_cast<int2*>(memory + shape::notes), deal};
  deal.sort(reinterpret_cast<int*>(memory), [&](int t) { return rows_work(g.spans, t); });
  block.start();
  if (threadIdx.x < 128) {
    ptx::give_registers<40>();
    if (threadIdx.x < 32) block.produce();
  } else {
    ptx::take_registers<232>();
    block.consume();
  }
#endif
}

}  // namespace graft::cuda
