// SPDX-License-Identifier: Apache-2.0
// Roofline of one launch: the bytes that it must move (each value that it reads or writes, once), its flops, and the
// least time for both on its target. The expected time adds the launch overhead of its kernels.
#pragma once
#include <graft/plan/kernel_count.h>

namespace graft {

struct launch_estimate {
  long long bytes = 0, flops = 0;
  int kernels = 0;
  // Both return 0 where the target states no rates.
  constexpr double roofline_seconds(const target& to) const {
    if (to.bytes_per_second <= 0 || to.flops_per_second <= 0) return 0;
    const double moves = static_cast<double>(bytes) / to.bytes_per_second,
                 computes = static_cast<double>(flops) / to.flops_per_second;
    return moves > computes ? moves : computes;
  }
  constexpr double expected_seconds(const target& to) const {
    const double floor = roofline_seconds(to);
    return floor > 0 ? floor + kernels * to.launch_overhead_seconds : 0;
  }
};

// `type` is the element type of weights and activations; `cached_keys` is the number of cached keys that a row attends
// to.
[[gnu::cold]] constexpr launch_estimate estimate_launch(const graph& g, const launch_plan& p, int k,
                                                        const size_values& s, dtype type, long long cached_keys,
                                                        const quant_format& stored = {}) {
  const launch& l = p.launches[k];
  launch_estimate price;
  price.kernels = kernel_count(g, p, l, s, type, stored);
  node_set counted(g.size);
  auto moves = [&](id i, long long elements) {
    const bool quantized = g[i].what == op::base && !stored.plain() && g.sizes.value(g[i].d[2], s) > 1;
    const long long cols = g.sizes.value(g[i].d[3], s);
    const bool numbers = traits_of(g[i].what).from == source::integers;
    price.bytes = saturating_add(price.bytes,
                                 quantized ? bytes_of(stored, elements / cols, cols)
                                           : saturating_multiply(elements, bits_of(numbers ? dtype::i64 : type)) / 8);
  };
  auto reads = [&](const node& reader, id raw, int operand_index) {
    const id i = raw < 0 ? raw : unshaped(g, raw);
    if (i < 0 || counted[i] || p.launch_of[i] == k || is_scalar(g[i])) return;
    counted.add(i);
    if (g[i].what == op::state)
      moves(i, saturating_multiply(saturating_multiply(g.sizes.value(g[reader.a].d[2], s), cached_keys),
                                   g.sizes.value(g[i].d[3], s)));
    else if (traits_of(reader.what).axes == axis_flow::gather && operand_index == 0)
      moves(i, 0);  // the rows that a look-up reads are counted once, as its result
    else
      moves(i, element_count(g, i, s));
  };
  auto read_elsewhere = [&](id i) {
    for (id r = 0; r < g.size; ++r)
      for (int o = 0; p.live[r] && o < 3; ++o)
        if (const id from = g[r].operand(o); from >= 0 && unshaped(g, from) == i && g[r].what != op::reshape)
          if (p.launch_of[r] != k) return true;
    for (int o = 0; o < g.outs; ++o)
      if (unshaped(g, g.out[o].at) == i) return true;
    return false;
  };
  for (int n = l.first; n < l.first + l.count; ++n) {
    const id i = p.nodes[n];
    price.flops = saturating_add(
        price.flops, g[i].what == op::cached_attention
                         ? saturating_multiply(saturating_multiply(4 * g.sizes.value(g[g[i].a].d[2], s), cached_keys),
                                               g.sizes.value(g[i].d[3], s))
                         : flops_of(g, i, s));
    for (int o = 0; o < 3; ++o) reads(g[i], g[i].operand(o), o);
    if (read_elsewhere(i)) moves(i, element_count(g, i, s));
  }
  return price;
}

}  // namespace graft
