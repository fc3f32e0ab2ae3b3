// SPDX-License-Identifier: Apache-2.0
// Dispatch of attention: sizes and target in, kernel and work split out. A constexpr function that needs no GPU and no
// CUDA header. Attention that none of the kernels supports is evaluated as a node of the graph. dS is the gradient of
// the scores.
#pragma once
#include <graft/backend/gpu/dispatch/gemm.h>
#include <graft/core/algorithm.h>
#include <graft/graph/rules_model.h>

namespace graft::gpu {

enum class attention_path : unsigned char { node, prefill, decode };

constexpr const char* name_of(attention_path w) {
  return w == attention_path::node ? "attention by itself" : w == attention_path::prefill ? "prefill" : "decode";
}

struct attention_size {
  dtype type = dtype::bf16;
  long long rows = 0;
  int head = 0, heads = 0, kv_heads = 0;  // columns per head, query heads, KV heads
  bool cached = false;                    // attention over a KV cache
  bool aligned = true;                    // all tensors begin at multiples of 16 bytes
  long long slots = 0;                    // slots of the KV cache
  long long ds_bytes = 2LL << 30;         // largest size of dS
  double soft_cap = 0;                    // of scores (attention_options); 0: none
  bool sinks = false;                     // a row of q, k and v ends with a sink for each query head

