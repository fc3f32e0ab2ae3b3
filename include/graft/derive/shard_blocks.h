// SPDX-License-Identifier: Apache-2.0
// Operations on parts whose axis is not one run of numbers: regrouped sizes, parts behind each other as queries, keys and
// values are, heads, blocks of a rotation, rows of a table. Each says whether the part that its operand is gives a part or
// a summand; if not, the operand is made whole.
#pragma once
#include <graft/derive/rank_graph.h>

namespace graft::detail {

// The same elements under other sizes: the axis that begins where the runs do.
constexpr bool regrouped_part(rank_graph& r, id i) {
  const id x = r.from[i].a;
  const placement p = r.where[x];
  long long outside = p.before;
  for (int k = 0; k < p.axis; ++k) outside *= r.size(x, k);
  long long outer = 1;
  for (int k = 0; k < 4; outer *= r.size(i, k++)) {
    if (outer <= 0 || outside % outer != 0 || !r.divides(i, k, outside / outer)) continue;
    return r.take(i, 0, p, {placement::kind::part, k, outside / outer});
  }
  return false;
}
// Parts behind each other along the axis that they are parts of.
constexpr bool parts_beside(rank_graph& r, id i) {
  const int axis = r.from[i].k[0].v;
  node v = r.copied(i);
  for (int k = 0; k < 2; ++k) {
    const id x = r.from[i].operand(k);
    const bool fits = r.where[x].what == placement::kind::side_by_side ||
                      (share_of(r.from, r.among, r.from[x].d[axis]) == share::part && r.divides(x, axis, 1));
    if (!fits) return false;
  }
  for (int k = 0; k < 2; ++k) {
    const id x = r.from[i].operand(k);
    r.give(v, k, r.where[x].what == placement::kind::side_by_side ? r.at[x] : r.to_part(x, axis, 1));
  }
  r.emit(i, {placement::kind::side_by_side, axis}, v);
  return true;
}
constexpr bool part_cut_out(rank_graph& r, id i) {
  const node& v = r.from[i];
  const placement p = r.where[v.a];
  if (v.what != op::slice || v.k[0].v != p.axis || share_of(r.from, r.among, v.d[p.axis]) != share::part) return false;
  if (!(v.k[1] == dim{0}) && share_of(r.from, r.among, v.k[1]) != share::part) return false;
  node made = r.copied(i);
  made.a = r.at[v.a], made.k[1] = made.k[1] == dim{0} ? dim{0} : r.part_of(made.k[1]);
  const dim d = v.d[p.axis];  // a sum of sizes: still several of them
  const bool several = !d.known() && r.from.sizes.e[d.entry()].what == size_entry::kind::sum;
  r.emit(i, {several ? placement::kind::side_by_side : placement::kind::part, p.axis}, made);
  return true;
}
constexpr bool part_by_heads(rank_graph& r, id i) {
  const node& v = r.from[i];
  const dim queries = v.what == op::attention_grad ? r.from[v.c].d[3] : v.d[3];
  if (r.where[v.a].what != placement::kind::side_by_side || share_of(r.from, r.among, queries) != share::part)
    return false;
  if (r.from.sizes.value(queries, r.s) % (r.ranks * r.from.sizes.value(v.k[0], r.s)) != 0) return false;
  node made = r.copied(i);
  made.a = r.at[v.a], made.b = r.to_whole(v.b);
  if (r.from[v.b].d[2] == dim{5})  // probabilities are dropped by the number of their head
    made.k[1] = r.g.times(r.g.over(r.part_of(r.tables.size(queries)), made.k[0]), r.rank);
  if (v.c >= 0) made.c = v.what == op::attention_grad ? r.to_part(v.c, 3, 1) : r.at[v.c];
  r.emit(i, {v.what == op::attention_grad ? placement::kind::side_by_side : placement::kind::part, 3}, made);
  return true;
}
// Blocks of the last axis: a rotation's, a head's turn, the period of a fold.
constexpr bool part_in_blocks(rank_graph& r, id i, int k) {
  const node& v = r.from[i];
  const placement p = r.where[v.operand(k)];
  const id blocks = v.what == op::rotate ? v.b : v.what == op::rotate_grad ? v.c : none_id;
  if (v.operand(k) == blocks || p.before != 1 || (v.what == op::rope && k != 0)) return false;
  const long long width = blocks >= 0 ? r.size(blocks, 3) : v.what == op::rope ? r.size(v.b, 3) : r.size(i, 3);
  if (r.size(v.operand(k), 3) / r.ranks % width != 0 || (blocks >= 0 && r.size(blocks, 0) != 1)) return false;
  node made = r.copied(i);
  made.a = r.to_part(v.a, 3, 1);
  if (v.b >= 0)
    made.b = v.what == op::rotate ? r.to_part(v.b, 1, 1) : v.what == op::rope ? r.to_whole(v.b) : r.to_part(v.b, 3, 1);
  if (v.c >= 0) made.c = r.to_part(v.c, 1, 1);
  if (row(v.what).cut == in_parts::summands || (v.what == op::rotate_grad && r.size(v.c, 1) == 1))
    return r.emit(i, {placement::kind::summand}, made), true;
  r.emit(i, {placement::kind::part, v.what == op::rotate_grad ? 1 : 3}, made);
  return true;
}
constexpr bool part_looked_up(rank_graph& r, id i) {
  const node& v = r.from[i];
  const placement p = r.where[v.a];
  if (r.free[v.a] || p.before != 1) return false;
  node made = r.copied(i);
  made.a = r.at[v.a], made.b = r.to_whole(v.b);
  if (p.axis != (v.ta ? 3 : 2)) return r.emit(i, {placement::kind::part, 3}, made), true;
  made.sum = true, made.k[0] = r.g.times(r.g.n[r.at[v.a]].d[p.axis], r.rank);
  r.emit(i, {placement::kind::summand}, made);
  return true;
}

}  // namespace graft::detail
