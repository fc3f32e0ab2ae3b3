// SPDX-License-Identifier: Apache-2.0
// Skinny GEMM on a 4-bit weight for few outputs, sm_90a: up to 8 tokens, k = 4096, one layer, at most two units (16
// rows of W) per CTA, two CTAs per SM.
//
//   y = epilogue(x dequantize(W)ᵀ + U Bᵀ)       x [m, 4096]   W [n, 4096]   U = x Aᵀ [m, rank]   B [n, rank]
//
// A launch of so few units mostly waits: for x, for weights, for its end. A CTA therefore takes half of an SM, so that
// the CTA of the next launch (programmatic dependent launch) shares it, with all weights in shared memory and the table
// filled when x arrives. Dependents are launched only after the wait for the previous kernel: earlier, x would queue
// after their weights, and two CTAs of one launch would share an SM while another is idle. With a branch and two units
// they are launched later still, after x and before the mainloop, so that they do not delay the partial sums of U.
//
// Warps        16, each with 256 columns of k and their x in registers, as in skinny_sm90.cuh. The upper eight rows of
//              a unit use the halves of the pair table's rows that no one reads; sums overwrite weights that were read.
// Shrink       The last CTAs, which have the fewest units, compute one slice of A each. Partial sums of U are floats in
//              device memory of which none is zero (zero is stored as -0), so that each value signals its own arrival.
//              Two sets alternate: a launch clears the set of the previous one.
// Expand       Eight of the 16 warps poll one slice P each and add B Pᵀ to their sums, U Bᵀ = Σ P Bᵀ with each P
//              rounded by itself. The first P is prefetched before the second unit, and only these warps wait for it.
// Reduction    Warps and slices are added in a fixed order: the same call gives the same bits.
// Measured     H200, NF4, LoRA r16, 4096 x 4096: 4.6 µs for 1 token and 4.9 µs for 8, 2.09 and 2.22 times the floor of
//              the quantized bytes at 4.3 TB/s (docs/performance.md).
#pragma once
#include <graft/backend/gpu/kernels/quantized/dequantizing_loader.cuh>
#include <graft/backend/gpu/kernels/quantized/shrink.cuh>

