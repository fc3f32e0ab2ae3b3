// SPDX-License-Identifier: Apache-2.0
// Dispatch of skinny GEMMs on quantized weights: whether few tokens are multiplied without dequantizing the weight
// first, how many tokens a launch takes, and the layout of its shared memory. Needs no CUDA header. U = x Aᵀ is the
// shrink result.
#pragma once
#include <graft/backend/gpu/dispatch/gemm.h>
#include <graft/core/quant_formats.h>

namespace graft::gpu {

// The quantized layouts that the kernels read. A new one is an enumerator with a line in facts_of() and in
// quant_layout_of(), and a file with what it stores (kernels/quantized/stored_values.cuh).
enum class quant_layout : unsigned char {
  none,
  block_scales,         // 4 bits, a scale per block of 64 columns or more
  nested_block_scales,  // scales per block of 64 that are quantized themselves
  short_block_scales,   // 4 bits, a scale per block of 32 columns
  int8,                 // a scale per row or per tensor
  fp8,                  // a scale per row or per tensor
  q8_0,                 // ggml blocks, which contain their scales
  q4_0,
  q4_k  // ggml blocks with scales of two levels; quant_layout_count counts up to this one
};
inline constexpr int quant_layout_count = static_cast<int>(quant_layout::q4_k) + 1;

// Where the scales of a layout are: for every block of 64 or 32 columns of a row apart from the values, one for a row
// or the tensor, inside ggml's blocks, or there in two levels (K-quants), with a scale and a minimum for every run of
// 32 columns.
enum class scale_layout : unsigned char { nowhere, per_64_columns, per_32_columns, per_row, inside, runs_inside };
struct quant_layout_facts {
  int chunk_bytes = 0;  // stored bytes of 32 columns, with scales that are inside
  scale_layout scales = scale_layout::nowhere;
  bool pair_table = false;  // two values of a byte are looked up as a pair of numbers
};
constexpr quant_layout_facts facts_of(quant_layout f) {
  switch (f) {
    case quant_layout::none: return {};
    case quant_layout::block_scales: return {16, scale_layout::per_64_columns, true};
    case quant_layout::nested_block_scales: return {16, scale_layout::per_64_columns, true};
    case quant_layout::short_block_scales: return {16, scale_layout::per_32_columns, true};
    case quant_layout::int8: return {32, scale_layout::per_row, false};
    case quant_layout::fp8: return {32, scale_layout::per_row, false};
    case quant_layout::q8_0: return {quant_formats::q8_0_format::bytes, scale_layout::inside, false};
    case quant_layout::q4_0: return {quant_formats::q4_0_format::bytes, scale_layout::inside, true};
    case quant_layout::q4_k: return {quant_formats::q4_k_format::bytes / 8, scale_layout::runs_inside, false};
  }
  return {};
}
constexpr bool has_block_scales(quant_layout f) { return facts_of(f).scales == scale_layout::per_64_columns; }
constexpr bool has_short_block_scales(quant_layout f) { return facts_of(f).scales == scale_layout::per_32_columns; }
constexpr bool has_row_scales(quant_layout f) { return facts_of(f).scales == scale_layout::per_row; }
constexpr bool has_scales_inside(quant_layout f) { return facts_of(f).scales == scale_layout::inside; }
constexpr bool has_run_scales(quant_layout f) { return facts_of(f).scales == scale_layout::runs_inside; }
constexpr bool has_pair_table(quant_layout f) { return facts_of(f).pair_table; }

// The kernels of one layout that a program compiles.
struct quantized_mask {
  quant_layout layout = quant_layout::none;
  bool with_branch = false, without_branch = false;  // layers with and without a low-rank branch
  bool whole_units = false;                          // also the faster kernels of layers that whole units fill

