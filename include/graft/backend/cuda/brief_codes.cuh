// SPDX-License-Identifier: Apache-2.0
// brief_codes: up to eight tokens on a layer by itself whose weight is codes of four bits in whole units, at most two of
// them to a thread block; y = post(x Wᵀ + (x Aᵀ) Bᵀ) as stream_codes has it.
//
// A launch of so few units is mostly waiting: for x, for codes, for its end. So a block takes half of a multiprocessor,
// and the block of the next launch is beside it: that one has all its codes in shared memory and its table filled when x is
// there. It is let in behind the wait for the launch before: sooner, x would come behind its codes, and two blocks of a
// launch would share a multiprocessor while another has none. With a side branch and two units it is let in later still,
// for the sake of the parts of S. Codes of the upper eight rows of a unit lie in the halves of the table's rows that nobody
// reads, sums where codes were.
//
// S is made by the last blocks, which have the fewest units, a slice of A each; its parts are floats in device memory of
// which none is zero (a zero is written as -0), so that each says itself that it is there. Two sets of parts take turns:
// a launch clears the one that the launch before had. Of the sixteen sums that are a unit's, eight have a part each:
// B Sᵀ = Σ B Pᵀ over the parts P, each rounded by itself. A part is asked for in front of the second unit, and nobody
// waits for S but the warp that adds it.
#pragma once
#include <graft/backend/cuda/code_shrink.cuh>
#include <graft/backend/cuda/code_units.cuh>

