// SPDX-License-Identifier: Apache-2.0
// How many kernels a plan takes on its target, and whether the adapter is folded into a copy of the weight: decided from
// the graphs, the target and the sizes, by the same functions that a backend calls before it runs.
#pragma once
#include <graft/derive/cost.h>
#include <graft/derive/grown_weight.h>
#include <graft/plan/fuse.h>

namespace graft {

// The numbers of one graph's names for another graph of the same layer.
[[gnu::cold]] constexpr size_values sizes_for(const graph& to, const graph& from, const size_values& s) {
  size_values t;
  for (int i = 0; i < to.sizes.count; ++i) {
    const size_entry& e = to.sizes.e[i];
    if (e.index < 0) continue;
    if (const int index = from.sizes.find_like(to.sizes, e); index >= 0) t.v[e.index] = s.v[index];
  }
  return t;
}
// Names without a number get their nominal one: for decisions that a type with open sizes asks for.
constexpr size_values with_nominals(const graph& g, size_values s) {
  for (int i = 0; i < g.sizes.count; ++i)
    if (const size_entry& e = g.sizes.e[i]; e.index >= 0 && s.v[e.index] == unknown) s.v[e.index] = e.assumed();
  return s;
}

constexpr product_shape shape_of(const graph& g, const product_slots& p, const size_values& s, dtype type,
                                 const encoding& stored = {}) {
  auto size = [&](id i, int axis) { return g.sizes.value(g[i].d[axis], s); };
  product_shape shape;
  shape.type = type;
  shape.m = size(p.result, 2);
  shape.n = static_cast<int>(size(p.weight, p.weight_by_row ? 2 : 3));
  shape.k = static_cast<int>(size(p.weight, p.weight_by_row ? 3 : 2));
  shape.rank = static_cast<int>(side_rank(g, p, s));
  shape.plain = p.act == op::detach && p.residual < 0;
  shape.posts = !p.posts.empty();
  shape.pre = p.pre >= 0;
  shape.across = !p.weight_by_row && (base_leaf(g, p.weight) >= 0 || grown_at(g, p.weight).found);
  if (base_leaf(g, p.weight) >= 0) shape.stored = stored;
  for (const side_branch& b : p.sides) {
    shape.keeps = shape.keeps || b.kept;
    shape.gives_side = shape.gives_side || (b.kept && is_output(g, b.s));
    shape.given_side = shape.given_side || !b.made;
  }
  shape.keeps = shape.keeps || p.before_posts >= 0;
  if (p.turned >= 0) shape.turned = turned_columns(size(g[p.result].b, 0), size(g[p.result].b, 3));
  return shape;
}
constexpr beside_shape shape_of(const graph& g, const product_slots& beside, const token_sum& sum,
                                const size_values& s) {
  const int left = static_cast<int>(g.sizes.value(g[sum.left].d[3], s)),
            right = static_cast<int>(g.sizes.value(g[sum.right].d[3], s));
  if (sum.by_column) return {left, 0, false};
  const id side = beside.sides.empty() ? none_id : beside.sides[0].s;
  return {left >= right ? left : right, left >= right ? right : left,
          side >= 0 && (sum.left == side || sum.right == side)};
}

// Is this norm inside the kernel of the product before it, and those of its readers?
constexpr bool takes_norm(const product_shape& before, const graph& g, const plan& p, int norm, const size_values& s,
                          const encoding& stored) {
  if (norm < 0 || p.to.run_normed == nullptr) return false;
  sequence<product_shape> behind;
  for (const product_slots& reader : p.products)
    if (reader.x == p.row_launches[norm].result) behind.push(shape_of(g, reader, s, before.type, stored));
  return p.to.run_normed(before, behind.begin(), behind.size(), p.to);
}
// Whole rows of a whole table.
constexpr bool looks_up_rows(const node& v) { return v.what == op::gather && !v.ta && !is_part(v); }
// The same of the norm that g begins with, where its input is the first output of `ahead`.
constexpr bool takes_first_norm(const graph& ahead, const plan& its, const size_values& its_sizes, const graph& g,
                                const plan& p, const size_values& s, dtype type, const encoding& stored_ahead = {},
                                const encoding& stored = {}) {
  for (const product_slots& last : its.products)
    if (last.result == ahead.out[0].at)
      return takes_norm(shape_of(ahead, last, its_sizes, type, stored_ahead), g, p, p.norm_of_input, s, stored);
  if (!looks_up_rows(ahead[ahead.out[0].at]) || !stored_ahead.plain() || p.norm_of_input < 0) return false;
  for (const product_slots& reader : p.products) {  // asks no more of a look-up than of a reader as wide
    if (reader.x != p.row_launches[p.norm_of_input].result) continue;
    product_shape as_wide = shape_of(g, reader, s, type, stored);
    as_wide.n = static_cast<int>(g.sizes.value(g[reader.x].d[3], s));
    return takes_norm(as_wide, g, p, p.norm_of_input, s, stored);
  }
  return false;
}

// Of the rotations ahead of the products of a launch.
constexpr int turn_kernels(const graph& g, const plan& p, const launch& l, const size_values& s, dtype type) {
  sequence<id> turns;
  int n = 0;
  for (int k = l.product; k <= l.product + l.together; ++k) {
    const product_slots& of = p.products[k];
    if (of.turn < 0) continue;
    turns.push(of.turn);
    n += (of.gate >= 0 ? 1 : 0) + (p.to.node_kernels == nullptr ? 1 : p.to.node_kernels(g, of.turn, s, type, p.to));
  }
  const bool at_once =
      n > 0 && p.to.run_turned != nullptr && p.to.run_turned(g, turns.begin(), turns.size(), s, type, p.to);
  return at_once ? 1 : n;
}
// What comes with a call and is copied with padding before this launch, the first one whose sums read it.
[[gnu::cold]] constexpr sequence<id> padded_for(const graph& g, const plan& p, const launch& of, const size_values& s,
                                                dtype type) {
  sequence<id> found;
  if (p.to.run_padded == nullptr || (of.sum < 0 && of.beside[0] < 0 && of.beside[1] < 0)) return found;
  node_set seen(g.size);
  for (const launch& l : p.launches) {
    for (const int sum : {l.sum, l.beside[0], l.beside[1]}) {
      if (sum < 0 || p.sums[sum].by_column) continue;
      for (const id i : {p.sums[sum].left, p.sums[sum].right}) {
        if (seen[i] || !is_brought_operand(g, i) || !p.to.run_padded(g.sizes.value(g[i].d[3], s), type, p.to)) continue;
        seen.add(i);
        if (&l == &of) found.push(i);
      }
    }
    if (&l == &of) break;
  }
  return found;
}
namespace detail {
constexpr int kernels_inside(const graph& g, const plan& p, const launch& l, const size_values& s, dtype type,
                             const encoding& stored) {
  if (l.product >= 0) {
    sequence<product_shape> all;
    for (int k = 0; k <= l.together; ++k) all.push(shape_of(g, p.products[l.product + k], s, type, stored));
    int n = l.norm >= 0 && !takes_norm(all[0], g, p, l.norm, s, stored) ? 1 : 0;
    for (int k = 0; k < 2; ++k)
      if (l.beside[k] >= 0) all[0].beside[k] = shape_of(g, p.products[l.product], p.sums[l.beside[k]], s);
    for (int k = 0; k < all.size(); ++k)
      if (all[k].turned != 0 && (p.to.run_turning == nullptr || !p.to.run_turning(all[k], p.to)))
        n += p.to.node_kernels == nullptr ? 1 : p.to.node_kernels(g, p.products[l.product + k].result, s, type, p.to);
    const int turns = turn_kernels(g, p, l, s, type);  // and their rows of x are not one input
    const bool gates = l.gated >= 0 && turns == 0 && p.to.run_gated != nullptr,
               joins = l.together > 0 && p.to.run_together != nullptr &&
                       (turns == 0 || stored.plain());  // codes are multiplied with one input
    int joint = gates ? p.to.run_gated(all.begin(), p.to) : 0;
    n += turns + (l.gated >= 0 && joint == 0 ? 1 : 0);
    if (joint == 0 && joins) joint = p.to.run_together(all.begin(), all.size(), p.to);
    if (joint > 0) return n + joint;
    for (const product_shape& one : all) n += p.to.product_kernels == nullptr ? 1 : p.to.product_kernels(one, p.to);
    return n;
  }
  if (l.dropped >= 0) return count(g, p.dropped[l.dropped].result, s) == 0 ? 0 : 1;
  if (l.chained >= 0) {
    const chained_product& c = p.chained[l.chained];
    if (takes_chain(g, c, s, type, p.to)) return count(g, c.result, s) == 0 ? 0 : c.sums() ? 2 : 1;
    int n = 0;
    for (const id i : c.inside()) n += p.to.node_kernels == nullptr ? 1 : p.to.node_kernels(g, i, s, type, p.to);
    return n;
  }
  if (l.stack >= 0 && takes_stack(g, p.stacks[l.stack], s, p.to)) return count(g, l.anchor, s) == 0 ? 0 : 1;
  if (l.stack >= 0) {
    int n = 0;
    for (const id i : p.stacks[l.stack].inside)
      n += p.to.node_kernels == nullptr ? 1 : p.to.node_kernels(g, i, s, type, p.to);
    return n;
  }
  if (l.sum >= 0) return count(g, p.sums[l.sum].result, s) == 0 ? 0 : 1;
  if (l.what != family::attention && l.rows >= 0) return count(g, p.row_launches[l.rows].result, s) == 0 ? 0 : 1;
  int n = p.to.node_kernels == nullptr ? 1 : p.to.node_kernels(g, l.anchor, s, type, p.to);
  if (l.rows >= 0 && !p.to.takes_heads(g, l.anchor, s, type, p.to)) ++n;
  if (l.summed[0] >= 0 && (p.to.run_summed == nullptr || !p.to.run_summed(g, l.anchor, s, type, p.to))) n += 2;
  return n;
}
}  // namespace detail
constexpr int kernels_of(const graph& g, const plan& p, const launch& l, const size_values& s, dtype type,
                         const encoding& stored) {
  int n = detail::kernels_inside(g, p, l, s, type, stored);
  for (const id i : padded_for(g, p, l, s, type)) n += count(g, i, s) == 0 ? 0 : 1;
  return n;
}
constexpr int kernels_of(const graph& g, const plan& p, const size_values& s, dtype type, const encoding& stored = {}) {
  int n = 0;
  for (const launch& l : p.launches) n += kernels_of(g, p, l, s, type, stored);
  return n;
}

// Is a copy of the weight, which is stored in numbers of this type, with the adapter in it cheaper than the side branch, or
// the only thing a target can fuse?
[[gnu::cold]] constexpr bool folds(const target& to, const graph& branch, const graph& folded, const size_values& s,
                                   dtype stored = dtype::bf16) {
  const size_values of_branch = with_nominals(branch, s),
                    of_folded = with_nominals(folded, sizes_for(folded, branch, of_branch));
  if (to.gathers == target::work::by_nodes) return false;
  if (to.gathers == target::work::by_rows) {
    const long long plain = call_flops(folded, of_folded), tokens = folded.sizes.tokens(of_folded);
    const long long elements = tokens > 0 ? plain / tokens / 2 : 0;
    const bool widens = bits_of(stored) < bits_of(dtype::f32);
    // A butterfly passes over x once for each of its factors, which takes several times as long as its arithmetic: two
    // factors of 8 on 1024 x 1024, 3 % of the flops, took 1.19 to 1.25 of the layer.
    for (id i = 0; !widens && elements >= large_weight && i < branch.size; ++i)
      if (branch[i].what == op::rotate && branch.sizes.value(branch[branch[i].b].d[0], of_branch) > 1) return true;
    return worth_folding(call_flops(branch, of_branch), plain, widens, elements);
  }
  const plan side = fuse(branch, to), plain = fuse(folded, to);
  auto one_product = [](const plan& p) { return p.products.size() == 1 && p.launches.size() == 1; };
  if (!one_product(plain)) return false;
  // A rotation is a pass over x in every call; into W it is one after a change of the parameters (OFT, BOFT).
  for (const launch& l : side.launches)
    if (branch[l.anchor].what == op::rotate || (l.product >= 0 && side.products[l.product].turn >= 0)) return true;
  // A branch inside the one product; else there are launches beside it (LoKr).
  const bool inside = side.products.size() == 1 && side.products[0].residual < 0;
  return !inside || side_rank(branch, side.products[0], of_branch) > to.largest_branch_rank;
}
// Flops of a call as a GPU counts them: a product of large matrices that is neither one with rows nor a sum over them runs
// in float on the ordinary cores, 12 Tflop/s where the tensor cores do 790.
[[gnu::cold]] constexpr long long tensor_core_flops(const graph& g, const plan& p, const size_values& s) {
  constexpr long long slower = 64, narrow = 64;
  long long flops = call_flops(g, s);
  for (const launch& l : p.launches) {
    const node& v = g[l.anchor];
    if (l.product >= 0 || l.sum >= 0 || l.count != 1 || v.what != op::matmul) continue;
    if (g.sizes.value(v.d[2], s) <= narrow || g.sizes.value(v.d[3], s) <= narrow) continue;
    flops = plus(flops, times(slower - 1, flops_of(g, l.anchor, s)));
  }
  return flops;
}
// The same in training, where the copy is made anew after each step: by one product (derive/in_weight.h), for a branch that
// is a launch of its own, and for at least as many rows as the layer has inputs, whose y is as large as that copy. Where the
// usual form computes such a weight too (RandLoRA), by kernels for any formula, rows do not matter.
// `usual` and `in_weight`: forward and what is kept for backward, backward.
struct training_graphs {
  graph forward, backward;
};
[[gnu::cold]] constexpr bool trains_in_weight(const target& to, const training_graphs& usual,
                                              const training_graphs& in_weight, size_values s) {
  if (to.gathers != target::work::by_products) return false;
  const plan side = fuse(usual.forward, to), plain = fuse(in_weight.forward, to);
  if (side.products.size() != 1 || plain.products.size() != 1 || plain.launches.size() != 1) return false;
  const id weight = plain.products[0].weight;
  if (!grown_at(in_weight.forward, weight).found) return false;
  const bool computed = side.launches.size() == 1 && base_leaf(usual.forward, side.products[0].weight) < 0;
  if (!computed && side_rank(usual.forward, side.products[0], s) <= to.largest_branch_rank) return false;
  const size_values mine = sizes_for(in_weight.forward, usual.forward, s);
  if (!computed &&
      in_weight.forward.sizes.tokens(mine) < in_weight.forward.sizes.value(in_weight.forward[weight].d[3], mine))
    return false;
  auto flops = [&](const training_graphs& t) {
    return plus(tensor_core_flops(t.forward, fuse(t.forward, to), sizes_for(t.forward, usual.forward, s)),
                tensor_core_flops(t.backward, fuse(t.backward, to), sizes_for(t.backward, usual.forward, s)));
  };
  return flops(in_weight) < flops(usual);
}

}  // namespace graft
