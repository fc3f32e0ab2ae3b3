// SPDX-License-Identifier: Apache-2.0
// Narrow products with dropout in them (plan/dropped.h), 16 bits, by mma.sync at the speed of memory:
//     shrink   S = drop(x) Aᵀ        sum      D = Tᵀ drop(x)        expand   y = other + drop(T A)
// Elements are dropped in registers, by draws that decide about four columns each; what stays is scaled at the end, where
// it is fewer numbers. Inner and outer indices are permuted so that what a thread has of a row is contiguous in memory.
#pragma once
#include <graft/backend/cuda/choose.h>
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/gemm_mma.cuh>
#include <graft/backend/cuda/tensor.cuh>
#include <graft/backend/element_drops.h>
#include <graft/core/few_numbers.h>
#include <graft/plan/dropped.h>

namespace graft::cuda {

// A narrow matrix, what it is multiplied with, and what is dropped.
struct dropped_branch {
  cells<float> narrow;  // T: [rows, pitch], of which the first `rank` columns count
  cells<float> factor;  // A: entry (r, c) at r * rank_step + c * column_step
  long long rank_step = 0, column_step = 0;
  int rank = 0, pitch = 0;
  const std::int64_t* seed = nullptr;  // none: nothing is dropped
  long long salt = 0;
  cells<float> rate{};

  __host__ __device__ element_drops drawn() const {
    return seed == nullptr ? element_drops{} : element_drops::of(*seed, salt, static_cast<double>(rate[0]));
  }
  __host__ __device__ float scale() const { return seed == nullptr ? 1.0F : element_drops::scale(rate[0]); }
  __host__ __device__ float entry(int r, int c) const {
    return r < rank ? factor[r * rank_step + c * column_step] : 0.0F;
  }
  // Entries c to c + 3, c a multiple of four.
  __device__ __forceinline__ float4 four_entries(int r, int c) const {
    if (column_step == 1 && factor.type != dtype::f32 && rank_step % 4 == 0 && r < rank) {
      const uint2 v =
          *reinterpret_cast<const uint2*>(static_cast<const unsigned short*>(factor.at) + r * rank_step + c);
      const bool brain = factor.type == dtype::bf16;
      const float2 low = brain ? unpack<__nv_bfloat16>(v.x) : unpack<__half>(v.x),
                   high = brain ? unpack<__nv_bfloat16>(v.y) : unpack<__half>(v.y);
      return make_float4(low.x, low.y, high.x, high.y);
    }
    if (column_step != 1 || factor.type != dtype::f32 || rank_step % 4 != 0 || r >= rank)
      return make_float4(entry(r, c), entry(r, c + 1), entry(r, c + 2), entry(r, c + 3));
    return *reinterpret_cast<const float4*>(static_cast<const float*>(factor.at) + r * rank_step + c);
  }
};
struct dropped_args {
  cells<float> wide, out;  // x or other, [rows, columns]; the result
  long long rows = 0;
  int columns = 0, terms = 1;
  dropped_branch term[most_dropped_terms];

  int largest_rank() const {
    int most = 0;
    for (int k = 0; k < terms; ++k) most = larger_of(most, term[k].rank);
    return most;
  }
  // The kernels below; others are computed entry by entry.
  bool fits() const {
    auto aligned = [](const cells<float>& p) { return reinterpret_cast<std::uintptr_t>(p.at) % 16 == 0; };
    bool all =
        columns % 32 == 0 && rows * columns <= 1LL << 34 && is_16_bit(wide.type) && aligned(wide) && aligned(out);
    for (int k = 0; k < terms; ++k) {
      const dropped_branch& t = term[k];
      all = all && t.rank <= 64 && t.rank % 2 == 0 && t.pitch % 2 == 0 && aligned(t.factor) && aligned(t.narrow) &&
            (t.narrow.at == nullptr || t.narrow.type == wide.type);
    }
    return all;
  }
};

namespace dropping {
inline constexpr int warps = 8, threads = 32 * warps;
inline constexpr int many = 16;  // warps of blocks that are alone on their processor
constexpr int expanded_rows(int tiles) { return tiles > 1 ? 32 : 64; }  // of a warp, which has their sums in registers

// The draws of element_drops, for four neighbours as two words. Places are counted in fours and 32 bits, and words are compared
// whole: integer instructions are what these kernels are bound by.
struct drawn_fours {
  std::uint64_t key;
  std::uint32_t limit;  // what is below it is dropped: 16 bits, in the upper half; all of it for a rate of 1

