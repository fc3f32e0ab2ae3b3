// SPDX-License-Identifier: Apache-2.0
// Which kernels run attention, decided from sizes and target alone: a plain function that needs no GPU and knows nothing
// of CUDA. What none of them takes is a node like any other.
#pragma once
#include <graft/backend/cuda/choose.h>
#include <graft/core/few_numbers.h>

namespace graft::cuda {

enum class attention_way : unsigned char { node, prefill, decode };

constexpr const char* name_of(attention_way w) {
  return w == attention_way::node ? "attention by itself" : w == attention_way::prefill ? "prefill" : "decode";
}

struct attention_size {
  dtype type = dtype::bf16;
  long long rows = 0;
  int head = 0, heads = 0, groups = 0;  // columns of a head, heads of queries, heads of keys and of values
  bool cached = false;
  bool aligned = true;                // all tensors begin at multiples of 16 bytes
  long long places = 0;               // of the cache
  long long score_bytes = 2LL << 30;  // of dS, at most
};
struct attention_choice {
  attention_way how = attention_way::node;
  bool mma = false;             // by mma.sync, as sm_80 and later have it
  int cluster = 1, blocks = 1;  // prefill
  int parts = 1;                // decode: of the keys of a row
  bool long_ring = false;       // decode: a thread block has a multiprocessor for itself, and much to read
  bool small = false;           // decode: thread blocks of four warps, four of which share a multiprocessor
  int spread = 0;               // decode: so many thread blocks have equal pieces of all rows; 0: parts of a row each
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
// Rows that decode takes: its thread blocks know of all rows of a call, and have one row each.
inline constexpr long long decode_rows = 64;
inline constexpr int decode_share = 8;
inline constexpr long long short_part = 128, long_part = 512, short_row = 256;  // keys

// By mma.sync: a part for each half of a multiprocessor, which a launch behind it adds up. The cache is written first.
inline constexpr int most_mma_group = 16, most_mma_parts = 16;
constexpr attention_choice choose_mma_attention(const attention_size& p, const target& device) {
  attention_choice c;
  c.mma = true, c.how = attention_way::prefill, c.launches = p.cached ? 2 : 1;
  if (!p.cached || p.rows > decode_rows || p.heads / p.groups > most_mma_group) return c;
  c.how = attention_way::decode;
  while (c.parts < most_mma_parts && p.rows * p.groups * c.parts < 2 * device.processors) c.parts *= 2;
  c.launches = c.parts > 1 ? 3 : 2;
  return c;
}
// Bytes of parts, for calls of up to so many rows: by mma.sync those of every row, else one of every piece.
constexpr long long room_of_decode(const attention_size& p, const target& device) {
  const long long rows = p.rows < decode_rows ? p.rows : decode_rows, pieces = 4LL * device.processors;
  const long long parts = is_hopper(device) ? device.processors : larger_of(rows * p.groups, pieces);
  return p.heads / p.groups * parts * (p.head + 4) * 4;
}
// Of counters: one for every row and head of keys.
constexpr long long counters_of_decode(const attention_size& p) { return decode_rows * p.groups * 4; }

// A thread block for each processor, with a ring as long as its memory, reads faster than two with half of it, and than parts
// that wait for a processor.
constexpr int filling_parts(const attention_size& p, const target& device) {
  int parts = 1;
  while (parts < 8 && p.rows * p.groups * parts * 2 <= device.processors) parts *= 2;
  return parts;
}
// Parts of a row's keys, each with a thread block.
constexpr attention_choice choose_parts(const attention_size& p, const target& device) {
  attention_choice c;
  c.how = attention_way::decode, c.parts = filling_parts(p, device);
  const long long blocks = p.rows * p.groups;
  // Clusters of four or eight leave some processors empty, and one that waits for others takes twice as long; sixteen
  // of six find as many processors.
  const int clustered = device.processors * 10 / 11;
  if (c.parts == 8 && blocks * c.parts > clustered) c.parts = 6;
  const bool alone = blocks * c.parts <= (c.parts > 2 ? clustered : device.processors);
  // A short ring has room for two tiles of a part and what is between them: values of a third would come late.
  c.long_ring = alone && p.places / p.rows > c.parts * short_part;
  // Where they share processors anyway, more parts keep more of these busy.
  if (!alone && p.places / p.rows > c.parts * long_part && c.parts == 4) c.parts = 6;
  const long long crowd = p.places / p.rows <= short_row ? device.processors : 2 * device.processors;
  c.small = p.head <= 128 && c.parts == 1 && blocks > crowd;
  return c;
}
// Equal pieces of all rows and heads, one thread block to a processor. A few of these stay idle where rows of the same
// length are then cut at their ends alone, or into the same number of pieces.
inline constexpr int spread_head = 128;         // columns, at most
inline constexpr long long spread_part = 1024;  // keys that a part would have
constexpr attention_choice choose_spread(const attention_size& p, const target& device) {
  const long long all = p.rows * p.groups, processors = device.processors, rounds = (all + processors - 1) / processors;
  const long long even = all < processors ? processors / all * all : all % rounds == 0 ? all / rounds : 0;
  attention_choice c;
  c.how = attention_way::decode, c.spread = static_cast<int>(even * 10 >= processors * 9 ? even : processors);
  return c;
}

constexpr attention_choice choose_attention(const attention_size& p, const target& device) {
  attention_choice c;
  if (p.type != dtype::bf16 || !p.aligned || device.capability < 80 || head_index(p.head) < 0 || p.rows == 0) return c;
  if (!is_hopper(device)) return choose_mma_attention(p, device);
  if (p.cached && p.rows <= decode_rows && p.heads / p.groups <= decode_share) {
    const bool is_long = p.places / p.rows >= filling_parts(p, device) * spread_part;
    return is_long && p.head <= spread_head ? choose_spread(p, device) : choose_parts(p, device);
  }
  c.how = attention_way::prefill;
  c.cluster = p.head % 128 == 0 && p.heads / p.groups % 2 == 0 ? 2 : 1;
  const long long pieces = (p.rows + 127) / 128 * p.heads;
  c.blocks = static_cast<int>(pieces < device.processors ? pieces : device.processors / c.cluster * c.cluster);
  c.launches = p.cached ? 2 : 1;  // first the cache is written
  return c;
}

// Backward by wgmma leaves dS in memory between its two halves, for some heads of keys at once: as few as give each pair of
// thread blocks two tiles of 128 keys, a long one and a short one. Where one head's dS is too much, it is in pieces.
inline constexpr long long score_tile_bytes = 64 * 128 * 2;
struct score_pieces {
  int columns = 0, tiles = 0, count = 0;  // heads of keys and tiles of keys of a piece, and how many pieces
  long long bytes = 0;                    // of a piece
};
constexpr score_pieces score_pieces_of(const attention_size& p, const target& device) {
  auto split = [](long long all, long long parts) { return (all + parts - 1) / parts; };
  const long long tiles = split(p.rows, 128), of_tile = p.heads / p.groups * 2 * tiles * score_tile_bytes;
  const long long wanted = split(device.processors * 9 / 10, tiles);  // heads of keys
  long long parts = larger_of(1LL, p.groups / wanted), columns = split(p.groups, parts);
  while (columns > 1 && columns * tiles * of_tile > p.score_bytes) columns = split(p.groups, ++parts);
  const long long at_once = between(p.score_bytes / (columns * of_tile), 1LL, tiles);
  return {static_cast<int>(columns), static_cast<int>(at_once),
          static_cast<int>(split(p.groups, columns) * split(tiles, at_once)), columns * at_once * of_tile};
}

// Backward recomputes the forward pass where nothing but its input is kept. Heads above 128 have more sums than a warpgroup
// has registers: their gradients are by mma.sync everywhere.
constexpr attention_choice choose_attention_grad(const attention_size& p, const target& device) {
  attention_choice c = choose_attention(p, device);
  if (p.cached || c.how != attention_way::prefill) return {};
  c.mma = c.mma || p.head > 128, c.launches = 3;
  if (!c.mma) c.launches = 2 + 2 * score_pieces_of(p, device).count;
  return c;
}
// Memory for it: O again, the sums of the rows, what is known of them before, dS, and sums over pieces of it.
struct attention_room {
  long long out, sums, numbers, spans, bounds, scores, partial, bytes;
};
constexpr attention_room room_of_attention_grad(const attention_size& p, const target& device) {
  const long long tiles = (p.rows + 127) / 128, blocks = 2 * tiles;
  attention_room r{};
  auto take = [&](long long bytes) {
    const long long at = r.bytes;
    r.bytes += (bytes + 127) / 128 * 128;
    return at;
  };
  r.out = take(p.rows * p.heads * p.head * 2), r.sums = take(p.rows * p.heads * 4);
  r.numbers = take(p.heads * blocks * 128 * 4), r.spans = take(blocks * 64 * 8), r.bounds = take(blocks * 16);
  r.scores = r.partial = r.bytes;
  if (choose_attention_grad(p, device).mma) return r;
  const score_pieces s = score_pieces_of(p, device);
  r.scores = take(s.bytes);
  r.partial = take(s.tiles < tiles ? s.columns * (p.heads / p.groups) * (tiles + 1) / 2 * 256LL * p.head * 4 : 0);
  return r;
}

// ---- of a node
constexpr bool is_attention(op o) { return row(o).kind == op_class::attention; }

constexpr attention_size attention_size_of(const graph& g, id i, const size_values& s, dtype type) {
  const node& v = g[i];
  const node& out = v.what == op::attention_grad ? g[v.c] : v;
  attention_size p;
  p.type = type, p.cached = v.what == op::cached_attention;
  const long long head = g.sizes.value(v.k[0], s), queries = g.sizes.value(out.d[3], s),
                  all = g.sizes.value(g[v.a].d[3], s);
  p.rows = g.sizes.value(g[v.a].d[2], s);
  p.head = static_cast<int>(head), p.heads = static_cast<int>(queries / head);
  p.groups = static_cast<int>((all - queries) / 2 / head);
  if (p.cached) p.places = g.sizes.value(g[v.c].d[2], s);
  return p;
}
// Only attention as a node drops probabilities.
constexpr attention_choice choice_of(const graph& g, id i, const attention_size& p, const target& device) {
  if (g[g[i].b].d[2] == dim{5}) return {};
  return g[i].what == op::attention_grad ? choose_attention_grad(p, device) : choose_attention(p, device);
}

}  // namespace graft::cuda
