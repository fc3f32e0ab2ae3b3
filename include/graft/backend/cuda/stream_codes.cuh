// SPDX-License-Identifier: Apache-2.0
// stream_codes: up to 16 tokens on a weight that is codes, sm_90a. The codes pass through once and become numbers in
// the registers from which the tensor cores read them; y = post(x Wᵀ + (x Aᵀ) Bᵀ).
//
// A warp has up to 256 columns of its own and their x in registers, and takes units of 16 rows one after the other. It
// copies them itself, and waits for nobody until the sums of its units meet in shared memory, those of many units at
// once. Scales multiply the sums of the columns that share one. Where a row is longer than a thread block has columns,
// the blocks of a cluster share it, and each finishes some of the units. Everything is added in a fixed order.
#pragma once
#include <graft/backend/cuda/code_side.cuh>

namespace graft::cuda {

// Side: with warps that make S, which leaves fewer registers for the others.
template <class T, code_form Form, int Eights, bool Side, bool Whole> struct code_block {
  using units = code_units<T, Form, Whole>;
  using codes = typename units::codes;
  using side = code_side<T, Eights>;
  static constexpr int consumers = code_warps * 32, threads = consumers + (Side ? side::threads : 0);
  static constexpr int stages = code_stages;
  static constexpr int among_us = 1, side_is_there = 2;
  static constexpr int chunks = 2 * code_steps;  // of 32 columns
  static_assert(code_sums_in_table % (code_warps * Eights) == 0);
  using x_words = uint4[chunks][Eights];
  using sums = float[Eights][4];

  units in;
  int split;

  __device__ void load_x(x_words& x) const {
    const int row = in.lane / 4, quad = in.lane % 4, column = in.first_step * 64;
    const T* const from = static_cast<const T*>(in.g.x) + column;
#pragma unroll
    for (int c = 0; c < chunks; ++c)
#pragma unroll
      for (int n = 0; n < Eights; ++n) {
        const int token = n * 8 + row;
        x[c][n] = make_uint4(0, 0, 0, 0);
        if ((Whole || c / 2 < in.own_steps) && token < in.g.m)
          x[c][n] = codes::x_of(from + static_cast<long long>(token) * in.k() + c / 2 * 64, c % 2, quad);
      }
    if constexpr (!Whole) {
      if (in.g.slot.pre == nullptr) return;
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        if (c / 2 >= in.own_steps) break;
        const uint4 by = codes::x_of(static_cast<const T*>(in.g.slot.pre) + column + c / 2 * 64, c % 2, quad);
#pragma unroll
        for (int n = 0; n < Eights; ++n)
          x[c][n] = make_uint4(times<T>(x[c][n].x, by.x), times<T>(x[c][n].y, by.y), times<T>(x[c][n].z, by.z),
                               times<T>(x[c][n].w, by.w));
      }
    }
  }
  // One chunk of 16 rows on all tokens.
  template <bool First>
  __device__ __forceinline__ static void multiply(sums& to, const codes& numbers, const typename codes::words& of_upper,
                                                  const typename codes::words& of_lower, const uint4 (&x)[Eights]) {
    typename codes::pairs upper, lower;
    numbers.decode(upper, of_upper), numbers.decode(lower, of_lower);
    const std::uint32_t first[4] = {upper[0], lower[0], upper[1], lower[1]},
                        second[4] = {upper[2], lower[2], upper[3], lower[3]};
#pragma unroll
    for (int n = 0; n < Eights; ++n) {
      if constexpr (First)
        code_detail::multiply_first<T>(to[n], first, x[n].x, x[n].y);
      else
        code_detail::multiply<T>(to[n], first, x[n].x, x[n].y);
      code_detail::multiply<T>(to[n], second, x[n].z, x[n].w);
    }
  }
  __device__ __forceinline__ static void add(sums& to, const sums& part, const typename units::lane_scales& scale,
                                             int which) {
#pragma unroll
    for (int n = 0; n < Eights; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) to[n][e] = fmaf(scale[e >> 1][which], part[n][e], to[n][e]);
  }
  // Runs of 64 do without a branch from step to step, so that one is looked up while the other is multiplied: what is
  // not there has zeros for x and for scales.
  static constexpr bool runs = Form == code_form::runs;
  __device__ __forceinline__ void accumulate(sums& acc, const codes& numbers, int slot, const x_words& x) const {
    const std::uint32_t unit = in.at(slot);
    const int row = in.lane / 4, quad = in.lane % 4;
    typename units::lane_scales scale;
    if constexpr (runs) in.load_scales(scale, slot);
#pragma unroll
    for (int b = 0; b < code_steps; ++b) {
      if (!runs && b >= in.own_steps) break;
      typename codes::words upper[2], lower[2];
      codes::load(upper, unit, row, b, quad), codes::load(lower, unit, row + 8, b, quad);
      if constexpr (Form == code_form::bytes) {
        multiply<false>(acc, numbers, upper[0], lower[0], x[2 * b]);
        multiply<false>(acc, numbers, upper[1], lower[1], x[2 * b + 1]);
        continue;
      }
      sums part;
      if constexpr (!runs) in.load_scales(scale, slot, b);
      multiply<true>(part, numbers, upper[0], lower[0], x[2 * b]);
      if constexpr (!runs) add(acc, part, scale, 0);
      multiply<!runs>(part, numbers, upper[1], lower[1], x[2 * b + 1]);
      add(acc, part, scale, runs ? b : 1);
    }
  }

