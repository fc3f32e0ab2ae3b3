// SPDX-License-Identifier: Apache-2.0
// Low-rank branch with dropout in training (plan/launch/dropout_gemm.h), sm_80 and later, by mma.sync on 16-bit data:
//
//   shrink        U = drop(x) Aᵀ
//   sum (wgrad)   D = Tᵀ drop(x)
//   expand        y = other + drop(T A)
//
//   x, other, y [rows, columns]    A [rank, columns]    T, U [rows, rank], rank <= 64    D [rank, columns]
//
// drop(x) is never stored: masks are drawn again in registers from (seed, element index), one 64-bit draw per four
// neighboring columns (dropout_mask.h). Elements that are not dropped are scaled once per result. Inner and outer
// indices are permuted among the fragments so that a thread's elements of a row are contiguous in memory. Sums over
// warps are added in the order of the warps: deterministic.
//
// Measured: H200, training step of a four-layer Llama-3-8B shape, LoRA r16: 27.1 ms with dropout 0.1, 1.07 to 1.10 of
// the step without (docs/performance.md).
#pragma once
#include <graft/backend/dropout_mask.h>
#include <graft/backend/gpu/arch/mma_sync.cuh>
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/dispatch/gemm.h>
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/tile/epilogue.cuh>
#include <graft/backend/gpu/tile/tensor.cuh>
#include <graft/core/algorithm.h>
#include <graft/plan/launch/dropout_gemm.h>

namespace graft::gpu {

// One low-rank branch with dropout: a narrow matrix [rows, rank], the factor it is multiplied with, and the dropout
// mask.
struct dropout_branch {
  element_ptr<float> narrow;  // T: [rows, pitch], of which the first `rank` columns count
  element_ptr<float> factor;  // A, with entry (r, c) at r * rank_step + c * column_step
  long long rank_step = 0, column_step = 0;
  int rank = 0, pitch = 0;
  const std::int64_t* seed = nullptr;  // null: no dropout
  long long salt = 0;
  element_ptr<float> rate{};

  __host__ __device__ dropout_mask drawn() const {
    return seed == nullptr ? dropout_mask{} : dropout_mask::of(*seed, salt, static_cast<double>(rate[0]));
  }
  __host__ __device__ float scale() const { return seed == nullptr ? 1.0F : dropout_mask::scale(rate[0]); }
  __host__ __device__ float entry(int r, int c) const {
    return r < rank ? factor[r * rank_step + c * column_step] : 0.0F;
  }
  // Entries (r, c) to (r, c + 3); c is a multiple of four.
  __device__ __forceinline__ float4 load_entries4(int r, int c) const {
    if (column_step == 1 && factor.type != dtype::f32 && rank_step % 4 == 0 && r < rank) {
      const uint2 v =
          *reinterpret_cast<const uint2*>(static_cast<const unsigned short*>(factor.at) + r * rank_step + c);
      const bool is_bf16 = factor.type == dtype::bf16;
      const float2 low = is_bf16 ? unpack<__nv_bfloat16>(v.x) : unpack<__half>(v.x),
                   high = is_bf16 ? unpack<__nv_bfloat16>(v.y) : unpack<__half>(v.y);
      return make_float4(low.x, low.y, high.x, high.y);
    }
    if (column_step != 1 || factor.type != dtype::f32 || rank_step % 4 != 0 || r >= rank)
      return make_float4(entry(r, c), entry(r, c + 1), entry(r, c + 2), entry(r, c + 3));
    return *reinterpret_cast<const float4*>(static_cast<const float*>(factor.at) + r * rank_step + c);
  }
};
struct dropout_gemm_args {
  element_ptr<float> wide, out;  // x, or the summand of an expand, [rows, columns]; the result
  long long rows = 0;
  int columns = 0;
  dropout_branch branch;

