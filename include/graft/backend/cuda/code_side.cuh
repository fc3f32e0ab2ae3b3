// SPDX-License-Identifier: Apache-2.0
// S = x Aᵀ of stream_codes, and S Bᵀ. Up to eight tokens S is made by four warps beside those that read codes: A is cut into
// slices of the inner axis, 16 of its rows each, and a slice is the task of one of the thread blocks of its layer, so that A
// is read once; slices meet in device memory, and every block adds them up in their order. All blocks of the grid must be
// resident at the same time. With more tokens S was made by a launch ahead (shrink_ahead.cuh), and is asked for behind x.
// Rows of B come with the codes of their unit; S Bᵀ is added to the sums that one of the warps has of it.
#pragma once
#include <graft/backend/cuda/code_shrink.cuh>
#include <graft/backend/cuda/code_units.cuh>

namespace graft::cuda {

template <class T, code_form Form, int Eights, bool Side, bool Whole, bool Linked> struct code_side {
  using units = code_units<T, Form, Eights, Side, Whole, Linked>;
  static constexpr int warps = 4, threads = warps * 32, tokens = Eights * 8;
  static constexpr int slices = code_side_slices, among_us = 3;
  static constexpr bool ahead = is_made_ahead(tokens);

  const units& in;
  int split;

  // Sixteens of the rank; of two layers, those of the second behind those of the first.
  __device__ int first_groups() const { return in.of.slot.rank / 16; }
  __device__ int groups() const {
    return in.gated() ? (in.g.segment[0].slot.rank + in.second().slot.rank) / 16 : first_groups();
  }
  // Where the others wait until S is there.
  __device__ std::uint32_t ready() const { return in.ready(); }
  // S of a token in shared memory, as `layer` has it.
  __device__ std::uint32_t at(int token, int layer) const {
    return in.side() + (token * groups() + (layer == 0 ? 0 : first_groups())) * 64;
  }

  // ---- S, by the warps beside; `thread` is a number among them --------------------------------------------------------
  __device__ void make(int thread) const {
    const int tasks = groups() * slices;
    int made = 0;
    for (int task = in.first * in.splits() + split; task < tasks; task += blocks(), ++made) shrink(task, thread);
    meet(thread, made, tasks);
    gather(thread);
    ptx::barrier_arrive(ready());
    if (thread == 0) leave();  // nobody waits for it
  }

  // ---- S that was made ahead, by the warps that read codes ------------------------------------------------------------
  __device__ __forceinline__ void ask(int thread) const {
    if (thread < groups() * tokens * 4) code_detail::copy16(in.side() + thread * 16, in.of.side + thread * 4, 16);
  }

  // ---- S Bᵀ -----------------------------------------------------------------------------------------------------------
  // Whose warp has unit i: phases have fewer units than there are warps.
  __device__ bool expands(int i) const { return in.warp == i % code_warps; }
  __device__ std::uint32_t b_at() const { return in.b() + in.warp * bytes_of_b_rows; }
  // The first sixteen of the rank, with the codes of the unit.
  __device__ __forceinline__ void ask_b(int i) const {
    const code_segment& of = in.layer(i);
    if (!expands(i) || of.slot.rank == 0) return;
    const int row = in.row_of(i) + in.lane / 2;
    const bool inside = Whole || row < of.n;
    const T* const b = static_cast<const T*>(of.slot.b);
    code_detail::copy16(b_at() + in.lane * 16,
                        inside ? b + static_cast<long long>(row) * of.slot.rank + in.lane % 2 * 8 : b, inside ? 16 : 0);
  }
  // Sums of eight tokens each, as tensor cores leave them. The order of the rank is free: a lane has four neighbours.
  __device__ __forceinline__ void expand(float (&to)[Eights][4], int i) const {
    const code_segment& of = in.layer(i);
    const int row = in.lane / 4, quad = in.lane % 4, rank = of.slot.rank, layer = in.gated() ? i & 1 : 0;
    if constexpr (!ahead) ptx::barrier_wait(ready(), 0);
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
        const T* const b = static_cast<const T*>(of.slot.b) + static_cast<long long>(at) * rank + r + quad * 4;
        upper = Whole || at < of.n ? __ldg(reinterpret_cast<const uint2*>(b)) : make_uint2(0, 0);
        lower = Whole || at + 8 < of.n ? __ldg(reinterpret_cast<const uint2*>(b + 8 * rank)) : make_uint2(0, 0);
      }
      const std::uint32_t rows[4] = {upper.x, lower.x, upper.y, lower.y};
#pragma unroll
      for (int n = 0; n < Eights; ++n) {
        const float4 v = ptx::load_shared_float4(at(n * 8 + row, layer) + r * 4 + quad * 16);
        code_detail::multiply<T>(to[n], rows, pack<T>(v.x, v.y), pack<T>(v.z, v.w));
      }
    }
  }

 private:
  __device__ int blocks() const { return in.step * in.splits(); }
  __device__ void shrink(int task, int thread) const {
    const int warp = thread / 32, row = thread % 32 / 4, quad = thread % 4, group = task / slices;
    const bool second = in.gated() && group >= first_groups();
    const adapter_slot& slot = second ? in.second().slot : in.of.slot;
    const int rows = (group - (second ? first_groups() : 0)) * 16 + row;
    const int part = task % slices * warps + warp, all = in.k() / 32, begin = all * part / (slices * warps),
              end = all * (part + 1) / (slices * warps);
    const std::uint32_t shared = in.side();  // sums of the warps first, then S
    float sums[Eights][4] = {};
    ptx::named_barrier(among_us, threads);  // the sums of the task before have been read
    code_detail::shrink<T, Eights, 2>(sums, slot, rows, row, quad, in, begin, end);
#pragma unroll
    for (int n = 0; n < Eights; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        ptx::store_shared(shared + ((warp * tokens + n * 8 + quad * 2 + (e & 1)) * 16 + row + 8 * (e >> 1)) * 4,
                          __float_as_uint(sums[n][e]));
    ptx::named_barrier(among_us, threads);
    ptx::wait_for_previous_kernel();  // it may be this layer's: then the parts are its own until it ends
    for (int e = thread; e < tokens * 16; e += threads) {
      float v = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) v += __uint_as_float(ptx::load_shared(shared + (w * tokens * 16 + e) * 4));
      __stcg(in.of.side + task * tokens * 16 + e, v);
    }
  }
  // All parts are there. A release is enough behind a barrier: a fence of its own would wait for memory once more.
  __device__ void meet(int thread, int made, int tasks) const {
    ptx::named_barrier(among_us, threads);
    if (thread == 0) {
      ptx::wait_for_previous_kernel();
      if (made > 0) ptx::add_release(in.of.counters, static_cast<std::uint32_t>(made));
      while (ptx::load_acquire(in.of.counters) < static_cast<std::uint32_t>(tasks)) {}
    }
    ptx::named_barrier(among_us, threads);
  }
  // The last block that knows it leaves the counters as they were.
  __device__ void leave() const {
    std::uint32_t* const counters = in.of.counters;
    if (ptx::add_acquire_release(counters + 1, 1) + 1 == static_cast<std::uint32_t>(blocks()))
      counters[0] = counters[1] = 0;
  }
  __device__ void gather(int thread) const {
    for (int i = thread; i < groups() * tokens * 4; i += threads) {  // four of a token's sixteen
      const int group = i / (tokens * 4), token = i / 4 % tokens, four = i % 4;
      float4 v[slices], all = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int s = 0; s < slices; ++s)
        v[s] = __ldcg(reinterpret_cast<const float4*>(in.of.side) + ((group * slices + s) * tokens + token) * 4 + four);
#pragma unroll
      for (int s = 0; s < slices; ++s) all.x += v[s].x, all.y += v[s].y, all.z += v[s].z, all.w += v[s].w;
      ptx::store_shared(
          at(token, 0) + group * 64 + four * 16,
          make_uint4(__float_as_uint(all.x), __float_as_uint(all.y), __float_as_uint(all.z), __float_as_uint(all.w)));
    }
  }
};

}  // namespace graft::cuda
