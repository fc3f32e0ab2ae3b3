// SPDX-License-Identifier: Apache-2.0
// Low-rank branch of the quantized skinny GEMM (skinny_sm90.cuh): shrink U = x Aᵀ [tokens, rank] and expand U Bᵀ.
//
// Up to 8 tokens   Four extra warps of each CTA compute U. A task is a slice of the inner axis for 16 rows of A; each
//                  task runs on one CTA of the layer, so that A is read once. Partial sums meet in device memory: every
//                  CTA waits until all tasks are done and adds the slices in order. All CTAs must be resident.
// More tokens      A launch before this one computes U (skinny/shrink.cuh); it is loaded after x.
// Expand           Rows of B are loaded with the stored values of their unit. One consumer warp per unit multiplies
//                  them with U and adds the result to its own sums. Only this warp waits for U.
// Reduction        Slices, warps and splits are added in a fixed order: the same call gives the same bits.
#pragma once
#include <graft/backend/gpu/kernels/quantized/dequantizing_loader.cuh>
#include <graft/backend/gpu/kernels/quantized/shrink.cuh>
#include <graft/backend/gpu/tile/exchange.cuh>

namespace graft::gpu {

template <class T, quant_layout Form, int NTiles, bool Branch, bool FullUnits, bool Grouped> struct quantized_branch {
  using units = weight_loader<T, Form, NTiles, Branch, FullUnits, Grouped>;
  static constexpr int warps = 4, threads = warps * 32, tokens = NTiles * 8;
  static constexpr int slices = shrink_slices, own_barrier = 3;
  static constexpr bool shrink_precomputed = shrinks_first(tokens);

  const units& in;
  int split;

  // Groups of 16 of the rank; in a gated launch the groups of the second layer follow those of the first.
  __device__ int first_groups() const { return in.of.adapter.rank / 16; }
  __device__ int groups() const {
    return in.gated() ? (in.g.segment[0].adapter.rank + in.second().adapter.rank) / 16 : first_groups();
  }
  // The mbarrier on which the expanding warps wait for U.
  __device__ std::uint32_t ready() const { return in.ready(); }
  // Shared address of U of a token for `layer`.
  __device__ std::uint32_t at(int token, int layer) const {
    return in.shrink_out() + (token * groups() + (layer == 0 ? 0 : first_groups())) * 64;
  }

  // ---- shrink on the extra warps; `thread` counts from their first --------------------------------------------------
  __device__ void make(int thread) const {
    const int tasks = groups() * slices;
    int made = 0;
    for (int task = in.first * in.splits() + split; task < tasks; task += blocks(), ++made) shrink(task, thread);
    wait_for_partials(thread, made, tasks);
    gather(thread);
    ptx::barrier_arrive(ready());
    if (thread == 0) reset_counters();  // after the arrival, because no one waits for it
  }

  // ---- U of the previous launch, loaded by the consumer warps -------------------------------------------------------
  __device__ __forceinline__ void prefetch(int thread) const {
    if (thread < groups() * tokens * 4)
      ptx::copy_async16(in.shrink_out() + thread * 16, in.of.shrink_out + thread * 4, 16);
  }

  // ---- expand -------------------------------------------------------------------------------------------------------
  // Whether this warp expands unit i. A phase has fewer units than there are warps, so no warp has two of them.
  __device__ bool expands(int i) const { return in.warp == i % quant_warps; }
  __device__ std::uint32_t b_at() const { return in.b() + in.warp * b_rows_bytes; }
  // Loads the first 16 columns of the rows of B of unit i by cp.async.
  __device__ __forceinline__ void prefetch_b(int i) const {
    const quantized_product& of = in.layer(i);
    if (!expands(i) || of.adapter.rank == 0) return;
    const int row = in.row_of(i) + in.lane / 2;
    const bool inside = FullUnits || row < of.n;
    const T* const b = static_cast<const T*>(of.adapter.b);
    ptx::copy_async16(b_at() + in.lane * 16,
                      inside ? b + static_cast<long long>(row) * of.adapter.rank + in.lane % 2 * 8 : b,
                      inside ? 16 : 0);
  }
  // to += B Uᵀ of unit i, as mma accumulators of 8 tokens each. The order of the rank within a product is free, so a
  // lane loads four adjacent elements.
  __device__ __forceinline__ void expand(float (&to)[NTiles][4], int i) const {
    const quantized_product& of = in.layer(i);
    const int row = in.lane / 4, quad = in.lane % 4, rank = of.adapter.rank, layer = in.gated() ? i & 1 : 0;
    if constexpr (!shrink_precomputed) ptx::barrier_wait(ready(), 0);
#pragma unroll 1
    for (int r = 0; r < rank; r += 16) {
      uint2 upper, lower;
      if (r == 0) {
        const float2 high = ptx::load_shared_float2(b_at() + row * 32 + quad * 8),
                     low = ptx::load_shared_float2(b_at() + (row + 8) * 32 + quad * 8);
        upper = make_uint2(__float_as_uint(high.x), __float_as_uint(high.y));
        lower = make_uint2(__float_as_uint(low.x), __float_as_uint(low.y));
      } else {
        const int at = in.row_of(i) + row;
        const T* const b = static_cast<const T*>(of.adapter.b) + static_cast<long long>(at) * rank + r + quad * 4;
        upper = FullUnits || at < of.n ? __ldg(reinterpret_cast<const uint2*>(b)) : make_uint2(0, 0);
        lower = FullUnits || at + 8 < of.n ? __ldg(reinterpret_cast<const uint2*>(b + 8 * rank)) : make_uint2(0, 0);
      }
      const std::uint32_t rows[4] = {upper.x, lower.x, upper.y, lower.y};
#pragma unroll
      for (int n = 0; n < NTiles; ++n) {
        const float4 v = ptx::load_shared_float4(at(n * 8 + row, layer) + r * 4 + quad * 16);
        ptx::mma_m16n8k16_unordered<T>(to[n], rows, pack<T>(v.x, v.y), pack<T>(v.z, v.w));
      }
    }
  }

 private:
  __device__ int blocks() const { return in.step * in.splits(); }
  __device__ void shrink(int task, int thread) const {
    const int warp = thread / 32, row = thread % 32 / 4, quad = thread % 4, group = task / slices;
    const bool second = in.gated() && group >= first_groups();
    const adapter_args& adapter = second ? in.second().adapter : in.of.adapter;
    const int rows = (group - (second ? first_groups() : 0)) * 16 + row;
    const int part = task % slices * warps + warp, all = in.k() / 32, begin = all * part / (slices * warps),
              end = all * (part + 1) / (slices * warps);
    const std::uint32_t shared = in.shrink_out();  // partial sums of the warps, later U
    float sums[NTiles][4] = {};
    ptx::named_barrier(own_barrier, threads);  // the sums of the previous task have been read
    quantized_detail::shrink<T, NTiles, 2>(sums, adapter, rows, row, quad, in, begin, end);
#pragma unroll
    for (int n = 0; n < NTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        ptx::store_shared(shared + ((warp * tokens + n * 8 + quad * 2 + (e & 1)) * 16 + row + 8 * (e >> 1)) * 4,
                          __float_as_uint(sums[n][e]));
    ptx::named_barrier(own_barrier, threads);
    ptx::wait_for_dependency();  // the previous launch may use the same partial sums
    for (int e = thread; e < tokens * 16; e += threads) {
      float v = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) v += __uint_as_float(ptx::load_shared(shared + (w * tokens * 16 + e) * 4));
      __stcg(in.of.shrink_out + task * tokens * 16 + e, v);
    }
  }
  // Waits until all tasks of the layer are done. The barrier orders the other threads' stores before the release, so no
  // separate fence is needed, which would wait for memory once more.
  __device__ void wait_for_partials(int thread, int made, int tasks) const {
    ptx::named_barrier(own_barrier, threads);
    if (thread == 0) {
      ptx::wait_for_dependency();
      const arrival_counter done{in.of.counters};
      if (made > 0) done.arrive(made);
      done.wait_for(tasks);
    }
    ptx::named_barrier(own_barrier, threads);
  }
  // The last CTA to pass the wait resets the counters to zero for the next launch.
  __device__ void reset_counters() const {
    std::uint32_t* const counters = in.of.counters;
    if (arrival_counter{counters + 1}.arrive_last(blocks())) counters[0] = counters[1] = 0;
  }
  __device__ void gather(int thread) const {
    for (int i = thread; i < groups() * tokens * 4; i += threads) {  // four of 16 ranks of a token
      const int group = i / (tokens * 4), token = i / 4 % tokens, four = i % 4;
      float4 v[slices], all = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int s = 0; s < slices; ++s)
        v[s] = __ldcg(reinterpret_cast<const float4*>(in.of.shrink_out) + ((group * slices + s) * tokens + token) * 4 +
                      four);
#pragma unroll
      for (int s = 0; s < slices; ++s) all.x += v[s].x, all.y += v[s].y, all.z += v[s].z, all.w += v[s].w;
      ptx::store_shared(
          at(token, 0) + group * 64 + four * 16,
          make_uint4(__float_as_uint(all.x), __float_as_uint(all.y), __float_as_uint(all.z), __float_as_uint(all.w)));
    }
  }
};

}  // namespace graft::gpu
