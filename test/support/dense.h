// SPDX-License-Identifier: Apache-2.0
// The claim of the library that a test can check by looking: after load nothing as large as the base weight is built.
#pragma once
#include <graft/derive/cost.h>

namespace test {

using namespace graft;

// Sizes at which no adapter's own tensor comes near out x in, in x in or out x out.
struct named_number {
  const char* name;
  long long value;
};
inline constexpr named_number roomy[] = {
    {"out", 96},   {"in", 128},     {"tokens", 7},   {"r", 4},      {"b", 8},           {"m", 2},
    {"a", 8},      {"c", 8},        {"terms", 5},    {"topk", 2},   {"num_vectors", 6}, {"vector_length", 8},
    {"mini_r", 4}, {"vocab", 96},   {"dim", 128},    {"n", 128},    {"channels", 16},   {"height", 9},
    {"width", 9},  {"kernel_h", 3}, {"kernel_w", 3}, {"stride", 1}, {"padding", 1},     {"trained_tokens", 4},
};
constexpr long long roomy_size(const char* name) {
  for (const named_number& n : roomy)
    if (same_text(n.name, name)) return n.value;
  return unknown;
}
constexpr size_values roomy_sizes(const graph& g) {
  size_values s;
  for (const named_number& n : roomy)
    if (const int at = g.sizes.find(n.name); at >= 0) s.v[at] = n.value;
  return s;
}

// The first value computed after load that is as large as the smallest of out x in, in x in, out x out; for values with
// a row per token, one whose row is longer than x and y together. none_id when there is none.
constexpr id weight_sized(const graph& g, bool only_matrices = false) {
  const long long least = 96 * 96, longest_row = 96 + 128;
  const size_values s = roomy_sizes(g);
  const stages when = schedule(g);
  const node_set live = reachable(g);
  for (int i = 0; i < g.size; ++i) {
    if (!live[i] || is_leaf(g.n[i].what) || when.of[i] == stage::load) continue;
    if (when.by_token[i] && only_matrices) continue;
    const long long n = count(g, static_cast<id>(i), s);
    if (when.by_token[i] ? n > roomy_size("tokens") * longest_row : n >= least) return static_cast<id>(i);
  }
  return none_id;
}

}  // namespace test