  // Returns true if the tensor-core kernels below can run it; otherwise it is computed entry by entry (dropout_entry).
  bool fits() const {
    auto aligned = [](const element_ptr<float>& p) { return reinterpret_cast<std::uintptr_t>(p.at) % 16 == 0; };
    const dropout_branch& t = branch;
    return columns % 32 == 0 && rows * columns <= 1LL << 34 && is_16_bit(wide.type) && aligned(wide) && aligned(out) &&
           t.rank <= 64 && t.rank % 2 == 0 && t.pitch % 2 == 0 && aligned(t.factor) && aligned(t.narrow) &&
           (t.narrow.at == nullptr || t.narrow.type == wide.type);
  }
};

namespace dropout_kernels {
inline constexpr int warps = 8, threads = 32 * warps;
inline constexpr int wide_block_warps = 16;                             // warps of a block that has an SM to itself
constexpr int expanded_rows(int tiles) { return tiles > 1 ? 32 : 64; }  // rows per warp, whose sums are in registers

// The draws of dropout_mask for four neighboring elements, as two words. Groups of four have 32-bit indices and draws
// are compared as whole words, because these kernels are bound by integer instructions.
struct dropout_draws {
  std::uint64_t key;
  std::uint32_t limit;  // draws below it are dropped: 16 bits in the upper half; all ones for a rate of 1

  __device__ explicit dropout_draws(const dropout_mask& d) : key(d.key), limit(d.below < 65536 ? d.below << 16 : ~0U) {}
  __device__ __forceinline__ uint2 at(std::uint32_t four) const {
    const std::uint64_t draws = dropout_mask{key}.four(four);
    return make_uint2(static_cast<std::uint32_t>(draws), static_cast<std::uint32_t>(draws >> 32));
  }
  __device__ __forceinline__ bool drops_first(std::uint32_t word) const { return word << 16 < limit; }
  __device__ __forceinline__ bool drops_second(std::uint32_t word) const { return word < limit; }
  // Sets dropped elements of a packed pair to zero.
  __device__ __forceinline__ std::uint32_t apply_mask(std::uint32_t pair, std::uint32_t word) const {
    const std::uint32_t first = drops_first(word) ? pair & 0xffff0000U : pair;
    return drops_second(word) ? first & 0xffffU : first;
  }
  // Masks eight neighboring elements, beginning with group `four`.
  __device__ __forceinline__ uint4 apply_mask(const uint4& v, std::uint32_t four) const {
    const uint2 low = at(four), high = at(four + 1);
    return make_uint4(apply_mask(v.x, low.x), apply_mask(v.y, low.y), apply_mask(v.z, high.x), apply_mask(v.w, high.y));
  }
};
// Two neighboring ranks of a row of T; zeros outside.
template <class T>
__device__ __forceinline__ std::uint32_t load_two_ranks(const dropout_branch& t, int row, int rows, int rank) {
  const auto* const at = static_cast<const T*>(t.narrow.at) + static_cast<long long>(row) * t.pitch + rank;
  return row < rows && rank < t.rank ? *reinterpret_cast<const std::uint32_t*>(at) : 0U;
}
// Adds the sums of a block's warps in shared memory, in the order of the warps.
template <int Count> __device__ __forceinline__ void add_warps(float (&mine)[Count], float* shared) {
  for (int w = 0; w < wide_block_warps; ++w) {
    if (static_cast<int>(threadIdx.x) / 32 == w)
      for (int k = 0; k < Count; ++k) {
        float* const at = shared + k * 32 + threadIdx.x % 32;
        *at = w == 0 ? mine[k] : *at + mine[k];
      }
    __syncthreads();
  }
}
}  // namespace dropout_kernels

// shrink: a block computes 32 rows of U; its warps take 32 columns of x at a time, in turn. Tiles: ranks / 16.
template <class T, int Tiles>
__global__ void __launch_bounds__(32 * dropout_kernels::wide_block_warps) dropout_shrink_kernel(dropout_gemm_args g) {
#if __CUDA_ARCH__ >= 800
  pdl_begin();
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32), q = lane % 4,
            row0 = static_cast<int>(blockIdx.x) * 32 + lane / 4;
  const dropout_branch& t = g.branch;
  const dropout_kernels::dropout_draws d(t.drawn());
  const auto vec4s = static_cast<std::uint32_t>(g.columns / 4);
  const T* const x = static_cast<const T*>(g.wide.at);
  float acc[2][2 * Tiles][4] = {};
  auto load = [&](uint4(&to)[4], int c) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const long long row = row0 + 8 * k;
      to[k] = ptx::load_streaming(x + row * g.columns + c + 8 * q, row < g.rows && c < g.columns);
    }
  };
  constexpr int stride = 32 * dropout_kernels::wide_block_warps;
  auto load_factor = [&](float4(&to)[2][2 * Tiles], int c) {
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
      for (int n = 0; n < 2 * Tiles; ++n)
        to[s][n] = c < g.columns ? t.load_entries4(8 * n + lane / 4, c + 8 * q + 4 * s) : make_float4(0, 0, 0, 0);
  };
  uint4 now[4], next[4];
  float4 a[2][2 * Tiles];
  load(now, 32 * warp), load_factor(a, 32 * warp);
  for (int c = 32 * warp; c < g.columns; c += stride) {
    load(next, c + stride);
    if (t.seed != nullptr)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        now[k] = d.apply_mask(
            now[k], static_cast<std::uint32_t>(row0 + 8 * k) * vec4s + static_cast<std::uint32_t>(c / 4 + 2 * q));
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
          ptx::mma_m16n8k16<T>(acc[m][n], left, right);
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
  dropout_kernels::add_warps(mine, sums);
  const float scale = t.scale();
  for (int e = static_cast<int>(threadIdx.x); e < 2 * 2 * Tiles * 4 * 32; e += 32 * dropout_kernels::wide_block_warps) {
    const int k = e / 32, l = e % 32, m = k / (8 * Tiles), n = k / 4 % (2 * Tiles), i = k % 4;
    const long long row = static_cast<long long>(blockIdx.x) * 32 + 16 * m + l / 4 + i / 2 * 8;
    const int r = 8 * n + l % 4 * 2 + i % 2;
    if (row < g.rows && r < t.rank) g.out.put(row * t.rank + r, scale * sums[e]);
  }
#endif
}

