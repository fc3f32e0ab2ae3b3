// SPDX-License-Identifier: Apache-2.0
// keep: a forward and a backward graph of the same formula become a pair for training. What backward would compute a
// second time is found as nodes that both graphs have; forward gives them as further outputs, backward takes them as
// inputs "….kept". Values that are cheap to compute again from what is there anyway (activations, norms, look-ups, a
// small matrix of every token times one that all share) are not kept, unless that would keep more, or forward has them in
// memory for a product or a norm to read: those cost forward nothing and save backward a pass. Works for any pair of
// graphs: a layer, or a block of them.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/walk.h>
#include <graft/graph/canonical.h>

namespace graft {

struct kept_pair {
  builder forward;    // its outputs, then the kept values
  builder backward;   // reads them as inputs, in the same order
  sequence<id> leaf;  // of the backward graph, by number of the kept value
  int attended = -1;  // which of them is what attention gave, where there is one attention and its gradient
};

// How many of its sizes a kept tensor lists.
constexpr int kept_rank(const node& v) { return v.d[0] == dim{1} && v.d[1] == dim{1} ? 2 : 4; }

// The name of the leaf of the backward graph that takes a kept value: "7.kept", and "1.2.kept" for number 12.
constexpr text kept_name(int number) {
  int power = 1;
  while (number / power >= 10) power *= 10;
  text t;
  for (; power > 0; power /= 10) t << number / power % 10 << '.';
  t << "kept";
  return t;
}

// Only the outputs of which asked[k] is set, and the nodes that they need.
[[gnu::cold]] constexpr builder asked_outputs(const graph& from, const sequence<bool>& asked) {
  sequence<output> out;
  for (int k = 0; k < from.outs; ++k)
    if (asked[k]) out.push(from.out[k]);
  graph part = from;
  part.out = out.data(), part.outs = out.size();
  part.need = nullptr, part.needs = 0;  // checked where the whole graph is; their nodes may be gone
  return canonical(part);
}

// For every node of `of` the equal node of `in`, where there is one.
[[gnu::cold]] constexpr sequence<id> same_nodes(const graph& in, const graph& of) {
  builder all;  // both in one graph, where equal nodes are one
  sequence<id> at_in(in.size, none_id), at_of(of.size, none_id);
  detail::table_copier in_tables(in, all), of_tables(of, all);
  for (id i = 0; i < in.size; ++i) at_in[i] = all.emit(in_tables.moved(in[i], at_in.data()));
  for (id i = 0; i < of.size; ++i) at_of[i] = all.emit(of_tables.moved(of[i], at_of.data()));
  sequence<id> from_in(all.n.size(), none_id), same(of.size, none_id);
  for (id i = 0; i < in.size; ++i) from_in[at_in[i]] = i;
  for (id i = 0; i < of.size; ++i) same[i] = from_in[at_of[i]];
  return same;
}

namespace detail {

constexpr bool cheap_again(const graph& g, const stages& when, id i) {
  const node& v = g[i];
  if (v.what == op::matmul) {  // of a row read as a matrix (LoKr): as large as that row, and few flops
    const id row = when.of[v.a] == stage::data ? v.a : v.b, other = row == v.a ? v.b : v.a;
    return !v.sum && when.of[other] != stage::data && g[row].what == op::reshape && g.sizes.by_token(v.d[1]) &&
           !g.sizes.by_token(g[g[row].a].d[1]);
  }
  const op_class kind = row(v.what).kind;
  return kind == op_class::pointwise || kind == op_class::layout || kind == op_class::rowwise ||
         kind == op_class::lookup;
}
// Which nodes of the backward graph are kept: the origins of those that the forward graph has too and that the rest of
// the backward graph reads. The origin of a value is the one value it is cheap to compute from, or else itself.
struct cut {
  const graph &backward, &forward;
  const sequence<id>& same;  // for every node of backward that of forward
  stages when;
  node_set shared, kept;
  sequence<id> origin;  // none: the call brings it, or it is known before

