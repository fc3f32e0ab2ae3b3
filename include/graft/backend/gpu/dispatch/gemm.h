// SPDX-License-Identifier: Apache-2.0
// Dispatch of GEMMs: sizes, target and compiled kernels in, kernel, tile shape and work split out. Constexpr functions
// that need no GPU and no CUDA header. A problem is  y = epilogue(prologue(x) Wᵀ + U Bᵀ)  with the shrink result U = x
// Aᵀ; x [m, k], W [n, k] (NT) or [k, n] (NN), U [m, rank], and ranks are padded.
#pragma once
#include <graft/backend/gpu/dispatch/skinny.h>
#include <graft/plan/target.h>

#include <cstdint>
#include <initializer_list>

namespace graft::gpu {

// ---- Kernels that are compiled

// Which GEMM, skinny GEMM and wgrad kernels a program has compiled, as bit masks. There are about seventy per element
// type, and compiling all of them takes a minute; a layer type names those that its sizes can use, and dispatch chooses
// among them.

// GEMM variants: ranks 0, 16, 32 and 64, then one with a prologue (a factor per column of x); first_nn begins the same
// five for the NN layout, whose weight is stored [in, out].
constexpr int rank_index(int rank) { return rank <= 0 ? 0 : rank <= 16 ? 1 : rank <= 32 ? 2 : 3; }
constexpr int token_index(int tokens) { return tokens <= 8 ? 0 : tokens <= 16 ? 1 : 2; }
inline constexpr int gemm_variant_count = 10, with_prologue = 4, first_nn = 5, skinny_shape_count = 5,
                     fallback_shape = 4, ranks = 4;
// Tile width of the kernels for ranks above 64: the wide wgrad and the split-K GEMM.
inline constexpr int wide_tile_rank = 128;
constexpr int wgrad_index(int rank) { return rank > 64 ? ranks : rank_index(rank); }

struct gemm_kernel_mask {
  std::uint64_t skinny = 0;  // skinny GEMMs, then mma.sync GEMMs
  // Bits in this order: GEMMs, wgrads, GEMMs with fused wgrads, the wide wgrad, the split-K GEMM, the GEMM with a fused
  // column-wise wgrad (rank 0), GEMMs with a fused rotation.
  std::uint32_t gemms = 0;
  std::uint32_t skinny_nn = 0;  // skinny GEMMs with NN layout