// sum (wgrad): a block computes 32 columns of D for 16 ranks; its warps take 16 tokens at a time, in turn.
template <class T>
__global__ void __launch_bounds__(32 * dropout_kernels::wide_block_warps) dropout_wgrad_kernel(dropout_gemm_args g) {
#if __CUDA_ARCH__ >= 800
  pdl_begin();
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32), q = lane % 4,
            column = static_cast<int>(blockIdx.x) * 32 + lane / 4 * 4, rank0 = static_cast<int>(blockIdx.y) * 16;
  const dropout_branch& t = g.branch;
  const dropout_kernels::dropout_draws d(t.drawn());
  const auto vec4s = static_cast<std::uint32_t>(g.columns / 4), four = static_cast<std::uint32_t>(column / 4);
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
      to.t[k] = dropout_kernels::load_two_ranks<T>(t, first + lane / 4 + k / 2 * 8, rows, rank0 + k % 2 * 8 + 2 * q);
  };
  float acc[4][4] = {};
  constexpr int stride = 16 * dropout_kernels::wide_block_warps;
  tokens now, next, then;
  load(now, 16 * warp), load(next, 16 * warp + stride);
  for (int first = 16 * warp; first < rows; first += stride) {
    load(then, first + 2 * stride);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint2 draws = d.at(static_cast<std::uint32_t>(row_of(first, k)) * vec4s + four);
      now.x[k] = make_uint2(d.apply_mask(now.x[k].x, draws.x), d.apply_mask(now.x[k].y, draws.y));
    }
    // A fragment: ranks 0 to 7 and 8 to 15 of the first eight tokens, then of the other eight.
    const std::uint32_t left[4] = {ptx::transpose_matrix(now.t[0]), ptx::transpose_matrix(now.t[1]),
                                   ptx::transpose_matrix(now.t[2]), ptx::transpose_matrix(now.t[3])};
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // column 4 (lane / 4) + j, two tokens in a register
      const unsigned which = j % 2 == 0 ? 0x5410U : 0x7632U;
      const std::uint32_t right[2] = {
          __byte_perm(j < 2 ? now.x[0].x : now.x[0].y, j < 2 ? now.x[1].x : now.x[1].y, which),
          __byte_perm(j < 2 ? now.x[2].x : now.x[2].y, j < 2 ? now.x[3].x : now.x[3].y, which)};
      ptx::mma_m16n8k16<T>(acc[j], left, right);
    }
    now = next, next = then;
  }
  __shared__ float sums[16 * 32];
  float mine[16];