  __device__ void consume() const {
    const auto thread = static_cast<int>(threadIdx.x);
    [[maybe_unused]] typename units::place next = in.first_place();
    const auto request = [&](int i, int slot) {
      if (in.has(i)) {
        if constexpr (Whole)
          in.request(next, slot);
        else
          in.request(i, slot);
      }
      code_detail::end_of_copies();
    };
    const auto request_others = [&] {
#pragma unroll
      for (int i = 1; i < stages; ++i) request(i, i);
    };
    // A short x does not hold up codes that are asked for before it.
    const bool all_first = !Side && in.g.m <= 4;
    request(0, 0);
    if (all_first) request_others();
    if constexpr (codes::has_table) codes::fill(in.table(), in.g.from.table, thread);
    ptx::let_next_kernel_start();
    ptx::wait_for_previous_kernel();
    x_words x;
    load_x(x);
    if (!all_first) request_others();  // x does not wait behind them
    ptx::named_barrier(among_us, consumers);
    const codes numbers{in.g.from.how.codes, in.table() + in.lane * 4};
    int slot = 0, in_phase = 0;
    for (int i = 0; in.has(i); ++i) {
      code_detail::wait_for_copies<stages - 1>();
      __syncwarp();
      if constexpr (units::has_scales && !Whole)
        if (in.nested) in.widen_scales(i, slot);
      if (Side && in.g.slot.rank > 0 && in.warp == i % code_warps) bring_b(in.row_of(i) + in.lane);
      sums acc = {};
      accumulate(acc, numbers, slot, x);
      __syncwarp();
      request(i + stages, slot);
      if (++slot == stages) slot = 0;
#pragma unroll
      for (int n = 0; n < Eights; ++n)
        ptx::store_shared(in.sum_at((in_phase * code_warps + in.warp) * Eights + n, in.lane / 8) + in.lane % 8 * 16,
                          make_uint4(__float_as_uint(acc[n][0]), __float_as_uint(acc[n][1]), __float_as_uint(acc[n][2]),
                                     __float_as_uint(acc[n][3])));
      if (++in_phase == in.g.phase || !in.has(i + 1)) {
        finish(i + 1 - in_phase, in_phase);
        in_phase = 0;
      }
    }
  }
  // Rows of B that the end of this unit reads, on their way while it is summed.
  __device__ void bring_b(int row) const {
    if (in.lane < code_rows && row < in.g.n)
      ptx::bring(static_cast<const T*>(in.g.slot.b) + static_cast<long long>(row) * in.g.slot.rank);
  }
  // The sums of a unit lie all in the table or all behind it.
  __device__ float sum_of_warps(int unit, int n, int inside) const {
    const int first = unit * code_warps * Eights;
    const std::uint32_t at = in.sum_at(first + n, inside / 32) + inside % 32 * 4,
                        apart = in.sum_at(first + Eights, 0) - in.sum_at(first, 0);
    float v = 0;
#pragma unroll
    for (int w = 0; w < code_warps; ++w) v += __uint_as_float(ptx::load_shared(at + w * apart));
    return v;
  }
  // y of `count` units from number `i` of this block on.
  __device__ void finish(int i, int count) const {
    const int thread = static_cast<int>(threadIdx.x), all = count * 128 * Eights;
    const bool waits_for_side = Side && in.g.slot.rank > 0 && i == 0;
    if (waits_for_side)
      ptx::named_barrier(side_is_there, threads);
    else
      ptx::named_barrier(among_us, consumers);
    const std::uint32_t parts = in.base + in.g.parts_at;
    const bool shared = !Whole && in.g.splits > 1;
    if (shared) {
      for (int e = thread; e < all; e += consumers)
        ptx::store_shared(parts + e * 4, __float_as_uint(sum_of_warps(e / (128 * Eights), e / 128 % Eights, e % 128)));
      ptx::cluster_sync();
    }
#pragma unroll 1
    for (int e = thread; e < all; e += consumers) {
      const int unit = e / (128 * Eights), n = e / 128 % Eights, inside = e % 128;
      const int token = n * 8 + inside / 4 % 4 * 2 + (inside & 1),
                row = in.row_of(i + unit) + inside / 16 + 8 * (inside >> 1 & 1);
      if (token >= in.g.m || (!Whole && row >= in.g.n)) continue;
      if (shared && (unit & (in.g.splits - 1)) != split) continue;  // splits are a power of two
      const b_of_row b = ask_b(row);
      float v = 0;
      if (!shared)
        v = sum_of_warps(unit, n, inside);
      else
        for (int s = 0; s < in.g.splits; ++s) v += ptx::load_one_at(parts + e * 4, s);
      store(v, b, token, row);
    }
    if (shared)
      ptx::cluster_sync();
    else if (in.has(i + count))
      ptx::named_barrier(among_us, consumers);
  }
  // The first sixteen of the rank, asked for before the sums are added up.
  struct b_of_row {
    uint4 eight[2];
  };
  __device__ __forceinline__ b_of_row ask_b(int row) const {
    b_of_row b{};
    if (!Side || in.g.slot.rank == 0) return b;
    const auto* const from = reinterpret_cast<const uint4*>(static_cast<const T*>(in.g.slot.b) +
                                                            static_cast<long long>(row) * in.g.slot.rank);
    b.eight[0] = __ldg(from), b.eight[1] = __ldg(from + 1);
    return b;
  }
  __device__ __forceinline__ void store(float v, const b_of_row& asked, int token, int row) const {
    const code_args& g = in.g;
    if constexpr (Form == code_form::bytes) {
      const float s = g.from.scale(g.from.how.scaled == scaled_by::row ? row : 0);
      v *= g.from.how.codes == dtype::int8 ? encodings::int8_codes::number(1, s) : s;
    }
    if constexpr (Side) {
      const int rank = g.slot.rank;
      const T* const b = static_cast<const T*>(g.slot.b) + static_cast<long long>(row) * rank;
      const auto expand = [&](const uint4& eight, int r) {
        const std::uint32_t two[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          const float2 by = unpack<T>(two[p]),
                       s = ptx::load_shared_float2(in.base + g.side_at + (token * rank + r + 2 * p) * 4);
          v = fmaf(by.x, s.x, v), v = fmaf(by.y, s.y, v);
        }
      };
      if (rank > 0) expand(asked.eight[0], 0), expand(asked.eight[1], 8);
#pragma unroll 1
      for (int r = 16; r < rank; r += 8) expand(__ldg(reinterpret_cast<const uint4*>(b + r)), r);
    }
    const post_slot<T> post{g.slot.scale, g.slot.shift, static_cast<const T*>(g.residual), g.act, g.m, g.n};
    static_cast<T*>(g.y)[static_cast<long long>(token) * g.n + row] = from_float<T>(post(v, token, row));
  }
};

template <class T, code_form Form, int Eights, bool Side, bool Whole>
__global__ void __launch_bounds__(code_block<T, Form, Eights, Side, Whole>::threads, 1)
    stream_codes_kernel(const __grid_constant__ code_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using block = code_block<T, Form, Eights, Side, Whole>;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t begins = ptx::shared_address(raw);
  if (begins % (1U << 24U) != code_memory_begins) __trap();  // nothing else may lie in front
  const std::uint32_t base = begins - static_cast<std::uint32_t>(code_memory_begins);
  const int split = static_cast<int>(blockIdx.x);
  if (!Side || threadIdx.x < block::consumers) {
    if constexpr (Side) ptx::take_registers<104>();
    block{{g, base, split, static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y)}, split}.consume();
  } else {
    ptx::give_registers<64>();
    if (g.slot.rank == 0) return;
    typename block::side{g, base, static_cast<int>(threadIdx.x) - block::consumers}.make();
    asm volatile("bar.arrive %0, %1;" ::"n"(block::side_is_there), "n"(block::threads) : "memory");
  }
#endif
}

}  // namespace graft::cuda
