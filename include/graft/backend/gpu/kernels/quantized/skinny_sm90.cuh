// SPDX-License-Identifier: Apache-2.0
// Skinny GEMM on a quantized weight, sm_90a: up to 16 tokens per CTA, dequantized in registers (NF4, FP4, int8, FP8,
// Q8_0, Q4_0, Q4_K), with low-rank branch, epilogue and gate.
//
//   y = epilogue(x dequantize(W)ᵀ + U Bᵀ)       x [m, k]   W [n, k]   U = x Aᵀ [m, rank]   B [n, rank]   y [m, n]
//   gated (SwiGLU, GeGLU; two layers):          y = round(epilogue₀(…)) ⊙ round(epilogue₁(…))
//
// Tile         A unit is 16 rows of W. A CTA takes every clusters-th unit of its layer; in a gated launch the units of
//              the two layers alternate. Each of 16 consumer warps has up to 256 columns of k, x in registers.
// Mainloop     A warp loads its columns of a unit by cp.async, two units in flight, dequantizes them into mma.sync A
//              operands (dequantize_registers.cuh) and multiplies; scales multiply the sums of the columns that share
//              one. Warps do not wait for each other until the end of a phase.
// Phase        As many units as have memory for their sums. At its end: sum over warps, expand, epilogue, store.
// Warp roles   16 consumer warps; with a low-rank branch and up to 8 tokens four more compute U (low_rank_branch.cuh).
// Split-K      Where k is longer than 4096, a cluster of CTAs divides it, and each CTA finishes some of the units.
// Grouped      Several layers with the same x (Q, K, V), or groups of 16 tokens, are segments with CTAs of their own.
// Reduction    Warps and splits are added in a fixed order: the same call gives the same bits.
// Measured     H200, LoRA r16, 4096 inputs, 14336 outputs, NF4, 1 / 8 / 16 tokens: 9.9 / 10.8 / 14.7 µs, 1.29 / 1.40 /
//              1.92 times the floor of the quantized bytes at 4.3 TB/s (docs/performance.md).
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/quantized/low_rank_branch.cuh>
#include <graft/backend/gpu/kernels/skinny/sm90_layout.h>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

// Position of element e of the stored sums, 16 rows x 8 tokens in mma accumulator order per unit and 8 tokens.
template <int NTiles> struct unit_element {
  int unit, n, inside;
  __device__ explicit unit_element(int e) : unit(e / (128 * NTiles)), n(e / 128 % NTiles), inside(e % 128) {}
  __device__ int sum() const { return (unit * NTiles + n) * 128 + inside; }
  __device__ int token() const { return n * 8 + inside / 4 % 4 * 2 + (inside & 1); }
  __device__ int row() const { return inside / 16 + 8 * (inside >> 1 & 1); }
};