namespace graft::cuda {

template <class T, code_form Form, bool Side> struct brief_block {
  using codes = code_pairs<T, Form>;
  static constexpr int threads = code_warps * 32, units = 2;
  static constexpr bool nested = Form == code_form::nested_runs;
  static constexpr std::uint32_t table = brief_layout::table, lower = brief_layout::lower,
                                 scales = brief_layout::scales, nested_table = brief_layout::nested,
                                 b_rows = brief_layout::b, side_sums = brief_layout::side, turn = brief_layout::turn;
  // Of a unit, all warps: rows of the table, the lower rows, scales; and of a warp in them.
  static constexpr std::uint32_t unit_in_table = 32768, unit_in_lower = 16384, unit_scales = 4096, warp_in_table = 2048,
                                 warp_in_lower = 1024, warp_scales = 256;
  static constexpr int row_bytes = code_warps * codes::pitch, row_scales = code_warps * code_steps, columns = 4096;
  static_assert(has_long_runs(Form) && codes::pitch == 128);

  const lone_code_args& g;
  const code_segment& of;
  int first, step, warp, lane, row, quad;

  __device__ explicit brief_block(const lone_code_args& with)
      : g(with),
        of(with.segment[0]),
        first(static_cast<int>(blockIdx.y)),
        step(static_cast<int>(gridDim.y)),
        warp(static_cast<int>(threadIdx.x / 32)),
        lane(static_cast<int>(threadIdx.x % 32)),
        row(lane / 4),
        quad(lane % 4) {}

  __device__ bool has(int unit) const { return unit == 0 || first + step < g.all_units; }
  __device__ int row_of(int unit) const { return (first + unit * step) * code_rows; }
  __device__ int groups() const { return of.slot.rank / 16; }
  __device__ const T* x() const { return static_cast<const T*>(g.first_x); }

  // ---- what does not depend on x --------------------------------------------------------------------------------------
  __device__ void request() const {
    if constexpr (Side) {
      if (warp < units && has(warp)) ask_b(warp);
      code_detail::end_of_copies();
    }
    const int row1 = lane / 8, piece = lane % 8;
    const unsigned char* from =
        g.first_codes + static_cast<long long>(row_of(0) + row1) * row_bytes + warp * codes::pitch + piece * 16;
    const long long place = static_cast<long long>(row_of(0) + lane % code_rows) * row_scales + warp * code_steps;
    const auto* scale = static_cast<const unsigned char*>(g.first_scales) + place * (nested ? 1 : 4);
    if (nested && lane >= code_rows)
      scale = reinterpret_cast<const unsigned char*>(of.from.second_scales + (place >> of.from.second_shift));
    const int rows = step * code_rows;
    const auto further =
        static_cast<std::uint32_t>(!nested            ? rows * row_scales * 4
                                   : lane < code_rows ? rows * row_scales
                                                      : rows * row_scales >> of.from.second_shift << 2);
    const std::uint32_t even = codes::piece_at(row1, piece), odd = codes::piece_at(row1 + 4, piece) - 4 * codes::pitch;
    std::uint32_t up = table + warp * warp_in_table + 128 + row1 * 128, low = lower + warp * warp_in_lower,
                  to = scales + warp * warp_scales + lane % code_rows * 16;
#pragma unroll
    for (int unit = 0; unit < units; ++unit) {
      if (has(unit)) {
        code_detail::copy16(up + even, from, 16);
        code_detail::copy16(up + 4 * 256 + odd, from + 4 * row_bytes, 16);
        code_detail::copy16(low + even, from + 8 * row_bytes, 16);
        code_detail::copy16(low + 4 * 128 + odd, from + 12 * row_bytes, 16);
        if constexpr (nested)
          code_detail::copy4(to + lane / code_rows * 4, scale, 4);
        else if (lane < code_rows)
          code_detail::copy16(to, scale, 16);
      }
      code_detail::end_of_copies();
      up += unit_in_table, low += unit_in_lower, to += unit_scales;
      from += static_cast<std::uint32_t>(rows * row_bytes), scale += further;
    }
  }
  // The first sixteen of the rank.
  __device__ void ask_b(int unit) const {
    const T* const b = static_cast<const T*>(of.slot.b);
    code_detail::copy16(b_rows + unit * bytes_of_b_rows + lane * 16,
                        b + static_cast<long long>(row_of(unit) + lane / 2) * of.slot.rank + lane % 2 * 8, 16);
  }
  __device__ void fill_tables() const {
    const auto thread = static_cast<int>(threadIdx.x);
    if (nested && thread < 256)
      ptx::store_shared(nested_table + thread * 4, __float_as_uint(__ldg(of.from.second_table + thread)));
    codes::fill(table, of.from.table, thread);
  }

  // ---- parts of S, made ---------------------------------------------------------------------------------------------
  static constexpr int slices = brief_slices, makers = 8, of_a_maker = columns / slices / makers / 32;
  static constexpr int set = brief_set_floats / 4, publisher = code_warps - 1, cleaner = 0;
  __device__ int task() const { return step - 1 - first; }
  // Whose turn it is: every block adds its share of a launch when it knows.
  __device__ static int set_of(std::uint32_t used) { return static_cast<int>(used / brief_shares & 1U); }
  // The set of the launch before becomes that of the next. Early: what is stored at the end holds up the next launch.
  __device__ void leave() const {
    const int other = set_of(ptx::load_shared(turn)) ^ 1;
    for (int at = first * 32 + lane; at < set; at += step * 32)
      __stcg(reinterpret_cast<float4*>(of.side) + other * set + at, make_float4(0, 0, 0, 0));
    if (lane == 0) atomicAdd(of.counters, static_cast<std::uint32_t>(first == 0 ? brief_shares - step + 1 : 1));
  }
  __device__ float4* part(int which, int task_of_it) const {
    return reinterpret_cast<float4*>(of.side) + which * set + task_of_it * 32 + lane;
  }
  struct of_a {
    uint4 upper[of_a_maker], lower[of_a_maker];
  };
  __device__ int chunk(int c) const { return (task() % slices * makers + warp) * of_a_maker + c; }
  __device__ void load_a(of_a& a) const {
    const int rows = task() / slices * 16 + row;
#pragma unroll
    for (int c = 0; c < of_a_maker; ++c)
      a.upper[c] = code_detail::a_piece(of.slot, rows, chunk(c), quad),
      a.lower[c] = code_detail::a_piece(of.slot, rows + 8, chunk(c), quad);
  }
  // This warp's columns of the slice.
  __device__ void shrink(const of_a& a) const {
    float sum[4] = {};
#pragma unroll
    for (int c = 0; c < of_a_maker; ++c) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (row < g.tokens)
        v = *reinterpret_cast<const uint4*>(x() + static_cast<long long>(row) * columns + chunk(c) * 32 + quad * 8);
      const std::uint32_t a0[4] = {a.upper[c].x, a.lower[c].x, a.upper[c].y, a.lower[c].y},
                          a1[4] = {a.upper[c].z, a.lower[c].z, a.upper[c].w, a.lower[c].w};
      code_detail::multiply<T>(sum, a0, v.x, v.y), code_detail::multiply<T>(sum, a1, v.z, v.w);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
      ptx::store_shared(side_sums + ((warp * 8 + quad * 2 + (e & 1)) * 16 + row + 8 * (e >> 1)) * 4,
                        __float_as_uint(sum[e]));
  }
  // Those of all makers, by one warp.
  __device__ void publish(int which) const {
    float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < makers; ++w) {
      const float4 sum = ptx::load_shared_float4(side_sums + w * 512 + lane * 16);
      v.x += sum.x, v.y += sum.y, v.z += sum.z, v.w += sum.w;
    }
    const auto said = [](float f) { return f == 0 ? -0.0F : f; };
    __stcg(part(which, task()), make_float4(said(v.x), said(v.y), said(v.z), said(v.w)));
  }

