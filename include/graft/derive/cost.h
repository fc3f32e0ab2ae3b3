// SPDX-License-Identifier: Apache-2.0
// Cost model: what a graph costs on given sizes, before it runs. Flops are counted per stage. Bytes are those of a call
// whose intermediate values stay on the chip: inputs, weights and precomputed values are read once, outputs are written
// once. Sums saturate at the largest long long.
#pragma once
#include <graft/core/quant_format.h>
#include <graft/derive/stage.h>
#include <graft/derive/traversal.h>

namespace graft {

struct device {  // peak rates of a machine, for the roofline of a cost
  const char* name;
  double flops_per_second, bytes_per_second;
};

struct cost {
  long long load_flops = 0, parameter_flops = 0, flops = 0;  // once per load, per change of parameters, per call
  long long bytes = 0;                                       // moved by a call
  long long precomputed_bytes = 0;    // bytes of load- and parameter-stage values that calls read
  long long largest_precomputed = 0;  // elements of the largest precomputed value
  constexpr double roofline_seconds(device d) const {
    const double compute = static_cast<double>(flops) / d.flops_per_second;
    const double move = static_cast<double>(bytes) / d.bytes_per_second;
    return compute > move ? compute : move;
  }
};

[[gnu::cold]] constexpr long long flops_of(const graph& g, id i, const size_values& s) {
  const node& v = g[i];
  const long long n = element_count(g, i, s);
  auto size = [&](id a, int k) { return g.sizes.value(g[a].d[k], s); };
  switch (traits_of(v.what).kind) {
    case op_class::leaf:
    case op_class::layout:
    case op_class::lookup: return 0;
    case op_class::pointwise: return v.what == op::detach ? 0 : n;
    case op_class::product: {
      if (v.what == op::grouped_matmul) return saturating_multiply(saturating_multiply(2, size(v.a, 3)), n);
      if (v.what == op::grouped_wgrad)
        return saturating_multiply(saturating_multiply(2 * size(v.a, 3), size(v.b, 3)), size(v.a, 2));
      const long long inner = size(v.a, v.ta ? 2 : 3);
      const long long matrices = v.sum ? size(v.a, 0) * size(v.a, 1) : 1;
      return saturating_multiply(saturating_multiply(2 * inner, matrices), n);
    }
    case op_class::reduction: return saturating_multiply(v.what == op::row_dot ? 2 : 1, element_count(g, v.a, s));
    case op_class::rotation: {
      const id blocks = v.what == op::rotate ? v.b : v.c;
      const long long each =
          saturating_multiply(saturating_multiply(2 * size(blocks, 3), size(blocks, 0)), element_count(g, v.a, s));
      return v.what == op::rotate ? each : saturating_multiply(3, each);
    }
    case op_class::algebra:
      if (v.what == op::kron || v.what == op::row_kron) return n;
      if (v.what == op::inverse || v.what == op::orthonormal) return saturating_multiply(2 * size(v.a, 3), n);
      return saturating_multiply(saturating_multiply(2 * size(v.a, 3), g.sizes.value(v.k[0], s)), n);
    case op_class::rowwise: return saturating_multiply(8, n);
    case op_class::attention: {  // assumes one sequence: a row attends to half of the rows, or to the whole KV cache
      const long long width = size(v.what == op::attention_grad ? v.c : i, 3), rows = size(v.a, 2);
      if (v.what == op::cached_attention)
        return saturating_multiply(saturating_multiply(4 * rows, size(v.c, 2)), width);
      return saturating_multiply(saturating_multiply((v.what == op::attention ? 2 : 5) * rows, rows), width);
    }
    case op_class::collective:
    case op_class::opaque: return 0;
  }
  return 0;
}

// Counts the flops of the data stage, which every call computes.
[[gnu::cold]] constexpr long long call_flops(const graph& g, const size_values& s) {
  long long flops = 0;
  sequence<bool> data(g.size, false);
  for (id i = 0; i < g.size; ++i) {
    const node& v = g.n[i];
    data[i] = traits_of(v.what).known_at == stage::call;
    for (int k = 0; k < 3 && !data[i]; ++k) data[i] = v.operand(k) >= 0 && data[v.operand(k)];
    if (data[i]) flops = saturating_add(flops, flops_of(g, i, s));
  }
  return flops;
}
// Counts the cost of a graph whose base weight is stored in format `stored`, with activations of type `moved`.
[[gnu::cold]] constexpr cost cost_of(const graph& g, const size_values& s, const quant_format& stored, dtype moved) {
  cost c;
  const stages when = schedule(g);
  const node_set live = reachable(g);
  node_set counted(g.size);
  auto bytes = [&](id i, dtype t) {
    const long long n = element_count(g, i, s);
    return saturating_add(saturating_multiply(n / 8, bits_of(t)), (n % 8 * bits_of(t) + 7) / 8);
  };
  // A quantized weight is read with its scales. A base tensor without two axes is not quantized.
  auto stored_bytes = [&](id i) {
    const long long n = element_count(g, i, s), cols = g.sizes.value(g[i].d[3], s);
    if (stored.plain()) return bytes(i, stored.type);
    return cols == 0 || n == cols || n > (1LL << 50) ? bytes(i, moved) : bytes_of(stored, n / cols, cols);
  };
  auto add = [](long long& to, long long n) { to = saturating_add(to, n); };
  auto count_read = [&](id i) {
    i = unshaped(g, i);
    if (i < 0 || counted[i]) return;
    const node& v = g[i];
    const bool computed = !is_leaf(v.what);
    if (computed ? when.of[i] == stage::call : traits_of(v.what).from == source::generated) return;
    counted.add(i);
    if (traits_of(v.what).from == source::integers)
      add(c.bytes, bytes(i, dtype::i64));
    else
      add(c.bytes, v.what == op::base ? stored_bytes(i) : bytes(i, moved));
    if (!computed) return;
    add(c.precomputed_bytes, bytes(i, moved));
    if (element_count(g, i, s) > c.largest_precomputed) c.largest_precomputed = element_count(g, i, s);
  };
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    if (!live[i] || is_leaf(v.what)) continue;
    const long long f = flops_of(g, i, s);
    add(when.of[i] == stage::call ? c.flops : when.of[i] == stage::parameter ? c.parameter_flops : c.load_flops, f);
    if (when.of[i] != stage::call || v.what == op::reshape) continue;
    if (v.what == op::grouped_matmul && when.of[v.b] != stage::call) {
      // Only the matrices of the experts that have rows are read.
      const long long experts = g.sizes.value(g[v.b].d[1], s), rows = g.sizes.value(g[v.a].d[2], s);
      const id w = unshaped(g, v.b);
      if (rows < experts && experts > 0 && !counted[w]) {
        counted.add(w),
            add(c.bytes, saturating_multiply(bytes(w, g[w].what == op::base ? stored.type : moved) / experts, rows));
        if (!is_leaf(g[w].what)) add(c.precomputed_bytes, bytes(w, moved));
      }
    }
    const bool by_row = traits_of(v.what).axes == axis_flow::gather;  // a look-up reads only the rows that the ids name
    if (by_row) add(c.bytes, bytes(i, moved));
    for (int o = by_row ? 1 : 0; o < 3; ++o) count_read(v.operand(o));
  }
  for (int k = 0; k < g.outs; ++k) add(c.bytes, bytes(g.out[k].at, moved));
  return c;
}

