// SPDX-License-Identifier: Apache-2.0
// Autotuning candidates: the launches of one GEMM, grouped GEMM or attention that may be timed against each other. The
// first candidate is the choice of the dispatch rules (gemm.h, attention.h); the others are what the rules choose from
// a subset of the kernels. All compute the same value, but sums may be added in another order. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/attention.h>
#include <graft/core/algorithm.h>
#include <graft/core/sequence.h>

#include <string>
#include <utility>

namespace graft::gpu {

template <class Choice> struct candidate {
  const char* name;
  Choice choice;
};
template <class Choice> using candidates = sequence<candidate<Choice>>;

// A restriction of the GEMM rule to some kernels.
struct gemm_variant {
  const char* name;
  gemm_kernel_mask among;
  int group = 0;  // tile rows per group of the tile order (L2 reuse); 0: the rule's choice
};
namespace detail {
inline constexpr gemm_kernel_mask every_kernel_bit{~std::uint64_t{0}, ~std::uint32_t{0}, ~std::uint32_t{0}};
constexpr gemm_kernel_mask only_skinny_shape(int shape) {
  gemm_kernel_mask l{0, ~std::uint32_t{0}};
  for (const int tokens : {8, 16, 64})
    for (const int rank : {0, 16, 32, 64}) l.add_skinny(tokens, shape, rank);
  return l;
}
constexpr gemm_kernel_mask only_gemm_tile(int tile_n) {
  constexpr std::uint32_t ten = (1U << gemm_variant_count) - 1;
  return {~std::uint64_t{0}, ~(tile_n == 128 ? ten << gemm_variant_count : ten), ~std::uint32_t{0}};
}
constexpr gemm_kernel_mask without_inner_shrink() {  // without kernels that fuse the shrink
  gemm_kernel_mask l = every_kernel_bit;
  for (const int tile : {128, 256})
    for (const int first : {0, first_nn})
      for (const int rank : {16, 32, 64})
        l.gemms &= ~(1U << gemm_kernel_mask::gemm_bit(tile, first + rank_index(rank)));
  return l;
}
}  // namespace detail

inline constexpr gemm_variant gemm_candidates[] = {
    {"rule", detail::every_kernel_bit},
    {"skinny shape 0", detail::only_skinny_shape(0)},
    {"skinny shape 1", detail::only_skinny_shape(1)},
    {"skinny shape 2", detail::only_skinny_shape(2)},
    {"skinny shape 3", detail::only_skinny_shape(3)},
    {"tiles", {0, ~std::uint32_t{0}}},
    {"tiles of 128", detail::only_gemm_tile(128)},
    {"tiles of 256", detail::only_gemm_tile(256)},
    {"tiles of 256 by 4", detail::only_gemm_tile(256), 4},
    {"tiles of 256 by 16", detail::only_gemm_tile(256), 16},
    {"tiles after a shrink", detail::without_inner_shrink()},
};

template <class Choice> void add_candidate(candidates<Choice>& to, const char* name, const Choice& choice) {
  for (const candidate<Choice>& known : to)
    if (known.choice == choice) return;
  to.push({name, choice});
}

// Every candidate fuses the same wgrads as the rule's choice, because a wgrad that is not fused is a launch of its own.
inline candidates<gemm_choice> candidates_of(const gemm_problem& p, const target& device,
                                             const gemm_kernel_mask& have) {
  const gemm_choice rule = choose(p, device, have);
  candidates<gemm_choice> all;
  const int m_pairs = static_cast<int>((p.m + 255) / 256);
  for (const gemm_variant& v : gemm_candidates) {
    gemm_choice c = choose(p, device, have & v.among);
    const bool tiled = c.path == gemm_path::gemm || c.path == gemm_path::gemm_after_shrink;
    if ((c.path != gemm_path::skinny && !tiled && c.path != rule.path) || c.fused_wgrads != rule.fused_wgrads) continue;
    if (v.group > 0) {
      if (!tiled || min_of(v.group, m_pairs) == min_of(c.group, m_pairs)) continue;
      if (c.owners > 0 && !owners_are_resident(c.owners, v.group, m_pairs, c.pairs)) continue;
      c.group = v.group;
    }
    add_candidate(all, v.name, c);
  }
  return all;
}
inline candidates<skinny_choice> grouped_candidates(const gemm_problem* shapes, int count, const target& device,
                                                    const gemm_kernel_mask& have) {
  candidates<skinny_choice> all;
  for (const gemm_variant& v : gemm_candidates)
    if (const skinny_choice c = choose_grouped(shapes, count, device, have & v.among); c.rows > 0)
      add_candidate(all, v.name, c);
  return all;
}
// Candidates of decode attention; prefill has only the rule's choice.
inline candidates<attention_choice> candidates_of(const attention_size& p, const target& device) {
  struct variant {
    const char* name;
    int kv_splits;
    bool long_pipeline;
  };
  constexpr variant variants[] = {{"1 split", 1, false},
                                  {"2 splits", 2, false},
                                  {"4 splits", 4, false},
                                  {"8 splits", 8, false},
                                  {"1 split, long pipeline", 1, true},
                                  {"2 splits, long pipeline", 2, true},
                                  {"4 splits, long pipeline", 4, true},
                                  {"8 splits, long pipeline", 8, true}};
  candidates<attention_choice> all;
  attention_choice c = choose_attention(p, device);
  add_candidate(all, "rule", c);
  for (const variant& v : variants) {
    if (c.path != attention_path::decode || c.mma) break;
    c.kv_splits = v.kv_splits, c.long_pipeline = v.long_pipeline, c.small = false, c.split_kv_blocks = 0;
    add_candidate(all, v.name, c);
  }
  if (c.path == attention_path::decode && !c.mma && p.head <= max_split_kv_head)
    add_candidate(all, "split KV", choose_split_kv(p, device));
  return all;
}

// Calls of one size class share a result: up to 64 tokens by the kernels' token counts, above by the number of 256-row
// tiles, rounded up to three significant bits.
constexpr long long size_class(long long m) {
  if (m <= max_skinny_tokens) return padded_tokens(m);
  long long pairs = (m + 255) / 256, step = 1;
  while (pairs / step >= 8) step *= 2;
  return (pairs + step - 1) / step * step * 256;
}
// The name of a problem in the autotuning file.
inline std::string name_of(const gemm_problem& p) {
  std::string s = std::string(graft::name_of(p.type)) + " " + std::to_string(p.n) + "x" + std::to_string(p.k) + " r" +
                  std::to_string(p.rank);
  for (const auto& [is, word] :
       {std::pair{p.prologue, " prologue"}, std::pair{p.epilogue_steps, " epilogue"}, std::pair{!p.plain, " act"},
        std::pair{p.nn, " NN"}, std::pair{p.stores_extra(), " stores"}, std::pair{p.shrink_input, " shrink-input"}})
    if (is) s += word;
  for (const fused_wgrad_shape& b : p.fused_wgrads)
    if (b.columns > 0) s += " wgrad " + std::to_string(b.columns) + (b.waits_for_shrink ? "w" : "");
  return s;
}
inline std::string name_of(const attention_size& p) {
  return std::string(graft::name_of(p.type)) + " " + std::to_string(p.heads) + "/" + std::to_string(p.kv_heads) +
         " of " + std::to_string(p.head) + ", " + std::to_string(p.rows) + " rows" +
         (p.is_capped() ? ", soft cap" : "") + (p.sinks ? ", sinks" : "");
}

}  // namespace graft::gpu