  __device__ explicit drawn_fours(const element_drops& d) : key(d.key), limit(d.below < 65536 ? d.below << 16 : ~0U) {}
  __device__ __forceinline__ uint2 at(std::uint32_t four) const {
    const std::uint64_t draws = element_drops{key}.four(four);
    return make_uint2(static_cast<std::uint32_t>(draws), static_cast<std::uint32_t>(draws >> 32));
  }
  __device__ __forceinline__ bool drops_first(std::uint32_t word) const { return word << 16 < limit; }
  __device__ __forceinline__ bool drops_second(std::uint32_t word) const { return word < limit; }
  // Zeros in a pair of 16-bit numbers.
  __device__ __forceinline__ std::uint32_t kept(std::uint32_t pair, std::uint32_t word) const {
    const std::uint32_t first = drops_first(word) ? pair & 0xffff0000U : pair;
    return drops_second(word) ? first & 0xffffU : first;
  }
  // Eight neighbours.
  __device__ __forceinline__ uint4 kept(const uint4& v, std::uint32_t four) const {
    const uint2 low = at(four), high = at(four + 1);
    return make_uint4(kept(v.x, low.x), kept(v.y, low.y), kept(v.z, high.x), kept(v.w, high.y));
  }
};
// Two ranks of a row of T.
template <class T>
__device__ __forceinline__ std::uint32_t two_ranks(const dropped_branch& t, int row, int rows, int rank) {
  const auto* const at = static_cast<const T*>(t.narrow.at) + static_cast<long long>(row) * t.pitch + rank;
  return row < rows && rank < t.rank ? *reinterpret_cast<const std::uint32_t*>(at) : 0U;
}
// What the warps of a block found, added up in their order.
template <int Count> __device__ __forceinline__ void add_warps(float (&mine)[Count], float* shared) {
  for (int w = 0; w < many; ++w) {
    if (static_cast<int>(threadIdx.x) / 32 == w)
      for (int k = 0; k < Count; ++k) {
        float* const at = shared + k * 32 + threadIdx.x % 32;
        *at = w == 0 ? mine[k] : *at + mine[k];
      }
    __syncthreads();
  }
}
}  // namespace dropping

// A block makes 32 rows of S; its warps take columns in turns of 32.
template <class T, int Tiles> __global__ void __launch_bounds__(32 * dropping::many) dropped_shrink(dropped_args g) {
#if __CUDA_ARCH__ >= 800
  take_turn();
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32), q = lane % 4,
            row0 = static_cast<int>(blockIdx.x) * 32 + lane / 4;
  const dropped_branch& t = g.term[0];
  const dropping::drawn_fours d(t.drawn());
  const auto fours = static_cast<std::uint32_t>(g.columns / 4);
  const T* const x = static_cast<const T*>(g.wide.at);
  float acc[2][2 * Tiles][4] = {};
  auto load = [&](uint4(&to)[4], int c) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const long long row = row0 + 8 * k;
      to[k] = ptx::load_once(x + row * g.columns + c + 8 * q, row < g.rows && c < g.columns);
    }
  };
  constexpr int stride = 32 * dropping::many;
  auto load_factor = [&](float4(&to)[2][2 * Tiles], int c) {
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
      for (int n = 0; n < 2 * Tiles; ++n)
        to[s][n] = c < g.columns ? t.four_entries(8 * n + lane / 4, c + 8 * q + 4 * s) : make_float4(0, 0, 0, 0);
  };
  uint4 now[4], next[4];
  float4 a[2][2 * Tiles];
  load(now, 32 * warp), load_factor(a, 32 * warp);
  for (int c = 32 * warp; c < g.columns; c += stride) {
    load(next, c + stride);
    if (t.seed != nullptr)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        now[k] = d.kept(now[k],
                        static_cast<std::uint32_t>(row0 + 8 * k) * fours + static_cast<std::uint32_t>(c / 4 + 2 * q));
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
      for (int n = 0; n < 2 * Tiles; ++n) {
        const std::uint32_t right[2] = {pack<T>(a[s][n].x, a[s][n].y), pack<T>(a[s][n].z, a[s][n].w)};
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint4 &low = now[2 * m], &high = now[2 * m + 1];
          const std::uint32_t left[4] = {s == 0 ? low.x : low.z, s == 0 ? high.x : high.z, s == 0 ? low.y : low.w,
                                         s == 0 ? high.y : high.w};
          mma::multiply<T>(acc[m][n], left, right);
        }
      }
    load_factor(a, c + stride);
