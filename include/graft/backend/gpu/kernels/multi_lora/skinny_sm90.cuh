// SPDX-License-Identifier: Apache-2.0
// Multi-LoRA skinny GEMM, sm_90a (Punica BGMV/SGMV-style): up to 64 tokens, each with its own adapter or none.
//
//   y = act(scale ⊙ (x Wᵀ + U Bᵀ) + shift) + residual      U = x Aᵀ, with A, B, scale and shift of each token's record
//
// Base product   x Wᵀ as in skinny/sm90.cuh: producer threads, one consumer warpgroup, split-K within a cluster.
// Helper warps   Eight more warps compute the low-rank branches meanwhile: they group the tokens by record
//                (token_groups); a group of up to 8 tokens and 16 of its rank are one product of mma.sync.
// Shrink         The inner axis of each product is cut into up to four slices. One CTA of the grid computes a slice, so
//                that every A is read about once; partial sums of U meet in device memory.
// Expand         When all slices are there, each CTA adds them in order and expands the products for the rows it
//                finishes, into tiles [token][row] of shared memory: y = factor · (x Wᵀ) + expanded.
// Segments       Several layers with the same input (Q, K, V) in one launch, each with records of its own.
// Residency      All CTAs of the grid must be resident at once, because they wait for each other.
// Measured       H200, 4096 x 4096, bf16, 64 rows, 8 LoRA r16: 11.2 µs, 0.95 of cuBLASLt's bare layer
//                (docs/performance.md).
#pragma once
#include <graft/backend/gpu/arch/mma_sync.cuh>
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/dispatch/multi_lora.h>
#include <graft/backend/gpu/dispatch/skinny.h>
#include <graft/backend/gpu/kernels/multi_lora/adapter_record.h>
#include <graft/backend/gpu/kernels/skinny/sm90.cuh>
#include <graft/backend/gpu/tile/exchange.cuh>