#pragma unroll
  for (int k = 0; k < 16; ++k) mine[k] = acc[k / 4][k % 4];
  dropout_kernels::add_warps(mine, sums);
  const float scale = t.scale();
  for (int e = static_cast<int>(threadIdx.x); e < 16 * 32; e += 32 * dropout_kernels::wide_block_warps) {
    const int j = e / 32 / 4, i = e / 32 % 4, l = e % 32, r = rank0 + l / 4 + i / 2 * 8,
              c = static_cast<int>(blockIdx.x) * 32 + 4 * (l % 4 * 2 + i % 2) + j;
    if (r < t.rank) g.out.put(static_cast<long long>(r) * g.columns + c, scale * sums[e]);
  }
#endif
}

// expand: a warp computes 32 columns of expanded_rows(Tiles) rows. All rows of the summand are loaded first; its part of
// A is in registers.
template <class T, int Tiles>
__global__ void __launch_bounds__(dropout_kernels::threads)
    dropout_expand_kernel(const __grid_constant__ dropout_gemm_args g) {
#if __CUDA_ARCH__ >= 800
  pdl_begin();
  constexpr int expanded = dropout_kernels::expanded_rows(Tiles), steps = expanded / 16;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32), q = lane % 4,
            first = (static_cast<int>(blockIdx.x) * dropout_kernels::warps + warp) * 32;
  if (first >= g.columns) return;
  const int row0 = static_cast<int>(blockIdx.y) * expanded + lane / 4, rows = static_cast<int>(g.rows);
  const auto vec4s = static_cast<std::uint32_t>(g.columns / 4), four = static_cast<std::uint32_t>(first / 4 + 2 * q);
  const T* const other = static_cast<const T*>(g.wide.at) + first + 8 * q;
  uint4 v[2 * steps];  // rows 8 apart
#pragma unroll
  for (int h = 0; h < 2 * steps; ++h)
    v[h] = ptx::load_streaming(other + (row0 + 8LL * h) * g.columns, row0 + 8 * h < rows);
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
  const dropout_branch& b = g.branch;
  const dropout_kernels::dropout_draws d(b.drawn());
  const float scale = b.scale();
  std::uint32_t right[Tiles][4][2];  // B fragments: product t yields columns 8 q + 2 t and 8 q + 2 t + 1
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
      const std::uint32_t left[4] = {dropout_kernels::load_two_ranks<T>(b, row, rows, r),
                                     dropout_kernels::load_two_ranks<T>(b, row + 8, rows, r),
                                     dropout_kernels::load_two_ranks<T>(b, row, rows, r + 8),
                                     dropout_kernels::load_two_ranks<T>(b, row + 8, rows, r + 8)};
#pragma unroll
      for (int t = 0; t < 4; ++t) ptx::mma_m16n8k16<T>(acc[t], left, right[n][t]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t at = static_cast<std::uint32_t>(row + 8 * h) * vec4s + four;
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
  T* const out = static_cast<T*>(g.out.at) + first + 8 * q;
#pragma unroll
  for (int h = 0; h < 2 * steps; ++h)
    if (row0 + 8 * h < rows)
      *reinterpret_cast<uint4*>(out + (row0 + 8LL * h) * g.columns) =
          make_uint4(pack<T>(sum[h][0], sum[h][1]), pack<T>(sum[h][2], sum[h][3]), pack<T>(sum[h][4], sum[h][5]),
                     pack<T>(sum[h][6], sum[h][7]));
#endif
}

// Fallback for other types and sizes: one entry of a result by a team of threads.
struct dropout_entry {
  dropout_gemm_args g;
  dropout_gemm::form form_kind;

