// SPDX-License-Identifier: Apache-2.0
// The dequantizing loader of the quantized skinny GEMM (skinny_sm90.cuh): each warp copies its own columns of units (16
// rows of W) and their scales into shared memory by cp.async, quant_stages units in flight; dequantize_registers.cuh
// dequantizes them on the way to the tensor cores.
//
// It also defines the kernel arguments and the layout of shared memory. Partial sums use the halves of the pair table's
// rows that no one reads, and memory of their own after that.
#pragma once
#include <graft/backend/gpu/kernels/quantized/dequantize_registers.cuh>
#include <graft/backend/gpu/kernels/quantized/weight.cuh>
#include <graft/backend/gpu/kernels/skinny/sm90_layout.h>

#include <type_traits>

namespace graft::gpu {

// A layer, or a group of up to 16 tokens of a layer, in one launch. Segments have CTAs of their own; CTAs of two token
// groups read the same weights at about the same time.
struct quantized_product {
  quantized_weight from;
  void* y;
  const void* residual;
  adapter_args adapter;
  activation act;
  bool scales_contiguous;  // a warp's four scales of a row are one aligned vector (blocks of 64)
  int n, units;            // outputs, and units of 16 of them
  int first_token;         // first token of the group
  int first, clusters;     // first cluster and number of clusters; unused segments begin after the last cluster
  float* shrink_out;       // partial U [rank / 16][slice][token][16]; of a previous shrink launch U [token][rank]
  // Zero between launches: tasks of U that are done, and CTAs that have seen that all are.
  std::uint32_t* counters;
};
template <int Layers> struct quantized_args {
  const void* x;
  int m, k;
  int steps, own, splits;  // steps of 64 columns in k, per warp, and split-K factor
  int phase;               // units whose sums fit in shared memory at once
  bool gated;              // y is the elementwise product of two layers; every CTA has units of both
  std::uint32_t ready_at, ring_at, scales_at, nested_at, shrink_at, b_at, sums_at,
      partials_at;  // in shared memory
  quantized_product segment[Layers];
};
// First cache line of the kernel parameters. It is all that a single layer of whole units needs to start, and to end if
// `bare`: every further line costs another wait.
struct quantized_start {
  const void* first_x;
  const unsigned char* first_weight;
  const void* first_scales;
  void* first_y;
  int tokens, unit_count;
  bool bare;  // no scale, shift, activation or residual
};
struct single_layer_args : quantized_start, quantized_args<1> {};
template <bool Grouped>
using quantized_args_of = std::conditional_t<Grouped, quantized_args<max_segments>, single_layer_args>;

// Whole: n is a multiple of 16, k is 4096 (no split-K), a warp's scales of a row are contiguous and x has no prologue.
// Most of the code runs once in ten microseconds, so instruction fetches are visible: without unneeded code a launch
// starts and ends sooner. Grouped: several layers, which cost registers.
template <class T, quant_layout Form, int NTiles, bool Branch, bool FullUnits, bool Grouped> struct weight_loader {
  using dequant = dequantizer<T, Form>;
  static constexpr bool has_scales = has_block_scales(Form) || has_short_block_scales(Form);
  static constexpr int scale_block = has_block_scales(Form) ? 64 : 32;
  static constexpr int block_scales = quant_steps * 64 / scale_block;  // scales per row of a unit
  static constexpr std::uint32_t unit_bytes = unit_weight_bytes(Form);

  using args = quantized_args_of<Grouped>;
  const args& g;
  const quantized_product& of;
  std::uint32_t base;
  int first, step;  // this CTA takes units first, first + step, …
  int warp, lane, first_step, own_steps;
  bool nested;

  __device__ weight_loader(const args& with, const quantized_product& layer, std::uint32_t begins, int split,
                           int cluster, int clusters)
      : g(with),
        of(layer),
        base(begins),
        first(cluster),
        step(clusters),
        warp(static_cast<int>(threadIdx.x / 32)),
        lane(static_cast<int>(threadIdx.x % 32)),
        first_step(FullUnits ? warp * quant_steps : (split * quant_warps + warp) * with.own),
        own_steps(FullUnits                            ? quant_steps
                  : first_step >= with.steps           ? 0
                  : with.steps - first_step < with.own ? with.steps - first_step
                                                       : with.own),
        nested(Form == quant_layout::nested_block_scales ||
               (has_short_block_scales(Form) && !FullUnits && layer.from.format.scales == dtype::u8)) {}

  __device__ bool gated() const { return Grouped && g.gated; }
  __device__ const quantized_product& second() const { return g.segment[Grouped ? 1 : 0]; }
  // Layer of the CTA's i-th unit; in a gated launch odd units belong to the second layer.
  __device__ const quantized_product& layer(int i) const { return gated() ? g.segment[i & 1] : of; }
  __device__ int number(int i) const { return first + (gated() ? i / 2 : i) * step; }
  __device__ bool has(int i) const {
    if constexpr (Grouped)
      return number(i) < of.units;
    else
      return number(i) < g.unit_count;
  }
  __device__ int first_token() const { return Grouped ? of.first_token : 0; }
  __device__ int m() const {
    if constexpr (Grouped) {
      const int left = g.m - first_token();
      return left > max_quantized_tokens ? max_quantized_tokens : left;
    } else {
      return g.tokens;
    }
  }
  __device__ const T* x() const {
    if constexpr (Grouped)
      return static_cast<const T*>(g.x) + static_cast<long long>(first_token()) * k();
    else
      return static_cast<const T*>(g.first_x);
  }
  // Address of this lane's first columns of x.
  __device__ const T* own_x() const {
    return x() + static_cast<long long>(lane / 4) * k() + first_step * 64 + dequant::x_begins(lane % 4);
  }
  __device__ int n() const {
    if constexpr (FullUnits && !Grouped)
      return g.unit_count * unit_rows;
    else
      return of.n;
  }
  __device__ T* y() const {
    if constexpr (Grouped)
      return static_cast<T*>(of.y);
    else
      return static_cast<T*>(g.first_y);
  }
  __device__ int splits() const { return FullUnits && !Grouped ? 1 : g.splits; }
  __device__ int k() const { return FullUnits ? quant_warps * quant_steps * 64 : g.k; }
  __device__ int row_of(int i) const { return number(i) * unit_rows; }
  __device__ std::uint32_t table() const { return base + static_cast<std::uint32_t>(pair_table_begin); }
  // Shared memory addresses, which are compile-time constants for a single layer of whole units.
  static constexpr quantized_layout static_layout = single_layer_layout(Form, NTiles * 8, Branch);
  static constexpr bool has_static_layout = FullUnits && !Grouped;
  __device__ std::uint32_t smem_address(std::uint32_t dynamic_offset, long long static_offset) const {
    return has_static_layout ? static_cast<std::uint32_t>(static_offset) : base + dynamic_offset;
  }
  __device__ std::uint32_t ring() const { return smem_address(g.ring_at, static_layout.ring); }
  __device__ std::uint32_t scales() const { return smem_address(g.scales_at, static_layout.scales); }
  __device__ std::uint32_t sums() const { return smem_address(g.sums_at, static_layout.sums); }
  __device__ std::uint32_t shrink_out() const { return smem_address(g.shrink_at, static_layout.shrink_out); }
  __device__ std::uint32_t b() const { return smem_address(g.b_at, static_layout.b); }
  __device__ std::uint32_t ready() const { return smem_address(g.ready_at, static_layout.ready); }
  __device__ std::uint32_t nested_table() const { return smem_address(g.nested_at, static_layout.nested); }
  __device__ int phase() const { return has_static_layout ? static_layout.phase : g.phase; }
  __device__ std::uint32_t at(int stage) const { return ring() + (stage * quant_warps + warp) * unit_bytes; }
  __device__ std::uint32_t scale_at(int stage) const {
    return scales() + (stage * quant_warps + warp) * unit_scale_bytes(Form, nested);
  }
  // Address of 32 consecutive floats (`quarter`) of sum i.
  __device__ std::uint32_t sum_at(int i, int quarter) const {
    constexpr int in_table = dequant::has_table ? sums_in_table : 0;
    return i < in_table ? table() + (i * 4 + quarter) * 256 + 128
                        : sums() + (i - in_table) * unit_sum_bytes + quarter * 128;
  }

  __device__ void request(int i, int stage) const {
    const int row0 = row_of(i);
    const quantized_product& to = layer(i);
    if (row0 + unit_rows <= to.n)
      request_weight<true>(to, row0, at(stage));
    else
      request_weight<false>(to, row0, at(stage));
    if constexpr (has_scales) {
      if (has_block_scales(Form) && to.scales_contiguous)
        request_contiguous_scales(to, row0, stage);
      else
        request_scales(to, row0, stage);
    }
  }
  // For full units: this lane's addresses of weight and scales in the next unit, so that only additions remain.
  struct source {
    const unsigned char *qweight, *extra;
  };
  // The lanes of a row copy a power of two of 16-byte vectors; rows of ggml blocks have one more, copied by others.
  static constexpr int even_vectors = dequant::vectors / 8 * 8, rows_at_once = 32 / even_vectors;
  static constexpr bool has_extra_vector = even_vectors < dequant::vectors;
  static constexpr int whole_row = quant_warps * dequant::pitch,
                       whole_scales = quant_warps * block_scales;  // bytes, and scales, per row of W
  __device__ source first_source() const {
    const int row0 = row_of(0);
    const unsigned char *weight_at, *scales_at;
    if constexpr (Grouped)
      weight_at = of.from.qweight, scales_at = static_cast<const unsigned char*>(of.from.scales);
    else
      weight_at = g.first_weight, scales_at = static_cast<const unsigned char*>(g.first_scales);
    const auto weight_row = [&](int row) {
      return weight_at + static_cast<long long>(row0 + row) * whole_row + warp * dequant::pitch;
    };
    const auto scale_of_row = [&](int row) {
      return static_cast<long long>(row0 + row) * whole_scales + warp * block_scales;
    };
    source p{weight_row(lane / even_vectors) + lane % even_vectors * 16, nullptr};
    if constexpr (Form == quant_layout::block_scales) {
      p.extra = scales_at + scale_of_row(lane % unit_rows) * 4;
    } else if constexpr (Form == quant_layout::nested_block_scales) {  // quantized scales, and their second scale
      const long long at = scale_of_row(lane % unit_rows);
      p.extra = lane < unit_rows
                    ? scales_at + at
                    : reinterpret_cast<const unsigned char*>(of.from.second_scales + (at >> of.from.second_shift));
    } else if constexpr (has_short_block_scales(Form)) {
      p.extra = scales_at + scale_of_row(lane / 2) * 4 + lane % 2 * 16;
    } else if constexpr (has_extra_vector) {
      p.extra = weight_row(lane % unit_rows) + even_vectors * 16;
    }
    return p;
  }
  __device__ __forceinline__ void request(source& next, int i, int stage) const {
    const std::uint32_t to = at(stage);
#pragma unroll
    for (int j = 0; j < unit_rows / rows_at_once; ++j)
      ptx::copy_async16(to + dequant::vec_at(lane / even_vectors + j * rows_at_once, lane % even_vectors),
                        next.qweight + j * rows_at_once * whole_row, 16);
    if constexpr (Form == quant_layout::nested_block_scales)
      ptx::copy_async4(raw_scales_at(stage, lane % unit_rows) + lane / unit_rows * 4, next.extra, 4);
    else if constexpr (has_short_block_scales(Form))
      ptx::copy_async16(scale_at(stage) + lane * 16, next.extra, 16);
    else if (has_scales && lane < unit_rows)
      ptx::copy_async16(scale_at(stage) + lane * 16, next.extra, 16);
    else if (has_extra_vector && lane < unit_rows)
      ptx::copy_async16(to + dequant::vec_at(lane, even_vectors), next.extra, 16);
    if (gated()) {
      const quantized_weight &here = layer(i).from, &there = layer(i + 1).from;
      next.qweight += there.qweight - here.qweight;
      next.extra += static_cast<const unsigned char*>(there.scales) - static_cast<const unsigned char*>(here.scales);
      if ((i & 1) == 0) return;
    }
    const int rows = step * unit_rows;
    next.qweight += static_cast<std::uint32_t>(rows * whole_row);
    if constexpr (Form == quant_layout::nested_block_scales)
      next.extra += static_cast<std::uint32_t>(lane < unit_rows ? rows * whole_scales
                                                                : rows * whole_scales >> of.from.second_shift << 2);
    else if constexpr (has_scales)
      next.extra += static_cast<std::uint32_t>(rows * whole_scales * 4);
    else if constexpr (has_extra_vector)
      next.extra += static_cast<std::uint32_t>(rows * whole_row);
  }
  // Row scales are needed only after the sums: one warp prefetches those of all units.
  __device__ void prefetch_row_scales() const {
    if (warp != quant_warps - 1 || !has(lane) || of.from.format.scaled != scale_granularity::row) return;
    const long long bytes = bits_of(of.from.format.scales) / 8;
    ptx::prefetch(static_cast<const unsigned char*>(of.from.scales) + row_of(lane) * bytes);
  }
  // Loads the weights of a unit; rows at or after n are zeros.
  template <bool AllRows>
  __device__ __forceinline__ void request_weight(const quantized_product& l, int row0, std::uint32_t to) const {
    const long long row_bytes = static_cast<long long>(g.k / 32) * dequant::block_bytes;
    const unsigned char* const from = l.from.qweight + first_step * 2LL * dequant::block_bytes + row0 * row_bytes;
    const int wanted = own_steps * 2 * dequant::block_bytes / 16;
    const auto copy = [&](int row, int vec, const unsigned char* p) {
      const bool inside = AllRows || row0 + row < l.n;
      ptx::copy_async16(to + dequant::vec_at(row, vec), inside ? p : l.from.qweight, inside ? 16 : 0);
    };
    if constexpr (32 % dequant::vectors == 0) {
      constexpr int rows_at_once = 32 / dequant::vectors;
      const int vec = lane % dequant::vectors, row1 = lane / dequant::vectors;
      const unsigned char* const p = from + row1 * row_bytes + vec * 16;
      if (vec < wanted)
#pragma unroll
        for (int j = 0; j < unit_rows / rows_at_once; ++j)
          copy(row1 + j * rows_at_once, vec, p + j * rows_at_once * row_bytes);
    } else {
#pragma unroll
      for (int e = lane; e < unit_rows * dequant::vectors; e += 32)
        if (const int row = e / dequant::vectors, vec = e % dequant::vectors; vec < wanted)
          copy(row, vec, from + row * row_bytes + vec * 16);
    }
  }
  // One lane loads the scales of a row; double quantization takes two, for quantized scales and second scale.
  __device__ void request_contiguous_scales(const quantized_product& l, int row0, int stage) const {
    const int row = row0 + lane % unit_rows;
    if (own_steps == 0 || row >= l.n) return;
    const long long source = static_cast<long long>(row) * g.steps + first_step;
    if (!nested) {
      if (lane < unit_rows)
        ptx::copy_async16(scale_at(stage) + lane * 16, static_cast<const float*>(l.from.scales) + source, 16);
      return;
    }
    const void* const from = lane < unit_rows
                                 ? static_cast<const void*>(static_cast<const unsigned char*>(l.from.scales) + source)
                                 : l.from.second_scales + (source >> l.from.second_shift);
    ptx::copy_async4(raw_scales_at(stage, lane % unit_rows) + lane / unit_rows * 4, from, 4);
  }
  // Address of four quantized scales of a row, followed by their second scale.
  __device__ std::uint32_t raw_scales_at(int stage, int row) const {
    return scale_at(stage) + unit_rows * block_scales * 4 + row * 8;
  }
  __device__ long long scale_index(const quantized_weight& from, int row, int r) const {
    return (row * from.pitch + first_step * 64LL + r * scale_block) >> from.shift;
  }
  __device__ void request_scales(const quantized_product& l, int row0, int stage) const {
#pragma unroll
    for (int e = lane; e < unit_rows * block_scales; e += 32) {
      const int row = row0 + e / block_scales, r = e % block_scales;
      const long long source = scale_index(l.from, row, r);
      const bool inside = r * scale_block < own_steps * 64 && row < l.n;
      const std::uint32_t to = scale_at(stage) + e * 4;
      if (!nested) {
        ptx::copy_async4(to, inside ? static_cast<const float*>(l.from.scales) + source : l.from.scales,
                         inside ? 4 : 0);
        continue;
      }
      const long long word = source & ~3LL, left = l.from.scale_count - word;
      const long long second =
          l.from.second_shift < 0 ? source / l.from.format.second_block : source >> l.from.second_shift;
      ptx::copy_async4(to, inside ? static_cast<const unsigned char*>(l.from.scales) + word : l.from.scales,
                       !inside    ? 0
                       : left < 4 ? static_cast<int>(left)
                                  : 4);
      ptx::copy_async4(to + unit_rows * block_scales * 4, inside ? l.from.second_scales + second : l.from.second_scales,
                       inside ? 4 : 0);
    }
  }
  // Dequantizes double-quantized scales in shared memory. A single layer has their codebook in shared memory; of
  // grouped layers each would need its own.
  static constexpr bool has_nested_table = Form == quant_layout::nested_block_scales && !Grouped;
  __device__ void fill_nested_table(int thread) const {
    if (thread < 256)
      ptx::store_shared(nested_table() + thread * 4, __float_as_uint(__ldg(of.from.second_codebook + thread)));
  }
  __device__ float double_quant_scale(const quantized_weight& from, std::uint32_t code, float second) const {
    if constexpr (has_nested_table)
      return from.nested_from(__uint_as_float(ptx::load_shared(nested_table() + code * 4)), second);
    else
      return from.nested(code, second);
  }
  __device__ void widen_scales(int i, int stage) const {
    const quantized_weight& from = layer(i).from;
    const bool contiguous = has_block_scales(Form) && (FullUnits || layer(i).scales_contiguous);
#pragma unroll
    for (int e = lane; e < unit_rows * block_scales; e += 32) {
      const std::uint32_t to = scale_at(stage) + e * 4;
      std::uint32_t word;
      float second;
      unsigned source;
      if (contiguous) {
        const float2 raw = ptx::load_shared_float2(raw_scales_at(stage, e / block_scales));
        word = __float_as_uint(raw.x), second = raw.y, source = e % block_scales;
      } else {
        word = ptx::load_shared(to), second = __uint_as_float(ptx::load_shared(to + unit_rows * block_scales * 4));
        source = static_cast<unsigned>(scale_index(from, row_of(i) + e / block_scales, e % block_scales) & 3);
      }
      ptx::store_shared(to, __float_as_uint(double_quant_scale(from, word >> source * 8 & 255, second)));
    }
    __syncwarp();
  }
  // Scales of two levels: computes scale and minimum of each run of a unit in shared memory, two lanes per row.
  __device__ __forceinline__ void expand_run_scales(int stage) const {
    const int row = lane / 2, upper = lane % 2;
    const auto runs = dequant::four_runs(at(stage), row, upper != 0);
    const std::uint32_t to = scale_at(stage) + row * run_scales_pitch + upper * 32;
#pragma unroll
    for (int j = 0; j < 4; j += 2)
      ptx::store_shared(to + 8 * j,
                        make_uint4(__float_as_uint(runs.scale[j]), __float_as_uint(runs.minimum[j]),
                                   __float_as_uint(runs.scale[j + 1]), __float_as_uint(runs.minimum[j + 1])));
    __syncwarp();
  }
  // Scales of a lane's two rows, [row][step], or for blocks of 32 [row][half of step b].
  using lane_scales = float[2][quant_steps];
  __device__ __forceinline__ void load_scales(lane_scales& to, int stage) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float4 v = ptx::load_shared_float4(scale_at(stage) + (lane / 4 + 8 * h) * 16);
      to[h][0] = v.x, to[h][1] = v.y, to[h][2] = v.z, to[h][3] = v.w;
    }
    if constexpr (!FullUnits) {
      if (own_steps == quant_steps) return;
#pragma unroll
      for (int b = 0; b < quant_steps; ++b)  // these scales were not copied
        if (b >= own_steps) to[0][b] = to[1][b] = 0;
    }
  }
  // Scale and minimum of a run in row lane / 4, or in the eighth row below (`lower`).
  __device__ __forceinline__ float2 load_run_scale(int stage, int run, int lower) const {
    return ptx::load_shared_float2(scale_at(stage) + (lane / 4 + 8 * lower) * run_scales_pitch + run * 8);
  }
  __device__ __forceinline__ void load_scales(lane_scales& to, int stage, int b) const {
    const int row = lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if constexpr (has_short_block_scales(Form)) {
        const float2 v = ptx::load_shared_float2(scale_at(stage) + ((row + 8 * h) * block_scales + 2 * b) * 4);
        to[h][0] = v.x, to[h][1] = v.y;
      } else {
        static_assert(has_scales_inside(Form));
        to[h][0] = dequant::scale(at(stage), row + 8 * h, 2 * b),
        to[h][1] = dequant::scale(at(stage), row + 8 * h, 2 * b + 1);
      }
  }
};

}  // namespace graft::gpu