  constexpr bool cheap_again(id i) const { return detail::cheap_again(backward, when, i); }
  constexpr void find() {
    for (id i = 0; i < backward.size; ++i) {
      const node& v = backward[i];
      if (!shared[i] || when.of[i] != stage::data || is_leaf(v.what)) continue;
      origin[i] = i;
      if (!cheap_again(i)) continue;
      id one = none_id;
      bool several = false;
      for (int k = 0; k < 3; ++k) {
        const id o = v.operand(k) >= 0 ? origin[v.operand(k)] : none_id;
        several = several || (o >= 0 && one >= 0 && o != one);
        if (o >= 0) one = o;
      }
      if (!several) origin[i] = one;
    }
    auto keep_origin = [&](id i) {
      if (i >= 0 && origin[i] >= 0) kept.add(origin[i]);
    };
    for (int k = 0; k < backward.outs; ++k) keep_origin(backward.out[k].at);
    for (id i = 0; i < backward.size; ++i)
      for (int k = 0; k < 3; ++k)
        if (!shared[i]) keep_origin(backward[i].operand(k));
    // Cheap, and all that it is computed from is kept anyway.
    for (id i = 0; i < backward.size; ++i) {
      if (!kept[i] || !cheap_again(i)) continue;
      bool there = true;
      for (int k = 0; k < 3; ++k)
        if (const id o = backward[i].operand(k); o >= 0) there = there && (origin[o] < 0 || kept[origin[o]]);
      if (there) kept.in[i] = false;
    }
    for (id i = 0; i < backward.size; ++i)
      if (kept[i])
        if (const id next = only_reader(i); next >= 0) kept.in[i] = false, kept.add(next);
    keep_stored();
    drop_unread();
  }
  // A norm, or anything that is computed from several values: a pass of its own in backward.
  constexpr void keep_stored() {
    node_set passes(backward.size);
    for (id i = 0; i < backward.size; ++i) {
      const node& v = backward[i];
      if (!shared[i] || when.of[i] != stage::data || is_leaf(v.what) || !cheap_again(i)) continue;
      id one = none_id;
      bool is_pass = row(v.what).kind == op_class::rowwise;
      for (int k = 0; k < 3; ++k) {
        const id o = v.operand(k);
        if (o < 0 || when.of[o] != stage::data) continue;
        const id from = origin[o] >= 0 ? origin[o] : o;
        is_pass = is_pass || (passes[o] && !kept[o]) || (one >= 0 && from != one);
        one = from;
      }
      if (is_pass) passes.add(i);
      if (passes[i] && !kept[i] && v.what != op::dropout && is_read_by_rest(i) && is_stored(same[i])) kept.add(i);
    }
  }
  constexpr bool is_read_by_rest(id i) const {  // dropout is part of what reads it
    for (id r = i + 1; r < backward.size; ++r)
      for (int k = 0; k < 3; ++k)
        if (backward[r].operand(k) == i && (!shared[r] || (backward[r].what == op::dropout && is_read_by_rest(r))))
          return true;
    return false;
  }
  constexpr bool is_stored(id i) const {
    for (id r = i + 1; r < forward.size; ++r)
      for (int k = 0; k < 3; ++k)
        if (forward[r].operand(k) == i && row(forward[r].what).reads_memory) return true;
    return false;
  }
  // What only led to something that is kept itself.
  constexpr void drop_unread() {
    node_set read(backward.size);
    for (int k = 0; k < backward.outs; ++k) read.add(backward.out[k].at);
    for (id i = backward.size - 1; i >= 0; --i)
      for (int k = 0; k < 3; ++k)
        if (const id o = backward[i].operand(k); read[i] && !kept[i] && o >= 0) read.add(o);
    for (id i = 0; i < backward.size; ++i) kept.in[i] = kept[i] && read[i];
  }
  // The one value that is computed from node i, where forward has it too and it is as large: kept instead, so that nothing
  // is computed again, and forward may compute it where it computes i (a sum with the row that it is added to).
  constexpr id only_reader(id i) const {
    id one = none_id;
    for (id r = i + 1; r < backward.size; ++r)
      for (int k = 0; k < 3; ++k)
        if (backward[r].operand(k) == i) {
          if (one >= 0) return none_id;
          one = r;
        }
    const bool goes_on = one >= 0 && shared[one] && cheap_again(one) && !is_output(backward, i) &&
                         same_shape(backward[one], backward[i]) && !kept[one];
    return goes_on ? one : none_id;
  }
};
// The path that tells kept values apart: their number, digit by digit.
constexpr int numbered_path(builder& g, int number) {
  constexpr const char* digits = "0123456789";
  const int above = number < 10 ? 0 : numbered_path(g, number / 10);
  return g.word(above, digits + number % 10, 1);
}

}  // namespace detail

[[gnu::cold]] constexpr kept_pair keep(const graph& forward, const graph& backward) {
  const sequence<id> same = same_nodes(forward, backward);
  detail::cut c{backward,
                forward,
                same,
                schedule(backward),
                node_set(backward.size),
                node_set(backward.size),
                sequence<id>(backward.size, none_id)};
  for (id i = 0; i < backward.size; ++i)
    if (same[i] >= 0) c.shared.add(i);
  c.find();

  kept_pair made;
  sequence<output> outputs;
  for (int k = 0; k < forward.outs; ++k) outputs.push(forward.out[k]);
  builder rest;
  detail::table_copier tables(backward, rest);
  sequence<id> place(backward.size, none_id);
  int attentions = 0;
  for (id i = 0; i < backward.size; ++i) {
    const node& v = backward[i];
    attentions += v.what == op::attention || v.what == op::attention_grad ? 1 : 0;
    if (!c.kept[i]) {
      place[i] = rest.append(tables.moved(v, place.data()));
      continue;
    }
    outputs.push({same[i], "kept"});
    if (v.what == op::attention) made.attended = made.leaf.size();
    place[i] = rest.leaf(op::input, "kept", detail::numbered_path(rest, made.leaf.size()), kept_rank(v),
                         tables.size(v.d[0]), tables.size(v.d[1]), tables.size(v.d[2]), tables.size(v.d[3]));
    made.leaf.push(place[i]);
  }
  for (int k = 0; k < backward.outs; ++k) {
    const output& o = backward.out[k];
    rest.give(place[o.at], o.name, tables.path(o.path), o.of_input);
  }
  if (attentions != 2) made.attended = -1;
  made.backward = canonical(rest);
  for (int k = 0; k < made.leaf.size(); ++k) made.leaf[k] = made.backward.find(kept_name(k).c_str());
  graph whole = forward;
  whole.out = outputs.data(), whole.outs = outputs.size();
  made.forward = canonical(whole);
  return made;
}

}  // namespace graft
