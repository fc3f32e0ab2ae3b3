// SPDX-License-Identifier: Apache-2.0
// Saved tensors: a forward and a backward graph of one formula become a pair for training. What backward would compute
// a second time is found as nodes that both graphs have; forward gives them as further outputs, backward takes them as
// inputs "….saved". Values that are cheap to recompute from what backward has anyway (activations, norms, look-ups, a
// small matrix of every token times one that all share) are not saved, with two exceptions: where recomputing them
// would need more saved values, and where forward has them in memory for a GEMM or a norm to read, so that they cost
// forward nothing and save backward a pass. It works for any pair of graphs: a layer, or a block of them.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/traversal.h>
#include <graft/graph/canonical.h>

namespace graft {

struct saved_pair {
  builder forward;              // outputs of the layer, then the saved tensors
  builder backward;             // reads the saved values as inputs, in that order
  sequence<id> leaf;            // the backward graph's leaf for each saved tensor
  int attention_out = -1;       // number of the saved attention output; -1: no attention, or several
  sequence<bool> is_routing{};  // the value is a routing table, whose numbers of rows no 16-bit type holds
};

// Gives the rank of a saved tensor: 2 for one matrix, 4 for a stack of matrices.
constexpr int saved_rank(const node& v) { return v.d[0] == dim{1} && v.d[1] == dim{1} ? 2 : 4; }

// Returns the leaf name of saved tensor `number` in the backward graph: "7.saved" for 7, "1.2.saved" for 12. Names are
// paths of static strings, so a number takes one word per digit.
constexpr text saved_name(int number) {
  int power = 1;
  while (number / power >= 10) power *= 10;
  text t;
  for (; power > 0; power /= 10) t << number / power % 10 << '.';
  t << "saved";
  return t;
}

// Reduces a graph to the outputs whose requested[k] is set, and to the nodes that they need.
[[gnu::cold]] constexpr builder requested_outputs(const graph& from, const sequence<bool>& requested) {
  sequence<output> out;
  for (int k = 0; k < from.outs; ++k)
    if (requested[k]) out.push(from.out[k]);
  graph part = from;
  part.out = out.data(), part.outs = out.size();
  part.need = nullptr, part.needs = 0;  // requirements are checked on the whole graph; their nodes may be missing here
  return canonical(part);
}

// Finds for every node of `of` the equal node of `in`, or none_id.
[[gnu::cold]] constexpr sequence<id> same_nodes(const graph& in, const graph& of) {
  builder all;  // takes both graphs and makes equal nodes once
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

constexpr bool cheap_to_recompute(const graph& g, const stages& when, id i) {
  const node& v = g[i];
  if (v.what == op::matmul) {  // a row read as a matrix, times a shared matrix (LoKr): as large as the row, few flops
    const id row = when.of[v.a] == stage::call ? v.a : v.b, other = row == v.a ? v.b : v.a;
    return !v.sum && when.of[other] != stage::call && g[row].what == op::reshape && g.sizes.has_token_rows(v.d[1]) &&
           !g.sizes.has_token_rows(g[g[row].a].d[1]);
  }
  // A backward pass that recomputed the routing from scores of a narrower type could choose other experts.
  if (v.what == op::route) return false;
  const op_class kind = traits_of(v.what).kind;
  return kind == op_class::pointwise || kind == op_class::layout || kind == op_class::rowwise ||
         kind == op_class::lookup;
}
// Chooses the nodes of the backward graph that are saved: the origins of those nodes that the forward graph has too and
// that the rest of the backward graph reads. The origin of a value is the only value from which it is cheap to
// recompute, or else the value itself.
struct recompute_cut {
  const graph &backward, &forward;
  const sequence<id>& same;  // for every node of backward the equal node of forward, or none_id
  stages when;
  node_set shared, saved;
  sequence<id> origin;  // none_id: the value comes with the call, or is precomputed

  constexpr bool cheap_to_recompute(id i) const { return detail::cheap_to_recompute(backward, when, i); }
  constexpr void find() {
    for (id i = 0; i < backward.size; ++i) {
      const node& v = backward[i];
      if (!shared[i] || when.of[i] != stage::call || is_leaf(v.what)) continue;
      origin[i] = i;
      if (!cheap_to_recompute(i)) continue;
      id one = none_id;
      bool several = false;
      for (int k = 0; k < 3; ++k) {
        const id o = v.operand(k) >= 0 ? origin[v.operand(k)] : none_id;
        several = several || (o >= 0 && one >= 0 && o != one);
        if (o >= 0) one = o;
      }
      if (!several) origin[i] = one;
    }
    auto save_origin = [&](id i) {
      if (i >= 0 && origin[i] >= 0) saved.add(origin[i]);
    };
    for (int k = 0; k < backward.outs; ++k) save_origin(backward.out[k].at);
    for (id i = 0; i < backward.size; ++i)
      for (int k = 0; k < 3; ++k)
        if (!shared[i]) save_origin(backward[i].operand(k));
    // A cheap value is not saved where all values that it is computed from are saved anyway.
    for (id i = 0; i < backward.size; ++i) {
      if (!saved[i] || !cheap_to_recompute(i)) continue;
      bool is_recomputable = true;
      for (int k = 0; k < 3; ++k)
        if (const id o = backward[i].operand(k); o >= 0)
          is_recomputable = is_recomputable && (origin[o] < 0 || saved[origin[o]]);
      if (is_recomputable) saved.in[i] = false;
    }
    for (id i = 0; i < backward.size; ++i)
      if (saved[i])
        if (const id next = single_reader(i); next >= 0) saved.in[i] = false, saved.add(next);
    save_stored();
    drop_unread();
  }
  // Also saves cheap values that would cost backward a pass of its own, and that forward has in memory: norms, and what
  // is computed from several values.
  constexpr void save_stored() {
    node_set passes(backward.size);
    for (id i = 0; i < backward.size; ++i) {
      const node& v = backward[i];
      if (!shared[i] || when.of[i] != stage::call || is_leaf(v.what) || !cheap_to_recompute(i)) continue;
      id one = none_id;
      bool is_pass = traits_of(v.what).kind == op_class::rowwise;
      for (int k = 0; k < 3; ++k) {
        const id o = v.operand(k);
        if (o < 0 || when.of[o] != stage::call) continue;
        const id from = origin[o] >= 0 ? origin[o] : o;
        is_pass = is_pass || (passes[o] && !saved[o]) || (one >= 0 && from != one);
        one = from;
      }
      if (is_pass) passes.add(i);
      if (passes[i] && !saved[i] && v.what != op::dropout && is_read_outside(i) && is_stored(same[i])) saved.add(i);
    }
  }
  // Returns true if a node that only backward has reads node i, directly or through dropout, which is fused into its
  // reader.
  constexpr bool is_read_outside(id i) const {
    for (id r = i + 1; r < backward.size; ++r)
      for (int k = 0; k < 3; ++k)
        if (backward[r].operand(k) == i && (!shared[r] || (backward[r].what == op::dropout && is_read_outside(r))))
          return true;
    return false;
  }
  // Returns true if forward stores node i because an operation reads it from memory.
  constexpr bool is_stored(id i) const {
    for (id r = i + 1; r < forward.size; ++r)
      for (int k = 0; k < 3; ++k)
        if (forward[r].operand(k) == i && traits_of(forward[r].what).reads_memory) return true;
    return false;
  }
  // Values that only lead to other saved values are not saved: backward does not read them.
  constexpr void drop_unread() {
    node_set read(backward.size);
    for (int k = 0; k < backward.outs; ++k) read.add(backward.out[k].at);
    for (id i = backward.size - 1; i >= 0; --i)
      for (int k = 0; k < 3; ++k)
        if (const id o = backward[i].operand(k); read[i] && !saved[i] && o >= 0) read.add(o);
    for (id i = 0; i < backward.size; ++i) saved.in[i] = saved[i] && read[i];
  }
  // Finds the only reader of node i, if it is cheap, as large as i, and in forward too; else none_id. Saved instead of
  // i, it need not be recomputed, and forward may compute it in the launch that computes i (a residual sum).
  constexpr id single_reader(id i) const {
    id one = none_id;
    for (id r = i + 1; r < backward.size; ++r)
      for (int k = 0; k < 3; ++k)
        if (backward[r].operand(k) == i) {
          if (one >= 0) return none_id;
          one = r;
        }
    const bool goes_on = one >= 0 && shared[one] && cheap_to_recompute(one) && !is_output(backward, i) &&
                         same_shape(backward[one], backward[i]) && !saved[one];
    return goes_on ? one : none_id;
  }
};
// The path that distinguishes saved values: their number, one word of the path per digit.
constexpr int numbered_path(builder& g, int number) {
  constexpr const char* digits = "0123456789";
  const int above = number < 10 ? 0 : numbered_path(g, number / 10);
  return g.word(above, digits + number % 10, 1);
}

}  // namespace detail

[[gnu::cold]] constexpr saved_pair select_saved_tensors(const graph& forward, const graph& backward) {
  const sequence<id> same = same_nodes(forward, backward);
  detail::recompute_cut c{backward,
                          forward,
                          same,
                          schedule(backward),
                          node_set(backward.size),
                          node_set(backward.size),
                          sequence<id>(backward.size, none_id)};
  for (id i = 0; i < backward.size; ++i)
    if (same[i] >= 0) c.shared.add(i);
  c.find();

  saved_pair made;
  sequence<output> outputs;
  for (int k = 0; k < forward.outs; ++k) outputs.push(forward.out[k]);
  builder rest;
  detail::table_copier tables(backward, rest);
  sequence<id> moved_to(backward.size, none_id);
  int attentions = 0;
  for (id i = 0; i < backward.size; ++i) {
    const node& v = backward[i];
    attentions += v.what == op::attention || v.what == op::attention_grad ? 1 : 0;
    if (!c.saved[i]) {
      moved_to[i] = rest.append(tables.moved(v, moved_to.data()));
      continue;
    }
    outputs.push({same[i], "saved"});
    if (v.what == op::attention) made.attention_out = made.leaf.size();
    moved_to[i] = rest.leaf(op::input, "saved", detail::numbered_path(rest, made.leaf.size()), saved_rank(v),
                            tables.size(v.d[0]), tables.size(v.d[1]), tables.size(v.d[2]), tables.size(v.d[3]));
    made.leaf.push(moved_to[i]), made.is_routing.push(v.what == op::route);
  }
  for (int k = 0; k < backward.outs; ++k) {
    const output& o = backward.out[k];
    rest.add_output(moved_to[o.at], o.name, tables.path(o.path), o.of_input);
  }
  if (attentions != 2) made.attention_out = -1;
  made.backward = canonical(rest);
  for (int k = 0; k < made.leaf.size(); ++k) made.leaf[k] = made.backward.find(saved_name(k).c_str());
  graph whole = forward;
  whole.out = outputs.data(), whole.outs = outputs.size();
  made.forward = canonical(whole);
  return made;
}

}  // namespace graft