namespace graft::gpu {

template <class T, quant_layout Form, bool Branch> struct two_unit_block {
  using dequant = dequantizer<T, Form>;
  static constexpr int threads = quant_warps * 32, units = 2;
  static constexpr bool nested = Form == quant_layout::nested_block_scales;
  static constexpr std::uint32_t table = two_unit_layout::table, lower = two_unit_layout::lower,
                                 scales = two_unit_layout::scales, nested_table = two_unit_layout::nested,
                                 b_rows = two_unit_layout::b, shrink_sums = two_unit_layout::shrink_out,
                                 shrink_set = two_unit_layout::shrink_set;
  // Bytes per unit, all warps: upper rows in the table, lower rows, scales; and bytes per warp in each.
  static constexpr std::uint32_t unit_in_table = 32768, unit_in_lower = 16384, unit_scales = 4096, warp_in_table = 2048,
                                 warp_in_lower = 1024, warp_scales = 256;
  static constexpr int row_bytes = quant_warps * dequant::pitch, row_scales = quant_warps * quant_steps, columns = 4096;
  static_assert(has_block_scales(Form) && dequant::pitch == 128);

  const single_layer_args& g;
  const quantized_segment& of;
  int first, step, warp, lane, row, quad;

  __device__ explicit two_unit_block(const single_layer_args& with)
      : g(with),
        of(with.segment[0]),
        first(static_cast<int>(blockIdx.y)),
        step(static_cast<int>(gridDim.y)),
        warp(static_cast<int>(threadIdx.x / 32)),
        lane(static_cast<int>(threadIdx.x % 32)),
        row(lane / 4),
        quad(lane % 4) {}

  __device__ bool has(int unit) const { return unit == 0 || first + step < g.unit_count; }
  __device__ int row_of(int unit) const { return (first + unit * step) * unit_rows; }
  __device__ int groups() const { return of.adapter.rank / 16; }
  __device__ const T* x() const { return static_cast<const T*>(g.first_x); }

  // ---- loads that do not depend on x --------------------------------------------------------------------------------
  __device__ void request() const {
    if constexpr (Branch) {
      if (warp < units && has(warp)) prefetch_b(warp);
      ptx::commit_copies();
    }
    const int row1 = lane / 8, vec = lane % 8;
    const unsigned char* from =
        g.first_weight + static_cast<long long>(row_of(0) + row1) * row_bytes + warp * dequant::pitch + vec * 16;
    const long long scale_at_index =
        static_cast<long long>(row_of(0) + lane % unit_rows) * row_scales + warp * quant_steps;
    const auto* scale = static_cast<const unsigned char*>(g.first_scales) + scale_at_index * (nested ? 1 : 4);
    if (nested && lane >= unit_rows)
      scale = reinterpret_cast<const unsigned char*>(of.from.second_scales + (scale_at_index >> of.from.second_shift));
    const int rows = step * unit_rows;
    const auto further =
        static_cast<std::uint32_t>(!nested            ? rows * row_scales * 4
                                   : lane < unit_rows ? rows * row_scales
                                                      : rows * row_scales >> of.from.second_shift << 2);
    const std::uint32_t even = dequant::vec_at(row1, vec), odd = dequant::vec_at(row1 + 4, vec) - 4 * dequant::pitch;
    std::uint32_t up = table + warp * warp_in_table + 128 + row1 * 128, low = lower + warp * warp_in_lower,
                  to = scales + warp * warp_scales + lane % unit_rows * 16;
#pragma unroll
    for (int unit = 0; unit < units; ++unit) {
      if (has(unit)) {
        ptx::copy_async16(up + even, from, 16);
        ptx::copy_async16(up + 4 * 256 + odd, from + 4 * row_bytes, 16);
        ptx::copy_async16(low + even, from + 8 * row_bytes, 16);
        ptx::copy_async16(low + 4 * 128 + odd, from + 12 * row_bytes, 16);
        if constexpr (nested)
          ptx::copy_async4(to + lane / unit_rows * 4, scale, 4);
        else if (lane < unit_rows)
          ptx::copy_async16(to, scale, 16);
      }
      ptx::commit_copies();
      up += unit_in_table, low += unit_in_lower, to += unit_scales;
      from += static_cast<std::uint32_t>(rows * row_bytes), scale += further;
    }
  }
  // Loads the first 16 columns of the rows of B of a unit.
  __device__ void prefetch_b(int unit) const {
    const T* const b = static_cast<const T*>(of.adapter.b);
    ptx::copy_async16(b_rows + unit * b_rows_bytes + lane * 16,
                      b + static_cast<long long>(row_of(unit) + lane / 2) * of.adapter.rank + lane % 2 * 8, 16);
  }
  __device__ void fill_tables() const {
    const auto thread = static_cast<int>(threadIdx.x);
    if (nested && thread < 256)
      ptx::store_shared(nested_table + thread * 4, __float_as_uint(__ldg(of.from.second_codebook + thread)));
    dequant::fill(table, of.from.table, thread);
  }

  // ---- shrink: partial sums of U ------------------------------------------------------------------------------------
  static constexpr int slices = two_unit_slices, shrink_warps_per_block = 8,
                       chunks_per_warp = columns / slices / shrink_warps_per_block / 32;
  static constexpr int set = shrink_set_floats / 4, reducing_warp = quant_warps - 1, clearing_warp = 0;
  __device__ int task() const { return step - 1 - first; }
  // Set of partial sums of this launch. The counter grows by shrink_set_shares per launch, of which every CTA adds its
  // share after reading it.
  __device__ static int partial_set_of(std::uint32_t used) { return static_cast<int>(used / shrink_set_shares & 1U); }
  // Clears the set of the previous launch for the next one, and counts. Late stores would delay the next launch.
  __device__ void reset_partials() const {
    const int other = partial_set_of(ptx::load_shared(shrink_set)) ^ 1;
    for (int at = first * 32 + lane; at < set; at += step * 32)
      __stcg(reinterpret_cast<float4*>(of.shrink_out) + other * set + at, make_float4(0, 0, 0, 0));
    if (lane == 0) atomicAdd(of.counters, static_cast<std::uint32_t>(first == 0 ? shrink_set_shares - step + 1 : 1));
  }
  __device__ float4* partial(int which, int task_of_it) const {
    return reinterpret_cast<float4*>(of.shrink_out) + which * set + task_of_it * 32 + lane;
  }
  struct a_fragments {
    uint4 upper[chunks_per_warp], lower[chunks_per_warp];
  };
  __device__ int chunk(int c) const { return (task() % slices * shrink_warps_per_block + warp) * chunks_per_warp + c; }
  __device__ void load_a(a_fragments& a) const {
    const int rows = task() / slices * 16 + row;
#pragma unroll
    for (int c = 0; c < chunks_per_warp; ++c)
      a.upper[c] = quantized_detail::load_a8(of.adapter, rows, chunk(c), quad),
      a.lower[c] = quantized_detail::load_a8(of.adapter, rows + 8, chunk(c), quad);
  }
  // Multiplies this warp's columns of the slice and stores its sums in shared memory.
  __device__ void shrink(const a_fragments& a) const {
    float sum[4] = {};
#pragma unroll
    for (int c = 0; c < chunks_per_warp; ++c) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (row < g.tokens)
        v = *reinterpret_cast<const uint4*>(x() + static_cast<long long>(row) * columns + chunk(c) * 32 + quad * 8);
      const std::uint32_t a0[4] = {a.upper[c].x, a.lower[c].x, a.upper[c].y, a.lower[c].y},
                          a1[4] = {a.upper[c].z, a.lower[c].z, a.upper[c].w, a.lower[c].w};
      ptx::mma_m16n8k16_unordered<T>(sum, a0, v.x, v.y), ptx::mma_m16n8k16_unordered<T>(sum, a1, v.z, v.w);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
      ptx::store_shared(shrink_sums + ((warp * 8 + quad * 2 + (e & 1)) * 16 + row + 8 * (e >> 1)) * 4,
                        __float_as_uint(sum[e]));
  }
  // One warp sums the partial results of all shrink warps and stores them in device memory.
  __device__ void publish(int which) const {
    float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < shrink_warps_per_block; ++w) {
      const float4 sum = ptx::load_shared_float4(shrink_sums + w * 512 + lane * 16);
      v.x += sum.x, v.y += sum.y, v.z += sum.z, v.w += sum.w;
    }
    const auto nonzero = [](float f) { return f == 0 ? -0.0F : f; };
    __stcg(partial(which, task()), make_float4(nonzero(v.x), nonzero(v.y), nonzero(v.z), nonzero(v.w)));
  }