  // ---- units --------------------------------------------------------------------------------------------------------
  using x_words = uint4[2 * code_steps];
  __device__ void load_x(x_words& to) const {
    const T* const from = x() + static_cast<long long>(row) * columns + warp * code_steps * 64;
#pragma unroll
    for (int c = 0; c < 2 * code_steps; ++c) {
      to[c] = make_uint4(0, 0, 0, 0);
      if (row < g.tokens) to[c] = codes::x_of(from + c / 2 * 64, c % 2, quad);
    }
  }
  // Scales that are codes become numbers, in the same place, while x is not there yet.
  __device__ void widen_all() const {
    code_detail::wait_for_copies<0>();
    __syncthreads();
#pragma unroll
    for (int unit = 0; unit < units; ++unit) {
      if (!has(unit)) break;
      const std::uint32_t at = scales + unit * unit_scales + warp * warp_scales;
      float v[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 raw = ptx::load_shared_float2(at + (row + 8 * h) * 16);
        const std::uint32_t code = __float_as_uint(raw.x) >> quad * 8 & 255;
        v[h] = of.from.nested_from(__uint_as_float(ptx::load_shared(nested_table + code * 4)), raw.y);
      }
      __syncwarp();
      ptx::store_shared(at + lane * 4, __float_as_uint(v[0]));
      ptx::store_shared(at + 128 + lane * 4, __float_as_uint(v[1]));
    }
  }
  // Codes of two chunks of a lower row; and two tokens of two rows where they were, eight rows in different banks.
  __device__ static std::uint32_t low_at(int unit, int of_warp, int row, int quad) {
    return lower + unit * unit_in_lower + of_warp * warp_in_lower + codes::piece_at(row, quad / 2) + quad % 2 * 8;
  }
  __device__ static std::uint32_t sum_at(std::uint32_t low) { return (low & ~8U) ^ (low & 8U) << 3; }
  __device__ static void store_sum(std::uint32_t low, const float (&sum)[4]) {
    ptx::store_shared(sum_at(low), make_uint4(__float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]),
                                              __float_as_uint(sum[3])));
  }
  __device__ __forceinline__ void take(int unit, const x_words& x) const {
    const std::uint32_t piece = codes::piece_at(row, quad / 2) + quad % 2 * 8,
                        up = table + unit * unit_in_table + warp * warp_in_table + 128 + row * 128 + piece,
                        low = low_at(unit, warp, row, quad), scale = scales + unit * unit_scales + warp * warp_scales;
    const float4 s0 = ptx::load_shared_float4(scale + row * 16), s1 = ptx::load_shared_float4(scale + 128 + row * 16);
    const float s[2][4] = {{s0.x, s0.y, s0.z, s0.w}, {s1.x, s1.y, s1.z, s1.w}};
    const codes numbers{static_cast<std::uint32_t>(lane * 4)};
    float acc[4] = {};
#pragma unroll
    for (int b = 0; b < code_steps; ++b) {
      const float2 above = ptx::load_shared_float2(up ^ (b << 5)), below = ptx::load_shared_float2(low ^ (b << 5));
      float sum[4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const typename codes::words word[2] = {{__float_as_uint(h == 0 ? above.x : above.y)},
                                               {__float_as_uint(h == 0 ? below.x : below.y)}};
        typename codes::pairs p, q;
        numbers.template decode<table>(p, word[0]), numbers.template decode<table>(q, word[1]);
        const std::uint32_t one[4] = {p[0], q[0], p[1], q[1]}, other[4] = {p[2], q[2], p[3], q[3]};
        const uint4& v = x[2 * b + h];
        if (h == 0)
          code_detail::multiply_first<T>(sum, one, v.x, v.y);
        else
          code_detail::multiply<T>(sum, one, v.x, v.y);
        code_detail::multiply<T>(sum, other, v.z, v.w);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[e] = fmaf(s[e >> 1][b], sum[e], acc[e]);
    }
    __syncwarp();  // the codes have been read
    store_sum(low, acc);
  }

  // ---- parts of S, added --------------------------------------------------------------------------------------------
  __device__ bool adds() const { return Side && warp >= code_warps - slices; }
  __device__ const float4* own_part(int group) const {
    const std::uint32_t first_thread = (code_warps - slices) * 32,
                        at = set_of(ptx::load_shared(turn)) * set + group * slices * 32 + threadIdx.x - first_thread;
    return reinterpret_cast<const float4*>(of.side) + at;
  }
  // Where codes of the first unit were.
  __device__ std::uint32_t part_at() const {
    return table + warp * warp_in_table + 128 + lane / 8 * 256 + lane % 8 * 16;
  }
  __device__ void ask_for_part() const {
    code_detail::copy16(part_at(), own_part(0), 16);
    code_detail::end_of_copies();
  }
  __device__ void add_part() const {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (has(1)) {
      code_detail::wait_for_copies<0>();
      v = ptx::load_shared_uint4(part_at());
    }
#pragma unroll 1
    for (int group = 0; group < groups(); ++group) {
      while (v.x == 0 || v.y == 0 || v.z == 0 || v.w == 0) v = ptx::load_relaxed4(own_part(group));
      __syncwarp();
      const std::uint32_t low = pack<T>(__uint_as_float(v.x), __uint_as_float(v.y)),
                          high = pack<T>(__uint_as_float(v.z), __uint_as_float(v.w));
      v = make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int unit = 0; unit < units; ++unit) {
        if (!has(unit)) break;
        const uint4 b = rows_of_b(unit, group);
        const std::uint32_t rows[4] = {b.x, b.z, b.y, b.w};
        const std::uint32_t low_codes = low_at(unit, warp, row, quad);
        const float4 was = ptx::load_shared_float4(sum_at(low_codes));
        float sum[4] = {was.x, was.y, was.z, was.w};
        code_detail::multiply<T>(sum, rows, low, high);
        store_sum(low_codes, sum);
      }
    }
  }
  __device__ uint4 rows_of_b(int unit, int group) const {
    if (group == 0) {
      const std::uint32_t at = b_rows + unit * bytes_of_b_rows + row * 32 + quad * 8;
      const float2 upper = ptx::load_shared_float2(at), under = ptx::load_shared_float2(at + 8 * 32);
      return make_uint4(__float_as_uint(upper.x), __float_as_uint(upper.y), __float_as_uint(under.x),
                        __float_as_uint(under.y));
    }
    const int rank = of.slot.rank;
    const T* const b =
        static_cast<const T*>(of.slot.b) + static_cast<long long>(row_of(unit) + row) * rank + group * 16 + quad * 4;
    const uint2 upper = __ldg(reinterpret_cast<const uint2*>(b)),
                under = __ldg(reinterpret_cast<const uint2*>(b + 8 * rank));
    return make_uint4(upper.x, upper.y, under.x, under.y);
  }

  // ---- the end of a unit: two tokens of it by a warp, of which each eight lanes add four of the sixteen sums --------
  __device__ void end() const {
    const int unit = warp / 4, of_quad = warp % 4, eight = lane / 8, row1 = lane % 8;
    if (unit >= units || !has(unit) || of_quad * 2 >= g.tokens) return;
    float v[4] = {};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float4 sum = ptx::load_shared_float4(sum_at(low_at(unit, eight * 4 + w, row1, of_quad)));
      v[0] += sum.x, v[1] += sum.y, v[2] += sum.z, v[3] += sum.w;
    }
    // Of the four numbers the first eight lanes get the first.
    const bool later = eight >= 2, second = eight % 2 != 0;
    float two[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) two[e] = (later ? v[2 + e] : v[e]) + __shfl_xor_sync(~0U, later ? v[e] : v[2 + e], 16);
    const float sum = (second ? two[1] : two[0]) + __shfl_xor_sync(~0U, second ? two[0] : two[1], 8);
    const int token = of_quad * 2 + eight % 2, at = row_of(unit) + row1 + eight / 2 * 8, n = g.all_units * code_rows;
    if (token >= g.tokens) return;
    T* const y = static_cast<T*>(g.first_y) + static_cast<long long>(token) * n + at;
    if (g.bare) {  // a few instructions in a row, the others behind them
      *y = from_float<T>(sum);
      return;
    }
    const post_slot<T> post{of.slot.scale, of.slot.shift, static_cast<const T*>(of.residual), of.act, g.tokens, n};
    *y = from_float<T>(post(sum, token, at));
  }

  __device__ void run() const {
    const bool makes = Side && task() < groups() * slices;
    request();
    of_a a;
    if (makes && warp < makers) load_a(a);
    fill_tables();
    if constexpr (nested) widen_all();
    ptx::wait_for_previous_kernel();
    const bool late = Side && step < g.all_units;  // blocks have two units
    if (!late) ptx::let_next_kernel_start();
    if (makes && warp < makers) shrink(a);
    x_words x;
    load_x(x);
    if constexpr (Side) {
      if (warp == publisher) {
        const std::uint32_t used = ptx::load_relaxed(of.counters);
        if (lane == 0) ptx::store_shared(turn, used);
      }
      code_detail::wait_for_copies<units>();  // B
    }
    __syncthreads();
    if (late) ptx::let_next_kernel_start();
    if (makes && warp == publisher) publish(set_of(ptx::load_shared(turn)));
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      if (unit == 1) {
        code_detail::wait_for_copies<0>();
        if (!has(1)) break;
        if (adds()) ask_for_part();
      } else {
        code_detail::wait_for_copies<1>();
      }
      __syncwarp();
      take(unit, x);
    }
    if (adds())
      add_part();
    else if (Side && warp == cleaner)
      leave();
    __syncthreads();
    end();
  }
};

template <class T, code_form Form, bool Side>
__global__ void __launch_bounds__(brief_block<T, Form, Side>::threads, 2)
    brief_codes_kernel(const __grid_constant__ lone_code_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  brief_block<T, Form, Side>(g).run();
  if (ptx::shared_address(raw) % (1U << 24U) != code_memory_begins) __trap();  // nothing else may lie in front
#endif
}

}  // namespace graft::cuda
