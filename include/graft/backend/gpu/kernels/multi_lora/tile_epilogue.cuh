// SPDX-License-Identifier: Apache-2.0
// Multi-LoRA epilogue by tiles, 16-bit types, sm_80 and later, for products that no multi-LoRA kernel takes in one
// launch; it runs after the bare product y = x Wᵀ.
//
//   y = act(scale ⊙ (y + U Bᵀ) + shift) + residual     y [m, n], U = x Aᵀ, with the record of each row
//
// Tile         16 rows; grid (row tiles, splits of the outputs). Rows of a sequence are contiguous, so a tile seldom
//              has more than two records. With few row tiles several CTAs divide the outputs and each computes U.
// Shrink       Once for each record of the tile: eight warps divide the inner axis and are summed in warp order. Rows
//              of another record get zeros.
// Expand       Each warp takes 64 outputs at a time, mma.sync m16n8k16 over all records, then the epilogue.
// Measured     H200, 4096 x 4096, bf16, 512 rows, 32 LoRA r16 in segments of 16: product and this launch take 42.0 µs,
//              1.79 of cuBLASLt's bare layer (docs/performance.md).
#pragma once
#include <graft/backend/gpu/arch/mma_sync.cuh>
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/multi_lora/adapter_record.h>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

// ---- Rows

// Multi-LoRA epilogue per row, on every device and type, for products that no multi-LoRA kernel takes in one launch.
//
//   y[row] = act(scale ⊙ (y[row] + U Bᵀ) + shift) + residual[row]     U = x[row] Aᵀ, with the record of the row
//
// It runs after the bare product y = x Wᵀ, one CTA per row: its warps compute U, one element of the rank each, then its
// threads the outputs. scale_rows_by_record computes x ⊙ prologue before the product, on every device.

struct multi_lora_epilogue_args {
  multi_lora_batch batch;
  const void* x;  // [m, k]
  void* y;        // [m, n]: the bare product on entry, the result on exit
  const void* residual;
  activation act;
  long long m;
  int n, k;
};

inline constexpr int multi_lora_epilogue_threads = 256;

template <class T>
__global__ void __launch_bounds__(multi_lora_epilogue_threads) multi_lora_epilogue_kernel(multi_lora_epilogue_args g) {
  __shared__ float shrunk[max_multi_lora_rank];
  const long long row = blockIdx.x;
  const adapter_record r = g.batch.records[g.batch.of_row[row]];
  const int rank = static_cast<int>(r.rank), warp = static_cast<int>(threadIdx.x / 32), lane = threadIdx.x % 32;
  const T* const x = static_cast<const T*>(g.x) + row * g.k;
  for (int i = warp; i < rank; i += multi_lora_epilogue_threads / 32) {
    const T* const a = static_cast<const T*>(r.a) + static_cast<long long>(i) * g.k;
    float sum = 0;
    for (int c = lane; c < g.k; c += 32) sum = fmaf(to_float(x[c]), to_float(a[c]), sum);
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, o);
    if (lane == 0) shrunk[i] = to_float(from_float<T>(sum));
  }
  __syncthreads();
  const epilogue_args<T> epilogue{r.scale, r.shift, static_cast<const T*>(g.residual), g.act, g.m, g.n};
  T* const y = static_cast<T*>(g.y) + row * g.n;
  for (int c = static_cast<int>(threadIdx.x); c < g.n; c += multi_lora_epilogue_threads) {
    const T* const b = static_cast<const T*>(r.b) + static_cast<long long>(c) * rank;
    float v = to_float(y[c]);
    for (int i = 0; i < rank; ++i) v = fmaf(shrunk[i], to_float(b[i]), v);
    y[c] = from_float<T>(epilogue(v, row, c));
  }
}

// Element i of x ⊙ prologue, with the prologue of the row's record.
template <class T> struct scale_rows_by_record {
  multi_lora_batch batch;
  const T* x;
  T* to;
  int k;

  __device__ void operator()(long long i) const {
    const T* const prologue = static_cast<const T*>(batch.records[batch.of_row[i / k]].prologue);
    to[i] = prologue == nullptr ? x[i] : from_float<T>(to_float(x[i]) * to_float(prologue[i % k]));
  }
};

// ---- Tiles of 16 rows

