// SPDX-License-Identifier: Apache-2.0
// explain_ranks: what tensor-parallel ranks hold of a sharded graph and what they exchange: the sharded leaves, and
// every all-reduce with its bytes and frequency. Bytes are those of the value; a ring of n sends 2 (n - 1) / n of them.
#pragma once
#include <graft/derive/shard.h>
#include <graft/plan/explain.h>

namespace graft {

struct collective_bytes {
  long long per_call = 0, per_change = 0;  // per_change: per parameter change, or at load
  int sums = 0;
};

namespace detail {
// The leaf of which node i slices this rank's shard; none_id if node i is no such slice.
constexpr id shard_of(const graph& g, id i) {
  const node& v = g[i];
  if (v.what != op::slice || v.k[1].is_static() || g.sizes.e[v.k[1].entry()].what != size_entry::kind::product)
    return none_id;
  const size_entry& from = g.sizes.e[v.k[1].entry()];
  auto is_rank = [&](dim d) { return !d.is_static() && same_text(g.sizes.e[d.entry()].name, rank_name); };
  const id leaf = unshaped(g, v.a);
  return (is_rank(from.a) || is_rank(from.b)) && is_named(g[leaf].what) ? leaf : none_id;
}
}  // namespace detail

// `s` binds the unsharded sizes, the number of ranks and the rows of a call; an element has `bits` bits.
template <class Sink>
constexpr collective_bytes explain_ranks(const graph& g, const size_values& s, int bits, Sink&& line) {
  const stages when = schedule(g);
  text parts("    a rank has its shard of");
  bool first = true;
  for (id i = 0; i < g.size; ++i) {
    const id taken = is_leaf(g[i].what) && is_named(g[i].what) && sharded_axis(g, i) >= 0 ? i : detail::shard_of(g, i);
    if (taken < 0) continue;
    parts << (first ? " " : ", ") << g.name(taken);
    first = false;
  }
  if (!first) line(parts);
  collective_bytes all;
  for (id i = 0; i < g.size; ++i) {
    if (traits_of(g[i].what).kind != op_class::collective) continue;
    const long long n = saturating_multiply(element_count(g, i, s), bits) / 8;
    const bool per_call = when.of[i] == stage::call;
    (per_call ? all.per_call : all.per_change) += n, ++all.sums;
    text t;
    t << "    " << traits_of(g[i].what).name;
    print_shape(t, g, i);
    t << ", ", print_si(t, n), t << "B " << (per_call ? "per call" : "once per change of the parameters");
    line(t);
  }
  if (all.sums == 0) line(text("    no collectives"));
  return all;
}

// Explains forward and backward of a layer whose size `size` is divided among the ranks.
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
  if (d::backward.bad.what == formula_error::none) pass(d::backward, "  backward");
}

}  // namespace graft