namespace graft::gpu {

// ---- Groups of tokens

// Groups the tokens of a multi-LoRA batch by adapter record, inside each CTA of the skinny kernel: at most eight tokens
// of one record per group, the narrow operand of mma.sync.
//
// Up to 64 tokens in any order. Every CTA finds the groups itself, so that nothing must be prepared when rows change
// their adapters. Layers that are segments of one launch have the same groups.

// The record tables of the segments of a launch, and the record index of each row.
struct record_tables {
  const adapter_record* records[max_segments];
  const std::int64_t* of_row;
  int segments;
};

// Loads the record index of row h; -1: none. Everything else waits for it, so a CTA loads it first; volatile asm keeps
// the compiler from moving the load to its use.
__device__ __forceinline__ std::int64_t load_record_index(const record_tables& all, int m, int h) {
  std::int64_t index = -1;
  if (h >= 0 && h < m && h < max_multi_lora_rows) index = ptx::load_early(all.of_row + h);
  return index;
}

// The groups, in shared memory. With several segments a CTA needs A and rank of all, because it shrinks for all.
template <int Segments> struct alignas(16) token_groups {
  const float* scale[max_multi_lora_rows];
  const float* shift[max_multi_lora_rows];
  const void *a[Segments][max_multi_lora_rows],
      *b[max_multi_lora_rows];  // per group; B of this CTA's segment
  int rank[Segments][max_multi_lora_rows];
  int key[max_multi_lora_rows];                // per token: its record, where that has a low-rank branch; else -1
  signed char token[max_multi_lora_rows * 8];  // [group][8]; -1: none
  unsigned first_of_group[2], widest[2], epilogue_steps[2];  // per warp of 32 tokens

  __device__ int count() const { return __popc(first_of_group[0]) + __popc(first_of_group[1]); }
  // log2 of the chunks of 16 in the largest rank, rounded up to a power of two.
  __device__ int chunk_bits() const {
    const unsigned rank = widest[0] > widest[1] ? widest[0] : widest[1];
    return rank <= 16 ? 0 : rank <= 32 ? 1 : 2;
  }
  __device__ bool any_epilogue() const { return (epilogue_steps[0] | epilogue_steps[1]) != 0; }

  // Thread h of `Threads` >= 64 threads calls this; they synchronize on `Barrier`. `index` is the record of row h.
  template <int Barrier, int Threads>
  __device__ __forceinline__ void find(const record_tables& all, int own, int m, int h, std::int64_t index) {
    constexpr unsigned warp = 0xffffffffU;
    for (int i = h; i < max_multi_lora_rows * 2; i += Threads) reinterpret_cast<int*>(token)[i] = -1;
    const void *my_a[Segments], *my_b = nullptr;
    int my_rank[Segments], largest = 0;
    if (h < max_multi_lora_rows) {
      const bool inside = h < m;
      const adapter_record& r = all.records[own][index];
      scale[h] = r.scale, shift[h] = r.shift, my_b = r.b;
#pragma unroll
      for (int s = 0; s < Segments; ++s) {
        my_a[s] = nullptr, my_rank[s] = 0;
        if ((Segments > 1 && s >= all.segments) || index < 0) continue;
        const adapter_record& there = Segments > 1 ? all.records[s][index] : r;
        my_a[s] = there.a, my_rank[s] = static_cast<int>(there.rank);
        largest = largest < my_rank[s] ? my_rank[s] : largest;
      }
      key[h] = largest > 0 ? static_cast<int>(index) : -1;
      const unsigned most = __reduce_max_sync(warp, static_cast<unsigned>(largest));
      const unsigned any = __ballot_sync(warp, inside && (r.scale != nullptr || r.shift != nullptr));
      if (h % 32 == 0) widest[h / 32] = most, epilogue_steps[h / 32] = any;
    }
    ptx::named_barrier(Barrier, Threads);
    std::uint64_t same = 0;
    int before = 0;
    bool first = false;
    if (h < max_multi_lora_rows) {
      const int mine = key[h];
#pragma unroll
      for (int i = 0; i < max_multi_lora_rows; ++i) same |= static_cast<std::uint64_t>(key[i] == mine) << i;
      before = __popcll(same & ((std::uint64_t{1} << h) - 1));
      first = mine >= 0 && before % 8 == 0;
      const unsigned heads = __ballot_sync(warp, first);
      if (h % 32 == 0) first_of_group[h / 32] = heads;
    }
    ptx::named_barrier(Barrier, Threads);
    if (h < max_multi_lora_rows && key[h] >= 0) {
      const std::uint64_t firsts = first_of_group[0] | static_cast<std::uint64_t>(first_of_group[1]) << 32;
      std::uint64_t rest = same;
      for (int i = before & ~7; i > 0; --i) rest &= rest - 1;
      const int head = __ffsll(static_cast<long long>(rest)) - 1;
      const int group = __popcll(firsts & ((std::uint64_t{1} << head) - 1));
      token[group * 8 + before % 8] = static_cast<signed char>(h);
      if (first) {
        b[group] = my_b;
#pragma unroll
        for (int s = 0; s < Segments; ++s) a[s][group] = my_a[s], rank[s][group] = my_rank[s];
      }
    }
    ptx::named_barrier(Barrier, Threads);
  }
};

// ---- The kernel

struct multi_lora_skinny_args {
  record_tables tables;
  multi_lora_partials sums;
  const void* x;
  int k;
};

template <class T, int Tokens, int Rows, int Splits, int Segments> struct multi_lora_skinny_block {
  using token_groups = gpu::token_groups<Segments>;
  static constexpr int helpers = 256, warps = helpers / 32;
  static constexpr int own_rows = Rows / Splits, pitch = own_rows + 4;  // pitch: floats per token of a tile
  static constexpr int tile_bytes = Tokens * pitch * 4, sum_bytes = warps * 512, groups_bytes = sizeof(token_groups);
  using shape = skinny_shape<Tokens, Rows, Splits, 0, 2 * tile_bytes + sum_bytes + groups_bytes,
                             multi_lora_stages(multi_lora_kilobytes(Tokens, Segments), Rows, Tokens)>;
  using stream = skinny_cta<T, Tokens, Rows, Splits, 0, false, false, shape>;
  static constexpr int threads = stream::threads + helpers, owned = shape::owned;
  static constexpr int steps = 4;                                      // steps of 32 columns in flight
  static constexpr int expands = owned <= 2 ? 4 : owned <= 3 ? 2 : 1;  // products in flight
  static constexpr int branch_ready = 3, helper_barrier = 2;
  using tile_end = skinny_tile<T, own_rows, Tokens>;
  static_assert(groups_bytes % 16 == 0 && tile_bytes % 16 == 0);

  const stream& s;
  const multi_lora_skinny_args& g;
  int segment;
  token_groups& of;
  float *expanded, *factor, *sums;  // two tiles [token][row]; [warp][element of a product]

  __device__ int first_row() const { return s.row0 + s.split * own_rows; }

  // ---- consumer warpgroup -------------------------------------------------------------------------------------------
  __device__ void consume() const {
    typename stream::accumulators acc;
    const tile_end end{s.seg, s.g.m, first_row()};
    typename tile_end::vectors residual;
    const auto token = [](int local_token) { return local_token; };
    if (s.seg.residual != nullptr) end.load_residual(residual, token);
    s.accumulate(acc);
    if constexpr (Splits > 1) reduce_rows(s, acc);
    ptx::named_barrier(branch_ready, 128 + helpers);
    if (of.any_epilogue())
      finish(acc, [&](float v, int at) { return fmaf(v, factor[at], expanded[at]); });
    else
      finish(acc, [&](float v, int at) { return v + expanded[at]; });
    ptx::named_barrier(1, 128);
    end.store(ptx::shared_address(expanded), pitch, residual, token);
  }
  // Combines each accumulator with its expanded branch, in place: no other thread reads that element.
  template <class F>
  __device__ __forceinline__ void finish(const typename stream::accumulators& acc, const F& f) const {
#pragma unroll
    for (int b = 0; b < stream::blocks; ++b) {
      if (!s.finishes(b)) continue;
#pragma unroll
      for (int e = 0; e < Tokens / 2; ++e) {
        const int i = b * (Tokens / 2) + e;
        const int at = s.token_of(i) * pitch + s.row_of(i) - first_row();
        expanded[at] = f(acc[b][e], at);
      }
    }
  }

  // ---- helper warps -------------------------------------------------------------------------------------------------
  // A product of mma.sync: a group of tokens, and 16 of its rank in one of the segments.
  struct product {
    int segment, group, rank;
  };
  struct lane_coord {
    int warp, row, col;  // a lane's coordinates in mma.sync operands
  };
  __device__ void help(int h, std::int64_t record) const {
    const lane_coord at{h / 32, h % 32 / 4, h % 4};
    of.template find<helper_barrier, helpers>(g.tables, segment, s.g.m, h, record);
    const int bits = of.chunk_bits(), own = of.count() << bits, products = Segments > 1 ? own * g.tables.segments : own;
    const int mine = of.count() > at.warp ? (of.count() - at.warp + warps - 1) / warps << bits : 0;
    const int blocks = static_cast<int>(gridDim.x * gridDim.y),
              block = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x);
    const int slices = slices_of(products, blocks);
    const int tasks = products * slices, first_task = (block * tasks + blocks - 1) / blocks;
    // Loads are issued in the order of their use, and those that other CTAs wait for first.
    a_steps a;
    if (first_task * blocks < (block + 1) * tasks) prefetch_a(a, task_of(first_task, slices, bits, at), 0, at);
    std::uint32_t b[expands][owned][4];
    load_b(b, 0, mine, bits, at);
    fill_tiles(h);
    if (products > 0) {
      std::uint32_t begun = 0;
      if (h == 0) ptx::wait_for_dependency(), begun = __ldcg(g.sums.counters + 1);
      for (int t = first_task; t * blocks < (block + 1) * tasks; ++t)
        shrink(a, t, t == first_task, slices, bits, h, at);
      wait_for_partials(begun, block, blocks, h);
      for (int first = 0; first < mine; first += expands) {
        if (first > 0) load_b(b, first, mine, bits, at);
        expand(b, first, mine, bits, slices, at);
      }
    }
    ptx::named_arrive<branch_ready, 128 + helpers>();
  }
  __device__ product product_of(int p, int bits) const {
    const int group = p >> bits, rank = (p & ((1 << bits) - 1)) * 16;
    if (Segments == 1) return {0, group, rank};
    return {group / of.count(), group % of.count(), rank};
  }
  // Index of a warp's i-th product in this segment. A warp has all products of a group, because they add to the same y.
  __device__ int number_of(int i, int bits, int warp) const {
    const int first = Segments > 1 ? segment * of.count() : 0;
    return ((first + warp + warps * (i >> bits)) << bits) + (i & ((1 << bits) - 1));
  }
  // Slices of the inner axis: enough to spread the work, but at most four, because every CTA reads them all.
  __device__ static int slices_of(int products, int blocks) {
    const int available = blocks < multi_lora_partials::products ? blocks : multi_lora_partials::products;
    return products * 4 <= available ? 4 : products * 2 <= available ? 2 : 1;
  }
  // Initializes both tiles with scale and shift of each token's record.
  __device__ void fill_tiles(int h) const {
    if (!of.any_epilogue()) {
      for (int i = h; i < tile_bytes / 16; i += helpers)
        reinterpret_cast<float4*>(expanded)[i] = make_float4(0, 0, 0, 0);
      return;
    }
#pragma unroll 4
    for (int i = h; i < Tokens * own_rows; i += helpers) {
      const int token = i / own_rows, row = i % own_rows;  // both vectors are padded beyond the last row
      const float *const scale = of.scale[token], *const shift = of.shift[token];
      factor[token * pitch + row] = scale != nullptr ? __ldg(scale + first_row() + row) : 1.0F;
      expanded[token * pitch + row] = shift != nullptr ? __ldg(shift + first_row() + row) : 0.0F;
    }
  }
  // A slice of a product, divided among all helper warps. A thread has eight adjacent columns of each of its steps,
  // both in A and in x, because the order of the inner axis is free.
  struct task {
    product of;
    int begin, end;  // this warp's steps
  };
  struct a_steps {
    uint4 low[steps], high[steps];
  };
  __device__ task task_of(int t, int slices, int bits, lane_coord at) const {
    const int all = (g.k + 31) / 32, part = t % slices * warps + at.warp;
    return {product_of(t / slices, bits), all * part / (slices * warps), all * (part + 1) / (slices * warps)};
  }
  __device__ bool inside(const task& now, int step, lane_coord at) const {
    return step < now.end && step * 32 + at.col * 8 < g.k;
  }
  __device__ __forceinline__ void prefetch_a(a_steps& to, const task& now, int first, lane_coord at) const {
    const product& p = now.of;
    const T* const a =
        static_cast<const T*>(of.a[p.segment][p.group]) + static_cast<long long>(p.rank + at.row) * g.k + at.col * 8;
    const bool reaches = p.rank < of.rank[p.segment][p.group];
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      const int step = now.begin + first + i;
      to.low[i] = to.high[i] = make_uint4(0, 0, 0, 0);
      if (!reaches || !inside(now, step, at)) continue;
      to.low[i] = __ldg(reinterpret_cast<const uint4*>(a + step * 32));
      to.high[i] = __ldg(reinterpret_cast<const uint4*>(a + 8LL * g.k + step * 32));
    }
  }
  __device__ void shrink(a_steps& a, int t, bool prefetched, int slices, int bits, int h, lane_coord at) const {
    const task now = task_of(t, slices, bits, at);
    const int token = of.token[now.of.group * 8 + at.row];
    const T* const x = static_cast<const T*>(g.x) + static_cast<long long>(token) * g.k + at.col * 8;
    float sum[4] = {};
    for (int first = 0; now.begin + first < now.end; first += steps) {
      if (!prefetched || first > 0) prefetch_a(a, now, first, at);
      ptx::wait_for_dependency();
      uint4 in[steps];
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        const int step = now.begin + first + i;
        in[i] = make_uint4(0, 0, 0, 0);
        if (token >= 0 && inside(now, step, at)) in[i] = *reinterpret_cast<const uint4*>(x + step * 32);
      }
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        const std::uint32_t a0[4] = {a.low[i].x, a.high[i].x, a.low[i].y, a.high[i].y},
                            a1[4] = {a.low[i].z, a.high[i].z, a.low[i].w, a.high[i].w}, x0[2] = {in[i].x, in[i].y},
                            x1[2] = {in[i].z, in[i].w};
        ptx::mma_m16n8k16<T>(sum, a0, x0);
        ptx::mma_m16n8k16<T>(sum, a1, x1);
      }
    }
    if (!prefetched) ptx::named_barrier(helper_barrier, helpers);  // the sums of the previous task have been read
    // Stored as [token][rank], which expand reads.
    float* const to = sums + at.warp * 128 + at.col * 32 + at.row;
    to[0] = sum[0], to[16] = sum[1], to[8] = sum[2], to[24] = sum[3];
    ptx::named_barrier(helper_barrier, helpers);
    if (h < 128) {
      float v = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) v += sums[w * 128 + h];
      g.sums.s[t * 128 + h] = v;
    }
  }
  // Waits for the slices of all CTAs. The count only grows: `begun` is its value before this launch, which CTA 0
  // advances after every CTA has read it.
  __device__ void wait_for_partials(std::uint32_t begun, int block, int blocks, int h) const {
    ptx::named_barrier(helper_barrier, helpers);  // also for the initialized tiles
    if (h == 0) {
      const arrival_counter done{g.sums.counters};
      done.arrive();
      done.wait_for(blocks, begun);
      if (block == 0) g.sums.counters[1] = begun + static_cast<std::uint32_t>(blocks);
    }
    ptx::named_barrier(helper_barrier, helpers);
  }
  __device__ void load_b(std::uint32_t (&b)[expands][owned][4], int first, int mine, int bits, lane_coord lane) const {
#pragma unroll
    for (int i = 0; i < expands; ++i)
#pragma unroll
      for (int u = 0; u < owned; ++u) {
        b[i][u][0] = b[i][u][1] = b[i][u][2] = b[i][u][3] = 0;
        if (first + i >= mine) continue;
        const product p = product_of(number_of(first + i, bits, lane.warp), bits);
        const int width = of.rank[Segments > 1 ? segment : 0][p.group], rank = p.rank + 4 * lane.col,
                  at = first_row() + u * 16 + lane.row;
        if (rank >= width) continue;
        const T* const from = static_cast<const T*>(of.b[p.group]) + static_cast<long long>(at) * width + rank;
        const uint2 low = at < s.seg.n ? prefetch(from) : make_uint2(0, 0),
                    high = at + 8 < s.seg.n ? prefetch(from + 8 * width) : make_uint2(0, 0);
        b[i][u][0] = low.x, b[i][u][2] = low.y, b[i][u][1] = high.x, b[i][u][3] = high.y;
      }
  }
  // Loads four adjacent elements of the rank. Their order within a product is free, and U uses the same order.
  __device__ static uint2 prefetch(const T* p) { return __ldg(reinterpret_cast<const uint2*>(p)); }
  __device__ void expand(const std::uint32_t (&b)[expands][owned][4], int first, int mine, int bits, int slices,
                         lane_coord lane) const {
    float4 part[expands][4];
#pragma unroll
    for (int i = 0; i < expands; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int p = number_of(first + i, bits, lane.warp);
        part[i][k] = make_float4(0, 0, 0, 0);
        if (first + i < mine && k < slices)
          part[i][k] =
              __ldcg(reinterpret_cast<const float4*>(g.sums.s) + (p * slices + k) * 32 + lane.row * 4 + lane.col);
      }
    const bool epilogue_steps = of.any_epilogue();
#pragma unroll
    for (int i = 0; i < expands; ++i) {
      if (first + i >= mine) continue;
      float4 sum = part[i][0];
#pragma unroll
      for (int k = 1; k < 4; ++k)
        sum.x += part[i][k].x, sum.y += part[i][k].y, sum.z += part[i][k].z, sum.w += part[i][k].w;
      const std::uint32_t x[2] = {pack<T>(sum.x, sum.y), pack<T>(sum.z, sum.w)};
      const signed char* const token =
          of.token + product_of(number_of(first + i, bits, lane.warp), bits).group * 8 + 2 * lane.col;
#pragma unroll
      for (int u = 0; u < owned; ++u) {
        float y[4] = {};
        ptx::mma_m16n8k16<T>(y, b[i][u], x);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (token[e & 1] < 0) continue;
          const int at = token[e & 1] * pitch + u * 16 + lane.row + 8 * (e >> 1);
          expanded[at] = fmaf(y[e], epilogue_steps ? factor[at] : 1.0F, expanded[at]);
        }
      }
    }
  }
};

