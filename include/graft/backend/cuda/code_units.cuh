// SPDX-License-Identifier: Apache-2.0
// What passes through the shared memory of stream_codes: units of 16 rows of a warp's columns with their scales, which
// the warp itself copies, a few units ahead; and sums, of which some lie in the halves of the table's rows that nobody
// reads.
#pragma once
#include <graft/backend/cuda/code_pairs.cuh>
#include <graft/backend/cuda/codes.cuh>
#include <graft/backend/cuda/stream_shape.h>

#include <type_traits>

namespace graft::cuda {

// A layer of a launch: several that read the same x (Q, K and V) have thread blocks of their own each, and so has every
// group of tokens of one layer, so that two blocks read the same codes at about the same time.
struct code_segment {
  coded from;
  void* y;
  const void* residual;
  adapter_slot slot;
  activation act;
  bool four_together;   // a warp's scales of a row lie side by side: blocks of 64, four of them aligned
  int n, units;         // of 16 rows
  int first_token;      // of its group
  int first, clusters;  // of thread blocks; where there is no layer, none is the first
  float* side;          // parts of S in device memory, [rank / 16][slice][token][16]; made ahead, S: [token][rank]
  // Zero between launches: how many blocks have made their parts of S, and how many know that all have.
  std::uint32_t* counters;
};
template <int Layers> struct code_args {
  const void* x;
  int m, k;
  int steps, own, splits;  // of 64 columns: all, and those of a warp; thread blocks that share them
  int phase;               // units whose sums have room at the same time
  bool gated;              // y is the product of two layers element by element, and every block has units of both
  norm_ahead ahead;        // of x, and behind y (stream_norm.cuh)
  norm_behind behind;
  std::uint32_t factors_at, ready_at, ring_at, scales_at, nested_at, side_at, b_at, sums_at,
      parts_at;  // in shared memory
  code_segment segment[Layers];
};
// Of a layer by itself whose units are whole the first line of the parameters is all that a block needs to begin, and to
// end where nothing but its product is stored: another line is another wait.
struct code_start {
  const void* first_x;
  const unsigned char* first_codes;
  const void* first_scales;
  void* first_y;
  int tokens, all_units;
  bool bare;  // neither factors nor a shift, an activation or a residual
};
struct lone_code_args : code_start, code_args<1> {};
template <bool Linked> using code_args_of = std::conditional_t<Linked, code_args<max_segments>, lone_code_args>;

namespace code_detail {
// What is beyond `bytes` is zeros.
__device__ __forceinline__ void copy16(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy4(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending> __device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
}  // namespace code_detail

// Whole: every unit and every warp's columns are there, with all scales that a row of it has side by side, and no other
// block shares them. Most of the code runs once in ten microseconds, so that what its instructions cost to fetch is visible:
// without what it does not need, a launch begins and ends sooner. Linked: of several layers, or with norms around them,
// which costs registers, so that a layer by itself has kernels of its own.
template <class T, code_form Form, int Eights, bool Side, bool Whole, bool Linked> struct code_units {
  using codes = code_pairs<T, Form>;
  static constexpr bool has_scales = has_long_runs(Form) || Form == code_form::short_runs;
  static constexpr int run = has_long_runs(Form) ? 64 : 32;
  static constexpr int runs = code_steps * 64 / run;  // of a row of a unit
  static constexpr std::uint32_t unit_bytes = bytes_of_unit(Form);

  using args = code_args_of<Linked>;
  const args& g;
  const code_segment& of;
  std::uint32_t base;
  int first, step;  // units of this block
  int warp, lane, first_step, own_steps;
  bool nested;

  __device__ code_units(const args& with, const code_segment& layer, std::uint32_t begins, int split, int cluster,
                        int clusters)
      : g(with),
        of(layer),
        base(begins),
        first(cluster),
        step(clusters),
        warp(static_cast<int>(threadIdx.x / 32)),
        lane(static_cast<int>(threadIdx.x % 32)),
        first_step(Whole ? warp * code_steps : (split * code_warps + warp) * with.own),
        own_steps(Whole                                ? code_steps
                  : first_step >= with.steps           ? 0
                  : with.steps - first_step < with.own ? with.steps - first_step
                                                       : with.own),
        nested(Form == code_form::nested_runs ||
               (Form == code_form::short_runs && !Whole && layer.from.how.scales == dtype::u8)) {}

  __device__ bool gated() const { return Linked && g.gated; }
  __device__ const code_segment& second() const { return g.segment[Linked ? 1 : 0]; }
  // Of a gate every other unit of a block is the second layer's.
  __device__ const code_segment& layer(int i) const { return gated() ? g.segment[i & 1] : of; }
  __device__ int number(int i) const { return first + (gated() ? i / 2 : i) * step; }
  __device__ bool has(int i) const {
    if constexpr (Linked)
      return number(i) < of.units;
    else
      return number(i) < g.all_units;
  }
  __device__ int first_token() const { return Linked ? of.first_token : 0; }
  __device__ int m() const {
    if constexpr (Linked) {
      const int left = g.m - first_token();
      return left > most_code_tokens ? most_code_tokens : left;
    } else {
      return g.tokens;
    }
  }
  __device__ const T* x() const {
    if constexpr (Linked)
      return static_cast<const T*>(g.x) + static_cast<long long>(first_token()) * k();
    else
      return static_cast<const T*>(g.first_x);
  }
  // Where this lane's begins.
  __device__ const T* own_x() const {
    return x() + static_cast<long long>(lane / 4) * k() + first_step * 64 + codes::x_begins(lane % 4);
  }
  __device__ int n() const {
    if constexpr (Whole && !Linked)
      return g.all_units * code_rows;
    else
      return of.n;
  }
  __device__ T* y() const {
    if constexpr (Linked)
      return static_cast<T*>(of.y);
    else
      return static_cast<T*>(g.first_y);
  }
  __device__ int splits() const { return Whole && !Linked ? 1 : g.splits; }
  __device__ int k() const { return Whole ? code_warps * code_steps * 64 : g.k; }
  __device__ int row_of(int i) const { return number(i) * code_rows; }
  __device__ std::uint32_t table() const { return base + static_cast<std::uint32_t>(code_table_at); }
  // What lies where in shared memory.
  static constexpr code_layout known = lone_code_layout(Form, Eights * 8, Side);
  static constexpr bool knows = Whole && !Linked;
  __device__ std::uint32_t placed(std::uint32_t given, long long if_known) const {
    return knows ? static_cast<std::uint32_t>(if_known) : base + given;
  }
  __device__ std::uint32_t ring() const { return placed(g.ring_at, known.ring); }
  __device__ std::uint32_t scales() const { return placed(g.scales_at, known.scales); }
  __device__ std::uint32_t sums() const { return placed(g.sums_at, known.sums); }
  __device__ std::uint32_t side() const { return placed(g.side_at, known.side); }
  __device__ std::uint32_t b() const { return placed(g.b_at, known.b); }
  __device__ std::uint32_t ready() const { return placed(g.ready_at, known.ready); }
  __device__ std::uint32_t nested_table() const { return placed(g.nested_at, known.nested); }
  __device__ int phase() const { return knows ? known.phase : g.phase; }
  __device__ std::uint32_t at(int stage) const { return ring() + (stage * code_warps + warp) * unit_bytes; }
  __device__ std::uint32_t scale_at(int stage) const {
    return scales() + (stage * code_warps + warp) * bytes_of_unit_scales(Form, nested);
  }
  // Thirty-two neighbouring floats of a sum.
  __device__ std::uint32_t sum_at(int i, int quarter) const {
    constexpr int in_table = codes::has_table ? code_sums_in_table : 0;
    return i < in_table ? table() + (i * 4 + quarter) * 256 + 128
                        : sums() + (i - in_table) * code_sum_bytes + quarter * 128;
  }

  __device__ void request(int i, int stage) const {
    const int row0 = row_of(i);
    const code_segment& to = layer(i);
    if (row0 + code_rows <= to.n)
      request_codes<true>(to, row0, at(stage));
    else
      request_codes<false>(to, row0, at(stage));
    if constexpr (has_scales) {
      if (has_long_runs(Form) && to.four_together)
        request_four_together(to, row0, stage);
      else
        request_scales(to, row0, stage);
    }
  }
  // Where the codes of a lane lie in the next unit, if all are whole, and what else it copies: then only additions are left.
  struct place {
    const unsigned char *codes, *beside;
  };
  // Lanes of a row take as many pieces as are a power of two; blocks of ggml leave one, which is copied beside them.
  static constexpr int even_pieces = codes::pieces / 8 * 8, rows_at_once = 32 / even_pieces;
  static constexpr bool leaves_piece = even_pieces < codes::pieces;
  static constexpr int whole_row = code_warps * codes::pitch, whole_scales = code_warps * runs;  // bytes, and numbers
  __device__ place first_place() const {
    const int row0 = row_of(0);
    const unsigned char *codes_at, *scales_at;
    if constexpr (Linked)
      codes_at = of.from.codes, scales_at = static_cast<const unsigned char*>(of.from.scales);
    else
      codes_at = g.first_codes, scales_at = static_cast<const unsigned char*>(g.first_scales);
    const auto row_of_codes = [&](int row) {
      return codes_at + static_cast<long long>(row0 + row) * whole_row + warp * codes::pitch;
    };
    const auto scale_of_row = [&](int row) { return static_cast<long long>(row0 + row) * whole_scales + warp * runs; };
    place p{row_of_codes(lane / even_pieces) + lane % even_pieces * 16, nullptr};
    if constexpr (Form == code_form::runs) {
      p.beside = scales_at + scale_of_row(lane % code_rows) * 4;
    } else if constexpr (Form == code_form::nested_runs) {  // their codes, and the one scale of theirs
      const long long at = scale_of_row(lane % code_rows);
      p.beside = lane < code_rows
                     ? scales_at + at
                     : reinterpret_cast<const unsigned char*>(of.from.second_scales + (at >> of.from.second_shift));
    } else if constexpr (Form == code_form::short_runs) {
      p.beside = scales_at + scale_of_row(lane / 2) * 4 + lane % 2 * 16;
    } else if constexpr (leaves_piece) {
      p.beside = row_of_codes(lane % code_rows) + even_pieces * 16;
    }
    return p;
  }
  __device__ __forceinline__ void request(place& next, int i, int stage) const {
    const std::uint32_t to = at(stage);
#pragma unroll
    for (int j = 0; j < code_rows / rows_at_once; ++j)
      code_detail::copy16(to + codes::piece_at(lane / even_pieces + j * rows_at_once, lane % even_pieces),
                          next.codes + j * rows_at_once * whole_row, 16);
    if constexpr (Form == code_form::nested_runs)
      code_detail::copy4(raw_scales_at(stage, lane % code_rows) + lane / code_rows * 4, next.beside, 4);
    else if constexpr (Form == code_form::short_runs)
      code_detail::copy16(scale_at(stage) + lane * 16, next.beside, 16);
    else if (has_scales && lane < code_rows)
      code_detail::copy16(scale_at(stage) + lane * 16, next.beside, 16);
    else if (leaves_piece && lane < code_rows)
      code_detail::copy16(to + codes::piece_at(lane, even_pieces), next.beside, 16);
    if (gated()) {
      const coded &here = layer(i).from, &there = layer(i + 1).from;
      next.codes += there.codes - here.codes;
      next.beside += static_cast<const unsigned char*>(there.scales) - static_cast<const unsigned char*>(here.scales);
      if ((i & 1) == 0) return;
    }
    const int rows = step * code_rows;
    next.codes += static_cast<std::uint32_t>(rows * whole_row);
    if constexpr (Form == code_form::nested_runs)
      next.beside += static_cast<std::uint32_t>(lane < code_rows ? rows * whole_scales
                                                                 : rows * whole_scales >> of.from.second_shift << 2);
    else if constexpr (has_scales)
      next.beside += static_cast<std::uint32_t>(rows * whole_scales * 4);
    else if constexpr (leaves_piece)
      next.beside += static_cast<std::uint32_t>(rows * whole_row);
  }
  // Scales of rows are read when the sums are there: those of all units are asked for at once, by one warp.
  __device__ void ask_for_row_scales() const {
    if (warp != code_warps - 1 || !has(lane) || of.from.how.scaled != scaled_by::row) return;
    const long long bytes = bits_of(of.from.how.scales) / 8;
    ptx::bring(static_cast<const unsigned char*>(of.from.scales) + row_of(lane) * bytes);
  }
  // Where not all rows are there, zeros take the place of the others.
  template <bool AllRows>
  __device__ __forceinline__ void request_codes(const code_segment& l, int row0, std::uint32_t to) const {
    const long long row_bytes = static_cast<long long>(g.k / 32) * codes::block_bytes;
    const unsigned char* const from = l.from.codes + first_step * 2LL * codes::block_bytes + row0 * row_bytes;
    const int wanted = own_steps * 2 * codes::block_bytes / 16;
    const auto copy = [&](int row, int piece, const unsigned char* p) {
      const bool inside = AllRows || row0 + row < l.n;
      code_detail::copy16(to + codes::piece_at(row, piece), inside ? p : l.from.codes, inside ? 16 : 0);
    };
    if constexpr (32 % codes::pieces == 0) {
      constexpr int rows_at_once = 32 / codes::pieces;
      const int piece = lane % codes::pieces, row1 = lane / codes::pieces;
      const unsigned char* const p = from + row1 * row_bytes + piece * 16;
      if (piece < wanted)
#pragma unroll
        for (int j = 0; j < code_rows / rows_at_once; ++j)
          copy(row1 + j * rows_at_once, piece, p + j * rows_at_once * row_bytes);
    } else {
#pragma unroll
      for (int e = lane; e < code_rows * codes::pieces; e += 32)
        if (const int row = e / codes::pieces, piece = e % codes::pieces; piece < wanted)
          copy(row, piece, from + row * row_bytes + piece * 16);
    }
  }
  // The scales of a row by one lane; those that are codes by two, which bring the codes and the one scale of theirs.
  __device__ void request_four_together(const code_segment& l, int row0, int stage) const {
    const int row = row0 + lane % code_rows;
    if (own_steps == 0 || row >= l.n) return;
    const long long place = static_cast<long long>(row) * g.steps + first_step;
    if (!nested) {
      if (lane < code_rows)
        code_detail::copy16(scale_at(stage) + lane * 16, static_cast<const float*>(l.from.scales) + place, 16);
      return;
    }
    const void* const from = lane < code_rows
                                 ? static_cast<const void*>(static_cast<const unsigned char*>(l.from.scales) + place)
                                 : l.from.second_scales + (place >> l.from.second_shift);
    code_detail::copy4(raw_scales_at(stage, lane % code_rows) + lane / code_rows * 4, from, 4);
  }
  // Four codes that are scales of a row, and the scale of those behind them.
  __device__ std::uint32_t raw_scales_at(int stage, int row) const {
    return scale_at(stage) + code_rows * runs * 4 + row * 8;
  }
  __device__ long long place_of_scale(const coded& from, int row, int r) const {
    return (row * from.pitch + first_step * 64LL + r * run) >> from.shift;
  }
  __device__ void request_scales(const code_segment& l, int row0, int stage) const {
#pragma unroll
    for (int e = lane; e < code_rows * runs; e += 32) {
      const int row = row0 + e / runs, r = e % runs;
      const long long place = place_of_scale(l.from, row, r);
      const bool inside = r * run < own_steps * 64 && row < l.n;
      const std::uint32_t to = scale_at(stage) + e * 4;
      if (!nested) {
        code_detail::copy4(to, inside ? static_cast<const float*>(l.from.scales) + place : l.from.scales,
                           inside ? 4 : 0);
        continue;
      }
      const long long word = place & ~3LL, left = l.from.scale_count - word;
      const long long second = l.from.second_shift < 0 ? place / l.from.how.second_block : place >> l.from.second_shift;
      code_detail::copy4(to, inside ? static_cast<const unsigned char*>(l.from.scales) + word : l.from.scales,
                         !inside    ? 0
                         : left < 4 ? static_cast<int>(left)
                                    : 4);
      code_detail::copy4(to + code_rows * runs * 4, inside ? l.from.second_scales + second : l.from.second_scales,
                         inside ? 4 : 0);
    }
  }
  // Scales that are codes become numbers. What the codes mean is in shared memory where layers are not linked, each of
  // which would have its own.
  static constexpr bool has_nested_table = Form == code_form::nested_runs && !Linked;
  __device__ void fill_nested_table(int thread) const {
    if (thread < 256)
      ptx::store_shared(nested_table() + thread * 4, __float_as_uint(__ldg(of.from.second_table + thread)));
  }
  __device__ float nested_scale(const coded& from, std::uint32_t code, float second) const {
    if constexpr (has_nested_table)
      return from.nested_from(__uint_as_float(ptx::load_shared(nested_table() + code * 4)), second);
    else
      return from.nested(code, second);
  }
  __device__ void widen_scales(int i, int stage) const {
    const coded& from = layer(i).from;
    const bool together = has_long_runs(Form) && (Whole || layer(i).four_together);
#pragma unroll
    for (int e = lane; e < code_rows * runs; e += 32) {
      const std::uint32_t to = scale_at(stage) + e * 4;
      std::uint32_t word;
      float second;
      unsigned place;
      if (together) {
        const float2 raw = ptx::load_shared_float2(raw_scales_at(stage, e / runs));
        word = __float_as_uint(raw.x), second = raw.y, place = e % runs;
      } else {
        word = ptx::load_shared(to), second = __uint_as_float(ptx::load_shared(to + code_rows * runs * 4));
        place = static_cast<unsigned>(place_of_scale(from, row_of(i) + e / runs, e % runs) & 3);
      }
      ptx::store_shared(to, __float_as_uint(nested_scale(from, word >> place * 8 & 255, second)));
    }
    __syncwarp();
  }
  // Scales of a lane's two rows: [row][step], or [row][half of step b].
  using lane_scales = float[2][code_steps];
  __device__ __forceinline__ void load_scales(lane_scales& to, int stage) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float4 v = ptx::load_shared_float4(scale_at(stage) + (lane / 4 + 8 * h) * 16);
      to[h][0] = v.x, to[h][1] = v.y, to[h][2] = v.z, to[h][3] = v.w;
    }
    if constexpr (!Whole) {
      if (own_steps == code_steps) return;
#pragma unroll
      for (int b = 0; b < code_steps; ++b)  // nothing was copied there
        if (b >= own_steps) to[0][b] = to[1][b] = 0;
    }
  }
  __device__ __forceinline__ void load_scales(lane_scales& to, int stage, int b) const {
    const int row = lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if constexpr (Form == code_form::short_runs) {
        const float2 v = ptx::load_shared_float2(scale_at(stage) + ((row + 8 * h) * runs + 2 * b) * 4);
        to[h][0] = v.x, to[h][1] = v.y;
      } else {
        to[h][0] = codes::scale(at(stage), row + 8 * h, 2 * b),
        to[h][1] = codes::scale(at(stage), row + 8 * h, 2 * b + 1);
      }
  }
};

}  // namespace graft::cuda