template <class T> struct multi_lora_tile {
  static constexpr int rows = 16, threads = 256, warps = threads / 32, outputs = 64 * warps;
  static constexpr int steps = 4;  // loads in flight
  static constexpr int chunks = max_multi_lora_rank / 16;

  struct memory {
    adapter_record of[rows];
    float sums[warps][rows * 16];
    // U by record, row and rank; zero where a row has another record.
    alignas(16) T s[rows][rows][max_multi_lora_rank + 8];
    int record_index[rows], head[rows], count;  // record of a row, a row that has the record, number of records
  };

  const multi_lora_epilogue_args& g;
  memory& in;
  int warp = static_cast<int>(threadIdx.x / 32), row = threadIdx.x % 32 / 4, col = threadIdx.x % 4;
  long long first = blockIdx.x * static_cast<long long>(rows);

  __device__ void find_records() const {
    const int t = static_cast<int>(threadIdx.x);
    if (t < 32) {
      std::int64_t key = -1;
      if (t < rows) {
        const std::int64_t index = first + t < g.m ? g.batch.of_row[first + t] : -1;
        in.of[t] = g.batch.records[index];
        if (first + t < g.m && in.of[t].rank > 0) key = index;
      }
      const unsigned same = __match_any_sync(0xffffffffU, static_cast<unsigned long long>(key));
      const int leader = __ffs(static_cast<int>(same)) - 1;
      const unsigned leaders = __ballot_sync(0xffffffffU, key >= 0 && leader == t);
      const int number = __popc(leaders & ((1U << leader) - 1));
      if (t < rows) in.record_index[t] = key >= 0 ? number : -1;
      if (key >= 0 && leader == t) in.head[number] = t;
      if (t == 0) in.count = __popc(leaders);
    }
    __syncthreads();
  }
  // U of record j. A thread has eight adjacent columns of a step of 32, in x and in A: the order of k is free.
  __device__ void shrink(int j) const {
    const adapter_record& r = in.of[in.head[j]];
    const int all = (g.k + 31) / 32, wide = static_cast<int>(r.rank) / 16;
    const T* const x = static_cast<const T*>(g.x) + (first + row) * g.k + col * 8;
    const T* const a = static_cast<const T*>(r.a) + static_cast<long long>(row) * g.k + col * 8;
    const bool low_there = first + row < g.m, high_there = first + row + 8 < g.m;
    float sum[chunks][2][4] = {};
    const int end = all * (warp + 1) / warps;
    for (int first_step = all * warp / warps; first_step < end; first_step += steps) {
      uint4 low[steps], high[steps];
#pragma unroll
      for (int u = 0; u < steps; ++u) {
        const int c = (first_step + u) * 32;
        const bool there = first_step + u < end && c + col * 8 < g.k;
        low[u] = high[u] = make_uint4(0, 0, 0, 0);
        if (there && low_there) low[u] = __ldg(reinterpret_cast<const uint4*>(x + c));
        if (there && high_there) high[u] = __ldg(reinterpret_cast<const uint4*>(x + 8LL * g.k + c));
      }
#pragma unroll
      for (int half = 0; half < 2 * chunks; ++half) {
        if (half >= 2 * wide) continue;
        uint4 v[steps];
#pragma unroll
        for (int u = 0; u < steps; ++u) {
          const int c = (first_step + u) * 32;
          v[u] = make_uint4(0, 0, 0, 0);
          if (first_step + u < end && c + col * 8 < g.k)
            v[u] = __ldg(reinterpret_cast<const uint4*>(a + half * 8LL * g.k + c));
        }
#pragma unroll
        for (int u = 0; u < steps; ++u) {
          const std::uint32_t x0[4] = {low[u].x, high[u].x, low[u].y, high[u].y},
                              x1[4] = {low[u].z, high[u].z, low[u].w, high[u].w}, a0[2] = {v[u].x, v[u].y},
                              a1[2] = {v[u].z, v[u].w};
          ptx::mma_m16n8k16<T>(sum[half / 2][half % 2], x0, a0);
          ptx::mma_m16n8k16<T>(sum[half / 2][half % 2], x1, a1);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      if (c >= wide) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 4; ++e) in.sums[warp][(row + 8 * (e >> 1)) * 16 + h * 8 + 2 * col + (e & 1)] = sum[c][h][e];
      __syncthreads();
      const int token = static_cast<int>(threadIdx.x) / 16, rank = threadIdx.x % 16;
      float v = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) v += in.sums[w][token * 16 + rank];
      in.s[j][token][c * 16 + rank] = from_float<T>(in.record_index[token] == j ? v : 0.0F);
      __syncthreads();
    }
  }
  // Outputs are assigned to the products so that a thread ends with eight adjacent ones of a row: column n of product t
  // is output 8 (n / 2) + n % 2 + 2 t. Of the rank a thread has four adjacent elements. Two times 32 hide latency.
  __device__ void expand(int begin, int end) const {
    for (int at = begin + warp * 64; at < end; at += outputs) {
      uint4 bare[2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) bare[i / 2][i % 2] = prefetch(g.y, row + 8 * (i % 2), at + 32 * (i / 2) + 8 * col);
      float y[2][4][4] = {};
      for (int j = 0; j < in.count; ++j) multiply(y, j, at);
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int column = at + 32 * u + 8 * col;
        const uint4 more[2] = {prefetch(g.residual, row, column), prefetch(g.residual, row + 8, column)};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float v[8] = {y[u][0][2 * h], y[u][0][2 * h + 1], y[u][1][2 * h], y[u][1][2 * h + 1],
                              y[u][2][2 * h], y[u][2][2 * h + 1], y[u][3][2 * h], y[u][3][2 * h + 1]};
          if (inside(row + 8 * h, column)) finish(v, bare[u][h], more[h], row + 8 * h, column);
        }
      }
    }
  }
  __device__ bool inside(int token, int column) const { return first + token < g.m && column < g.n; }
  __device__ uint4 prefetch(const void* from, int token, int column) const {
    if (from == nullptr || !inside(token, column)) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4*>(static_cast<const T*>(from) + (first + token) * g.n + column);
  }
  __device__ __forceinline__ void multiply(float (&y)[2][4][4], int j, int at) const {
    const adapter_record& r = in.of[in.head[j]];
    const int width = static_cast<int>(r.rank), output = at + 8 * (row / 2) + row % 2;
    for (int c = col * 4; c < width; c += 16) {
      uint2 v[2][4];
#pragma unroll
      for (int u = 0; u < 2; ++u)
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const int o = output + 32 * u + 2 * t;
          v[u][t] = make_uint2(0, 0);
          if (o < g.n)
            v[u][t] = __ldg(
                reinterpret_cast<const uint2*>(static_cast<const T*>(r.b) + static_cast<long long>(o) * width + c));
        }
      const uint2 low = *reinterpret_cast<const uint2*>(&in.s[j][row][c]),
                  high = *reinterpret_cast<const uint2*>(&in.s[j][row + 8][c]);
      const std::uint32_t s[4] = {low.x, high.x, low.y, high.y};
#pragma unroll
      for (int u = 0; u < 2; ++u)
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const std::uint32_t b[2] = {v[u][t].x, v[u][t].y};
          ptx::mma_m16n8k16<T>(y[u][t], s, b);
        }
    }
  }
  __device__ __forceinline__ void finish(const float (&expanded)[8], const uint4& bare, const uint4& more, int token,
                                         int column) const {
    const float *const scale = in.of[token].scale, *const shift = in.of[token].shift;
    const std::uint32_t from[4] = {bare.x, bare.y, bare.z, bare.w},
                        residual_words[4] = {more.x, more.y, more.z, more.w};
    std::uint32_t to[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 v = unpack<T>(from[i]);
      v.x += expanded[2 * i], v.y += expanded[2 * i + 1];
      if (scale != nullptr) v.x *= __ldg(scale + column + 2 * i), v.y *= __ldg(scale + column + 2 * i + 1);
      if (shift != nullptr) v.x += __ldg(shift + column + 2 * i), v.y += __ldg(shift + column + 2 * i + 1);
      v.x = activate(g.act, v.x), v.y = activate(g.act, v.y);
      const float2 r = unpack<T>(residual_words[i]);
      to[i] = pack<T>(v.x + r.x, v.y + r.y);
    }
    *reinterpret_cast<uint4*>(static_cast<T*>(g.y) + (first + token) * g.n + column) =
        make_uint4(to[0], to[1], to[2], to[3]);
  }
};

template <class T>
__global__ void __launch_bounds__(multi_lora_tile<T>::threads, 2)
    multi_lora_tile_kernel(const __grid_constant__ multi_lora_epilogue_args g) {
  using kernel = multi_lora_tile<T>;
  __shared__ alignas(16) unsigned char raw[sizeof(typename kernel::memory)];
  auto& in = *reinterpret_cast<typename kernel::memory*>(raw);
  const kernel tile{g, in};
  tile.find_records();
  for (int j = 0; j < in.count; ++j) tile.shrink(j);
  const int units = (g.n + kernel::outputs - 1) / kernel::outputs, split = static_cast<int>(blockIdx.y),
            splits = static_cast<int>(gridDim.y);
  const int end = units * (split + 1) / splits * kernel::outputs;
  tile.expand(units * split / splits * kernel::outputs, end < g.n ? end : g.n);
}

}  // namespace graft::gpu
