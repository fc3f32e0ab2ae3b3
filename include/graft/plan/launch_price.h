// SPDX-License-Identifier: Apache-2.0
// What one launch of a plan must at least do on given sizes, and how long that takes on its target: every value that it
// reads or writes moves once, and a product does its flops. What is expected of it beyond that is what it costs to begin
// and to end a kernel.
#pragma once
#include <graft/plan/kernels.h>

namespace graft {

struct launch_price {
  long long bytes = 0, flops = 0;
  int kernels = 0;
  // 0: what the target can do is not known.
  constexpr double floor_seconds(const target& to) const {
    if (to.bytes_per_second <= 0 || to.flops_per_second <= 0) return 0;
    const double moves = static_cast<double>(bytes) / to.bytes_per_second,
                 computes = static_cast<double>(flops) / to.flops_per_second;
    return moves > computes ? moves : computes;
  }
  constexpr double expected_seconds(const target& to) const {
    const double floor = floor_seconds(to);
    return floor > 0 ? floor + kernels * to.kernel_seconds : 0;
  }
};

// `type`: of weights and activations; `seen`: places of a cache that a row looks at.
[[gnu::cold]] constexpr launch_price price_of(const graph& g, const plan& p, int k, const size_values& s, dtype type,
                                              long long seen, const encoding& stored = {}) {
  const launch& l = p.launches[k];
  launch_price price;
  price.kernels = kernels_of(g, p, l, s, type, stored);
  node_set counted(g.size);
  auto moves = [&](id i, long long elements) {
    const bool codes = g[i].what == op::base && !stored.plain() && g.sizes.value(g[i].d[2], s) > 1;
    const long long cols = g.sizes.value(g[i].d[3], s);
    const bool numbers = row(g[i].what).from == source::integers;
    price.bytes = plus(price.bytes, codes ? bytes_of(stored, elements / cols, cols)
                                          : times(elements, bits_of(numbers ? dtype::i64 : type)) / 8);
  };
  auto reads = [&](const node& reader, id raw, int place) {
    const id i = raw < 0 ? raw : unshaped(g, raw);
    if (i < 0 || counted[i] || p.launch_of[i] == k || is_scalar(g[i])) return;
    counted.add(i);
    if (g[i].what == op::state)
      moves(i, times(times(g.sizes.value(g[reader.a].d[2], s), seen), g.sizes.value(g[i].d[3], s)));
    else if (row(reader.what).axes == flow::look_up && place == 0)
      moves(i, 0);  // only the rows that are asked for, which are written
    else
      moves(i, count(g, i, s));
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
    price.flops =
        plus(price.flops, g[i].what == op::cached_attention
                              ? times(times(4 * g.sizes.value(g[g[i].a].d[2], s), seen), g.sizes.value(g[i].d[3], s))
                              : flops_of(g, i, s));
    for (int o = 0; o < 3; ++o) reads(g[i], g[i].operand(o), o);
    if (read_elsewhere(i)) moves(i, count(g, i, s));
  }
  return price;
}

}  // namespace graft
