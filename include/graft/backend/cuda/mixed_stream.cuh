// SPDX-License-Identifier: Apache-2.0
// stream for batches that mix adapters: up to 64 tokens, each with its own record or none, in one launch, sm_90a.
//
// The weights stream as for one adapter (stream.cuh). Eight more warps do the rest meanwhile: they group the tokens by
// record, at most eight to a group; shrink this block's share of the inner axis for all tokens, so that every A is read
// once in the whole grid; add up the shares in device memory; and, when all blocks have, expand them for the rows that
// this block finishes. A group and sixteen of its rank are one product of mma.sync. All blocks of the grid must be
// resident at the same time. The order in which shares are added is not fixed: the last bits of y vary.
//
// The expanded side branch lies where the ring of weights was; consumers add it, with their token's factor and summand.
#pragma once
#include <graft/backend/cuda/gemm_mma.cuh>
#include <graft/backend/cuda/mixed_record.h>
#include <graft/backend/cuda/stream.cuh>

namespace graft::cuda {

struct mixed_args {
  mixed_batch batch;
  mixed_sums sums;
  const void* x;
  int k;
};

// What the helpers find out about the tokens.
struct mixed_groups {
  const float* scale[max_mixed_rows];
  const float* shift[max_mixed_rows];
  const void *a[max_mixed_rows], *b[max_mixed_rows];  // of each group
  int rank[max_mixed_rows];
  signed char token[max_mixed_rows * 8];       // -1: none
  int key[max_mixed_rows];                     // of each token: its record, where that has a side branch; else -1
  unsigned first_of_group[2], most_chunks[2];  // by warp
  int last_block, posts;
};

template <class T, int Tokens, int Rows, int Splits> struct mixed_block {
  using stream = stream_block<T, Tokens, Rows, Splits, 0, false>;
  using shape = typename stream::shape;
  static constexpr int helpers = 256, warps = helpers / 32, threads = stream::threads + helpers;
  static constexpr int own_rows = shape::owned * 16, pitch = own_rows + 4;  // of the expanded branch: floats of a token
  static constexpr int shrinks = 6, expands = shape::owned <= 2 ? 6 : shape::owned <= 3 ? 4 : 2;  // at the same time
  static constexpr std::uint32_t groups_at = shape::barriers + 512, bytes = shape::bytes + sizeof(mixed_groups);
  static_assert(bytes <= shared_memory_limit && Tokens * pitch * 4 <= shape::stages * shape::stage);

  const stream& s;
  const mixed_args& g;
  float* side;  // [token][own row], in the ring
  mixed_groups& of;

  __device__ int first_row() const { return s.row0 + s.split * own_rows; }
  __device__ static void arrive(int barrier) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(128 + helpers) : "memory");
  }
  static constexpr int ring_is_free = 3, side_is_there = 4, among_helpers = 2;

  // ---- one warpgroup ------------------------------------------------------------------------------------------------
  __device__ void consume() const {
    typename stream::accumulators acc;
    typename stream::pairs residual;
    if (s.seg.residual != nullptr) s.load_residual(residual);
    s.accumulate(acc);
    arrive(ring_is_free);
    if constexpr (Splits > 1) s.exchange(acc);
    ptx::named_barrier(side_is_there, 128 + helpers);
    const bool posts = of.posts != 0;
#pragma unroll
    for (int e = 0; e < stream::held; ++e) {
      if (!s.finishes(e)) continue;
      const int token = s.token_of(e), row = s.row_of(e);
      float& v = acc[e / (Tokens / 2)][e % (Tokens / 2)];
      if (of.key[token] >= 0) v += side[token * pitch + row - first_row()];
      if (!posts || token >= s.g.m) continue;
      if (const float* const scale = of.scale[token]; scale != nullptr) v *= __ldg(scale + row);
      if (const float* const shift = of.shift[token]; shift != nullptr) v += __ldg(shift + row);
    }
    if (s.seg.act != activation::none)
#pragma unroll
      for (auto& sums : acc) stream::activate_any(sums, s.seg.act);
    s.store(acc, residual);
  }

  // ---- eight warps --------------------------------------------------------------------------------------------------
  __device__ void help() const {
    const int h = static_cast<int>(threadIdx.x) - stream::threads, warp = h / 32, lane = h % 32, row = lane / 4,
              col = lane % 4;
    const int groups = group_tokens(h);
    const int chunks = static_cast<int>(of.most_chunks[0] > of.most_chunks[1] ? of.most_chunks[0] : of.most_chunks[1]);
    const int mine = groups > warp ? ((groups - warp + warps - 1) / warps) * chunks : 0;  // products of this warp
    bring_posts(h);
    const auto blocks = static_cast<std::uint32_t>(gridDim.x * gridDim.y);
    if (groups > 0) {
      shrink(mine, chunks, warp, row, col);
      ptx::named_barrier(among_helpers, helpers);
      if (h == 0) ptx::wait_for_previous_kernel(), ptx::add_acquire_release(g.sums.counters, 1);
    }
    std::uint32_t b[expands][shape::owned][4];
    load_b(b, 0, mine, chunks, warp, row, col);
    if (groups > 0) {
      if (lane == 0)
        while (ptx::load_acquire(g.sums.counters) < blocks) {}
      __syncwarp();
    }
    for (int first = 0; first < mine; first += expands) {
      if (first > 0) load_b(b, first, mine, chunks, warp, row, col);
      float sum[expands][4];
#pragma unroll
      for (int i = 0; i < expands; ++i)
        if (first + i < mine) {
          const float* const at = sums_of(first + i, chunks, warp) + 2 * col * 8 + row;
          sum[i][0] = __ldcg(at), sum[i][1] = __ldcg(at + 8), sum[i][2] = __ldcg(at + 64), sum[i][3] = __ldcg(at + 72);
        }
      if (first == 0) ptx::named_barrier(ring_is_free, 128 + helpers);
      expand(b, sum, first, mine, chunks, warp, row, col);
    }
    if (mine == 0) ptx::named_barrier(ring_is_free, 128 + helpers);
    arrive(side_is_there);
    if (groups > 0) clear_sums(h, groups * chunks, blocks);
  }
  // Sums of product j of this warp, [rank][token of the group].
  __device__ float* sums_of(int j, int chunks, int warp) const {
    return g.sums.s + ((warp + warps * (j / chunks)) * chunks + j % chunks) * 128;
  }
  __device__ int group_of(int j, int chunks, int warp) const { return warp + warps * (j / chunks); }

  // Tokens of one record in groups of at most eight; how many groups there are.
  __device__ int group_tokens(int h) const {
    const int lane = h % 32;
    if (h == 0) of.posts = 0;
    for (int i = h; i < max_mixed_rows * 2; i += helpers) reinterpret_cast<int*>(of.token)[i] = -1;
    ptx::named_barrier(among_helpers, helpers);
    mixed_record r;
    if (h < max_mixed_rows) {
      const bool inside = h < s.g.m;
      const std::int64_t index = inside ? g.batch.of_row[h] : -1;
      r = g.batch.records[index];
      of.scale[h] = r.scale, of.shift[h] = r.shift;
      of.key[h] = inside && index >= 0 && r.rank > 0 ? static_cast<int>(index) : -1;
      if (inside && (r.scale != nullptr || r.shift != nullptr)) of.posts = 1;
      const unsigned chunks = of.key[h] >= 0 ? static_cast<unsigned>(r.rank / 16) : 0;
      const unsigned most = __reduce_max_sync(0xffffffffU, chunks);
      if (lane == 0) of.most_chunks[h / 32] = most;
    }
    ptx::named_barrier(among_helpers, helpers);
    std::uint64_t same = 0;
    int before = 0;
    bool first = false;
    if (h < max_mixed_rows) {
      const int key = of.key[h];
#pragma unroll
      for (int i = 0; i < max_mixed_rows; ++i) same |= static_cast<std::uint64_t>(of.key[i] == key) << i;
      before = __popcll(same & ((std::uint64_t{1} << h) - 1));
      first = key >= 0 && before % 8 == 0;
      const unsigned all = __ballot_sync(0xffffffffU, first);
      if (lane == 0) of.first_of_group[h / 32] = all;
    }
    ptx::named_barrier(among_helpers, helpers);
    const std::uint64_t firsts = of.first_of_group[0] | static_cast<std::uint64_t>(of.first_of_group[1]) << 32;
    if (h < max_mixed_rows && of.key[h] >= 0) {
      std::uint64_t rest = same;
      for (int i = before & ~7; i > 0; --i) rest &= rest - 1;
      const int head = __ffsll(static_cast<long long>(rest)) - 1;
      const int group = __popcll(firsts & ((std::uint64_t{1} << head) - 1));
      of.token[group * 8 + before % 8] = static_cast<signed char>(h);
      if (first) of.a[group] = r.a, of.b[group] = r.b, of.rank[group] = static_cast<int>(r.rank);
    }
    ptx::named_barrier(among_helpers, helpers);
    return __popcll(firsts);
  }
  // Factors and summands of the rows that this block finishes: consumers ask for them all at once, at the end.
  __device__ void bring_posts(int h) const {
    if (of.posts == 0) return;
    const int token = h % max_mixed_rows;
    const float* const at = h / max_mixed_rows % 2 == 0 ? of.scale[token] : of.shift[token];
    for (int i = h / (2 * max_mixed_rows) * 32; at != nullptr && i < own_rows + 31; i += 64)
      ptx::bring(at + first_row() + (i < own_rows ? i : own_rows - 1));
  }
  // The share of this block: steps of 32 columns. A thread has eight neighbouring columns of a step, in A and in x alike:
  // the order of the inner axis is free.
  __device__ void shrink(int mine, int chunks, int warp, int row, int col) const {
    const long long steps = (g.k + 31) / 32, blocks = gridDim.x * gridDim.y,
                    slice = blockIdx.y * gridDim.x + blockIdx.x;
    const int begin = static_cast<int>(steps * slice / blocks), end = static_cast<int>(steps * (slice + 1) / blocks);
    for (int first = 0; first < mine; first += shrinks) {
      float sum[shrinks][4] = {};
      for (int step = begin; step < end; ++step) {
        const int at = step * 32 + col * 8;
        const bool inside = at < g.k;
        uint4 low[shrinks], high[shrinks], x[shrinks];
#pragma unroll
        for (int i = 0; i < shrinks; ++i) {
          low[i] = high[i] = x[i] = make_uint4(0, 0, 0, 0);
          if (first + i >= mine || !inside) continue;
          const int group = group_of(first + i, chunks, warp), rank = (first + i) % chunks * 16 + row;
          if (rank >= of.rank[group]) continue;
          const T* const a = static_cast<const T*>(of.a[group]) + static_cast<long long>(rank) * g.k + at;
          low[i] = __ldg(reinterpret_cast<const uint4*>(a));
          high[i] = __ldg(reinterpret_cast<const uint4*>(a + 8LL * g.k));
        }
        ptx::wait_for_previous_kernel();
#pragma unroll
        for (int i = 0; i < shrinks; ++i) {
          if (first + i >= mine || !inside) continue;
          const int token = of.token[group_of(first + i, chunks, warp) * 8 + row];
          if (token >= 0)
            x[i] =
                *reinterpret_cast<const uint4*>(static_cast<const T*>(g.x) + static_cast<long long>(token) * g.k + at);
        }
#pragma unroll
        for (int i = 0; i < shrinks; ++i) {
          const std::uint32_t a0[4] = {low[i].x, high[i].x, low[i].y, high[i].y},
                              a1[4] = {low[i].z, high[i].z, low[i].w, high[i].w}, x0[2] = {x[i].x, x[i].y},
                              x1[2] = {x[i].z, x[i].w};
          mma::multiply<T>(sum[i], a0, x0);
          mma::multiply<T>(sum[i], a1, x1);
        }
      }
#pragma unroll
      for (int i = 0; i < shrinks; ++i) {
        if (first + i >= mine || begin == end) continue;
        if (of.token[group_of(first + i, chunks, warp) * 8 + 2 * col] < 0) continue;
        float* const to = sums_of(first + i, chunks, warp) + row * 8 + 2 * col;
        add_two(to, sum[i][0], sum[i][1]), add_two(to + 64, sum[i][2], sum[i][3]);
      }
    }
  }
  __device__ static void add_two(float* to, float a, float b) {
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(a), "f"(b) : "memory");
  }
  __device__ void load_b(std::uint32_t (&b)[expands][shape::owned][4], int first, int mine, int chunks, int warp,
                         int row, int col) const {
#pragma unroll
    for (int i = 0; i < expands; ++i)
#pragma unroll
      for (int u = 0; u < shape::owned; ++u) {
        b[i][u][0] = b[i][u][1] = b[i][u][2] = b[i][u][3] = 0;
        if (first + i >= mine) continue;
        const int group = group_of(first + i, chunks, warp), width = of.rank[group];
        const int rank = (first + i) % chunks * 16 + 2 * col, at = first_row() + u * 16 + row;
        if (rank >= width) continue;
        const T* const p = static_cast<const T*>(of.b[group]) + static_cast<long long>(at) * width + rank;
        if (at < s.seg.n) b[i][u][0] = ask(p), b[i][u][2] = ask(p + 8);
        if (at + 8 < s.seg.n) b[i][u][1] = ask(p + 8 * width), b[i][u][3] = ask(p + 8 * width + 8);
      }
  }
  __device__ static std::uint32_t ask(const T* p) { return __ldg(reinterpret_cast<const unsigned*>(p)); }
  __device__ void expand(const std::uint32_t (&b)[expands][shape::owned][4], const float (&sum)[expands][4], int first,
                         int mine, int chunks, int warp, int row, int col) const {
#pragma unroll
    for (int i = 0; i < expands; ++i) {
      if (first + i >= mine) continue;
      const bool more = (first + i) % chunks > 0;  // of the rank: added to what is there
      const std::uint32_t x[2] = {pack<T>(sum[i][0], sum[i][1]), pack<T>(sum[i][2], sum[i][3])};
      const signed char* const token = of.token + group_of(first + i, chunks, warp) * 8 + 2 * col;
#pragma unroll
      for (int u = 0; u < shape::owned; ++u) {
        float y[4] = {};
        mma::multiply<T>(y, b[i][u], x);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (token[e & 1] < 0) continue;
          float* const to = side + token[e & 1] * pitch + u * 16 + row + 8 * (e >> 1);
          *to = more ? *to + y[e] : y[e];
        }
      }
    }
  }
  // The block that reads the sums last leaves zeros.
  __device__ void clear_sums(int h, int products, std::uint32_t blocks) const {
    ptx::named_barrier(among_helpers, helpers);
    if (h == 0) of.last_block = ptx::add_acquire_release(g.sums.counters + 1, 1) == blocks - 1 ? 1 : 0;
    ptx::named_barrier(among_helpers, helpers);
    if (of.last_block == 0) return;
    for (int i = h; i < products * 128; i += helpers) g.sums.s[i] = 0;
    if (h < 2) g.sums.counters[h] = 0;
  }
};

