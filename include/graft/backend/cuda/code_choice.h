// SPDX-License-Identifier: Apache-2.0
// Whether a product of few tokens with a weight that is codes runs without decoding the weight first, how many tokens a
// launch takes, and what lies where in its shared memory. Knows nothing of CUDA.
#pragma once
#include <graft/backend/cuda/choose.h>
#include <graft/core/encodings.h>

namespace graft::cuda {

// How a kernel meets codes: two in a byte with a scale for 64 columns and more, which may be a code itself, or for 32; a
// byte each, with a scale for a row or for all; blocks of ggml, whose scale is between the codes.
enum class code_form : unsigned char { none, runs, nested_runs, short_runs, int8, fp8, q8_0, q4_0 };
inline constexpr int code_forms = 8;
constexpr bool has_long_runs(code_form f) { return f == code_form::runs || f == code_form::nested_runs; }
constexpr bool has_scaled_rows(code_form f) { return f == code_form::int8 || f == code_form::fp8; }

// A warp has up to four steps of 64 columns, and takes 16 rows at a time.
inline constexpr int code_warps = 16, code_steps = 4, code_rows = 16;
// More tokens than two groups are quicker on numbers that were decoded first.
inline constexpr int most_code_tokens = 16, most_code_groups = 2, most_code_splits = 8;

// Offsets in shared memory are counted from where a block's begins; the first kilobyte is the system's. The table of
// pairs lies on a multiple of its size: the address of an entry is then put together from bytes. A sum is 16 rows of
// eight tokens; as many as code_sums_in_table lie in the halves of the table's rows that nobody reads.
inline constexpr long long code_memory_begins = 1024, code_table_at = 65536, code_table_ends = 131072,
                           code_memory_bytes = 227 * 1024, code_memory_ends = code_memory_begins + code_memory_bytes;
inline constexpr int code_sum_bytes = 512, code_sums_in_table = 64;

constexpr bool has_code_table(code_form f) {
  return has_long_runs(f) || f == code_form::short_runs || f == code_form::q4_0;
}
// Of sixteen rows of a warp's columns.
constexpr int bytes_of_unit(code_form f) {
  switch (f) {
    case code_form::none: return 0;
    case code_form::runs:
    case code_form::nested_runs:
    case code_form::short_runs: return code_rows * code_steps * 32;
    case code_form::int8:
    case code_form::fp8: return code_rows * code_steps * 64;
    case code_form::q8_0: return code_rows * code_steps * 2 * encodings::q8_0_codes::bytes;
    case code_form::q4_0: return code_rows * code_steps * 2 * encodings::q4_0_codes::bytes;
  }
  return 0;
}
// Of the scales that come beside them; those that are codes bring their own scales.
constexpr int bytes_of_unit_scales(code_form f, bool nested) {
  const int one = has_long_runs(f)             ? code_rows * code_steps * 4
                  : f == code_form::short_runs ? code_rows * code_steps * 8
                                               : 0;
  return nested ? 2 * one : one;
}

// Units of a warp that are on their way at the same time. More of them only wait longer: with three, 14336 rows of NF4
// took 12.6 µs in place of 11.5.
inline constexpr int code_stages = 2;

// With more than eight tokens S is made by a launch ahead: warps that make it would take registers from those that multiply.
constexpr bool is_made_ahead(int tokens) { return tokens > 8; }
inline constexpr int code_side_slices = 16;                 // of the inner axis, from which S is added up
inline constexpr int bytes_of_b_rows = code_rows * 16 * 2;  // those of a unit, sixteen of the rank

// Of one layer in device memory: S, or parts that all its blocks add up.
constexpr long long bytes_of_side_parts(int rank, int tokens) {
  return static_cast<long long>(rank) * (is_made_ahead(tokens) ? 1 : code_side_slices) * tokens * 4;
}

// A warp has a place for the rows of B of one unit, and asks for those of the unit that is as many further as there are
// warps while it multiplies the one two before.
inline constexpr int most_code_phase = code_warps - code_stages;

struct code_layout {
  int phase = 0;  // units whose sums have room at the same time
  long long ring = 0, scales = 0, factors = 0, ready = 0, sums = 0, parts = 0;
  long long nested = 0;       // numbers of codes that are scales
  long long side = 0, b = 0;  // S, and rows of B
};
struct code_choice {
  code_form form = code_form::none;
  int tokens = 0, groups = 0;  // of a group, each with thread blocks of its own; none: the weight is decoded first
  int splits = 0, own = 0;     // thread blocks that share the columns, and steps of a warp
  bool gated = false;          // what is stored is the product of two layers
  code_layout at{};
};

constexpr code_form form_of(const encoding& e, long long k) {
  if (k <= 0 || k % 64 != 0) return code_form::none;
  if (has_four_bits(e)) {
    const bool whole = e.scaled == scaled_by::run || (e.scaled == scaled_by::row_run && k % e.block == 0);
    if (!whole) return code_form::none;
    if (e.block < 64) return code_form::short_runs;
    return e.scales == dtype::u8 ? code_form::nested_runs : code_form::runs;
  }
  if (e.codes == dtype::int8 || e.codes == dtype::f8_e4m3) {
    if (e.scaled != scaled_by::row && e.scaled != scaled_by::tensor) return code_form::none;
    return e.codes == dtype::int8 ? code_form::int8 : code_form::fp8;
  }
  if (k % (64 * code_steps) != 0) return code_form::none;  // copies begin at multiples of 16 bytes
  if (e == encodings::q8_0_codes::how()) return code_form::q8_0;
  return e == encodings::q4_0_codes::how() ? code_form::q4_0 : code_form::none;
}
// Two regions of shared memory, around the table; what is asked for goes into the first that has room. -1: none has.
struct code_regions {
  long long at[2], end[2];
  constexpr long long take(long long bytes) {
    const long long whole = (bytes + 127) / 128 * 128;
    for (int k = 0; k < 2; ++k)
      if (at[k] + whole <= end[k]) return at[k] += whole, at[k] - whole;
    return -1;
  }
};
constexpr bool lay_out(code_choice& c, int rank, bool nested) {
  const bool table = has_code_table(c.form);
  code_regions r{{code_table_ends, code_memory_begins}, {code_memory_ends, code_table_at}};
  if (!table) r = {{code_memory_begins, 0}, {code_memory_ends, 0}};
  const int eights = c.tokens / 8, stages = code_stages;
  c.at.ring = r.take(static_cast<long long>(stages) * code_warps * bytes_of_unit(c.form));
  c.at.scales = r.take(static_cast<long long>(stages) * code_warps * bytes_of_unit_scales(c.form, nested));
  c.at.nested = r.take(c.form == code_form::nested_runs ? 256 * 4 : 0);
  c.at.factors = r.take(most_code_tokens * 4LL + 8);
  c.at.ready = c.at.factors + most_code_tokens * 4LL;  // the barrier behind which S is there
  if (rank > 0) {
    c.at.side = r.take(c.tokens * 4LL * (rank > 64 ? rank : 64));  // of four warps first, sixteen of the rank each
    c.at.b = r.take(code_warps * bytes_of_b_rows);
  }
  if (c.at.ring < 0 || c.at.scales < 0 || c.at.nested < 0 || c.at.factors < 0 || c.at.side < 0 || c.at.b < 0)
    return false;
  const int larger = r.end[0] - r.at[0] >= r.end[1] - r.at[1] ? 0 : 1;
  const auto room =
      static_cast<int>((r.end[larger] - r.at[larger]) / code_sum_bytes) + (table ? code_sums_in_table : 0);
  const int summands = code_warps + (has_scaled_rows(c.form) ? 1 : 0);  // its scales are not the side branch's
  c.at.phase = room / ((summands + (c.splits > 1 ? 1 : 0)) * eights);
  if (c.at.phase > most_code_phase) c.at.phase = most_code_phase;
  c.at.parts = r.at[larger];
  c.at.sums = c.at.parts + (c.splits > 1 ? static_cast<long long>(c.at.phase) * eights * code_sum_bytes : 0);
  return c.at.phase > 0;
}
// Of a layer by itself whose units are whole, with a side branch of whatever rank or without: known when it is compiled.
constexpr code_layout lone_code_layout(code_form form, int tokens, bool side) {
  code_choice c;
  c.form = form, c.tokens = tokens, c.splits = 1;
  lay_out(c, side ? 16 : 0, form == code_form::nested_runs);
  return c.at;
}
// `rank` is padded.
constexpr code_choice choose_codes(const encoding& e, dtype computes, long long m, int k, int rank, const target& on) {
  code_choice c;
  if (!is_hopper(on) || !is_16_bit(computes) || rank > 64 || m > most_code_groups * most_code_tokens) return {};
  c.form = form_of(e, k);
  const int steps = k / 64, of_a_block = code_warps * code_steps;
  c.splits = (steps + of_a_block - 1) / of_a_block;
  if (c.form == code_form::none || c.splits > most_code_splits) return {};
  while ((c.splits & (c.splits - 1)) != 0) ++c.splits;
  const int warps = c.splits * code_warps;
  c.own = e.block_bytes > 0 ? code_steps : (steps + warps - 1) / warps;
  c.tokens = m <= 8 ? 8 : most_code_tokens;
  c.groups = static_cast<int>((m + c.tokens - 1) / c.tokens);
  return lay_out(c, rank, e.scales == dtype::u8) ? c : code_choice{};
}
// The same for layers with the same input as one launch; `gated`: for two whose product is all that is wanted. The ranks are
// padded.
constexpr code_choice choose_codes_together(const product_shape* all, int count, bool gated, const target& on) {
  int rank = 0;
  for (int i = 0; i < count; ++i) {
    const product_shape& p = all[i];
    if (p.stored.plain() || p.across || p.keeps || p.pre || !(p.stored == all[0].stored) || p.k != all[0].k ||
        (gated && p.n != all[0].n))
      return {};
    rank = gated ? rank + p.rank : p.rank > rank ? p.rank : rank;
  }
  if (count > max_segments || (gated && count != 2)) return {};
  code_choice c = choose_codes(all[0].stored, all[0].type, all[0].m, all[0].k, rank, on);
  if (c.groups != 1 || (gated && (c.splits > 1 || c.at.phase < 2))) return {};
  if (gated) c.gated = true, c.at.phase -= c.at.phase % 2;
  return c;
}
// Of a product, or of several with so much rank in all.
constexpr int launches_of(const code_choice& c, int rank) { return rank > 0 && is_made_ahead(c.tokens) ? 2 : 1; }
// As stands_by_norm, of kernels that read codes.
constexpr bool codes_stand_by_norm(const product_shape& p, const target& on) {
  if (p.type != dtype::bf16 || p.m < 1 || p.m > most_normed_tokens || p.across || p.keeps || p.pre || !p.aligned)
    return false;
  return choose_codes(p.stored, p.type, p.m, p.k, p.rank, on).groups == 1;
}
// What choose.h reserves for parts of S and counters is enough for every layer of a launch.
static_assert(max_segments * bytes_of_side_parts(16, most_code_tokens) <= workspace_bound(1, 16));
static_assert(max_segments * 2 * 4 <= counter_bytes(1));

// ---- a layer by itself of few units: brief_codes ----------------------------------------------------------------------
// What lies where in half of a multiprocessor's shared memory.
struct brief_layout {
  static constexpr int table = code_memory_begins, lower = table + 65536, scales = lower + 32768,
                       nested = scales + 8192, b = nested + 1024, side = b + 2 * bytes_of_b_rows, turn = side + 4096,
                       end = turn + 32, bytes = end - static_cast<int>(code_memory_begins);
};
static_assert(2 * (brief_layout::bytes + code_memory_begins) <= code_memory_ends);
// Parts of S, of each sixteen of the rank as many as there are slices, in two sets, and how often they were used; zeros when
// they are allocated, in front of the counters of other kernels.
inline constexpr int brief_slices = 8, brief_set_floats = 64 / 16 * brief_slices * 8 * 16, brief_shares = 4096;
inline constexpr long long bytes_kept_by_brief = 2 * brief_set_floats * 4 + 256;
// Is such a layer one for thread blocks of at most two units, which leave room for those of the next launch? It has a block
// for each slice of A, and units of `rows` rows that are whole.
constexpr bool is_brief(const code_choice& c, long long rows, int rank, const target& on) {
  const long long units = rows / code_rows, blocks = units < on.processors ? units : on.processors;
  return has_long_runs(c.form) && c.tokens == 8 && c.groups == 1 && units <= 2LL * on.processors &&
         on.processors <= brief_shares && (units > on.processors || rank > 0) && rank / 16 * brief_slices <= blocks;
}
// Units of sixteen rows are dealt to clusters of thread blocks, to each layer its own, so that the busiest has the fewest.
constexpr int rounds_of_units(const int* units, int count, int clusters) {
  for (int rounds = 1;; ++rounds) {
    int used = 0;
    for (int i = 0; i < count; ++i) used += (units[i] + rounds - 1) / rounds;
    if (used <= clusters) return rounds;
  }
}

}  // namespace graft::cuda