  // ---- mainloop -----------------------------------------------------------------------------------------------------
  using x_words = uint4[2 * quant_steps];
  __device__ void load_x(x_words& to) const {
    const T* const from = x() + static_cast<long long>(row) * columns + warp * quant_steps * 64;
#pragma unroll
    for (int c = 0; c < 2 * quant_steps; ++c) {
      to[c] = make_uint4(0, 0, 0, 0);
      if (row < g.tokens) to[c] = dequant::x_of(from + c / 2 * 64, c % 2, quad);
    }
  }
  // Dequantizes double-quantized scales in place before x arrives.
  __device__ void widen_all() const {
    ptx::wait_for_copies<0>();
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
  // Address of a lane's weights of two chunks of a lower row. sum_at is where its sums replace them, two tokens of two
  // rows, with eight rows in different banks.
  __device__ static std::uint32_t low_at(int unit, int of_warp, int row, int quad) {
    return lower + unit * unit_in_lower + of_warp * warp_in_lower + dequant::vec_at(row, quad / 2) + quad % 2 * 8;
  }
  __device__ static std::uint32_t sum_at(std::uint32_t low) { return (low & ~8U) ^ (low & 8U) << 3; }
  __device__ static void store_sum(std::uint32_t low, const float (&sum)[4]) {
    ptx::store_shared(sum_at(low), make_uint4(__float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]),
                                              __float_as_uint(sum[3])));
  }
  __device__ __forceinline__ void take(int unit, const x_words& x) const {
    const std::uint32_t vec = dequant::vec_at(row, quad / 2) + quad % 2 * 8,
                        up = table + unit * unit_in_table + warp * warp_in_table + 128 + row * 128 + vec,
                        low = low_at(unit, warp, row, quad), scale = scales + unit * unit_scales + warp * warp_scales;
    const float4 s0 = ptx::load_shared_float4(scale + row * 16), s1 = ptx::load_shared_float4(scale + 128 + row * 16);
    const float s[2][4] = {{s0.x, s0.y, s0.z, s0.w}, {s1.x, s1.y, s1.z, s1.w}};
    const dequant numbers{static_cast<std::uint32_t>(lane * 4)};
    float acc[4] = {};
#pragma unroll
    for (int b = 0; b < quant_steps; ++b) {
      const float2 above = ptx::load_shared_float2(up ^ (b << 5)), below = ptx::load_shared_float2(low ^ (b << 5));
      float sum[4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const typename dequant::words word[2] = {{__float_as_uint(h == 0 ? above.x : above.y)},
                                                 {__float_as_uint(h == 0 ? below.x : below.y)}};
        typename dequant::pairs p, q;
        numbers.template dequantize<table>(p, word[0]), numbers.template dequantize<table>(q, word[1]);
        const std::uint32_t one[4] = {p[0], q[0], p[1], q[1]}, other[4] = {p[2], q[2], p[3], q[3]};
        const uint4& v = x[2 * b + h];
        if (h == 0)
          ptx::mma_m16n8k16_first<T>(sum, one, v.x, v.y);
        else
          ptx::mma_m16n8k16_unordered<T>(sum, one, v.x, v.y);
        ptx::mma_m16n8k16_unordered<T>(sum, other, v.z, v.w);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[e] = fmaf(s[e >> 1][b], sum[e], acc[e]);
    }
    __syncwarp();  // all lanes have read the weights
    store_sum(low, acc);
  }

  // ---- expand -------------------------------------------------------------------------------------------------------
  __device__ bool adds() const { return Branch && warp >= quant_warps - slices; }
  __device__ const float4* own_partial(int group) const {
    const std::uint32_t first_thread = (quant_warps - slices) * 32,
                        at = partial_set_of(ptx::load_shared(shrink_set)) * set + group * slices * 32 + threadIdx.x -
                             first_thread;
    return reinterpret_cast<const float4*>(of.shrink_out) + at;
  }
  // Address of the prefetched partial U, where weights of the first unit were.
  __device__ std::uint32_t partial_at() const {
    return table + warp * warp_in_table + 128 + lane / 8 * 256 + lane % 8 * 16;
  }
  __device__ void prefetch_partial() const {
    ptx::copy_async16(partial_at(), own_partial(0), 16);
    ptx::commit_copies();
  }
  __device__ void add_partial() const {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (has(1)) {
      ptx::wait_for_copies<0>();
      v = ptx::load_shared_uint4(partial_at());
    }
#pragma unroll 1
    for (int group = 0; group < groups(); ++group) {
      while (v.x == 0 || v.y == 0 || v.z == 0 || v.w == 0) v = ptx::load_relaxed4(own_partial(group));
      __syncwarp();
      const std::uint32_t low = pack<T>(__uint_as_float(v.x), __uint_as_float(v.y)),
                          high = pack<T>(__uint_as_float(v.z), __uint_as_float(v.w));
      v = make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int unit = 0; unit < units; ++unit) {
        if (!has(unit)) break;
        const uint4 b = rows_of_b(unit, group);
        const std::uint32_t rows[4] = {b.x, b.z, b.y, b.w};
        const std::uint32_t low_weight = low_at(unit, warp, row, quad);
        const float4 was = ptx::load_shared_float4(sum_at(low_weight));
        float sum[4] = {was.x, was.y, was.z, was.w};
        ptx::mma_m16n8k16_unordered<T>(sum, rows, low, high);
        store_sum(low_weight, sum);
      }
    }
  }
  __device__ uint4 rows_of_b(int unit, int group) const {
    if (group == 0) {
      const std::uint32_t at = b_rows + unit * b_rows_bytes + row * 32 + quad * 8;
      const float2 upper = ptx::load_shared_float2(at), under = ptx::load_shared_float2(at + 8 * 32);
      return make_uint4(__float_as_uint(upper.x), __float_as_uint(upper.y), __float_as_uint(under.x),
                        __float_as_uint(under.y));
    }
    const int rank = of.adapter.rank;
    const T* const b =
        static_cast<const T*>(of.adapter.b) + static_cast<long long>(row_of(unit) + row) * rank + group * 16 + quad * 4;
    const uint2 upper = __ldg(reinterpret_cast<const uint2*>(b)),
                under = __ldg(reinterpret_cast<const uint2*>(b + 8 * rank));
    return make_uint4(upper.x, upper.y, under.x, under.y);
  }

  // ---- end of a unit: a warp finishes two tokens; every eight lanes add the sums of four warps ----------------------
  __device__ void end() const {
    const int unit = warp / 4, of_quad = warp % 4, eight = lane / 8, row1 = lane % 8;
    if (unit >= units || !has(unit) || of_quad * 2 >= g.tokens) return;
    float v[4] = {};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float4 sum = ptx::load_shared_float4(sum_at(low_at(unit, eight * 4 + w, row1, of_quad)));
      v[0] += sum.x, v[1] += sum.y, v[2] += sum.z, v[3] += sum.w;
    }
    // Two exchanges leave each group of eight lanes with one of the four sums, added over all 16 warps.
    const bool later = eight >= 2, second = eight % 2 != 0;
    float two[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) two[e] = (later ? v[2 + e] : v[e]) + __shfl_xor_sync(~0U, later ? v[e] : v[2 + e], 16);
    const float sum = (second ? two[1] : two[0]) + __shfl_xor_sync(~0U, second ? two[0] : two[1], 8);
    const int token = of_quad * 2 + eight % 2, at = row_of(unit) + row1 + eight / 2 * 8, n = g.unit_count * unit_rows;
    if (token >= g.tokens) return;
    T* const y = static_cast<T*>(g.first_y) + static_cast<long long>(token) * n + at;
    if (g.bare) {  // the common short path comes first in the code
      *y = from_float<T>(sum);
      return;
    }
    const epilogue_args<T> epilogue{of.adapter.scale, of.adapter.shift, static_cast<const T*>(of.residual),
                                    of.act,           g.tokens,         n};
    *y = from_float<T>(epilogue(sum, token, at));
  }

  __device__ void run() const {
    const bool makes = Branch && task() < groups() * slices;
    request();
    a_fragments a;
    if (makes && warp < shrink_warps_per_block) load_a(a);
    fill_tables();
    if constexpr (nested) widen_all();
    ptx::wait_for_dependency();
    const bool late = Branch && step < g.unit_count;  // some CTAs have two units
    if (!late) ptx::launch_dependents();
    if (makes && warp < shrink_warps_per_block) shrink(a);
    x_words x;
    load_x(x);
    if constexpr (Branch) {
      if (warp == reducing_warp) {
        const std::uint32_t used = ptx::load_relaxed(of.counters);
        if (lane == 0) ptx::store_shared(shrink_set, used);
      }
      ptx::wait_for_copies<units>();  // B
    }
    __syncthreads();
    if (late) ptx::launch_dependents();
    if (makes && warp == reducing_warp) publish(partial_set_of(ptx::load_shared(shrink_set)));
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      if (unit == 1) {
        ptx::wait_for_copies<0>();
        if (!has(1)) break;
        if (adds()) prefetch_partial();
      } else {
        ptx::wait_for_copies<1>();
      }
      __syncwarp();
      take(unit, x);
    }
    if (adds())
      add_partial();
    else if (Branch && warp == clearing_warp)
      reset_partials();
    __syncthreads();
    end();
  }
};

template <class T, quant_layout Form, bool Branch>
__global__ void __launch_bounds__(two_unit_block<T, Form, Branch>::threads, 2)
    quantized_two_unit_kernel(const __grid_constant__ single_layer_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  two_unit_block<T, Form, Branch>(g).run();
  if (ptx::shared_address(raw) % (1U << 24U) != quant_smem_begin) __trap();  // no static shared memory may precede it
#endif
}

}  // namespace graft::gpu
