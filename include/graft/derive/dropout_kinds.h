// SPDX-License-Identifier: Apache-2.0
// Dropout of adapters in training: which values of an adapter are dropped, drawn anew for every call.
//     elements   the adapter sees x with some elements dropped, the base layer sees all of x      LoRA and most others
//     rows       some outputs get nothing of what the adapter adds (PEFT's rank_dropout)          LoHa, LoKr
//     whole      no output gets anything from the adapter (PEFT's module_dropout)                 LoHa, LoKr
//     blocks     some blocks of a rotation become the identity                                    BOFT
// Draws follow from the seed of the call and the path of the dropout, so that backward repeats them.
#pragma once
#include <graft/graph/formula.h>
#include <graft/graph/rules_model.h>

namespace graft {

struct dropout_kinds {
  bool elements = false, rows = false, whole = false, blocks = false;
  bool rescaled = false;  // the remaining rows are divided by the fraction that remains

  constexpr bool any() const { return elements || rows || whole || blocks; }
  constexpr bool changes_sum() const { return elements || rows || whole; }  // y is no product of x and one weight
  friend constexpr bool operator==(const dropout_kinds&, const dropout_kinds&) = default;
};

// Makes a mask in the shape of `zeros`: 1 where a value stays and 0 where it is dropped.
constexpr ex keep_mask_of(ex zeros, ex seed, ex rate, int salt, int line) {
  builder& g = *zeros.g;
  const id ones = make_node::add(g, zeros.i, g.constant(1), line);
  return {&g, make_node::unary(g, op::heaviside, make_node::dropout(g, ones, seed.i, rate.i, {salt}, line), line)};
}
// Drops blocks of the rotation R of W in the weight `made`, which a formula captured from the node numbered `first` on:
// R becomes m (R - I) + I, where mask(zeros) gives m, 0 or 1 for each block.
template <class Mask> constexpr ex mask_rotation_blocks(ex W, ex made, id first, Mask mask) {
  builder& g = *W.g;
  sequence<id> replaced;
  for (id i = 0; i <= made.i; ++i) replaced.push(i);
  for (id i = first; i <= made.i; ++i) {
    node v = g.n[i];
    if (v.what == op::rotate && v.a == W.i) {
      const node r = g.n[v.b];
      const ex R{&g, v.b}, I{&g, g.leaf(op::eye, "I", 0, 2, {1}, {1}, r.d[2], r.d[3])};
      const ex zeros{&g, g.leaf(op::zero, "0", 0, 4, r.d[0], r.d[1], {1}, {1})};
      v.b = (mul(mask(zeros), R - I) + I).i;
    } else {
      id* const operand[3] = {&v.a, &v.b, &v.c};
      for (id* const o : operand)
        if (*o >= first) *o = replaced[*o];
    }
    replaced[i] = g.emit(v);
  }
  return {&g, replaced[made.i]};
}

}  // namespace graft
