// SPDX-License-Identifier: Apache-2.0
// Autotuning candidates: the launches of one GEMM, grouped GEMM or attention that may be timed against each other. The
// first candidate is the choice of the dispatch rules (gemm.h, attention.h); for a GEMM the others are what the rules
// choose from the kernels of one tile shape. All compute the same value, but sums may be added in another order. Needs
// no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/attention.h>
#include <graft/core/algorithm.h>
#include <graft/core/sequence.h>

#include <string>
#include <utility>

namespace graft::gpu {

template <class Choice> struct candidate {
  std::string name;
  Choice choice;
};
template <class Choice> using candidates = sequence<candidate<Choice>>;

// Calls f with the rule's own choice, and with the GEMM kernels of each tile shape that dispatch lists: the rule then
// chooses among those.
template <class F> void each_tile_shape(const F& f) {
  f(std::string("rule"), gemm_kernel_mask{~std::uint64_t{0}, ~std::uint32_t{0}, ~std::uint32_t{0}});
  for (int shape = 0; shape < fallback_shape; ++shape) {
    gemm_kernel_mask kernels;
    for (const int tokens : {8, 16, 64})
      for (const int rank : {0, 16, 32, 64}) kernels.add_skinny(tokens, shape, rank);
    f("skinny shape " + std::to_string(shape), kernels);
  }
  for (int shape = 0; shape < skinny_nn_shape_count; ++shape) {
    gemm_kernel_mask kernels;
    for (const int rank : {0, 16, 32, 64}) kernels.add_skinny_nn(shape, rank);
    f("skinny NN shape " + std::to_string(shape), kernels);
  }
  constexpr std::uint32_t variants = (1U << gemm_variant_count) - 1;
  for (const int tile : {128, 256})
    f("tiles of " + std::to_string(tile),
      gemm_kernel_mask{0, ~(tile == 128 ? variants << gemm_variant_count : variants)});
}

template <class Choice> void add_candidate(candidates<Choice>& to, const std::string& name, const Choice& choice) {
  for (const candidate<Choice>& known : to)
    if (known.choice == choice) return;
  to.push({name, choice});
}

// Every candidate fuses the same wgrads as the rule's choice, because a wgrad that is not fused is a launch of its own.
inline candidates<gemm_choice> candidates_of(const gemm_problem& p, const target& device,
                                             const gemm_kernel_mask& have) {
  const gemm_choice rule = choose(p, device, have);
  candidates<gemm_choice> all;
  each_tile_shape([&](const std::string& name, const gemm_kernel_mask& among) {
    const gemm_choice c = choose(p, device, have & among);
    const bool tiled = c.path == gemm_path::gemm || c.path == gemm_path::gemm_after_shrink;
    if ((c.path == gemm_path::skinny || tiled || c.path == rule.path) && c.fused_wgrads == rule.fused_wgrads)
      add_candidate(all, name, c);
  });
  return all;
}
inline candidates<skinny_choice> grouped_candidates(const gemm_problem* shapes, int count, const target& device,
                                                    const gemm_kernel_mask& have) {
  candidates<skinny_choice> all;
  each_tile_shape([&](const std::string& name, const gemm_kernel_mask& among) {
    if (const skinny_choice c = choose_grouped(shapes, count, device, have & among); c.rows > 0)
      add_candidate(all, name, c);
  });
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