// Branch: adds U Bᵀ; with up to 8 tokens extra warps compute U, which leaves fewer registers for the others. Whole and
// Grouped are described at weight_loader.
template <class T, quant_layout Form, int NTiles, bool Branch, bool FullUnits, bool Grouped> struct quantized_block {
  using units = weight_loader<T, Form, NTiles, Branch, FullUnits, Grouped>;
  using dequant = typename units::dequant;
  using low_rank_branch = quantized_branch<T, Form, NTiles, Branch, FullUnits, Grouped>;
  static constexpr bool makes_shrink = Branch && !low_rank_branch::shrink_precomputed,
                        loads_shrink = Branch && low_rank_branch::shrink_precomputed;
  static constexpr int consumers = quant_warps * 32,
                       threads = consumers + (makes_shrink ? low_rank_branch::threads : 0);
  static constexpr int stages = quant_stages, own_barrier = 1;
  static constexpr int chunks = 2 * quant_steps;  // chunks of 32 columns per warp
  static_assert(sums_in_table % (quant_warps * NTiles) == 0);
  // Partial sums per unit: one per warp, and one for U Bᵀ where the row scale must not multiply it.
  static constexpr int partial_sums = quant_warps + (has_row_scales(Form) && Branch ? 1 : 0);
  using x_words = uint4[chunks][NTiles];
  using sums = float[NTiles][4];
  using element = unit_element<NTiles>;

  units in;
  int split;

  __device__ __forceinline__ void load_x(x_words& x, const T* from, int tokens) const {
#pragma unroll
    for (int n = 0; n < NTiles; ++n)
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        x[c][n] = make_uint4(0, 0, 0, 0);
        if ((FullUnits || c / 2 < in.own_steps) && n * 8 + in.lane / 4 < tokens)
          x[c][n] = dequant::x_of(from + n * 8LL * in.k() + c / 2 * 64, c % 2);
      }
    if constexpr (!FullUnits) {
      if (in.of.adapter.prologue == nullptr) return;
      const int column = in.first_step * 64 + dequant::x_begins(in.lane % 4);
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        if (c / 2 >= in.own_steps) break;
        const uint4 by = dequant::x_of(static_cast<const T*>(in.of.adapter.prologue) + column + c / 2 * 64, c % 2);
#pragma unroll
        for (int n = 0; n < NTiles; ++n)
          x[c][n] = make_uint4(times<T>(x[c][n].x, by.x), times<T>(x[c][n].y, by.y), times<T>(x[c][n].z, by.z),
                               times<T>(x[c][n].w, by.w));
      }
    }
  }
  // A lane's share of 16 rows x 32 columns, dequantized.
  struct chunk {
    typename dequant::pairs upper, lower;
  };
  // A lane's share of 16 rows x 64 columns, one step.
  struct step_fragments {
    chunk half[2];
  };
  __device__ __forceinline__ void dequantize_step(step_fragments& to, const dequant& numbers, std::uint32_t unit,
                                                  int b) const {
    typename dequant::words upper[2], lower[2];
    const int row = in.lane / 4, quad = in.lane % 4;
    dequant::load(upper, unit, row, b, quad), dequant::load(lower, unit, row + 8, b, quad);
#pragma unroll
    for (int h = 0; h < 2; ++h)
      numbers.dequantize(to.half[h].upper, upper[h]), numbers.dequantize(to.half[h].lower, lower[h]);
  }
  // Multiplies a chunk of 16 rows with all tokens; First: `to` is uninitialized.
  template <bool First>
  __device__ __forceinline__ static void multiply(sums& to, const chunk& w, const uint4 (&x)[NTiles]) {
    const std::uint32_t first[4] = {w.upper[0], w.lower[0], w.upper[1], w.lower[1]},
                        second[4] = {w.upper[2], w.lower[2], w.upper[3], w.lower[3]};
#pragma unroll
    for (int n = 0; n < NTiles; ++n) {
      if constexpr (First)
        ptx::mma_m16n8k16_first<T>(to[n], first, x[n].x, x[n].y);
      else
        ptx::mma_m16n8k16_unordered<T>(to[n], first, x[n].x, x[n].y);
      ptx::mma_m16n8k16_unordered<T>(to[n], second, x[n].z, x[n].w);
    }
  }
  __device__ __forceinline__ static void add(sums& to, const sums& partial, const typename units::lane_scales& scale,
                                             int which) {
#pragma unroll
    for (int n = 0; n < NTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) to[n][e] = fmaf(scale[e >> 1][which], partial[n][e], to[n][e]);
  }
  // With blocks of 64 columns or more the loop over steps has no exit, so that a step is looked up while another is
  // multiplied; missing columns have zeros for x and for scales.
  static constexpr bool block_scales = has_block_scales(Form);
  // Steps of the first unit that are dequantized before x arrives: grouped kernels for 16 tokens without a branch,
  // which have registers for it.
  static constexpr int early_steps = Grouped && block_scales && NTiles == 2 && !Branch ? 1 : 0;
  // Double-quantized scales are dequantized during the first step where there are registers for both.
  static constexpr bool widens_late =
      Form == quant_layout::nested_block_scales && FullUnits && !Grouped && !(Branch && NTiles == 2);
  using early_fragments = step_fragments[early_steps > 0 ? early_steps : 1];
  template <int Early>
  __device__ __forceinline__ void accumulate(sums& acc, const dequant& numbers, int stage, const x_words& x,
                                             const early_fragments& early) const {
    const std::uint32_t unit = in.at(stage);
    typename units::lane_scales scale;
    if constexpr (block_scales && !widens_late) in.load_scales(scale, stage);
#pragma unroll
    for (int b = 0; b < quant_steps; ++b) {
      if (!block_scales && b >= in.own_steps) break;
      step_fragments now;
      if (b < Early)
        now = early[b < Early ? b : 0];
      else
        dequantize_step(now, numbers, unit, b);
      if constexpr (widens_late)
        if (b == 0) in.widen_scales(0, stage), in.load_scales(scale, stage);
      if constexpr (has_row_scales(Form)) {
        multiply<false>(acc, now.half[0], x[2 * b]);
        multiply<false>(acc, now.half[1], x[2 * b + 1]);
      } else if constexpr (has_run_scales(Form)) {  // y += scale · (codes · x) + minimum · (1 · x), run by run
        constexpr std::uint32_t one = dequant::ones;
        constexpr chunk ones{{one, one, one, one}, {one, one, one, one}};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 upper = in.load_run_scale(stage, 2 * b + h, 0), lower = in.load_run_scale(stage, 2 * b + h, 1);
          sums partial;
          scale[0][0] = upper.x, scale[1][0] = lower.x;
          multiply<true>(partial, now.half[h], x[2 * b + h]), add(acc, partial, scale, 0);
          scale[0][0] = upper.y, scale[1][0] = lower.y;
          multiply<true>(partial, ones, x[2 * b + h]), add(acc, partial, scale, 0);
        }
      } else {
        sums partial;
        if constexpr (!block_scales) in.load_scales(scale, stage, b);
        multiply<true>(partial, now.half[0], x[2 * b]);
        if constexpr (!block_scales) add(acc, partial, scale, 0);
        multiply<!block_scales>(partial, now.half[1], x[2 * b + 1]);
        add(acc, partial, scale, block_scales ? b : 1);
      }
    }
  }

  __device__ void consume() const {
    const auto thread = static_cast<int>(threadIdx.x);
    const low_rank_branch branch{in, split};
    [[maybe_unused]] typename units::source next = in.first_source();
    const auto request = [&](int i, int stage) {
      if ((!Grouped && i == 0) || in.has(i)) {
        if constexpr (FullUnits)
          in.request(next, i, stage);
        else
          in.request(i, stage);
      }
      if (Branch && ((!Grouped && i == 0) || in.has(i))) branch.prefetch_b(i);
      ptx::commit_copies();
    };
    const auto request_others = [&] {
#pragma unroll
      for (int i = 1; i < stages; ++i) request(i, i);
    };
    // Up to 4 tokens of x are so short that weight loads issued before them do not delay them.
    const bool all_first = !Branch && in.m() <= 4;
    request(0, 0);
    if (all_first) request_others();
    if constexpr (has_row_scales(Form) && !Grouped) in.prefetch_row_scales();
    if constexpr (units::has_nested_table) in.fill_nested_table(thread);
    if constexpr (dequant::has_table) dequant::fill(in.table(), in.of.from.table, thread);
    const T* from = in.own_x();
    int tokens = in.m();
    ptx::keep_global_pointer(from), ptx::keep(tokens);  // computed before the wait
    ptx::launch_dependents();
    ptx::wait_for_dependency();
    x_words x;
    load_x(x, from, tokens);
    ptx::named_barrier(own_barrier, consumers);  // keeps the loads of x before it
    if constexpr (loads_shrink) branch.prefetch(thread);
    if (!all_first) request_others();  // after x, so that they do not delay it
    const dequant numbers{in.table() + in.lane * 4};
    const auto arrive = [&](int i, int stage) {
      ptx::wait_for_copies<stages - 1>();
      __syncwarp();
      if constexpr (units::has_scales && !widens_late)
        if (in.nested) in.widen_scales(i, stage);
      if constexpr (has_run_scales(Form)) in.expand_run_scales(stage);
    };
    int stage = 0, in_phase = 0;
    early_fragments early;
    sums acc = {};
    if constexpr (Grouped) {  // a single layer starts and ends sooner with less code
      arrive(0, 0);
#pragma unroll
      for (int b = 0; b < early_steps; ++b) dequantize_step(early[b], numbers, in.at(0), b);
      if constexpr (early_steps > 0) __syncwarp();
      accumulate<early_steps>(acc, numbers, 0, x, early);
    }
    const auto take_unit = [&] { accumulate<0>(acc, numbers, stage, x, early); };
    for (int i = 0;;) {
      if constexpr (!Grouped) arrive(i, stage), take_unit();
      const bool ends_phase = in_phase + 1 == in.phase() || !in.has(i + 1);
      __syncwarp();
      if constexpr (loads_shrink) ptx::keep(i), ptx::keep(stage);  // saves registers: not computed before the unit
      request(i + stages, stage);
      if (++stage == stages) stage = 0;
#pragma unroll
      for (int n = 0; n < NTiles; ++n) {
        ptx::store_shared(own_sum(in_phase, in.warp, n),
                          make_uint4(__float_as_uint(acc[n][0]), __float_as_uint(acc[n][1]), __float_as_uint(acc[n][2]),
                                     __float_as_uint(acc[n][3])));
        acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
      }
      ++i, ++in_phase;
      if (ends_phase) {
        finish(i - in_phase, in_phase, branch);
        in_phase = 0;
        if (!in.has(i)) break;
      }
      if constexpr (Grouped) arrive(i, stage), take_unit();
    }
  }
  // Shared address of this lane's share of a warp's sums.
  __device__ std::uint32_t own_sum(int unit, int warp, int n) const {
    return in.sum_at((unit * partial_sums + warp) * NTiles + n, in.lane / 8) + in.lane % 8 * 16;
  }
  // Returns true if this split finishes the unit. The number of splits is a power of two.
  __device__ bool owns(int unit) const { return FullUnits || (unit & (in.g.splits - 1)) == split; }
  // One warp per unit adds U Bᵀ to its own sums of that unit.
  __device__ __forceinline__ void expand(int i, int count, const low_rank_branch& branch) const {
    const int unit = (in.warp - i) & (quant_warps - 1);
    if (unit >= count || !owns(unit)) return;
    constexpr bool warp_stride = partial_sums > quant_warps;
    sums acc = {};
    branch.expand(acc, i + unit);
#pragma unroll
    for (int n = 0; n < NTiles; ++n) {
      const std::uint32_t at = own_sum(unit, warp_stride ? quant_warps : in.warp, n);
      const float4 v = warp_stride ? make_float4(0, 0, 0, 0) : ptx::load_shared_float4(at);
      ptx::store_shared(at, make_uint4(__float_as_uint(acc[n][0] + v.x), __float_as_uint(acc[n][1] + v.y),
                                       __float_as_uint(acc[n][2] + v.z), __float_as_uint(acc[n][3] + v.w)));
    }
  }
  // Sum over the warps, in warp order. The sums of a unit are all in the table or all after it, at a constant stride.
  __device__ float sum_of_warps(int unit, int n, int inside) const {
    const int first = unit * partial_sums * NTiles;
    const std::uint32_t at = in.sum_at(first + n, inside / 32) + inside % 32 * 4,
                        warp_stride = in.sum_at(first + NTiles, 0) - in.sum_at(first, 0);
    float v = 0;
#pragma unroll
    for (int w = 0; w < quant_warps; ++w) v += __uint_as_float(ptx::load_shared(at + w * warp_stride));
    return v;
  }
  // End of a phase: computes and stores y of `count` units, beginning with this CTA's unit `i`.
  __device__ void finish(int i, int count, const low_rank_branch& branch) const {
    const int thread = static_cast<int>(threadIdx.x), all = count * 128 * NTiles;
    if (loads_shrink && i == 0) ptx::wait_for_copies<stages - 1>();  // U, loaded with the second unit
    ptx::named_barrier(own_barrier, consumers);
    if (Branch && branch.groups() > 0) {
      expand(i, count, branch);
      ptx::named_barrier(own_barrier, consumers);
    }
    if constexpr (!Grouped)
      if (FullUnits || in.g.splits == 1) return finish_vec4(i, count);
    const std::uint32_t partials = in.base + in.g.partials_at;
    const bool shared = !FullUnits && in.g.splits > 1;
    if (shared) {
      for (int e = thread; e < all; e += consumers)
        ptx::store_shared(partials + e * 4, __float_as_uint(number(element(e), i)));
      ptx::cluster_sync();
    }
#pragma unroll 1
    for (int e = thread; e < (in.gated() ? all / 2 : all); e += consumers) {
      element at(e);
      const int token = at.token();
      if (in.gated()) at.unit *= 2;
      const int row = in.row_of(i + at.unit) + at.row();
      if (token >= in.m() || (!FullUnits && row >= in.of.n)) continue;
      T* const y = static_cast<T*>(in.of.y) + static_cast<long long>(token) * in.of.n + row;
      if (in.gated()) {
        float v = 1;
#pragma unroll 1
        for (int layer = 0; layer < 2; ++layer, ++at.unit)
          v *= to_float(from_float<T>(apply_epilogue_to(in.g.segment[layer], number(at, i), token, row)));
        *y = from_float<T>(v);
        continue;
      }
      if (!owns(at.unit)) continue;
      float v = 0;
      if (!shared)
        v = number(at, i);
      else
        for (int s = 0; s < in.g.splits; ++s) v += ptx::load_dsmem(partials + at.sum() * 4, s);
      *y = from_float<T>(apply_epilogue_to(in.of, v, token, row));
    }
    if (shared)
      ptx::cluster_sync();
    else if (in.has(i + count))
      ptx::named_barrier(own_barrier, consumers);
  }
  // finish() of a single layer without split-K, four elements per thread: two adjacent tokens of rows r and r + 8.
  __device__ __forceinline__ void finish_vec4(int i, int count) const {
#pragma unroll 1
    for (int j = in.warp; j < count * NTiles; j += quant_warps) {
      const std::uint32_t at = own_sum(j / NTiles, 0, j % NTiles),
                          warp_stride = own_sum(j / NTiles, 1, j % NTiles) - at;
      float v[4] = {};
#pragma unroll 8
      for (int w = 0; w < quant_warps; ++w) {
        const float4 sum = ptx::load_shared_float4(at + w * warp_stride);
        v[0] += sum.x, v[1] += sum.y, v[2] += sum.z, v[3] += sum.w;
      }
      const int token = j % NTiles * 8 + in.lane % 4 * 2, row = in.row_of(i + j / NTiles) + in.lane / 4;
      if constexpr (has_row_scales(Form)) {
        float4 branch = make_float4(0, 0, 0, 0);
        if constexpr (Branch) branch = ptx::load_shared_float4(at + quant_warps * warp_stride);
        const float upper = has_row(row) ? scale_of_row(in.of, row) : 0,
                    lower = has_row(row + 8) ? scale_of_row(in.of, row + 8) : 0;
        v[0] = fmaf(v[0], upper, branch.x), v[1] = fmaf(v[1], upper, branch.y);
        v[2] = fmaf(v[2], lower, branch.z), v[3] = fmaf(v[3], lower, branch.w);
      }
      T* const y = in.y() + static_cast<long long>(token) * in.n() + row;
      const auto store = [&](auto epilogue) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int next = e % 2, further = e / 2 * 8;
          if (token + next < in.m() && has_row(row + further))
            y[next * in.n() + further] = from_float<T>(epilogue(v[e], token + next, row + further));
        }
      };
      if (in.g.bare)  // the common short path comes first in the code
        store([](float sum, int, int) { return sum; });
      else
        store([&](float sum, int t, int r) { return apply_epilogue_to(in.of, sum, t, r); });
    }
    if (in.has(i + count)) ptx::named_barrier(own_barrier, consumers);
  }
  __device__ bool has_row(int row) const { return FullUnits || row < in.of.n; }
  // Scale of a row, or of the tensor.
  __device__ static float scale_of_row(const quantized_product& of, int row) {
    const float s = of.from.scale(of.from.format.scaled == scale_granularity::row ? row : 0);
    return stored_values<T, Form>::row_scale(s);
  }
  // x Wᵀ + U Bᵀ of an element, over the columns of this CTA.
  __device__ __forceinline__ float number(const element& e, int i) const {
    const float v = sum_of_warps(e.unit, e.n, e.inside);
    if constexpr (has_row_scales(Form)) {
      const quantized_product& of = in.layer(i + e.unit);
      const int row = in.row_of(i + e.unit) + e.row();
      if (row >= of.n) return 0;
      const float by = scale_of_row(of, row);
      if (!Branch || of.adapter.rank == 0 || !owns(e.unit)) return v * by;
      const int at = (e.unit * partial_sums + quant_warps) * NTiles + e.n;
      return fmaf(v, by, __uint_as_float(ptx::load_shared(in.sum_at(at, e.inside / 32) + e.inside % 32 * 4)));
    }
    return v;
  }
  __device__ __forceinline__ float apply_epilogue_to(const quantized_product& of, float v, int token, int row) const {
    return epilogue_args<T>{of.adapter.scale, of.adapter.shift, static_cast<const T*>(of.residual),
                            of.act,           in.m(),           of.n}(v, token, row);
  }
};

