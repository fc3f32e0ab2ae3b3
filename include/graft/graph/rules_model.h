// SPDX-License-Identifier: Apache-2.0
// Shape rules of the ops that models add: RoPE, attention, dropout, and the cross entropy over a vocabulary.
#pragma once
#include <graft/graph/rules.h>

namespace graft {

// Options of attention. With a soft cap c (softcap, attn_logit_softcapping), scores s become c tanh(s / c). With
// attention sinks, `qkv` has one more column for each query head, whose exponential joins the softmax's denominator and
// has no value (gpt-oss); k[2] is then 1.
struct attention_options {
  double soft_cap = 0;  // 0: none
  bool sinks = false;
};
constexpr attention_options attention_options_of(const node& v) { return {v.value, v.k[2] == dim{1}}; }

}  // namespace graft

namespace graft::make_node {

// RoPE: rotates each head of a row by the angles of the row's position, or back. `angles` is [tokens, head], the
// cosines of half a head followed by the sines; elements i and i + head / 2 form a pair, as in Hugging Face's models.
constexpr id rope(builder& g, id x, id angles, bool back, int line = 0) {
  node v = g.shaped(op::rope, x, x, angles, none_id, line);
  v.tb = back;
  const id made = g.emit(v);
  const node p = g.n[x], q = g.n[angles];
  g.require(requirement::kind::divides, p.d[3], q.d[3], made, line);
  g.require(requirement::kind::divides, q.d[3], dim{2}, made, line);
  for (int i = 0; i < 3; ++i) g.require(requirement::kind::same, p.d[i], q.d[i], made, line);
  return made;
}

// Attention: softmax(Q Kᵀ / √head) V for every head, with grouped queries (GQA). `qkv` is [tokens, q + 2 kv]: queries,
// keys and values of a row, concatenated. `range` [3, tokens] is the attention range of each row: the first key it
// attends to, the end of the keys, and the slot that its own key and value are written to. Causality, windows, ragged
// batches and padding are all in these numbers, and an empty range gives zeros. Keys are rows of `cache` [slots, 2 kv]
// if there is one, else of the call. A `range` of [5, tokens] adds dropout of the probabilities: a random key per row,
// and how many of 2^53 draws are dropped (backend/attention_dropout.h); k[1] is the number of this rank's first head.
constexpr id attention(builder& g, id qkv, id range, id cache, dim queries, dim head, int line = 0,
                       const attention_options& with = {}) {
  node v = g.shaped(cache < 0 ? op::attention : op::cached_attention, qkv, qkv, range, cache, line);
  v.k[0] = head, v.d[3] = queries;
  v.value = with.soft_cap, v.k[2] = {with.sinks ? 1 : 0};
  const id made = g.emit(v);
  const node all = g.n[qkv], rows = g.n[range];
  if (cache >= 0 || !(rows.d[2] == dim{5})) g.require(requirement::kind::same, rows.d[2], dim{3}, made, line);
  g.require(requirement::kind::same, rows.d[3], all.d[2], made, line);
  require_one_matrix(g, qkv, made, line);
  const dim sinks = with.sinks ? g.over(queries, head, line) : dim{0};
  const dim both = g.minus(g.minus(all.d[3], sinks, line), queries, line);
  g.require(requirement::kind::divides, queries, head, made, line);
  g.require(requirement::kind::divides, both, g.times(dim{2}, head), made, line);
  g.require(requirement::kind::divides, g.times(dim{2}, queries), both, made, line);
  if (cache >= 0) g.require(requirement::kind::same, g.n[cache].d[3], both, made, line);
  return made;
}
// The gradient of `qkv`, in its layout.
constexpr id attention_grad(builder& g, id qkv, id range, id t, id forward) {
  node v = g.shaped(op::attention_grad, qkv, qkv, range, t);
  v.k[0] = g.n[forward].k[0], v.k[1] = g.n[forward].k[1], v.k[2] = g.n[forward].k[2], v.value = g.n[forward].value;
  return g.emit(v);
}

// Dropout: x / (1 - rate) or 0, as a counter-based generator decides from `seed`, `salt` and the index of an element.
// The backward pass recomputes the mask, so that none is stored.
constexpr id dropout(builder& g, id x, id seed, id rate, dim salt, int line = 0) {
  node v = g.shaped(op::dropout, x, x, seed, rate, line);
  v.k[0] = salt;
  return g.emit(v);
}

// Cross entropy per row, log Σ exp(row) - row[label], as a column; it is 0 where the label is negative.
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

}  // namespace graft::make_node