  constexpr quantized_mask operator|(const quantized_mask& o) const {
    return {layout == quant_layout::none ? o.layout : layout, with_branch || o.with_branch,
            without_branch || o.without_branch, whole_units || o.whole_units};
  }
  friend constexpr bool operator==(const quantized_mask&, const quantized_mask&) = default;
};
constexpr quantized_mask every_quantized_kernel(quant_layout f) { return {f, true, true, true}; }

// A CTA has 16 warps. A warp has up to four k steps of 64 columns and processes units of 16 rows of W.
inline constexpr int quant_warps = 16, quant_steps = 4, unit_rows = 16;
// A launch takes up to two groups of 16 tokens; for more tokens it is faster to dequantize the weight first.
inline constexpr int max_quantized_tokens = 16, max_quantized_groups = 2, max_quantized_splits = 8;

// Offsets count from the start of a block's shared memory, whose first kilobyte the system reserves. The pair table
// maps a byte (two 4-bit values) to two numbers, one copy per lane: 256 rows of 256 bytes, of which 128 are read. It is
// aligned to its size, so that an entry's address is assembled from bytes by one instruction. A partial sum is 16 rows
// by 8 tokens of float; `sums_in_table` of them are stored in the unread halves of the table's rows.
inline constexpr long long quant_smem_begin = 1024, pair_table_begin = 65536, pair_table_end = 131072,
                           quant_smem_bytes = 227 * 1024, quant_smem_end = quant_smem_begin + quant_smem_bytes;
inline constexpr int unit_sum_bytes = 512, sums_in_table = 64;

// Bytes of the weight in one unit: 16 rows of a warp's 256 columns.
constexpr int unit_weight_bytes(quant_layout f) { return unit_rows * quant_steps * 2 * facts_of(f).chunk_bytes; }
// A row of the scales and minimums of runs, with space that puts eight rows into different banks.
inline constexpr int run_scales_pitch = quant_steps * 2 * 8 + 16;
// Bytes of the separate scales of a unit, or of those that are computed of two levels; quantized scales come with
// scales of their own.
constexpr int unit_scale_bytes(quant_layout f, bool nested) {
  const int one = has_block_scales(f)         ? unit_rows * quant_steps * 4
                  : has_short_block_scales(f) ? unit_rows * quant_steps * 8
                  : has_run_scales(f)         ? unit_rows * run_scales_pitch
                                              : 0;
  return nested ? 2 * one : one;
}

// Pipeline stages: units in flight per warp. With three instead of two, NF4 with 14336 outputs took 12.6 instead of
// 11.5 µs.
inline constexpr int quant_stages = 2;

// With more than eight tokens a separate launch computes U, because warps for it would take registers from the other
// warps.
constexpr bool shrinks_first(int tokens) { return tokens > 8; }
inline constexpr int shrink_slices = 16;                 // slices of k, whose partial sums of U are added in order
inline constexpr int b_rows_bytes = unit_rows * 16 * 2;  // bytes of B for one unit and 16 of the rank

// Bytes of one layer in device memory: U, or its partial sums, which every block of the layer adds up.
constexpr long long shrink_partial_bytes(int rank, int tokens) {
  return static_cast<long long>(rank) * (shrinks_first(tokens) ? 1 : shrink_slices) * tokens * 4;
}

// A warp has space for the B rows of one unit and prefetches those of the unit quant_warps further while it multiplies
// the unit quant_stages before that. This bounds the units per phase.
inline constexpr int max_units_per_phase = quant_warps - quant_stages;

struct quantized_layout {
  int phase = 0;  // units whose partial sums fit at the same time
  long long ring = 0, scales = 0, sums = 0, partials = 0;
  long long ready = 0;              // mbarrier that completes when U is ready
  long long nested = 0;             // table of dequantized scales
  long long shrink_out = 0, b = 0;  // U, and rows of B
};
struct quantized_choice {
  quant_layout form = quant_layout::none;
  int tokens = 0, groups = 0;  // tokens per group; groups, each with its own CTAs (0: dequantize first)
  int splits = 0, own = 0;     // CTAs that split the columns of a row; k steps per warp
  bool gated = false;          // gated epilogue (SwiGLU): the launch stores the product of two layers
  quantized_layout at{};
};

// The memory of a quantized weight, plane by plane: stored values, and what is stored apart from them. A plane that the
// format lacks has no bytes. Matrices of a stack (experts [experts, out, in]) lie one below the other.
struct quant_plane {
  const void* from = nullptr;
  long long bytes = 0;
};
struct quant_planes {
  quant_plane values, scales, second_scales, second_codebook, zeros, column_group;

