// SPDX-License-Identifier: Apache-2.0
// Shape rules of the operations that models add: rotary positions, attention, dropout, and the loss over a vocabulary.
#pragma once
#include <graft/graph/rules_algebra.h>

namespace graft::make {

// Each head of a row turned by the row's angles: the heads are as wide as `turn` [tokens, head], the cosines of the
// first half of a head and then its sines; the two halves of a head turn together, as in Hugging Face's models.
constexpr id rope(builder& g, id x, id turn, bool back, int line = 0) {
  node v = g.shaped(op::rope, x, x, turn, none_id, line);
  v.tb = back;
  const id made = g.emit(v);
  const node p = g.n[x], q = g.n[turn];
  g.require(requirement::kind::divides, p.d[3], q.d[3], made, line);
  g.require(requirement::kind::divides, q.d[3], dim{2}, made, line);
  for (int i = 0; i < 3; ++i) g.require(requirement::kind::same, p.d[i], q.d[i], made, line);
  return made;
}

// softmax(Q Kᵀ / √head) V for every head, from rows of queries, keys and values side by side [tokens, q + 2 kv]; a group
// of heads shares keys and values. `span` [3, tokens] says which rows a row looks at, from its first number up to its
// second: who comes after whom, windows, batches and padding are all in it. The third is where its own keys and values
// are: in `cache` [rows, 2 kv], where one is given, else in the same row. Empty spans give zeros. A span [5, tokens] also
// drops probabilities: a key for each row, and how many of 2^53 draws are dropped (backend/attention_drops.h); k[1] is the
// number of the first head.
constexpr id attention(builder& g, id qkv, id span, id cache, dim queries, dim head, int line = 0) {
  node v = g.shaped(cache < 0 ? op::attention : op::cached_attention, qkv, qkv, span, cache, line);
  v.k[0] = head, v.d[3] = queries;
  const id made = g.emit(v);
  const node all = g.n[qkv], rows = g.n[span];
  if (cache >= 0 || !(rows.d[2] == dim{5})) g.require(requirement::kind::same, rows.d[2], dim{3}, made, line);
  g.require(requirement::kind::same, rows.d[3], all.d[2], made, line);
  require_one_matrix(g, qkv, made, line);
  const dim both = g.minus(all.d[3], queries, line);
  g.require(requirement::kind::divides, queries, head, made, line);
  g.require(requirement::kind::divides, both, g.times(dim{2}, head), made, line);
  g.require(requirement::kind::divides, g.times(dim{2}, queries), both, made, line);
  if (cache >= 0) g.require(requirement::kind::same, g.n[cache].d[3], both, made, line);
  return made;
}
// The gradient of queries, keys and values, side by side as they were.
constexpr id attention_grad(builder& g, id qkv, id span, id t, id forward) {
  node v = g.shaped(op::attention_grad, qkv, qkv, span, t);
  v.k[0] = g.n[forward].k[0], v.k[1] = g.n[forward].k[1];
  return g.emit(v);
}

// x / (1 - rate) where a counter-based generator keeps it, else 0: the numbers follow from `seed`, `salt` and the place of
// an element, so that the backward pass drops the same ones and nothing is stored.
constexpr id dropout(builder& g, id x, id seed, id rate, dim salt, int line = 0) {
  node v = g.shaped(op::dropout, x, x, seed, rate, line);
  v.k[0] = salt;
  return g.emit(v);
}

// log Σ exp(row) - row[label], a column; 0 where the label is negative.
constexpr id cross_entropy(builder& g, id logits, id labels, int line = 0) {
  node v = g.shaped(op::cross_entropy, logits, logits, labels, none_id, line);
  v.d[3] = dim{1};
  const id made = g.emit(v);
  g.require(requirement::kind::same, g.n[labels].d[3], g.n[logits].d[2], made, line);
  require_one_matrix(g, logits, made, line);
  return made;
}
constexpr id cross_entropy_grad(builder& g, id logits, id labels, id t) {
  return g.emit(g.shaped(op::cross_entropy_grad, logits, logits, labels, t));
}

}  // namespace graft::make