  static constexpr int gemm_bit(int tile_n, int variant) { return (tile_n == 256 ? gemm_variant_count : 0) + variant; }
  static constexpr int skinny_bit(int tokens, int shape, int rank) {
    return (token_index(tokens) * skinny_shape_count + shape) * ranks + rank_index(rank);
  }
  constexpr bool has_gemm(int tile_n, int variant) const { return (gemms >> gemm_bit(tile_n, variant) & 1) != 0; }
  constexpr bool has_skinny(int tokens, int shape, int rank) const {
    return (skinny >> skinny_bit(tokens, shape, rank) & 1) != 0;
  }
  static constexpr int skinny_nn_bit(int shape, int rank) { return shape * ranks + rank_index(rank); }
  constexpr bool has_skinny_nn(int shape, int rank) const { return (skinny_nn >> skinny_nn_bit(shape, rank) & 1) != 0; }
  constexpr void add_skinny_nn(int shape, int rank) { skinny_nn |= 1U << skinny_nn_bit(shape, rank); }
  // In `skinny`: mma.sync GEMMs on sm_90 too, for sizes that the wgmma kernels do not support.
  static constexpr int mma_bit = 3 * skinny_shape_count * ranks;
  constexpr bool has_mma() const { return (skinny >> mma_bit & 1) != 0; }
  constexpr void add_mma() { skinny |= std::uint64_t{1} << mma_bit; }
  static constexpr int wide_wgrad_bit = 2 * (gemm_variant_count + ranks - 1), split_k_bit = wide_wgrad_bit + 1;
  static constexpr int wgrad_bit(int rank) {
    return rank > 64 ? wide_wgrad_bit : 2 * gemm_variant_count + rank_index(rank) - 1;
  }
  constexpr bool has_split_k() const { return (gemms >> split_k_bit & 1) != 0; }
  constexpr void add_split_k() { gemms |= 1U << split_k_bit; }
  constexpr bool has_wgrad_kernel(int rank) const { return (gemms >> wgrad_bit(rank) & 1) != 0; }
  constexpr void add_wgrad(int rank) { gemms |= 1U << wgrad_bit(rank); }
  static constexpr int fused_wgrad_bit(int rank) { return rank == 0 ? split_k_bit + 1 : wgrad_bit(rank) + ranks - 1; }
  constexpr bool has_fused_wgrad(int rank) const { return (gemms >> fused_wgrad_bit(rank) & 1) != 0; }
  constexpr void add_fused_wgrad(int rank) { gemms |= 1U << fused_wgrad_bit(rank); }
  // The GEMM with a rotation fused into its epilogue, with and without a prologue.
  static constexpr int rotation_bit(bool prologue) { return prologue ? 31 : 30; }
  constexpr bool has_fused_rotation(bool prologue) const { return (gemms >> rotation_bit(prologue) & 1) != 0; }
  constexpr void add_fused_rotation(bool prologue) { gemms |= 1U << rotation_bit(prologue); }
  constexpr void add_gemm(int tile_n, int variant) { gemms |= 1U << gemm_bit(tile_n, variant); }
  constexpr void add_skinny(int tokens, int shape, int rank) {
    skinny |= std::uint64_t{1} << skinny_bit(tokens, shape, rank);
  }
  friend constexpr bool operator==(const gemm_kernel_mask&, const gemm_kernel_mask&) = default;
  constexpr gemm_kernel_mask operator|(const gemm_kernel_mask& o) const {
    return {skinny | o.skinny, gemms | o.gemms, skinny_nn | o.skinny_nn};
  }
  constexpr gemm_kernel_mask operator&(const gemm_kernel_mask& o) const {
    return {skinny & o.skinny, gemms & o.gemms, skinny_nn & o.skinny_nn};
  }
};

constexpr gemm_kernel_mask every_gemm_kernel() {
  gemm_kernel_mask l;
  for (const int rank : {0, 16, 32, 64}) {
    for (const int tile : {128, 256}) l.add_gemm(tile, rank_index(rank)), l.add_gemm(tile, first_nn + rank_index(rank));
    if (rank > 0) l.add_wgrad(rank), l.add_fused_wgrad(rank);
    for (const int tokens : {8, 16, 64})
      for (int shape = 0; shape < skinny_shape_count; ++shape)
        if (skinny_shapes[shape].rows + rank <= 256) l.add_skinny(tokens, shape, rank);
    for (int shape = 0; shape < skinny_nn_shape_count; ++shape) l.add_skinny_nn(shape, rank);
  }
  l.add_fused_rotation(false), l.add_fused_rotation(true), l.add_mma();
  for (const int tile : {128, 256}) l.add_gemm(tile, with_prologue), l.add_gemm(tile, first_nn + with_prologue);
  l.add_wgrad(wide_tile_rank), l.add_split_k(), l.add_fused_wgrad(0);
  return l;
}

// ---- The choice among them

constexpr bool is_hopper(const target& t) { return t.capability == 90; }

// Owners are the tiles of a row block that compute U for the others, a share of k each. A tile waits only for owners at
// most (owners - 1) * group tiles before it in the tile order. There is no deadlock if more pairs of blocks than that
// are resident at the same time.
constexpr bool owners_are_resident(int owners, int group, int m_pairs, int resident_pairs) {
  return (owners - 1) * (group < m_pairs ? group : m_pairs) < resident_pairs;
}

enum class gemm_path : unsigned char { skinny, swap_ab, split_k, gemm, gemm_after_shrink, mma, simt };

constexpr const char* name_of(gemm_path w) {
  constexpr const char* names[] = {
      "skinny GEMM",     "skinny GEMM, operands swapped", "split-K GEMM", "GEMM", "shrink, then GEMM",
      "gemm (mma.sync)", "gemm (no tensor cores)"};
  return names[static_cast<int>(w)];
}

struct gemm_choice {
  gemm_path path = gemm_path::simt;
  int launches = 1;
  // GEMM: tile width, tile rows per group of the tile order, tiles that compute U, pairs of persistent CTAs
  int tile_n = 256, group = 8, owners = 0, pairs = 0;
  skinny_choice skinny{};         // the skinny or swapped GEMM, or the shrink before a GEMM
  int splits = 0;                 // split-K of the GEMM or of that shrink
  bool one_block_per_sm = false;  // each split has an SM to itself
  bool early = true;              // launch with programmatic dependent launch
  unsigned fused_wgrads = 0;      // bit k: wgrad k is fused into this launch
  int wgrad_blocks = 0;           // CTAs that compute fused wgrads
  long long partial_bytes = 0, shrink_bytes = 0;
  long long workspace_bytes() const { return partial_bytes + shrink_bytes; }
  friend constexpr bool operator==(const gemm_choice&, const gemm_choice&) = default;
};

// Workspace bytes that suffice for every choice with up to m tokens and this rank: U in 16 or 32 bits, and eight
// partial sums of it if the tiles of the GEMM compute it (up to rank 64).
constexpr long long workspace_bound(long long m, int rank) {
  const long long in_tiles = (rank < 64 ? rank : 64) * (8 * 4 + 4), separate = rank * 4LL;
  return (m + 255) / 256 * 256 * (in_tiles > separate ? in_tiles : separate);
}
constexpr long long counter_bytes(long long m) { return (m + 255) / 256 * 2 * 16; }

constexpr bool is_16_bit(dtype t) { return t == dtype::bf16 || t == dtype::f16; }

// The smallest number of pairs of CTAs with the same number of waves. Full waves line up with the groups that
// exchange U, and idle SMs leave power to the others.
constexpr int launched_pairs(int tiles, int resident) {
  const int waves = (tiles + resident - 1) / resident;
  return (tiles + waves - 1) / waves;
}

constexpr unsigned compiled_skinny_shapes(const gemm_kernel_mask& have, long long m, int rank) {
  unsigned shapes = 0;
  for (int shape = 0; shape < skinny_shape_count; ++shape)
    shapes |= have.has_skinny(padded_tokens(m), shape, rank) ? 1U << shape : 0;
  return shapes;
}
constexpr unsigned compiled_skinny_nn_shapes(const gemm_kernel_mask& have, int rank) {
  unsigned shapes = 0;
  for (int shape = 0; shape < skinny_nn_shape_count; ++shape)
    shapes |= have.has_skinny_nn(shape, rank) ? 1U << shape : 0;
  return shapes;
}
// Tile width 128 or 256, whichever is compiled and finishes first by a wave count; 0 if neither is compiled.
constexpr int choose_tile(const gemm_problem& p, int resident, const gemm_kernel_mask& have, int variant) {
  const int m_pairs = static_cast<int>((p.m + 255) / 256);
  auto time = [&](int tile_n) {  // narrow tiles read x twice as often
    const int tiles = m_pairs * ((p.n + tile_n - 1) / tile_n), waves = (tiles + resident - 1) / resident;
    return waves * tile_n * (tile_n == 128 ? 1.06 : 1.0);
  };
  const bool narrow = have.has_gemm(128, variant), wide = have.has_gemm(256, variant);
  if (!narrow || !wide) return narrow ? 128 : wide ? 256 : 0;
  return time(128) < time(256) ? 128 : 256;
}
// Operands swapped: with up to 64 outputs and many tokens, the skinny GEMM streams x and treats the weight as its
// tokens.
constexpr skinny_choice choose_swap_ab(long long m, int outputs, int k, const target& device,
                                       const gemm_kernel_mask& have) {
  const int rows = static_cast<int>(m);
  if (outputs > max_skinny_tokens) return {};
  return choose_skinny(&rows, 1, outputs, k, 0, device.sm_count, true, compiled_skinny_shapes(have, outputs, 0));
}
// The splits of n steps, each a CTA of one cluster, so that tiles * splits fills the SMs once.
// Twice as many would be resident, but clusters of 8 took 17 µs where clusters of 4 took 13 µs.
constexpr int splits_for(long long tiles, long long n, int sm_count) {
  int splits = 8;
  while (splits > 1 && (tiles * splits > sm_count || splits > n)) splits /= 2;
  return splits;
}
// Returns true if all CTAs can be resident with an SM each. This is certain for single blocks and
// for clusters of two; larger clusters need neighboring SMs.
constexpr bool one_split_per_sm(long long tiles, int splits, const target& device) {
  return splits == 1 ? tiles <= device.sm_count : splits == 2 && tiles <= device.can<gemm_launch>().resident_pairs;
}
// Split-K GEMM for 65 to 256 outputs: too few for tiles to fill the device, too many for the skinny GEMM. The thread
// blocks of a cluster each compute a split of k and add their sums. Returns false if it does not pay or the kernel is
// not compiled.
constexpr bool choose_split_k(long long m, int outputs, int k, const target& device, const gemm_kernel_mask& have,
                              gemm_choice& c) {
  if (!have.has_split_k() || outputs <= wide_tile_rank / 2 || outputs > 2 * wide_tile_rank || outputs % 8 != 0)
    return false;
  const long long tiles = (m + 127) / 128 * ((outputs + wide_tile_rank - 1) / wide_tile_rank);
  const int splits = splits_for(tiles, (k + 63) / 64, device.sm_count);
  if (splits == 1) return false;
  c.splits = splits, c.one_block_per_sm = one_split_per_sm(tiles, splits, device);
  return true;
}
// Chooses the wgrads that CTAs on idle SMs finish before the tiles of the dgrad do; a wgrad that
// waits for U runs second. The constants are clocks measured on an H200: 1100 per k step of a tile, 525 to 810 per
// wgrad stage of 128 tokens by 128 columns.
constexpr void choose_fused_wgrads(const gemm_problem& p, const target& device, const gemm_kernel_mask& have,
                                   gemm_choice& c) {
  const int tiles = static_cast<int>((p.m + 255) / 256) * ((p.n + 255) / 256),
            resident = device.can<gemm_launch>().resident_pairs;
  if (!p.nn || c.tile_n != 256 || !have.has_fused_wgrad(p.rank) || resident < 4 || (p.rank == 0 && !p.prologue)) return;
  if (p.output_rotation > 0 && !have.has_fused_rotation(p.prologue)) return;
  auto waves = [&](int pairs) { return (tiles + pairs - 1) / pairs; };
  if (waves(resident - 2) != waves(resident)) return;
  const int pairs = launched_pairs(tiles, resident - 2), blocks = 2 * (resident - pairs);
  if (!owners_are_resident(c.owners, c.group, static_cast<int>((p.m + 255) / 256), pairs)) return;
  long long left = 1100LL * waves(resident) * ((p.k + 63) / 64);
  for (const bool waits_for_shrink : {false, true})
    for (unsigned k = 0; k < 2; ++k) {
      const fused_wgrad_shape& s = p.fused_wgrads[k];
      if (s.columns == 0 || s.waits_for_shrink != waits_for_shrink || s.rank != p.rank) continue;
      const int wide = p.rank > 0 ? 128 : 64;  // a column-wise wgrad loads two matrices
      const long long stages = ((s.columns + wide - 1) / wide + blocks - 1) / blocks * ((p.m + 127) / 128);
      const long long clocks = stages * (p.rank <= 16 ? 525 : p.rank <= 32 ? 600 : 810);
      if (clocks <= left) left -= clocks, c.fused_wgrads |= 1U << k;
    }
  if (c.fused_wgrads != 0) c.pairs = pairs, c.wgrad_blocks = blocks;
}
// Chooses the tiled GEMM with the shrink fused, or after a separate shrink launch. Returns false if no such kernel is
// compiled.
constexpr bool choose_gemm(const gemm_problem& p, const target& device, const gemm_kernel_mask& have, gemm_choice& c) {
  const int m_pairs = static_cast<int>((p.m + 255) / 256), resident = device.can<gemm_launch>().resident_pairs;
  auto take = [&](int variant) {
    c.tile_n = choose_tile(p, resident, have, variant + (p.nn ? first_nn : 0));
    if (c.tile_n > 0) c.pairs = launched_pairs(m_pairs * ((p.n + c.tile_n - 1) / c.tile_n), resident);
    return c.tile_n > 0;
  };
  c.path = gemm_path::gemm;
  if (p.rank == 0) {
    if (!take(p.prologue ? with_prologue : 0)) return false;
    return choose_fused_wgrads(p, device, have, c), true;
  }
  if (p.shrink_input) return c.path = gemm_path::gemm_after_shrink, take(0);
  c.shrink_bytes = p.m * p.rank * 2;
  if (p.rank <= 64 && take(rank_index(p.rank))) {
    const int n_tiles = (p.n + c.tile_n - 1) / c.tile_n;
    c.owners = (n_tiles < 8 ? n_tiles : 8) / 4 * 4;
    if (c.owners > 0 && (p.k + 63) / 64 >= c.owners && owners_are_resident(c.owners, c.group, m_pairs, c.pairs)) {
      c.partial_bytes = static_cast<long long>(m_pairs) * 2 * c.owners * 128 * p.rank * 4;
      choose_fused_wgrads(p, device, have, c);
      // With more tiles than pairs the launch does not start early, so that blocks that wait for each other start
      // together: this saves 4 µs of the 366 µs that both passes of a layer take.
      c.early = m_pairs * n_tiles <= c.pairs;
      return true;
    }
  }
  c.path = gemm_path::gemm_after_shrink;
  c.owners = 0;
  c.launches = 2;
  c.skinny = choose_swap_ab(p.m, p.rank, p.k, device, have);
  choose_split_k(p.m, p.rank, p.k, device, have, c);
  return take(0) && (c.skinny.rows > 0 || have.has_gemm(128, 0));
}

constexpr gemm_choice choose(const gemm_problem& p, const target& device,
                             const gemm_kernel_mask& have = every_gemm_kernel()) {
  const bool copies = is_16_bit(p.type) && p.k % 8 == 0 && p.aligned;
  const bool may_be_skinny = !p.stores_pre_epilogue && !p.shrink_input && (!p.nn || (!p.prologue && p.n % 8 == 0));
  if (copies && may_be_skinny && is_hopper(device) && p.m <= max_skinny_tokens && p.rank <= max_skinny_rank) {
    gemm_choice c;
    c.path = gemm_path::skinny;
    if (p.nn)
      c.skinny = choose_skinny_nn(p.n, p.k, p.rank, device.sm_count, compiled_skinny_nn_shapes(have, p.rank));
    else
      c.skinny = choose_skinny(&p.n, 1, p.m, p.k, p.rank, device.sm_count, p.prologue || p.n % 2 != 0,
                               compiled_skinny_shapes(have, p.m, p.rank));
    if (c.skinny.rows > 0) return c;
  }
  const bool bare = p.rank == 0 && !p.prologue && p.plain && !p.epilogue_steps && !p.nn;
  if (gemm_choice c; copies && is_hopper(device) && bare && p.n <= 2 * wide_tile_rank) {
    c.path = gemm_path::swap_ab, c.skinny = choose_swap_ab(p.m, p.n, p.k, device, have);
    if (c.skinny.rows > 0) return c;
    c.path = gemm_path::split_k;
    if (choose_split_k(p.m, p.n, p.k, device, have, c)) return c;
  }
  if (gemm_choice c; copies && is_hopper(device) && p.n % 8 == 0 && choose_gemm(p, device, have, c)) return c;
  gemm_choice c;
  const bool rows_copy = !p.nn || p.n % 8 == 0, compiled = !is_hopper(device) || have.has_mma();
  c.path = copies && rows_copy && compiled && device.capability >= 80 ? gemm_path::mma : gemm_path::simt;
  if (p.rank > 0 && !p.shrink_input) c.launches = 2, c.shrink_bytes = p.m * p.rank * (is_16_bit(p.type) ? 2 : 4);
  return c;
}

// Returns true if the rotation of the result is fused. Only the GEMM with 256-wide tiles and no other epilogue has such
// a variant.
constexpr bool rotation_inside_gemm(const gemm_problem& p, const target& device,
                                    const gemm_kernel_mask& have = every_gemm_kernel()) {
  if (p.output_rotation <= 0 || 32 % p.output_rotation != 0 || p.n % 32 != 0 || p.rank > 0 || p.epilogue_steps ||
      !p.plain)
    return false;
  if (!p.nn || !have.has_fused_rotation(p.prologue)) return false;
  const gemm_choice c = choose(p, device, have);
  return c.path == gemm_path::gemm && c.tile_n == 256;
}

// Grouped skinny GEMM: products that read one x as segments of one launch. `rows` is 0 if they cannot share a launch.
constexpr skinny_choice choose_grouped(const gemm_problem* all, int count, const target& device,
                                       const gemm_kernel_mask& have = every_gemm_kernel()) {
  int n[max_segments] = {};
  if (count > max_segments) return {};
  for (int i = 0; i < count; ++i) {
    const gemm_choice single = choose(all[i], device, have);
    if (all[i].rank != all[0].rank || single.path != gemm_path::skinny || single.skinny.any || single.skinny.nn)
      return {};
    n[i] = all[i].n;
  }
  return choose_skinny(n, count, all[0].m, all[0].k, all[0].rank, device.sm_count, false,
                       compiled_skinny_shapes(have, all[0].m, all[0].rank));
}

// Grouped skinny GEMM of gate and up with the gated epilogue (SwiGLU); their adapters need separate columns of the
// common rank. `rows` is 0 if no kernel fits, or if it would be more than a quarter slower than the grouped GEMM with a
// launch after it.
constexpr skinny_choice choose_gated(const gemm_problem* all, bool separate_ranks, const target& device,
                                     const gemm_kernel_mask& have = every_gemm_kernel()) {
  const skinny_choice separate = choose_grouped(all, 2, device, have);
  const int n = all[0].n, rank = all[0].rank, sm_count = device.sm_count;
  const bool fits = (rank == 0 || separate_ranks) && all[1].n == n && n % 2 == 0;
  if (separate.rows == 0 || !fits || !have.has_skinny(separate.tokens, shape_index(gated_tile_rows, false), rank))
    return {};
  const int tiles = (2 * n + gated_tile_rows - 1) / gated_tile_rows;
  const int time = skinny_cost(tiles, gated_tile_rows, 1, rank, separate.tokens, sm_count),
            time_apart = skinny_cost(separate.tiles, separate.rows, separate.splits, rank, separate.tokens, sm_count);
  if (4 * time > 5 * time_apart) return {};
  return {separate.tokens, gated_tile_rows, 1, tiles, false, false, true};
}

// A wgrad Zᵀ Q over the m tokens: Z [m, columns], Q [m, rank], of which Q is the narrower one.
struct wgrad_problem {
  dtype type = dtype::bf16;
  long long m = 0;
  int columns = 0, rank = 0;
  bool aligned = true;  // all rows begin at multiples of 16 bytes
};
struct wgrad_choice {
  int rank = 0, splits = 1;       // columns of Q per CTA (0: no tensor core kernel); splits of the tokens
  bool one_block_per_sm = false;  // each CTA has an SM to itself
};
// Columns of Q of the compiled wgrad kernel for this problem; 0: none on tensor cores.
constexpr int wgrad_kernel_rank(const wgrad_problem& p, const target& device, const gemm_kernel_mask& have) {
  int best = 0;
  if (!is_16_bit(p.type) || !p.aligned || !is_hopper(device) || p.m == 0) return 0;
  for (const int rank : {64, 32, 16})
    if (have.has_wgrad_kernel(rank) && (best == 0 || p.rank <= rank)) best = rank;
  if (have.has_wgrad_kernel(wide_tile_rank) && (best == 0 || p.rank > 64)) best = wide_tile_rank;
  return best;
}
// One launch for `count` wgrads over the same tokens, as the gradients of A and of B are: with few tokens a launch of
// its own would take longer than the sums. Several share a launch if one kernel covers the rank of each of them and no
// operand has rows that need padding; `rank` is 0 if they do not.
constexpr wgrad_choice choose_wgrads(const wgrad_problem* all, int count, const target& device,
                                     const gemm_kernel_mask& have) {
  wgrad_choice c;
  const int rank = wgrad_kernel_rank(all[0], device, have);
  long long tiles = 0;
  for (int i = 0; i < count; ++i) {
    if (wgrad_kernel_rank(all[i], device, have) != rank) return c;
    if (count > 1 && (all[i].rank > rank || all[i].columns % 8 != 0)) return c;
    tiles += (all[i].columns + 127LL) / 128 * (rank > 0 ? (all[i].rank + rank - 1) / rank : 0);
  }
  if (rank == 0) return c;
  c.rank = rank, c.splits = splits_for(tiles, (all[0].m + 63) / 64, device.sm_count);
  c.one_block_per_sm = c.rank == wide_tile_rank && one_split_per_sm(tiles, c.splits, device);
  return c;
}
constexpr wgrad_choice choose_wgrad(const wgrad_problem& p, const target& device, const gemm_kernel_mask& have) {
  return choose_wgrads(&p, 1, device, have);
}

}  // namespace graft::gpu
