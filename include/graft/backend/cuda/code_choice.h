// SPDX-License-Identifier: Apache-2.0
// Whether a product of few tokens with a weight that is codes runs without decoding the weight first, how many tokens a
// launch takes, and what lies where in its shared memory. Knows nothing of CUDA.
#pragma once
#include <graft/backend/cuda/choose.h>
#include <graft/core/encodings.h>

namespace graft::cuda {

// Offsets in shared memory are counted from where a block's begins; the first kilobyte is the system's. The table of pairs
// lies on a multiple of its size: the address of an entry is then put together from bytes.
inline constexpr long long code_memory_begins = 1024, code_table_at = 65536, code_table_ends = 131072,
                           code_memory_bytes = 227 * 1024, code_memory_ends = code_memory_begins + code_memory_bytes;
inline constexpr int most_code_launches = 4;

struct code_layout {
  int stages = 0;
  long long x = 0, ring = 0, scales = 0, inbox = 0, s = 0, barriers = 0;
};
// How many tokens a launch takes, how many thread blocks share the rows of a tile, and their warpgroups.
struct code_shape {
  int tokens, splits, groups;
  friend constexpr bool operator==(const code_shape&, const code_shape&) = default;
};
struct code_choice {
  int tokens = 0, launches = 0;  // of a launch; none: the weight is decoded first
  int splits = 0, groups = 0;    // thread blocks that share rows, and their warpgroups
  int steps = 0, own_steps = 0, part_steps = 0;
  code_layout at{};
};

// Sixty-four columns of a row share a scale.
constexpr bool streams_codes(const encoding& e, long long k) {
  if (has_four_bits(e))
    return e.block % 64 == 0 && (e.scaled == scaled_by::run || (e.scaled == scaled_by::row_run && k % e.block == 0));
  return (e.codes == dtype::int8 || e.codes == dtype::f8_e4m3) &&
         (e.scaled == scaled_by::row || e.scaled == scaled_by::tensor);
}
// Two regions of shared memory, around the table; what is asked for goes into the first that has room. -1: none has.
struct code_regions {
  long long at[2], end[2];
  constexpr long long take(long long bytes) {
    const long long whole = (bytes + 1023) / 1024 * 1024;
    for (int k = 0; k < 2; ++k)
      if (at[k] + whole <= end[k]) return at[k] += whole, at[k] - whole;
    return -1;
  }
};
constexpr bool lay_out(code_choice& c, int rank, bool four_bits, int stages) {
  code_regions r{{code_memory_begins, code_table_ends}, {code_table_at, code_memory_ends}};
  if (!four_bits) r.end[0] = code_memory_ends, r.at[1] = r.end[1];
  c.at.stages = stages;
  c.at.x = r.take(static_cast<long long>(c.groups) * c.part_steps * c.tokens * 128);
  c.at.ring = r.take(stages * 8192LL);
  c.at.scales = four_bits ? r.take(stages * 1024LL) : 0;
  c.at.inbox = r.take(2LL * 4 * c.groups * c.tokens / 8 * 512);
  c.at.s = r.take(c.groups * ((c.tokens * rank * 2LL + 1023) / 1024 * 1024));
  c.at.barriers = r.take((2LL * stages + 2) * 8);
  return c.at.x >= 0 && c.at.ring >= 0 && c.at.scales >= 0 && c.at.inbox >= 0 && c.at.s >= 0 && c.at.barriers >= 0;
}
// `rank` is padded.
constexpr code_choice choose_codes(const encoding& e, dtype computes, long long m, int k, int rank, const target& on) {
  code_choice c;
  if (!is_hopper(on) || !is_16_bit(computes) || !streams_codes(e, k) || k % 64 != 0 || k == 0 || rank > 64) return c;
  struct shape {
    int tokens, splits, groups, stages;  // the last that fits is the best
  };
  constexpr shape all[] = {{8, 4, 2, 6},  {8, 4, 2, 10},  {8, 2, 2, 6},  {8, 2, 2, 10}, {8, 2, 4, 8},  {8, 2, 4, 12},
                           {16, 4, 2, 6}, {16, 4, 2, 10}, {16, 4, 4, 8}, {16, 2, 2, 6}, {32, 4, 2, 6}, {32, 4, 2, 10}};
  for (const shape& s : all) {
    if (c.launches == 1 && c.tokens < s.tokens) break;  // all of them in one
    code_choice more;
    more.tokens = s.tokens, more.splits = s.splits, more.groups = s.groups;
    more.launches = static_cast<int>((m + s.tokens - 1) / s.tokens);
    const int parts = s.splits * s.groups;
    more.steps = k / 64, more.own_steps = (more.steps + parts - 1) / parts;
    more.part_steps = (more.own_steps + 3) / 4 * 4;
    if (lay_out(more, rank, has_four_bits(e), s.stages)) c = more;
  }
  return c.launches <= most_code_launches ? c : code_choice{};
}

}  // namespace graft::cuda
