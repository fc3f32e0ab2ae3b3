// SPDX-License-Identifier: Apache-2.0
// What ranks that share a graph have of it, and what they exchange: the parts of its leaves, and every sum over the ranks
// with its bytes and how often it happens. The bytes are those of the value; a ring sends 2 (n - 1) / n times as many.
#pragma once
#include <graft/derive/shard.h>
#include <graft/plan/explain.h>

namespace graft {

struct exchange_bytes {
  long long per_call = 0, per_change = 0;  // of the parameters, or at load
  int sums = 0;
};

namespace detail {
// The tensor of which a rank takes its part here; none: this node is something else.
constexpr id part_taken(const graph& g, id i) {
  const node& v = g[i];
  if (v.what != op::slice || v.k[1].known() || g.sizes.e[v.k[1].entry()].what != size_entry::kind::product)
    return none_id;
  const size_entry& from = g.sizes.e[v.k[1].entry()];
  auto is_rank = [&](dim d) { return !d.known() && same_text(g.sizes.e[d.entry()].name, rank_name); };
  const id leaf = unshaped(g, v.a);
  return (is_rank(from.a) || is_rank(from.b)) && is_named(g[leaf].what) ? leaf : none_id;
}
}  // namespace detail

// `s`: the sizes of the whole, the number of ranks, and the rows of a call. Elements have `bits`.
template <class Sink>
constexpr exchange_bytes explain_ranks(const graph& g, const size_values& s, int bits, Sink&& line) {
  const stages when = schedule(g);
  text parts("    a rank has its part of");
  bool first = true;
  for (id i = 0; i < g.size; ++i) {
    const id taken = is_leaf(g[i].what) && is_named(g[i].what) && shared_axis(g, i) >= 0 ? i : detail::part_taken(g, i);
    if (taken < 0) continue;
    parts << (first ? " " : ", ") << g.name(taken);
    first = false;
  }
  if (!first) line(parts);
  exchange_bytes all;
  for (id i = 0; i < g.size; ++i) {
    if (row(g[i].what).kind != op_class::exchange) continue;
    const long long n = times(count(g, i, s), bits) / 8;
    const bool per_call = when.of[i] == stage::data;
    (per_call ? all.per_call : all.per_change) += n, ++all.sums;
    text t;
    t << "    " << row(g[i].what).name;
    print_shape(t, g, i);
    t << ", ", print_big(t, n), t << "B " << (per_call ? "per call" : "once per change of the parameters");
    line(t);
  }
  if (all.sums == 0) line(text("    nothing is exchanged"));
  return all;
}

// A layer of which `size` is divided among ranks, forward and backward.
template <class Layer, class Sink>
constexpr void explain_ranks(const char* size, int ranks, long long tokens, Sink&& line) {
  using d = derived_of<Layer>;
  text head;
  head << Layer::adapter::name << " on " << Layer::kind::name << ", " << size << " divided among " << ranks
       << " ranks, " << tokens << " tokens";
  line(head);
  auto pass = [&](const graph& whole, const char* title) {
    size_values s = with_nominals(whole, static_sizes<Layer>(whole));
    const sharded made = shard(whole, {&size, 1}, s, ranks);
    line(made.why.n > 0 ? made.why : text(title));
    if (made.why.n > 0) return;
    const graph g = made.g;
    size_values mine;
    for (int k = 0; k < g.sizes.count; ++k)
      if (const size_entry& e = g.sizes.e[k]; e.index >= 0)
        if (const int index = whole.sizes.find_like(g.sizes, e); index >= 0) mine.v[e.index] = s.v[index];
    mine.v[g.sizes.find(ranks_name)] = ranks;
    g.sizes.set_tokens(mine, tokens);
    explain_ranks(g, mine, bits_of(storage<typename Layer::element>::type), line);
  };
  pass(d::forward, "  forward");
  if (d::backward.bad.what == fault::none) pass(d::backward, "  backward");
}

}  // namespace graft
