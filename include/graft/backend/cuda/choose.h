// SPDX-License-Identifier: Apache-2.0
// Which kernels run one product with its slots, decided from sizes, target and the kernels there are: a plain function
// that needs no GPU and knows nothing of CUDA. Ranks are padded.
#pragma once
#include <graft/backend/cuda/kernel_list.h>
#include <graft/plan/target.h>

#include <initializer_list>

namespace graft::cuda {

constexpr bool is_hopper(const target& t) { return t.capability == 90; }

// A tile waits for owners at most (owners - 1) * group tiles ahead of it. They are running when that many blocks are
// resident at once, and they wait for nobody but each other.
constexpr bool owners_are_resident(int owners, int group, int m_pairs, int resident_pairs) {
  return (owners - 1) * (group < m_pairs ? group : m_pairs) < resident_pairs;
}

enum class way : unsigned char { stream, narrow, by_parts, gemm, gemm_two, mma, simt };

constexpr const char* name_of(way w) {
  constexpr const char* names[] = {
      "stream",          "stream along the tokens", "gemm by parts of its depth", "gemm", "gemm after a shrink",
      "gemm (mma.sync)", "gemm (no tensor cores)"};
  return names[static_cast<int>(w)];
}

struct linear_choice {
  way how = way::simt;
  int launches = 1;
  int tile_n = 256, group = 8, owners = 0, pairs = 0;  // gemm
  stream_choice stream{};                              // stream, narrow, or the shrink before gemm
  int parts = 0;                                       // of the depth of a product, or of that shrink,
  bool parts_alone = false;                            // each with a multiprocessor to itself
  bool early = true;                                   // may begin while the kernel ahead of it ends
  unsigned beside = 0;                                 // which of the two sums run beside the tiles: a bit for each,
  int beside_blocks = 0;                               // and by how many thread blocks
  long long partial_bytes = 0, s_bytes = 0;
  long long workspace_bytes() const { return partial_bytes + s_bytes; }
  friend constexpr bool operator==(const linear_choice&, const linear_choice&) = default;
};

// Enough for every choice with up to m tokens and ranks: S, and eight parts of it where tiles make it, up to rank 64.
constexpr long long workspace_bound(long long m, int rank) {
  const long long in_tiles = (rank < 64 ? rank : 64) * (8 * 4 + 4), apart = rank * 4LL;
  return (m + 255) / 256 * 256 * (in_tiles > apart ? in_tiles : apart);
}
constexpr long long counter_bytes(long long m) { return (m + 255) / 256 * 2 * 16; }

constexpr bool is_16_bit(dtype t) { return t == dtype::bf16 || t == dtype::f16; }

// As many pairs as the number of waves needs: full waves line up with the groups that exchange S, and idle
// multiprocessors leave power to the others.
constexpr int launched_pairs(int tiles, int resident) {
  const int waves = (tiles + resident - 1) / resident;
  return (tiles + waves - 1) / waves;
}

constexpr unsigned stream_shapes_of(const kernel_list& have, long long m, int rank) {
  unsigned shapes = 0;
  for (int shape = 0; shape < stream_shapes; ++shape)
    shapes |= have.has_stream(padded_tokens(m), shape, rank) ? 1U << shape : 0;
  return shapes;
}
// The wide tile or the narrow one, whichever there is and finishes first; 0 where there is neither.
constexpr int choose_tile(const product_shape& p, int resident, const kernel_list& have, int variant) {
  const int m_pairs = static_cast<int>((p.m + 255) / 256);
  auto time = [&](int tile_n) {  // the narrow tile reads x twice as often
    const int tiles = m_pairs * ((p.n + tile_n - 1) / tile_n), waves = (tiles + resident - 1) / resident;
    return waves * tile_n * (tile_n == 128 ? 1.06 : 1.0);
  };
  const bool narrow = have.has_gemm(128, variant), wide = have.has_gemm(256, variant);
  if (!narrow || !wide) return narrow ? 128 : wide ? 256 : 0;
  return time(128) < time(256) ? 128 : 256;
}
// Few outputs of many tokens: x takes the place of the weight, the weight that of the tokens.
constexpr stream_choice choose_narrow(long long m, int outputs, int k, const target& device, const kernel_list& have) {
  const int rows = static_cast<int>(m);
  if (outputs > max_stream_tokens) return {};
  return choose_stream(&rows, 1, outputs, k, 0, device.processors, true, stream_shapes_of(have, outputs, 0));
}
// Parts of n things for so many tiles, each a thread block of a cluster: as many as there are multiprocessors. Twice as
// many would fit, but clusters of 8 took 17 µs where clusters of 4 took 13.
constexpr int parts_for(long long tiles, long long n, int processors) {
  int parts = 8;
  while (parts > 1 && (tiles * parts > processors || parts > n)) parts /= 2;
  return parts;
}
// Do the wide ones find a multiprocessor each at once? Pairs do where there are enough; larger clusters need neighbours.
constexpr bool parts_are_alone(long long tiles, int parts, const target& device) {
  return parts == 1 ? tiles <= device.processors : parts == 2 && tiles <= device.resident_pairs;
}
// Too few outputs for tiles to fill the device, too many for a stream: parts of the inner axis, a thread block each, that
// add up their sums. False: it does not pay, or there is no kernel for it.
constexpr bool choose_parts(long long m, int outputs, int k, const target& device, const kernel_list& have,
                            linear_choice& c) {
  if (!have.has_by_parts() || outputs <= wide_rank / 2 || outputs > 2 * wide_rank || outputs % 8 != 0) return false;
  const long long tiles = (m + 127) / 128 * ((outputs + wide_rank - 1) / wide_rank);
  const int parts = parts_for(tiles, (k + 63) / 64, device.processors);
  if (parts == 1) return false;
  c.parts = parts, c.parts_alone = parts_are_alone(tiles, parts, device);
  return true;
}
// The sums that the thread blocks beside the tiles finish before these do; the one that waits for S comes second. Clocks
// of a step of a tile, and of 128 tokens of 128 columns, on an H200.
constexpr void choose_beside(const product_shape& p, const target& device, const kernel_list& have, linear_choice& c) {
  const int tiles = static_cast<int>((p.m + 255) / 256) * ((p.n + 255) / 256), resident = device.resident_pairs;
  if (!p.across || c.tile_n != 256 || !have.has_beside(p.rank) || resident < 4 || (p.rank == 0 && !p.pre)) return;
  if (p.turned > 0 && !have.has_turn(p.pre)) return;
  auto waves = [&](int pairs) { return (tiles + pairs - 1) / pairs; };
  if (waves(resident - 2) != waves(resident)) return;
  const int pairs = launched_pairs(tiles, resident - 2), blocks = 2 * (resident - pairs);
  if (!owners_are_resident(c.owners, c.group, static_cast<int>((p.m + 255) / 256), pairs)) return;
  long long left = 1100LL * waves(resident) * ((p.k + 63) / 64);
  for (const bool waits : {false, true})
    for (unsigned k = 0; k < 2; ++k) {
      const beside_shape& s = p.beside[k];
      if (s.columns == 0 || s.waits != waits || s.rank != p.rank) continue;
      const int wide = p.rank > 0 ? 128 : 64;  // a sum per column brings two matrices
      const long long stages = ((s.columns + wide - 1) / wide + blocks - 1) / blocks * ((p.m + 127) / 128);
      const long long clocks = stages * (p.rank <= 16 ? 525 : p.rank <= 32 ? 600 : 810);
      if (clocks <= left) left -= clocks, c.beside |= 1U << k;
    }
  if (c.beside != 0) c.pairs = pairs, c.beside_blocks = blocks;
}
// False where there is no kernel for it.
constexpr bool choose_gemm(const product_shape& p, const target& device, const kernel_list& have, linear_choice& c) {
  const int m_pairs = static_cast<int>((p.m + 255) / 256), resident = device.resident_pairs;
  auto take = [&](int variant) {
    c.tile_n = choose_tile(p, resident, have, variant + (p.across ? first_across : 0));
    if (c.tile_n > 0) c.pairs = launched_pairs(m_pairs * ((p.n + c.tile_n - 1) / c.tile_n), resident);
    return c.tile_n > 0;
  };
  c.how = way::gemm;
  if (p.rank == 0) {
    if (!take(p.pre ? with_pre : 0)) return false;
    return choose_beside(p, device, have, c), true;
  }
  if (p.given_side) return c.how = way::gemm_two, take(0);
  c.s_bytes = p.m * p.rank * 2;
  if (p.rank <= 64 && take(rank_index(p.rank))) {
    const int n_tiles = (p.n + c.tile_n - 1) / c.tile_n;
    c.owners = (n_tiles < 8 ? n_tiles : 8) / 4 * 4;
    if (c.owners > 0 && (p.k + 63) / 64 >= c.owners && owners_are_resident(c.owners, c.group, m_pairs, c.pairs)) {
      c.partial_bytes = static_cast<long long>(m_pairs) * 2 * c.owners * 128 * p.rank * 4;
      choose_beside(p, device, have, c);
      // Blocks that wait for each other begin together: of both passes of a layer that took 366 us it saves 4.
      c.early = m_pairs * n_tiles <= c.pairs;
      return true;
    }
  }
  c.how = way::gemm_two;
  c.owners = 0;
  c.launches = 2;
  c.stream = choose_narrow(p.m, p.rank, p.k, device, have);
  choose_parts(p.m, p.rank, p.k, device, have, c);
  return take(0) && (c.stream.rows > 0 || have.has_gemm(128, 0));
}

// Up to 16 rows of x and a weight that lies across, dx = dy W without a side branch: a stream of W by mma.sync
// (across_few.cuh). With more rows, and with a launch for S ahead of it, the gemm kernel was quicker.
constexpr bool streams_across(const product_shape& p, const target& device) {
  return is_16_bit(p.type) && p.across && p.m > 0 && p.m <= 16 && p.rank == 0 && p.plain && !p.posts && !p.pre &&
         p.aligned && p.n % 32 == 0 && p.k % 32 == 0 && device.capability >= 80;
}

constexpr linear_choice choose(const product_shape& p, const target& device, const kernel_list& have = every_kernel()) {
  const bool copies = is_16_bit(p.type) && p.k % 8 == 0 && p.aligned;
  const bool streams = !p.across && !p.keeps && !p.given_side;
  if (copies && streams && is_hopper(device) && p.m <= max_stream_tokens && p.rank <= max_stream_rank) {
    linear_choice c;
    c.how = way::stream;
    c.stream = choose_stream(&p.n, 1, p.m, p.k, p.rank, device.processors, p.pre || p.n % 2 != 0,
                             stream_shapes_of(have, p.m, p.rank));
    if (c.stream.rows > 0) return c;
  }
  const bool bare = p.rank == 0 && !p.pre && p.plain && !p.posts && !p.across;
  if (linear_choice c; copies && is_hopper(device) && bare && p.n <= 2 * wide_rank) {
    c.how = way::narrow, c.stream = choose_narrow(p.m, p.n, p.k, device, have);
    if (c.stream.rows > 0) return c;
    c.how = way::by_parts;
    if (choose_parts(p.m, p.n, p.k, device, have, c)) return c;
  }
  if (linear_choice c; copies && is_hopper(device) && p.n % 8 == 0 && choose_gemm(p, device, have, c)) return c;
  linear_choice c;
  const bool rows_copy = !p.across || p.n % 8 == 0, compiled = !is_hopper(device) || have.has_mma();
  c.how = copies && rows_copy && compiled && device.capability >= 80 ? way::mma : way::simt;
  if (p.rank > 0 && !p.given_side) c.launches = 2, c.s_bytes = p.m * p.rank * (is_16_bit(p.type) ? 2 : 4);
  return c;
}

// Is the rotation of its result inside its kernel? There is one with wide tiles and nothing else on its way out.
constexpr bool turns_inside(const product_shape& p, const target& device, const kernel_list& have = every_kernel()) {
  if (p.turned <= 0 || 32 % p.turned != 0 || p.n % 32 != 0 || p.rank > 0 || p.posts || !p.plain) return false;
  if (!p.across || !have.has_turn(p.pre) || streams_across(p, device)) return false;
  const linear_choice c = choose(p, device, have);
  return c.how == way::gemm && c.tile_n == 256;
}

// Products with one input as segments of one stream kernel; no rows where they cannot be.
constexpr stream_choice choose_together(const product_shape* all, int count, const target& device,
                                        const kernel_list& have = every_kernel()) {
  int n[max_segments] = {};
  if (count > max_segments) return {};
  for (int i = 0; i < count; ++i) {
    const linear_choice alone = choose(all[i], device, have);
    if (all[i].rank != all[0].rank || alone.how != way::stream || alone.stream.any) return {};
    n[i] = all[i].n;
  }
  return choose_stream(n, count, all[0].m, all[0].k, all[0].rank, device.processors, false,
                       stream_shapes_of(have, all[0].m, all[0].rank));
}

// Two of them with the product of their results, and adapters that stand apart; no rows where that is not one kernel, or
// where it would leave more multiprocessors idle than a launch behind it costs.
constexpr stream_choice choose_gated(const product_shape* all, bool apart_ranks, const target& device,
                                     const kernel_list& have = every_kernel()) {
  const stream_choice apart = choose_together(all, 2, device, have);
  const int n = all[0].n, rank = all[0].rank, processors = device.processors;
  const bool fits = (rank == 0 || apart_ranks) && all[1].n == n && n % 2 == 0;
  if (apart.rows == 0 || !fits || !have.has_stream(apart.tokens, shape_index(gated_rows, false), rank)) return {};
  const int tiles = (2 * n + gated_rows - 1) / gated_rows;
  const int time = stream_time(tiles, gated_rows, 1, rank, apart.tokens, processors),
            time_apart = stream_time(apart.tiles, apart.rows, apart.splits, rank, apart.tokens, processors);
  if (4 * time > 5 * time_apart) return {};
  return {apart.tokens, gated_rows, 1, tiles, false, true};
}

// May a norm of its x, or of its result, be inside its kernel? In bf16: h ⊙ gain is not small as a norm is, and halves end
// at 65504.
constexpr bool stands_by_norm(const product_shape& p, const target& device, const kernel_list& have = every_kernel()) {
  if (p.type != dtype::bf16 || p.m < 1 || p.m > most_normed_tokens || !p.stored.plain()) return false;
  const linear_choice c = choose(p, device, have);
  return c.how == way::stream && !c.stream.any;
}
constexpr int most_norm_columns = 1 << 16, norm_columns = 64;  // and multiples of these
constexpr bool takes_norm_of(long long columns) { return columns % norm_columns == 0 && columns <= most_norm_columns; }

// A product over the tokens, Zᵀ Q. `rank` 0: no tensor cores.
struct sum_shape_of_call {
  dtype type = dtype::bf16;
  long long m = 0;
  int columns = 0, rank = 0;  // of Z, and of Q, which is the narrower one
  bool aligned = true;        // all rows begin at multiples of 16 bytes
};
struct sum_choice {
  int rank = 0, parts = 1;  // columns of Q that a thread block has; parts of the tokens, a thread block each,
  bool alone = false;       // with a multiprocessor to itself
};
constexpr sum_choice choose_sum(const sum_shape_of_call& p, const target& device, const kernel_list& have) {
  sum_choice c;
  if (!is_16_bit(p.type) || !p.aligned || !is_hopper(device) || p.m == 0) return c;
  for (const int rank : {64, 32, 16})
    if (have.has_sum(rank) && (c.rank == 0 || p.rank <= rank)) c.rank = rank;
  if (have.has_sum(wide_rank) && (c.rank == 0 || p.rank > 64)) c.rank = wide_rank;
  if (c.rank == 0) return c;
  const long long tiles = (p.columns + 127LL) / 128 * ((p.rank + c.rank - 1) / c.rank), steps = (p.m + 63) / 64;
  c.parts = parts_for(tiles, steps, device.processors);
  c.alone = c.rank == wide_rank && parts_are_alone(tiles, c.parts, device);
  return c;
}

}  // namespace graft::cuda