// Counts the work of a training step in one direction: flops, and elements that are read and written, of every value
// that is computed anew when the parameters have changed. An element counts as eight flops, about what a processor does
// while it moves one that is not in its nearest cache. `reused` marks parameter-stage values that the other direction
// computes.
[[gnu::cold]] constexpr double training_step_work(const graph& g, const size_values& s,
                                                  const sequence<bool>& reused = {}) {
  const stages when = schedule(g);
  const node_set live = reachable(g);
  double work = 0;
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    const bool is_reused = !reused.empty() && reused[i] && when.of[i] == stage::parameter;
    if (!live[i] || is_leaf(v.what) || v.what == op::reshape || when.of[i] == stage::load || is_reused) continue;
    double elements = static_cast<double>(element_count(g, i, s));
    for (int k = 0; k < 3; ++k)
      if (v.operand(k) >= 0) elements += static_cast<double>(element_count(g, v.operand(k), s));
    work += static_cast<double>(flops_of(g, i, s)) + 8 * elements;
  }
  return work;
}

// Multiplying by a weight of at least this many elements takes longer than the overhead of a call of the layer.
inline constexpr long long large_weight = 1LL << 19;

// Returns true if an adapter is folded into a copy of the weight: its branch must cost more than a tenth of the layer.
// For a large weight a twentieth is enough, because an adapter may cost a tenth of the time and the small products of a
// branch take twice as long as their flops say; the time of a small layer is mostly call overhead. Where the copy has
// wider numbers than the stored weight (`widens`) and takes longer to read, the branch must cost more than a quarter. A
// look-up has no flops to save and is never folded. `elements` counts those of the weight.
constexpr bool worth_folding(long long branch_flops, long long folded_flops, bool widens, long long elements) {
  const double most = widens ? 1.25 : elements < large_weight ? 1.1 : 1.05;
  return folded_flops > 0 && static_cast<double>(branch_flops) > most * static_cast<double>(folded_flops);
}

}  // namespace graft