#pragma unroll
    for (int k = 0; k < 4; ++k) now[k] = next[k];
  }
  __shared__ float sums[2 * 2 * Tiles * 4 * 32];
  float mine[2 * 2 * Tiles * 4];
#pragma unroll
  for (int k = 0; k < 2 * 2 * Tiles * 4; ++k) mine[k] = acc[k / (8 * Tiles)][k / 4 % (2 * Tiles)][k % 4];
  dropping::add_warps(mine, sums);
  const float scale = t.scale();
  for (int e = static_cast<int>(threadIdx.x); e < 2 * 2 * Tiles * 4 * 32; e += 32 * dropping::many) {
    const int k = e / 32, l = e % 32, m = k / (8 * Tiles), n = k / 4 % (2 * Tiles), i = k % 4;
    const long long row = static_cast<long long>(blockIdx.x) * 32 + 16 * m + l / 4 + i / 2 * 8;
    const int r = 8 * n + l % 4 * 2 + i % 2;
    if (row < g.rows && r < t.rank) g.out.put(row * t.rank + r, scale * sums[e]);
  }
#endif
}

// A block makes 32 columns of D for 16 ranks; its warps take tokens in turns of 16.
template <class T> __global__ void __launch_bounds__(32 * dropping::many) dropped_sum(dropped_args g) {
#if __CUDA_ARCH__ >= 800
  take_turn();
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32), q = lane % 4,
            column = static_cast<int>(blockIdx.x) * 32 + lane / 4 * 4, rank0 = static_cast<int>(blockIdx.y) * 16;
  const dropped_branch& t = g.term[0];
  const dropping::drawn_fours d(t.drawn());
  const auto fours = static_cast<std::uint32_t>(g.columns / 4), four = static_cast<std::uint32_t>(column / 4);
  const auto rows = static_cast<int>(g.rows);
  const T* const x = static_cast<const T*>(g.wide.at) + column;
  auto row_of = [&](int first, int k) { return first + 2 * q + k % 2 + k / 2 * 8; };
  struct tokens {
    uint2 x[4];
    std::uint32_t t[4];
  };
  auto load = [&](tokens& to, int first) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = row_of(first, k);
      const T* const at = x + static_cast<long long>(row) * g.columns;
      to.x[k] = row < rows ? __ldcs(reinterpret_cast<const uint2*>(at)) : make_uint2(0, 0);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k)
      to.t[k] = dropping::two_ranks<T>(t, first + lane / 4 + k / 2 * 8, rows, rank0 + k % 2 * 8 + 2 * q);
  };
  float acc[4][4] = {};
  constexpr int stride = 16 * dropping::many;
  tokens now, next, then;
  load(now, 16 * warp), load(next, 16 * warp + stride);
  for (int first = 16 * warp; first < rows; first += stride) {
    load(then, first + 2 * stride);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint2 draws = d.at(static_cast<std::uint32_t>(row_of(first, k)) * fours + four);
      now.x[k] = make_uint2(d.kept(now.x[k].x, draws.x), d.kept(now.x[k].y, draws.y));
    }
    // Ranks 0 to 7 and 8 to 15 of the first eight tokens, then of the others.
    const std::uint32_t left[4] = {ptx::turn_matrix(now.t[0]), ptx::turn_matrix(now.t[1]), ptx::turn_matrix(now.t[2]),
                                   ptx::turn_matrix(now.t[3])};
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // column 4 (lane / 4) + j, two tokens in a register
      const unsigned which = j % 2 == 0 ? 0x5410U : 0x7632U;
      const std::uint32_t right[2] = {
          __byte_perm(j < 2 ? now.x[0].x : now.x[0].y, j < 2 ? now.x[1].x : now.x[1].y, which),
          __byte_perm(j < 2 ? now.x[2].x : now.x[2].y, j < 2 ? now.x[3].x : now.x[3].y, which)};
      mma::multiply<T>(acc[j], left, right);
    }
    now = next, next = then;
  }
  __shared__ float sums[16 * 32];
  float mine[16];