  __host__ __device__ float x(const dropout_mask& d, long long row, int c) const {
    const long long at = row * g.columns + c;
    return d.drops(at) ? 0.0F : g.wide[at];
  }
  // The sum of one branch for entry i: dropped elements of x count as zero, and a dropped entry of an expand is zero.
  template <class Team> __host__ __device__ float partial(const dropout_branch& b, long long i, const Team& t) const {
    const dropout_mask d = b.drawn();
    const long long out_columns = form_kind == dropout_gemm::form::shrink ? b.rank : g.columns, row = i / out_columns;
    const int c = static_cast<int>(i % out_columns);
    float sum = 0;
    if (form_kind == dropout_gemm::form::shrink)
      for (int k = t.rank; k < g.columns; k += t.size) sum += x(d, row, k) * b.entry(c, k);
    else if (form_kind == dropout_gemm::form::sum)
      for (long long token = t.rank; token < g.rows; token += t.size)
        sum += b.narrow[token * b.pitch + row] * x(d, token, c);
    else
      for (int r = t.rank; r < b.rank && !d.drops(i); r += t.size) sum += b.narrow[row * b.pitch + r] * b.entry(r, c);
    return b.scale() * t.sum(sum);
  }
  template <class Team> __host__ __device__ void operator()(long long i, Team t) const {
    float sum = form_kind == dropout_gemm::form::expand ? g.wide[i] : 0.0F;
    sum += partial(g.branch, i, t);
    if (t.is_leader()) g.out.put(i, sum);
  }
};

// Tiles: ranks / 16.
inline unsigned dropout_grid(long long n, long long each) { return static_cast<unsigned>((n + each - 1) / each); }
template <class T, int Tiles> status run_dropout_shrink(cudaStream_t stream, const dropout_gemm_args& g) {
  return launch_pdl(stream, &dropout_shrink_kernel<T, Tiles>, dim3(dropout_grid(g.rows, 32)),
                    dim3(32 * dropout_kernels::wide_block_warps), "GEMM with dropout", g);
}
template <class T> status run_dropout_wgrad(cudaStream_t stream, const dropout_gemm_args& g) {
  const dim3 grid(dropout_grid(g.columns, 32), dropout_grid(g.branch.rank, 16));
  return launch_pdl(stream, &dropout_wgrad_kernel<T>, grid, dim3(32 * dropout_kernels::wide_block_warps),
                    "GEMM with dropout", g);
}
template <class T, int Tiles> status run_dropout_expand(cudaStream_t stream, const dropout_gemm_args& g) {
  const dim3 grid(dropout_grid(g.columns, 32 * dropout_kernels::warps),
                  dropout_grid(g.rows, dropout_kernels::expanded_rows(Tiles)));
  return launch_pdl(stream, &dropout_expand_kernel<T, Tiles>, grid, dim3(dropout_kernels::threads), "GEMM with dropout",
                    g);
}
template <class T>
status launch_dropout_gemm(cudaStream_t stream, dropout_gemm::form form_kind, const dropout_gemm_args& g) {
  using form = dropout_gemm::form;
  const int rank = g.branch.rank;
  const long long entries = form_kind == form::sum ? static_cast<long long>(rank) * g.columns
                                                   : g.rows * (form_kind == form::shrink ? rank : g.columns);
  if (entries == 0) return ok;
  if constexpr (sizeof(T) == 2)
    if (g.fits() && g.wide.type == dtype_of<T> && (form_kind != form::expand || g.out.type == g.wide.type)) {
      if (form_kind == form::sum) return run_dropout_wgrad<T>(stream, g);
      if (form_kind == form::shrink)
        return rank <= 16   ? run_dropout_shrink<T, 1>(stream, g)
               : rank <= 32 ? run_dropout_shrink<T, 2>(stream, g)
                            : run_dropout_shrink<T, 4>(stream, g);
      return rank <= 16   ? run_dropout_expand<T, 1>(stream, g)
             : rank <= 32 ? run_dropout_expand<T, 2>(stream, g)
                          : run_dropout_expand<T, 4>(stream, g);
    }
  return on_stream{stream}.rows(entries, dropout_entry{g, form_kind}, "GEMM with dropout");
}

}  // namespace graft::gpu