  // On the device a plane begins at a multiple of this, so that kernels load vectors.
  static constexpr long long alignment = 256;
  static constexpr long long padded(long long bytes) { return (bytes + alignment - 1) / alignment * alignment; }
  constexpr long long padded_bytes() const {
    return padded(values.bytes) + padded(scales.bytes) + padded(second_scales.bytes) + padded(second_codebook.bytes) +
           padded(zeros.bytes) + padded(column_group.bytes);
  }
};
constexpr quant_planes planes_of(const view& v) {
  const quant_state& p = *v.quant;
  const weight_view w = weight_of(v);
  const scale_counts n = scale_counts_of(p.format, w.rows, w.cols);
  return {.values = {v.data, quantized_bytes(v)},
          .scales = {p.scales, n.scales * bits_of(p.format.scales) / 8},
          .second_scales = {p.second_scales, n.second_scales * 4},
          .second_codebook = {p.second_codebook, p.format.second_block > 0 ? 256 * 4 : 0},
          .zeros = {p.zeros, has_zero_points(p.format) ? n.scales : 0},
          .column_group = {p.column_group, p.format.scaled == scale_granularity::column_group ? w.cols * 4 : 0}};
}

// Refuses a weight in a format that nothing dequantizes. Every tensor is checked when it is placed on the GPU or bound.
[[gnu::cold]] constexpr status check_gpu_format(const graft::detail::message_part& name, const view& v) {
  if (v.quant == nullptr || can_dequantize(v.quant->format)) return ok;
  return fail(
      "tensor '", name, "' is stored as ", name_of(v.quant->format),
      " in an arrangement that is not a quantization format of this library; dequantize it, or quantize it again");
}

constexpr quant_layout quant_layout_of(const quant_format& e, long long k) {
  if (k <= 0 || k % 64 != 0) return quant_layout::none;
  if (is_four_bit(e)) {
    const bool whole = e.scaled == scale_granularity::flat_block ||
                       (e.scaled == scale_granularity::row_flat_block && k % e.block == 0);
    if (!whole) return quant_layout::none;
    if (e.block < 64) return quant_layout::short_block_scales;
    return e.scales == dtype::u8 ? quant_layout::nested_block_scales : quant_layout::block_scales;
  }
  if (e.type == dtype::int8 || e.type == dtype::f8_e4m3) {
    if (e.scaled != scale_granularity::row && e.scaled != scale_granularity::tensor) return quant_layout::none;
    return e.type == dtype::int8 ? quant_layout::int8 : quant_layout::fp8;
  }
  if (k % (64 * quant_steps) != 0) return quant_layout::none;  // copies must be aligned to 16 bytes
  if (e == quant_formats::q8_0_format::format()) return quant_layout::q8_0;
  if (e == quant_formats::q4_0_format::format()) return quant_layout::q4_0;
  return e == quant_formats::q4_k_format::format() ? quant_layout::q4_k : quant_layout::none;
}
// The two regions of shared memory after and before the pair table. take() allocates from the first one with enough
// space, or returns -1.
struct smem_regions {
  long long at[2], end[2];
  constexpr long long take(long long bytes) {
    const long long whole = (bytes + 127) / 128 * 128;
    for (int k = 0; k < 2; ++k)
      if (at[k] + whole <= end[k]) return at[k] += whole, at[k] - whole;
    return -1;
  }
};
constexpr bool assign_smem(quantized_choice& c, int rank, bool nested) {
  const bool table = has_pair_table(c.form);
  smem_regions r{{pair_table_end, quant_smem_begin}, {quant_smem_end, pair_table_begin}};
  if (!table) r = {{quant_smem_begin, 0}, {quant_smem_end, 0}};
  const int token_tiles = c.tokens / 8, stages = quant_stages;
  c.at.ring = r.take(static_cast<long long>(stages) * quant_warps * unit_weight_bytes(c.form));
  c.at.scales = r.take(static_cast<long long>(stages) * quant_warps * unit_scale_bytes(c.form, nested));
  c.at.nested = r.take(c.form == quant_layout::nested_block_scales ? 256 * 4 : 0);
  c.at.ready = r.take(8);
  if (rank > 0) {
    c.at.shrink_out = r.take(c.tokens * 4LL * (rank > 64 ? rank : 64));  // also used by four warps, 16 of the rank each
    c.at.b = r.take(quant_warps * b_rows_bytes);
  }
  if (c.at.ring < 0 || c.at.scales < 0 || c.at.nested < 0 || c.at.ready < 0 || c.at.shrink_out < 0 || c.at.b < 0)
    return false;
  const int larger = r.end[0] - r.at[0] >= r.end[1] - r.at[1] ? 0 : 1;
  const auto available =
      static_cast<int>((r.end[larger] - r.at[larger]) / unit_sum_bytes) + (table ? sums_in_table : 0);
  const int summands = quant_warps + (has_row_scales(c.form) ? 1 : 0);  // the low-rank branch has no row scale
  c.at.phase = available / ((summands + (c.splits > 1 ? 1 : 0)) * token_tiles);
  if (c.at.phase > max_units_per_phase) c.at.phase = max_units_per_phase;
  c.at.partials = r.at[larger];
  c.at.sums = c.at.partials + (c.splits > 1 ? static_cast<long long>(c.at.phase) * token_tiles * unit_sum_bytes : 0);
  return c.at.phase > 0;
}
// The layout of a single layer with full units, which does not depend on the rank and is a compile-time constant.
constexpr quantized_layout single_layer_layout(quant_layout form, int tokens, bool has_branch) {
  quantized_choice c;
  c.form = form, c.tokens = tokens, c.splits = 1;
  assign_smem(c, has_branch ? 16 : 0, form == quant_layout::nested_block_scales);
  return c.at;
}
// Chooses the launch of one layer; `groups` is 0 if the weight must be dequantized first. `rank` is padded.
constexpr quantized_choice choose_quantized(const quant_format& e, dtype computes, long long m, int k, int rank,
                                            const target& on) {
  quantized_choice c;
  if (!is_hopper(on) || !is_16_bit(computes) || rank > 64 || m > max_quantized_groups * max_quantized_tokens) return {};
  c.form = quant_layout_of(e, k);
  const int steps = k / 64, of_a_block = quant_warps * quant_steps;
  c.splits = (steps + of_a_block - 1) / of_a_block;
  if (c.form == quant_layout::none || c.splits > max_quantized_splits) return {};
  while ((c.splits & (c.splits - 1)) != 0) ++c.splits;
  const int warps = c.splits * quant_warps;
  c.own = e.block_bytes > 0 ? quant_steps : (steps + warps - 1) / warps;
  c.tokens = m <= 8 ? 8 : max_quantized_tokens;
  c.groups = static_cast<int>((m + c.tokens - 1) / c.tokens);
  return assign_smem(c, rank, e.scales == dtype::u8) ? c : quantized_choice{};
}
// Chooses one launch for layers with the same input; with `gated`, for gate and up, of which only the product is
// stored. The ranks are padded.
constexpr quantized_choice choose_quantized_grouped(const gemm_problem* all, int count, bool gated, const target& on) {
  int rank = 0;
  for (int i = 0; i < count; ++i) {
    const gemm_problem& p = all[i];
    if (p.stored.plain() || p.nn || p.stores_extra() || p.prologue || !(p.stored == all[0].stored) || p.k != all[0].k ||
        (gated && p.n != all[0].n))
      return {};
    rank = gated ? rank + p.rank : p.rank > rank ? p.rank : rank;
  }
  if (count > max_segments || (gated && count != 2)) return {};
  quantized_choice c = choose_quantized(all[0].stored, all[0].type, all[0].m, all[0].k, rank, on);
  if (c.groups != 1 || (gated && (c.splits > 1 || c.at.phase < 2))) return {};
  if (gated) c.gated = true, c.at.phase -= c.at.phase % 2;
  return c;
}
// The launches of a product or of a group; `rank` is the sum of the ranks.
constexpr int launch_count_of(const quantized_choice& c, int rank) {
  return rank > 0 && shrinks_first(c.tokens) ? 2 : 1;
}
// The workspace and counters that gemm.h reserves suffice for every layer of a launch.
static_assert(max_segments * shrink_partial_bytes(16, max_quantized_tokens) <= workspace_bound(1, 16));
static_assert(max_segments * 2 * 4 <= counter_bytes(1));

// The smallest number of units per cluster for which all layers, each with its own clusters, fit `clusters`.
constexpr int units_per_cluster(const int* units, int count, int clusters) {
  for (int rounds = 1;; ++rounds) {
    int used = 0;
    for (int i = 0; i < count; ++i) used += (units[i] + rounds - 1) / rounds;
    if (used <= clusters) return rounds;
  }
}

}  // namespace graft::gpu
