// SPDX-License-Identifier: Apache-2.0
// cost: what a graph does on given sizes, before it runs. Flops of each stage, and the bytes that must move at
// data-time when every value between the ends stays on the chip: inputs, weights and cached values read once, outputs
// written once.
#pragma once
#include <graft/core/dtype.h>
#include <graft/derive/stage.h>
#include <graft/derive/walk.h>

namespace graft {

struct device {  // what a machine can do; the floor of a cost on it
  const char* name;
  double flops_per_second, bytes_per_second;
};

struct cost {
  long long load_flops = 0, parameter_flops = 0, flops = 0;  // once per load, per change of parameters, per call
  long long bytes = 0;                                       // per call
  long long cached_bytes = 0;                                // load- and parameter-time values kept for the calls
  long long largest_cached = 0;                              // elements of the largest of them
  constexpr double floor_seconds(device d) const {
    const double compute = static_cast<double>(flops) / d.flops_per_second;
    const double move = static_cast<double>(bytes) / d.bytes_per_second;
    return compute > move ? compute : move;
  }
};

constexpr long long flops_of(const graph& g, id i, const size_values& s) {
  const node& v = g[i];
  const long long n = count(g, i, s);
  auto size = [&](id a, int k) { return g.sizes.value(g[a].d[k], s); };
  switch (row(v.what).kind) {
    case op_class::leaf:
    case op_class::layout:
    case op_class::lookup: return 0;
    case op_class::pointwise: return v.what == op::detach ? 0 : n;
    case op_class::product: {
      const long long inner = size(v.a, v.ta ? 2 : 3);
      const long long matrices = v.sum ? size(v.a, 0) * size(v.a, 1) : 1;
      return 2 * n * inner * matrices;
    }
    case op_class::reduction: return (v.what == op::row_dot ? 2 : 1) * count(g, v.a, s);
    case op_class::rotation: {
      const id blocks = v.what == op::rotate ? v.b : v.c;
      const long long each = 2 * size(blocks, 3) * size(blocks, 0) * count(g, v.a, s);
      return v.what == op::rotate ? each : 3 * each;
    }
    case op_class::algebra:
      if (v.what == op::kron || v.what == op::row_kron) return n;
      if (v.what == op::inverse) return 2 * n * size(v.a, 3);
      return 2 * n * size(v.a, 3) * g.sizes.value(v.k[0], s);
    case op_class::rowwise: return 8 * n;
    case op_class::opaque: return 0;
  }
  return 0;
}

// What of a node counts, whatever the sizes: found once per graph, so that pricing a further shape is one short loop.
struct cost_basis {
  enum class role : unsigned char { dead, silent, base_weight, ids, leaf, cached };
  stage when[max_nodes]{};
  role moves[max_nodes]{};  // what of it moves at data-time
};
constexpr cost_basis basis_of(const graph& g) {
  cost_basis b;
  const stages when = schedule(g);
  const node_set live = reachable(g);
  using enum cost_basis::role;
  for (int k = 0; k < g.size; ++k) {
    b.when[k] = when.of[k];
    b.moves[k] = live.in[k] ? silent : dead;
  }
  auto read_by = [&](id i, stage at) {
    while (i >= 0 && g[i].what == op::reshape) i = g[i].a;
    if (i < 0 || at != stage::data || b.moves[i] != silent) return;
    const op o = g[i].what;
    if (o == op::constant || o == op::zero || o == op::eye) return;
    if (o == op::base)
      b.moves[i] = base_weight;
    else if (o == op::ids)
      b.moves[i] = ids;
    else if (is_leaf(o))
      b.moves[i] = leaf;
    else if (b.when[i] != stage::data)
      b.moves[i] = cached;
  };
  for (int r = 0; r < g.size; ++r) {
    if (!live.in[r] || g.n[r].what == op::reshape) continue;
    const bool by_row = g.n[r].what == op::gather;  // only the rows that are asked for move, not the table
    if (by_row) b.moves[r] = leaf;
    for (int o = by_row ? 1 : 0; o < 3; ++o) read_by(g.n[r].operand(o), b.when[r]);
  }
  return b;
}

// The cost of a graph whose base weight is stored as `stored`, with activations in `moved`.
constexpr cost cost_of(const graph& g, const cost_basis& b, const size_values& s, dtype stored, dtype moved) {
  cost c;
  auto bytes = [&](id i, dtype t) { return (count(g, i, s) * bits_of(t) + 7) / 8; };
  using enum cost_basis::role;
  for (int k = 0; k < g.size; ++k) {
    const id i = static_cast<id>(k);
    if (b.moves[k] == dead) continue;
    if (!is_leaf(g.n[k].what)) {
      const long long f = flops_of(g, i, s);
      (b.when[k] == stage::data ? c.flops : b.when[k] == stage::parameter ? c.parameter_flops : c.load_flops) += f;
    }
    switch (b.moves[k]) {
      case dead:
      case silent: break;
      case base_weight: c.bytes += bytes(i, stored); break;
      case ids: c.bytes += bytes(i, dtype::i64); break;
      case leaf: c.bytes += bytes(i, moved); break;
      case cached:
        c.bytes += bytes(i, moved);
        c.cached_bytes += bytes(i, moved);
        if (count(g, i, s) > c.largest_cached) c.largest_cached = count(g, i, s);
        break;
    }
  }
  for (int k = 0; k < g.outs; ++k) c.bytes += bytes(g.out[k].at, moved);
  return c;
}
constexpr cost cost_of(const graph& g, const size_values& s, dtype stored, dtype moved) {
  return cost_of(g, basis_of(g), s, stored, moved);
}

// A side branch that costs more than a quarter of the layer is folded into a copy of the weight instead.
// A look-up does no arithmetic to save.
constexpr bool worth_folding(const cost& branch, const cost& folded) {
  return folded.flops > 0 && 4 * branch.flops > 5 * folded.flops;
}

}  // namespace graft