  constexpr bool is_capped() const { return soft_cap > 0; }
  // Elements of a row of q, k and v.
  constexpr long long row_elements() const {
    return static_cast<long long>(heads + 2 * kv_heads) * head + (sinks ? heads : 0);
  }
};
struct attention_choice {
  attention_path path = attention_path::node;
  bool mma = false;             // mma.sync kernels (sm_80 and later) instead of wgmma
  int cluster = 1, blocks = 1;  // prefill: cluster size and persistent CTAs
  int kv_splits = 1;            // decode: splits of the keys of a row
  bool long_pipeline = false;   // decode: a longer pipeline, for one CTA per SM
  bool small = false;           // decode: CTAs of four warps, four of them per SM
  int split_kv_blocks = 0;      // decode: CTAs that share all rows in equal chunks; 0: use kv_splits per row
  int launches = 1;
  friend constexpr bool operator==(const attention_choice&, const attention_choice&) = default;
};

inline constexpr int attention_heads[] = {64, 80, 96, 128, 256};
inline constexpr int head_sizes = 5;
constexpr int head_index(int head) {
  for (int i = 0; i < head_sizes; ++i)
    if (attention_heads[i] == head) return i;
  return -1;
}
// Decode takes calls of up to this many rows: each CTA reads the attention ranges of all rows of the call.
inline constexpr long long decode_rows = 64;
inline constexpr int decode_group_size = 8;
inline constexpr long long short_split_keys = 128, long_split_keys = 512, short_row_keys = 256;

// Tensor maps and vector loads need rows of whole 16-byte vectors, which sinks may break up.
constexpr bool has_whole_vectors(const attention_size& p) { return p.aligned && p.row_elements() % 8 == 0; }

// Attention by mma.sync. Decode splits the keys until two CTAs per SM have work; a second launch
// combines the splits. Before both, a launch writes the new keys and values to the cache.
inline constexpr int max_mma_group = 16, max_mma_kv_splits = 16;
constexpr attention_choice choose_mma_attention(const attention_size& p, const target& device) {
  attention_choice c;
  c.mma = true, c.path = attention_path::prefill, c.launches = p.cached ? 2 : 1;
  if (!p.cached || p.rows > decode_rows || p.heads / p.kv_heads > max_mma_group) return c;
  c.path = attention_path::decode;
  while (c.kv_splits < max_mma_kv_splits && p.rows * p.kv_heads * c.kv_splits < 2 * device.sm_count) c.kv_splits *= 2;
  c.launches = c.kv_splits > 1 ? 3 : 2;
  return c;
}
// Bytes of partial results of decode: per row and split by mma.sync, per CTA by wgmma.
constexpr long long decode_workspace_bytes(const attention_size& p, const target& device) {
  const long long rows = p.rows < decode_rows ? p.rows : decode_rows, tile_count = 4LL * device.sm_count;
  const long long kv_splits = is_hopper(device) ? device.sm_count : max_of(rows * p.kv_heads, tile_count);
  return p.heads / p.kv_heads * kv_splits * (p.head + 4) * 4;
}
// Bytes of counters: one per row and KV head.
constexpr long long decode_counter_bytes(const attention_size& p) { return decode_rows * p.kv_heads * 4; }

// The splits per row that give at most one CTA per SM. One block with a long pipeline reads faster
// than two with half of the shared memory each, and than blocks that wait for a free SM.
constexpr int splits_filling_device(const attention_size& p, const target& device) {
  int kv_splits = 1;
  while (kv_splits < 8 && p.rows * p.kv_heads * kv_splits * 2 <= device.sm_count) kv_splits *= 2;
  return kv_splits;
}
// Decode with the same number of KV splits for every row; each split has a CTA.
constexpr attention_choice choose_kv_splits(const attention_size& p, const target& device) {
  attention_choice c;
  c.path = attention_path::decode, c.kv_splits = splits_filling_device(p, device);
  const long long blocks = p.rows * p.kv_heads;
  // Clusters of four or eight blocks cannot occupy all SMs, and a cluster that waits for free ones doubles
  // the time; clusters of six use more of them.
  const int clustered = device.sm_count * 10 / 11;
  if (c.kv_splits == 8 && blocks * c.kv_splits > clustered) c.kv_splits = 6;
  const bool one_block_per_sm = blocks * c.kv_splits <= (c.kv_splits > 2 ? clustered : device.sm_count);
  // The short pipeline holds two tiles of a split; with more keys, the third tile would be loaded too late.
  c.long_pipeline = one_block_per_sm && p.slots / p.rows > c.kv_splits * short_split_keys;
  // If CTAs share SMs anyway, more splits keep more of them busy.
  if (!one_block_per_sm && p.slots / p.rows > c.kv_splits * long_split_keys && c.kv_splits == 4) c.kv_splits = 6;
  const long long stages_to_fill_sm = p.slots / p.rows <= short_row_keys ? device.sm_count : 2 * device.sm_count;
  c.small = p.head <= 128 && c.kv_splits == 1 && blocks > stages_to_fill_sm;
  return c;
}
// Decode with split KV over all rows: the keys of all (row, KV head) pairs are divided into equal chunks, one thread
// block per SM. Up to a tenth of the SMs stay idle if rows of equal length are then split
// evenly.
inline constexpr int max_split_kv_head = 128;         // columns per head
inline constexpr long long min_split_kv_keys = 1024;  // keys per split from which this is used
constexpr attention_choice choose_split_kv(const attention_size& p, const target& device) {
  const long long all = p.rows * p.kv_heads, sm_count = device.sm_count, rounds = (all + sm_count - 1) / sm_count;
  const long long even = all < sm_count ? sm_count / all * all : all % rounds == 0 ? all / rounds : 0;
  attention_choice c;
  c.path = attention_path::decode, c.split_kv_blocks = static_cast<int>(even * 10 >= sm_count * 9 ? even : sm_count);
  return c;
}

constexpr attention_choice choose_attention(const attention_size& p, const target& device) {
  attention_choice c;
  if (p.type != dtype::bf16 || device.capability < 80 || head_index(p.head) < 0 || p.rows == 0) return c;
  if (!has_whole_vectors(p)) return c;
  if (!is_hopper(device)) return choose_mma_attention(p, device);
  if (p.cached && p.rows <= decode_rows && p.heads / p.kv_heads <= decode_group_size) {
    const bool is_long = p.slots / p.rows >= splits_filling_device(p, device) * min_split_kv_keys;
    return is_long && p.head <= max_split_kv_head ? choose_split_kv(p, device) : choose_kv_splits(p, device);
  }
  c.path = attention_path::prefill;
  c.cluster = p.head % 128 == 0 && p.heads / p.kv_heads % 2 == 0 ? 2 : 1;
  const long long tile_count = (p.rows + 127) / 128 * p.heads;
  c.blocks = static_cast<int>(tile_count < device.sm_count ? tile_count : device.sm_count / c.cluster * c.cluster);
  c.launches = p.cached ? 2 : 1;  // the first launch writes the cache
  return c;
}

// Backward by wgmma stores dS between its two kernels (dK, dV and dQ), one slab at a time. A slab has as few KV heads
// as give each pair of CTAs two tiles of 128 keys, a long one and a short one. If dS of one head exceeds
// ds_bytes, a slab has some of its key tiles.
inline constexpr long long ds_tile_bytes = 64 * 128 * 2;
struct ds_slabs {
  int columns = 0, tiles = 0, count = 0;  // KV heads and key tiles of a slab, and the number of slabs
  long long bytes = 0;                    // bytes of a slab
};
constexpr ds_slabs ds_slabs_of(const attention_size& p, const target& device) {
  auto split = [](long long all, long long kv_splits) { return (all + kv_splits - 1) / kv_splits; };
  const long long tiles = split(p.rows, 128), of_tile = p.heads / p.kv_heads * 2 * tiles * ds_tile_bytes;
  const long long wanted = split(device.sm_count * 9 / 10, tiles);  // KV heads
  long long kv_splits = max_of(1LL, p.kv_heads / wanted), columns = split(p.kv_heads, kv_splits);
  while (columns > 1 && columns * tiles * of_tile > p.ds_bytes) columns = split(p.kv_heads, ++kv_splits);
  const long long at_once = between(p.ds_bytes / (columns * of_tile), 1LL, tiles);
  return {static_cast<int>(columns), static_cast<int>(at_once),
          static_cast<int>(split(p.kv_heads, columns) * split(tiles, at_once)), columns * at_once * of_tile};
}

// Backward recomputes the forward pass if only its input was saved. Accumulators of heads above 128 columns exceed the
// registers of a warpgroup, so their gradients use mma.sync on every device.
constexpr attention_choice choose_attention_grad(const attention_size& p, const target& device) {
  attention_choice c = choose_attention(p, device);
  if (p.cached || c.path != attention_path::prefill) return {};
  c.mma = c.mma || p.head > 128, c.launches = 3;
  if (!c.mma) c.launches = 2 + 2 * ds_slabs_of(p, device).count;
  return c;
}
// Workspace of backward, as offsets: O, log-sum-exp, row statistics, attention ranges, key bounds, dS, and partial sums
// of dQ over slabs.
struct attention_backward_workspace {
  long long out, lse, numbers, ranges, key_bounds, scores, partial, bytes;
};
constexpr attention_backward_workspace attention_backward_workspace_of(const attention_size& p, const target& device) {
  const long long tiles = (p.rows + 127) / 128, blocks = 2 * tiles;
  attention_backward_workspace r{};
  auto take = [&](long long bytes) {
    const long long at = r.bytes;
    r.bytes += (bytes + 127) / 128 * 128;
    return at;
  };
  r.out = take(p.rows * p.heads * p.head * 2), r.lse = take(p.rows * p.heads * 4);
  r.numbers = take(p.heads * blocks * 128 * 4), r.ranges = take(blocks * 64 * 8), r.key_bounds = take(blocks * 16);
  r.scores = r.partial = r.bytes;
  if (choose_attention_grad(p, device).mma) return r;
  const ds_slabs s = ds_slabs_of(p, device);
  r.scores = take(s.bytes);
  r.partial = take(s.tiles < tiles ? s.columns * (p.heads / p.kv_heads) * (tiles + 1) / 2 * 256LL * p.head * 4 : 0);
  return r;
}

// ---- Attention nodes of a graph
constexpr bool is_attention(op o) { return traits_of(o).kind == op_class::attention; }

constexpr attention_size attention_size_of(const graph& g, id i, const size_values& s, dtype type) {
  const node& v = g[i];
  const node& out = v.what == op::attention_grad ? g[v.c] : v;
  attention_size p;
  p.type = type, p.cached = v.what == op::cached_attention;
  const long long head = g.sizes.value(v.k[0], s), queries = g.sizes.value(out.d[3], s),
                  all = g.sizes.value(g[v.a].d[3], s);
  p.rows = g.sizes.value(g[v.a].d[2], s);
  const attention_options with = attention_options_of(v);
  p.head = static_cast<int>(head), p.heads = static_cast<int>(queries / head);
  p.kv_heads = static_cast<int>((all - queries - (with.sinks ? p.heads : 0)) / 2 / head);
  p.soft_cap = with.soft_cap, p.sinks = with.sinks;
  if (p.cached) p.slots = g.sizes.value(g[v.c].d[2], s);
  return p;
}
// Attention with dropout, whose range operand has five rows, is always evaluated as a node, by the reference kernels.
constexpr attention_choice choice_of(const graph& g, id i, const attention_size& p, const target& device) {
  if (g[g[i].b].d[2] == dim{5}) return {};
  return g[i].what == op::attention_grad ? choose_attention_grad(p, device) : choose_attention(p, device);
}

}  // namespace graft::gpu