#pragma unroll
  for (int k = 0; k < 16; ++k) mine[k] = acc[k / 4][k % 4];
  dropping::add_warps(mine, sums);
  const float scale = t.scale();
  for (int e = static_cast<int>(threadIdx.x); e < 16 * 32; e += 32 * dropping::many) {
    const int j = e / 32 / 4, i = e / 32 % 4, l = e % 32, r = rank0 + l / 4 + i / 2 * 8,
              c = static_cast<int>(blockIdx.x) * 32 + 4 * (l % 4 * 2 + i % 2) + j;
    if (r < t.rank) g.out.put(static_cast<long long>(r) * g.columns + c, scale * sums[e]);
  }
#endif
}

// A warp makes 32 columns of some rows: all of them are asked for first, and each branch is added in its turn, with its part of A
// in registers.
template <class T, int Tiles>
__global__ void __launch_bounds__(dropping::threads) dropped_expand(const __grid_constant__ dropped_args g) {
#if __CUDA_ARCH__ >= 800
  take_turn();
  constexpr int expanded = dropping::expanded_rows(Tiles), steps = expanded / 16;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32), q = lane % 4,
            first = (static_cast<int>(blockIdx.x) * dropping::warps + warp) * 32;
  if (first >= g.columns) return;
  const int row0 = static_cast<int>(blockIdx.y) * expanded + lane / 4, rows = static_cast<int>(g.rows);
  const auto fours = static_cast<std::uint32_t>(g.columns / 4), four = static_cast<std::uint32_t>(first / 4 + 2 * q);
  const T* const other = static_cast<const T*>(g.wide.at) + first + 8 * q;
  uint4 v[2 * steps];  // of rows 8 apart
#pragma unroll
  for (int h = 0; h < 2 * steps; ++h) v[h] = ptx::load_once(other + (row0 + 8LL * h) * g.columns, row0 + 8 * h < rows);
  float sum[2 * steps][8];
#pragma unroll
  for (int h = 0; h < 2 * steps; ++h) {
    const std::uint32_t words[4] = {v[h].x, v[h].y, v[h].z, v[h].w};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float2 two = unpack<T>(words[t]);
      sum[h][2 * t] = two.x, sum[h][2 * t + 1] = two.y;
    }
  }
#pragma unroll 1
  for (int k = 0; k < g.terms; ++k) {
    const dropped_branch& b = g.term[k];
    const dropping::drawn_fours d(b.drawn());
    const float scale = b.scale();
    std::uint32_t right[Tiles][4][2];  // product t makes columns 8 q + 2 t and the next for each q
#pragma unroll
    for (int n = 0; n < Tiles; ++n)
#pragma unroll
      for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int r = 16 * n + 2 * q + 8 * h, c = first + lane / 8 * 8 + 2 * t + lane / 4 % 2;
          right[n][t][h] = pack<T>(b.entry(r, c), b.entry(r + 1, c));
        }
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const int row = row0 + 16 * step;
      float acc[4][4] = {};
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        const int r = 16 * n + 2 * q;
        const std::uint32_t left[4] = {
            dropping::two_ranks<T>(b, row, rows, r), dropping::two_ranks<T>(b, row + 8, rows, r),
            dropping::two_ranks<T>(b, row, rows, r + 8), dropping::two_ranks<T>(b, row + 8, rows, r + 8)};
#pragma unroll
        for (int t = 0; t < 4; ++t) mma::multiply<T>(acc[t], left, right[n][t]);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const std::uint32_t at = static_cast<std::uint32_t>(row + 8 * h) * fours + four;
        const uint2 low = d.at(at), high = d.at(at + 1);
        const std::uint32_t words[4] = {low.x, low.y, high.x, high.y};
        float(&to)[8] = sum[2 * step + h];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          if (!d.drops_first(words[t])) to[2 * t] += scale * acc[t][2 * h];
          if (!d.drops_second(words[t])) to[2 * t + 1] += scale * acc[t][2 * h + 1];
        }
      }
    }
  }
  T* const out = static_cast<T*>(g.out.at) + first + 8 * q;
