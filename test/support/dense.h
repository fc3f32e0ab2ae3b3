// SPDX-License-Identifier: Apache-2.0
// Finds matrices of the base weight's size: the library promises that it computes none after load.
#pragma once
#include <graft/derive/cost.h>

namespace test {

using namespace graft;

// Sizes at which every tensor of an adapter is much smaller than out x in, in x in and out x out.
struct named_number {
  const char* name;
  long long value;
};
inline constexpr named_number spaced[] = {
    {"out", 96},   {"in", 128},     {"tokens", 7},   {"r", 4},      {"b", 8},           {"m", 2},
    {"a", 8},      {"c", 8},        {"terms", 5},    {"topk", 2},   {"num_vectors", 6}, {"vector_length", 8},
    {"mini_r", 4}, {"vocab", 96},   {"dim", 128},    {"n", 128},    {"channels", 16},   {"height", 9},
    {"width", 9},  {"kernel_h", 3}, {"kernel_w", 3}, {"stride", 1}, {"padding", 1},     {"trained_tokens", 4},
};
constexpr long long spaced_size(const char* name) {
  for (const named_number& n : spaced)
    if (same_text(n.name, name)) return n.value;
  return unknown;
}
constexpr size_values spaced_sizes(const graph& g) {
  size_values s;
  for (const named_number& n : spaced)
    if (const int at = g.sizes.find(n.name); at >= 0) s.v[at] = n.value;
  return s;
}

// Returns the first value computed after load that is as large as the smallest of out x in, in x in, out x out. A value
// with a row per token counts if its row is longer than x and y together. Returns none_id if there is none.
constexpr id find_weight_sized(const graph& g, bool only_matrices = false) {
  const long long least = 96 * 96, longest_row = 96 + 128;
  const size_values s = spaced_sizes(g);
  const stages when = schedule(g);
  const node_set live = reachable(g);
  for (int i = 0; i < g.size; ++i) {
    if (!live[i] || is_leaf(g.n[i].what) || when.of[i] == stage::load) continue;
    if (when.has_token_rows[i] && only_matrices) continue;
    const long long n = element_count(g, static_cast<id>(i), s);
    if (when.has_token_rows[i] ? n > spaced_size("tokens") * longest_row : n >= least) return static_cast<id>(i);
  }
  return none_id;
}

}  // namespace test