template <class T, int Tokens, int Rows, int Splits>
__global__ void __launch_bounds__(mixed_block<T, Tokens, Rows, Splits>::threads)
    mixed_stream_kernel(const __grid_constant__ stream_maps maps, const __grid_constant__ stream_args g,
                        const __grid_constant__ mixed_args mixed) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  using kernel = mixed_block<T, Tokens, Rows, Splits>;
  const std::uint32_t base = (ptx::shared_address(raw) + 1023) & ~1023U;
  std::uint8_t* const shared = raw + (base - ptx::shared_address(raw));
  const int split = static_cast<int>(blockIdx.x);
  const typename kernel::stream block{maps,
                                      g,
                                      g.segment[0],
                                      maps.w[0],
                                      base,
                                      static_cast<int>(blockIdx.y) * Rows,
                                      split,
                                      g.k_steps * split / Splits,
                                      g.k_steps * (split + 1) / Splits};
  const kernel with{block, mixed, reinterpret_cast<float*>(shared),
                    *reinterpret_cast<mixed_groups*>(shared + kernel::groups_at)};
  block.start();
  if (threadIdx.x < 128)
    with.consume();
  else if (threadIdx.x == 128)
    block.request_w();
  else if (threadIdx.x == 160)
    block.request_x();
  else if (threadIdx.x >= kernel::stream::threads)
    with.help();
#endif
}

}  // namespace graft::cuda