template <class T, int Tokens, int Rows, int Splits, int Segments>
__global__ void __launch_bounds__(multi_lora_skinny_block<T, Tokens, Rows, Splits, Segments>::threads)
    multi_lora_skinny_kernel(const __grid_constant__ skinny_maps maps, const __grid_constant__ skinny_args g,
                             const __grid_constant__ multi_lora_skinny_args multi_lora) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  using kernel = multi_lora_skinny_block<T, Tokens, Rows, Splits, Segments>;
  const int helper = static_cast<int>(threadIdx.x) - kernel::stream::threads;
  const std::int64_t record = load_record_index(multi_lora.tables, g.m, helper);
  const std::uint32_t base = (ptx::shared_address(raw) + 1023) & ~1023U;
  std::uint8_t* const extra = raw + (base - ptx::shared_address(raw)) + kernel::shape::extra;
  const int tile = static_cast<int>(blockIdx.y), split = static_cast<int>(blockIdx.x);
  int s = 0;
  if constexpr (Segments > 1)
    s = (tile >= g.first_tile[1] ? 1 : 0) + (tile >= g.first_tile[2] ? 1 : 0) + (tile >= g.first_tile[3] ? 1 : 0);
  const typename kernel::stream block{maps,
                                      g,
                                      g.segment[s],
                                      maps.w[s],
                                      maps.x[s],
                                      base,
                                      (tile - g.first_tile[s]) * Rows,
                                      split,
                                      g.k_steps * split / Splits,
                                      g.k_steps * (split + 1) / Splits};
  auto* const expanded = reinterpret_cast<float*>(extra + kernel::groups_bytes);
  float* const factor = expanded + kernel::tile_bytes / 4;
  const kernel with{block,
                    multi_lora,
                    s,
                    *reinterpret_cast<typename kernel::token_groups*>(extra),
                    expanded,
                    factor,
                    factor + kernel::tile_bytes / 4};
  block.start();
  if (threadIdx.x < 128)
    with.consume();
  else if (threadIdx.x == 128)
    block.request_w();
  else if (threadIdx.x == 160)
    block.request_x();
  else if (helper >= 0)
    with.help(helper, record);
#endif
}

}  // namespace graft::gpu