template <class T, quant_layout Form, int NTiles, bool Branch, bool FullUnits, bool Grouped>
__global__ void __launch_bounds__(quantized_block<T, Form, NTiles, Branch, FullUnits, Grouped>::threads, 1)
    quantized_skinny_kernel(const __grid_constant__ quantized_args_of<Grouped> g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t begins = ptx::shared_address(raw);
  const bool right = begins % (1U << 24U) == quant_smem_begin;  // no static shared memory may precede it
  if (Grouped && !right) __trap();
  const std::uint32_t base = Grouped || !FullUnits ? begins - static_cast<std::uint32_t>(quant_smem_begin) : 0;
  const int split = static_cast<int>(blockIdx.x), cluster = static_cast<int>(blockIdx.y);
  int s = 0;
  if constexpr (Grouped)
#pragma unroll
    for (int other = 1; other < max_segments; ++other) s += cluster >= g.segment[other].first ? 1 : 0;
  const quantized_product& of = g.segment[s];
  using block = quantized_block<T, Form, NTiles, Branch, FullUnits, Grouped>;
  const block now{
      {g, of, base, split, Grouped ? cluster - of.first : cluster, Grouped ? of.clusters : static_cast<int>(gridDim.y)},
      split};
  if constexpr (block::makes_shrink) {
    if (threadIdx.x == 0)
      ptx::barrier_init(typename block::low_rank_branch{now.in, split}.ready(), block::low_rank_branch::threads);
    __syncthreads();
  }
  if (!block::makes_shrink || threadIdx.x < block::consumers) {
    if constexpr (block::makes_shrink) ptx::alloc_registers<104>();
    now.consume();
    if (!Grouped && !right) __trap();  // checked late to save time at the start
  } else if constexpr (block::makes_shrink) {
    ptx::dealloc_registers<64>();
    const typename block::low_rank_branch branch{now.in, split};
    if (branch.groups() == 0) return;
    branch.make(static_cast<int>(threadIdx.x) - block::consumers);
  }
#endif
}

}  // namespace graft::gpu
