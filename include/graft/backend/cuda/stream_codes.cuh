// SPDX-License-Identifier: Apache-2.0
// stream_codes: few tokens on a weight that is codes, sm_90a, 16 to a thread block. The codes pass through once and become numbers in
// the registers from which the tensor cores read them; y = post(x Wᵀ + (x Aᵀ) Bᵀ).
//
// A warp has up to 256 columns of its own and their x in registers, and takes units of 16 rows one after the other. It
// copies them itself, and waits for nobody until the sums of its units meet in shared memory, those of many units at
// once. Scales multiply the sums of the columns that share one. Where a row is longer than a thread block has columns,
// the blocks of a cluster share it, and each finishes some of the units. Everything is added in a fixed order. Several
// layers with the same input (Q, K and V) are segments of one launch, each with blocks of its own. Where y is the product of
// two layers element by element (gate and up), a block has the same rows of both, one unit after the other:
//     y = round(act(x Gᵀ)) ⊙ round(act(x Uᵀ))
#pragma once
#include <graft/backend/cuda/code_norm.cuh>
#include <graft/backend/cuda/code_side.cuh>
#include <graft/backend/cuda/code_sums.cuh>

namespace graft::cuda {

// Side: with S Bᵀ; up to eight tokens also with warps that make S, which leaves fewer registers for the others.
template <class T, code_form Form, int Eights, bool Side, bool Whole, bool Linked> struct code_block {
  using units = code_units<T, Form, Eights, Side, Whole, Linked>;
  using codes = typename units::codes;
  using side_branch = code_side<T, Form, Eights, Side, Whole, Linked>;
  static constexpr bool makes_side = Side && !side_branch::ahead, has_side_ahead = Side && side_branch::ahead;
  static constexpr int consumers = code_warps * 32, threads = consumers + (makes_side ? side_branch::threads : 0);
  static constexpr int stages = code_stages, among_us = 1;
  static constexpr int chunks = 2 * code_steps;  // of 32 columns
  static_assert(code_sums_in_table % (code_warps * Eights) == 0);
  // Sums of a unit: where codes of a row share a scale, the side branch has a place of its own.
  static constexpr int summands = code_warps + (has_scaled_rows(Form) && Side ? 1 : 0);
  using x_words = uint4[chunks][Eights];
  using sums = float[Eights][4];
  using element = code_element<Eights>;

  units in;
  int split;

  __device__ __forceinline__ void load_x(x_words& x, const T* from, int tokens) const {
#pragma unroll
    for (int n = 0; n < Eights; ++n)
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        x[c][n] = make_uint4(0, 0, 0, 0);
        if ((Whole || c / 2 < in.own_steps) && n * 8 + in.lane / 4 < tokens)
          x[c][n] = codes::x_of(from + n * 8LL * in.k() + c / 2 * 64, c % 2);
      }
    if constexpr (!Whole) {
      if (in.of.slot.pre == nullptr) return;
      const int column = in.first_step * 64 + codes::x_begins(in.lane % 4);
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        if (c / 2 >= in.own_steps) break;
        const uint4 by = codes::x_of(static_cast<const T*>(in.of.slot.pre) + column + c / 2 * 64, c % 2);
#pragma unroll
        for (int n = 0; n < Eights; ++n)
          x[c][n] = make_uint4(times<T>(x[c][n].x, by.x), times<T>(x[c][n].y, by.y), times<T>(x[c][n].z, by.z),
                               times<T>(x[c][n].w, by.w));
      }
    }
  }
  // What a lane has of 16 rows: numbers of a chunk.
  struct chunk {
    typename codes::pairs upper, lower;
  };
  // Those of a step of 64 columns.
  struct step_numbers {
    chunk half[2];
  };
  __device__ __forceinline__ void look_up(step_numbers& to, const codes& numbers, std::uint32_t unit, int b) const {
    typename codes::words upper[2], lower[2];
    const int row = in.lane / 4, quad = in.lane % 4;
    codes::load(upper, unit, row, b, quad), codes::load(lower, unit, row + 8, b, quad);
#pragma unroll
    for (int h = 0; h < 2; ++h) numbers.decode(to.half[h].upper, upper[h]), numbers.decode(to.half[h].lower, lower[h]);
  }
  // One chunk of 16 rows on all tokens.
  template <bool First>
  __device__ __forceinline__ static void multiply(sums& to, const chunk& w, const uint4 (&x)[Eights]) {
    const std::uint32_t first[4] = {w.upper[0], w.lower[0], w.upper[1], w.lower[1]},
                        second[4] = {w.upper[2], w.lower[2], w.upper[3], w.lower[3]};
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
  static constexpr bool runs = has_long_runs(Form);
  // Steps of the first unit that are looked up while x is on its way, where layers are linked and registers few, but not
  // too few for it, as with S Bᵀ.
  static constexpr int early_steps = Linked && runs && Eights == 2 && !Side ? 1 : 0;
  // Scales that are codes become numbers while the first step is looked up, where there are registers for both.
  static constexpr bool widens_late = Form == code_form::nested_runs && Whole && !Linked && !(Side && Eights == 2);
  using early_numbers = step_numbers[early_steps > 0 ? early_steps : 1];
  template <int Early>
  __device__ __forceinline__ void accumulate(sums& acc, const codes& numbers, int stage, const x_words& x,
                                             const early_numbers& early) const {
    const std::uint32_t unit = in.at(stage);
    typename units::lane_scales scale;
    if constexpr (runs && !widens_late) in.load_scales(scale, stage);
#pragma unroll
    for (int b = 0; b < code_steps; ++b) {
      if (!runs && b >= in.own_steps) break;
      step_numbers now;
      if (b < Early)
        now = early[b < Early ? b : 0];
      else
        look_up(now, numbers, unit, b);
      if constexpr (widens_late)
        if (b == 0) in.widen_scales(0, stage), in.load_scales(scale, stage);
      if constexpr (has_scaled_rows(Form)) {
        multiply<false>(acc, now.half[0], x[2 * b]);
        multiply<false>(acc, now.half[1], x[2 * b + 1]);
        continue;
      }
      sums part;
      if constexpr (!runs) in.load_scales(scale, stage, b);
      multiply<true>(part, now.half[0], x[2 * b]);
      if constexpr (!runs) add(acc, part, scale, 0);
      multiply<!runs>(part, now.half[1], x[2 * b + 1]);
      add(acc, part, scale, runs ? b : 1);
    }
  }

  __device__ void consume() const {
    const auto thread = static_cast<int>(threadIdx.x);
    const side_branch side{in, split};
    [[maybe_unused]] typename units::place next = in.first_place();
    const auto request = [&](int i, int stage) {
      if ((!Linked && i == 0) || in.has(i)) {
        if constexpr (Whole)
          in.request(next, i, stage);
        else
          in.request(i, stage);
      }
      if (Side && ((!Linked && i == 0) || in.has(i))) side.ask_b(i);
      code_detail::end_of_copies();
    };
    const auto request_others = [&] {
#pragma unroll
      for (int i = 1; i < stages; ++i) request(i, i);
    };
    // A short x does not hold up codes that are asked for before it.
    const bool all_first = !Side && in.m() <= 4;
    request(0, 0);
    if (all_first) request_others();
    if constexpr (has_scaled_rows(Form) && !Linked) in.ask_for_row_scales();
    if constexpr (units::has_nested_table) in.fill_nested_table(thread);
    if constexpr (codes::has_table) codes::fill(in.table(), in.of.from.table, thread);
    const T* from = in.own_x();
    int tokens = in.m();
    ptx::keep_global(from), ptx::keep(tokens);  // nothing is left to compute when x is there
    ptx::let_next_kernel_start();
    ptx::wait_for_previous_kernel();
    x_words x;
    load_x(x, from, tokens);
    ptx::named_barrier(among_us, consumers);  // behind it the compiler may not ask for x
    if constexpr (has_side_ahead) side.ask(thread);
    if (!all_first) request_others();  // x does not wait behind them
    if (has_norm_ahead() && in.warp < in.m()) find_token_factor(in.g.ahead, in.warp, in.k(), in.base + in.g.factors_at);
    const codes numbers{in.table() + in.lane * 4};
    const auto arrive = [&](int i, int stage) {
      code_detail::wait_for_copies<stages - 1>();
      __syncwarp();
      if constexpr (units::has_scales && !widens_late)
        if (in.nested) in.widen_scales(i, stage);
    };
    int stage = 0, in_phase = 0;
    early_numbers early;
    sums acc = {};
    if constexpr (Linked) {  // a layer by itself begins and ends sooner with less code
      arrive(0, 0);
#pragma unroll
      for (int b = 0; b < early_steps; ++b) look_up(early[b], numbers, in.at(0), b);
      if constexpr (early_steps > 0) __syncwarp();
      accumulate<early_steps>(acc, numbers, 0, x, early);
    }
    const auto take_unit = [&] { accumulate<0>(acc, numbers, stage, x, early); };
    for (int i = 0;;) {
      if constexpr (!Linked) arrive(i, stage), take_unit();
      const bool ends_phase = in_phase + 1 == in.phase() || !in.has(i + 1);
      __syncwarp();
      if constexpr (has_side_ahead) ptx::keep(i), ptx::keep(stage);  // not in front of the unit: registers
      request(i + stages, stage);
      if (++stage == stages) stage = 0;
#pragma unroll
      for (int n = 0; n < Eights; ++n) {
        ptx::store_shared(own_sum(in_phase, in.warp, n),
                          make_uint4(__float_as_uint(acc[n][0]), __float_as_uint(acc[n][1]), __float_as_uint(acc[n][2]),
                                     __float_as_uint(acc[n][3])));
        acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
      }
      ++i, ++in_phase;
      if (ends_phase) {
        finish(i - in_phase, in_phase, side);
        in_phase = 0;
        if (!in.has(i)) break;
      }
      if constexpr (Linked) arrive(i, stage), take_unit();
    }
  }
  __device__ bool has_norm_ahead() const { return Linked && in.g.ahead.squares != nullptr; }
  __device__ bool has_norm_behind() const { return Linked && in.g.behind.gain != nullptr; }
  // What this lane has of the sums of a warp.
  __device__ std::uint32_t own_sum(int unit, int warp, int n) const {
    return in.sum_at((unit * summands + warp) * Eights + n, in.lane / 8) + in.lane % 8 * 16;
  }
  // Where blocks share the columns: is this the one that finishes the unit? Splits are a power of two.
  __device__ bool owns(int unit) const { return Whole || (unit & (in.g.splits - 1)) == split; }
  // S Bᵀ of a unit, by one warp, to the sums that it has of it.
  __device__ __forceinline__ void expand(int i, int count, const side_branch& side) const {
    const int unit = (in.warp - i) & (code_warps - 1);
    if (unit >= count || !owns(unit)) return;
    constexpr bool apart = summands > code_warps;
    sums acc = {};
    side.expand(acc, i + unit);
#pragma unroll
    for (int n = 0; n < Eights; ++n) {
      const std::uint32_t at = own_sum(unit, apart ? code_warps : in.warp, n);
      const float4 v = apart ? make_float4(0, 0, 0, 0) : ptx::load_shared_float4(at);
      ptx::store_shared(at, make_uint4(__float_as_uint(acc[n][0] + v.x), __float_as_uint(acc[n][1] + v.y),
                                       __float_as_uint(acc[n][2] + v.z), __float_as_uint(acc[n][3] + v.w)));
    }
  }
  // The sums of a unit lie all in the table or all behind it.
  __device__ float sum_of_warps(int unit, int n, int inside) const {
    const int first = unit * summands * Eights;
    const std::uint32_t at = in.sum_at(first + n, inside / 32) + inside % 32 * 4,
                        apart = in.sum_at(first + Eights, 0) - in.sum_at(first, 0);
    float v = 0;
#pragma unroll
    for (int w = 0; w < code_warps; ++w) v += __uint_as_float(ptx::load_shared(at + w * apart));
    return v;
  }
  // y of `count` units from number `i` of this block on.
  __device__ void finish(int i, int count, const side_branch& side) const {
    const int thread = static_cast<int>(threadIdx.x), all = count * 128 * Eights;
    if (has_side_ahead && i == 0) code_detail::wait_for_copies<stages - 1>();  // S, which came with the second unit
    ptx::named_barrier(among_us, consumers);
    if (Side && side.groups() > 0) {
      expand(i, count, side);
      ptx::named_barrier(among_us, consumers);
    }
    if constexpr (!Linked)
      if (Whole || in.g.splits == 1) return finish_fours(i, count);
    const std::uint32_t parts = in.base + in.g.parts_at;
    const bool shared = !Whole && in.g.splits > 1;
    if (shared) {
      for (int e = thread; e < all; e += consumers)
        ptx::store_shared(parts + e * 4, __float_as_uint(number(element(e), i)));
      ptx::cluster_sync();
    }
#pragma unroll 1
    for (int e = thread; e < (in.gated() ? all / 2 : all); e += consumers) {
      element at(e, has_norm_behind());
      const int token = at.token();
      if (in.gated()) at.unit *= 2;
      const int row = in.row_of(i + at.unit) + at.row();
      if (token >= in.m() || (!Whole && row >= in.of.n)) continue;
      T* const y = static_cast<T*>(in.of.y) + static_cast<long long>(token) * in.of.n + row;
      if (in.gated()) {
        float v = 1;
#pragma unroll 1
        for (int layer = 0; layer < 2; ++layer, ++at.unit)
          v *= to_float(from_float<T>(posted(in.g.segment[layer], number(at, i), token, row)));
        *y = from_float<T>(v);
        continue;
      }
      if (!owns(at.unit)) continue;
      float v = 0;
      if (!shared)
        v = number(at, i);
      else
        for (int s = 0; s < in.g.splits; ++s) v += ptx::load_one_at(parts + at.sum() * 4, s);
      *y = from_float<T>(v = posted(in.of, v, token, row));
      if (has_norm_behind()) store_normed<T>(in.g.behind, v, static_cast<long long>(token) * in.of.n, row);
    }
    if (shared)
      ptx::cluster_sync();
    else if (in.has(i + count))
      ptx::named_barrier(among_us, consumers);
  }
  // The same for a layer by itself, which has little to do for each: a thread has what one lane has of all warps, two
  // neighbouring tokens of a row and of the one eight further.
  __device__ __forceinline__ void finish_fours(int i, int count) const {
#pragma unroll 1
    for (int j = in.warp; j < count * Eights; j += code_warps) {
      const std::uint32_t at = own_sum(j / Eights, 0, j % Eights), apart = own_sum(j / Eights, 1, j % Eights) - at;
      float v[4] = {};
#pragma unroll 8
      for (int w = 0; w < code_warps; ++w) {
        const float4 sum = ptx::load_shared_float4(at + w * apart);
        v[0] += sum.x, v[1] += sum.y, v[2] += sum.z, v[3] += sum.w;
      }
      const int token = j % Eights * 8 + in.lane % 4 * 2, row = in.row_of(i + j / Eights) + in.lane / 4;
      if constexpr (has_scaled_rows(Form)) {
        float4 side = make_float4(0, 0, 0, 0);
        if constexpr (Side) side = ptx::load_shared_float4(at + code_warps * apart);
        const float upper = has_row(row) ? scale_of_row(in.of, row) : 0,
                    lower = has_row(row + 8) ? scale_of_row(in.of, row + 8) : 0;
        v[0] = fmaf(v[0], upper, side.x), v[1] = fmaf(v[1], upper, side.y);
        v[2] = fmaf(v[2], lower, side.z), v[3] = fmaf(v[3], lower, side.w);
      }
      T* const y = in.y() + static_cast<long long>(token) * in.n() + row;
      const auto store = [&](auto post) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int next = e % 2, further = e / 2 * 8;
          if (token + next < in.m() && has_row(row + further))
            y[next * in.n() + further] = from_float<T>(post(v[e], token + next, row + further));
        }
      };
      if (in.g.bare)  // a few instructions in a row, the others behind them
        store([](float sum, int, int) { return sum; });
      else
        store([&](float sum, int t, int r) { return posted(in.of, sum, t, r); });
    }
    if (in.has(i + count)) ptx::named_barrier(among_us, consumers);
  }
  __device__ bool has_row(int row) const { return Whole || row < in.of.n; }
  // Where all codes of a row share a scale.
  __device__ static float scale_of_row(const code_segment& of, int row) {
    const float s = of.from.scale(of.from.how.scaled == scaled_by::row ? row : 0);
    return Form == code_form::int8 ? encodings::int8_codes::number(1, s) : s;
  }
  // x Wᵀ + S Bᵀ, over the columns of this block.
  __device__ __forceinline__ float number(const element& e, int i) const {
    const float v = sum_of_warps(e.unit, e.n, e.inside);
    if constexpr (has_scaled_rows(Form)) {
      const code_segment& of = in.layer(i + e.unit);
      const int row = in.row_of(i + e.unit) + e.row();
      if (row >= of.n) return 0;
      const float by = scale_of_row(of, row);
      if (!Side || of.slot.rank == 0 || !owns(e.unit)) return v * by;
      const int at = (e.unit * summands + code_warps) * Eights + e.n;
      return fmaf(v, by, __uint_as_float(ptx::load_shared(in.sum_at(at, e.inside / 32) + e.inside % 32 * 4)));
    }
    return v;
  }
  __device__ __forceinline__ float posted(const code_segment& of, float v, int token, int row) const {
    if (has_norm_ahead()) v *= __uint_as_float(ptx::load_shared(in.base + in.g.factors_at + token * 4));
    return post_slot<T>{of.slot.scale, of.slot.shift, static_cast<const T*>(of.residual), of.act, in.m(), of.n}(
        v, token, row);
  }
};