#pragma unroll
  for (int h = 0; h < 2 * steps; ++h)
    if (row0 + 8 * h < rows)
      *reinterpret_cast<uint4*>(out + (row0 + 8LL * h) * g.columns) =
          make_uint4(pack<T>(sum[h][0], sum[h][1]), pack<T>(sum[h][2], sum[h][3]), pack<T>(sum[h][4], sum[h][5]),
                     pack<T>(sum[h][6], sum[h][7]));
#endif
}

// One entry of a result: for types and sizes that the kernels above do not take.
struct dropped_entry {
  dropped_args g;
  dropped_product::form how;

  __host__ __device__ float x(const element_drops& d, long long row, int c) const {
    const long long at = row * g.columns + c;
    return d.drops(at) ? 0.0F : g.wide[at];
  }
  // The sum of a branch, without what is dropped of it; dropped x is zero.
  template <class Team> __host__ __device__ float part(const dropped_branch& b, long long i, const Team& t) const {
    const element_drops d = b.drawn();
    const long long across = how == dropped_product::form::shrink ? b.rank : g.columns, row = i / across;
    const int c = static_cast<int>(i % across);
    float sum = 0;
    if (how == dropped_product::form::shrink)
      for (int k = t.rank; k < g.columns; k += t.size) sum += x(d, row, k) * b.entry(c, k);
    else if (how == dropped_product::form::sum)
      for (long long token = t.rank; token < g.rows; token += t.size)
        sum += b.narrow[token * b.pitch + row] * x(d, token, c);
    else
      for (int r = t.rank; r < b.rank && !d.drops(i); r += t.size) sum += b.narrow[row * b.pitch + r] * b.entry(r, c);
    return b.scale() * t.sum(sum);
  }
  template <class Team> __host__ __device__ void operator()(long long i, Team t) const {
    float sum = how == dropped_product::form::expand ? g.wide[i] : 0.0F;
    for (int k = 0; k < g.terms; ++k) sum += part(g.term[k], i, t);
    if (t.leads()) g.out.put(i, sum);
  }
};

// By kernels for so many times 16 ranks.
inline unsigned dropped_blocks(long long n, long long each) { return static_cast<unsigned>((n + each - 1) / each); }
template <class T, int Tiles> status shrink_dropped(cudaStream_t stream, const dropped_args& g) {
  return launch_chained(stream, &dropped_shrink<T, Tiles>, dim3(dropped_blocks(g.rows, 32)), dim3(32 * dropping::many),
                        "product with dropout", g);
}
template <class T> status sum_dropped(cudaStream_t stream, const dropped_args& g) {
  const dim3 grid(dropped_blocks(g.columns, 32), dropped_blocks(g.term[0].rank, 16));
  return launch_chained(stream, &dropped_sum<T>, grid, dim3(32 * dropping::many), "product with dropout", g);
}
template <class T, int Tiles> status expand_dropped(cudaStream_t stream, const dropped_args& g) {
  const dim3 grid(dropped_blocks(g.columns, 32 * dropping::warps),
                  dropped_blocks(g.rows, dropping::expanded_rows(Tiles)));
  return launch_chained(stream, &dropped_expand<T, Tiles>, grid, dim3(dropping::threads), "product with dropout", g);
}
template <class T> status multiply_dropped(cudaStream_t stream, dropped_product::form how, const dropped_args& g) {
  using form = dropped_product::form;
  const int rank = g.largest_rank();
  const long long entries =
      how == form::sum ? static_cast<long long>(rank) * g.columns : g.rows * (how == form::shrink ? rank : g.columns);
  if (entries == 0) return ok;
  if constexpr (sizeof(T) == 2)
    if (g.fits() && g.wide.type == dtype_of<T> && (how != form::expand || g.out.type == g.wide.type)) {
      if (how == form::sum) return sum_dropped<T>(stream, g);
      if (how == form::shrink)
        return rank <= 16   ? shrink_dropped<T, 1>(stream, g)
               : rank <= 32 ? shrink_dropped<T, 2>(stream, g)
                            : shrink_dropped<T, 4>(stream, g);
      return rank <= 16   ? expand_dropped<T, 1>(stream, g)
             : rank <= 32 ? expand_dropped<T, 2>(stream, g)
                          : expand_dropped<T, 4>(stream, g);
    }
  return on_stream{stream}.rows(entries, dropped_entry{g, how}, "product with dropout");
}

}  // namespace graft::cuda