template <class T, code_form Form, int Eights, bool Side, bool Whole, bool Linked>
__global__ void __launch_bounds__(code_block<T, Form, Eights, Side, Whole, Linked>::threads, 1)
    stream_codes_kernel(const __grid_constant__ code_args_of<Linked> g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t begins = ptx::shared_address(raw);
  const bool right = begins % (1U << 24U) == code_memory_begins;  // nothing else may lie in front
  if (Linked && !right) __trap();
  const std::uint32_t base = Linked || !Whole ? begins - static_cast<std::uint32_t>(code_memory_begins) : 0;
  const int split = static_cast<int>(blockIdx.x), cluster = static_cast<int>(blockIdx.y);
  int s = 0;
  if constexpr (Linked)
#pragma unroll
    for (int other = 1; other < max_segments; ++other) s += cluster >= g.segment[other].first ? 1 : 0;
  const code_segment& of = g.segment[s];
  using block = code_block<T, Form, Eights, Side, Whole, Linked>;
  const block now{
      {g, of, base, split, Linked ? cluster - of.first : cluster, Linked ? of.clusters : static_cast<int>(gridDim.y)},
      split};
  if constexpr (block::makes_side) {
    if (threadIdx.x == 0)
      ptx::barrier_init(typename block::side_branch{now.in, split}.ready(), block::side_branch::threads);
    __syncthreads();
  }
  if (!block::makes_side || threadIdx.x < block::consumers) {
    if constexpr (block::makes_side) ptx::take_registers<104>();
    now.consume();
    if (!Linked && !right) __trap();  // asked where nobody waits for the answer
  } else if constexpr (block::makes_side) {
    ptx::give_registers<64>();
    const typename block::side_branch side{now.in, split};
    if (side.groups() == 0) return;
    side.make(static_cast<int>(threadIdx.x) - block::consumers);
  }
#endif
}

}  // namespace graft::cuda
