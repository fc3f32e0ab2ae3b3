// SPDX-License-Identifier: Apache-2.0
// In training some of what an adapter does is left out, drawn anew for every call:
//     elements   it sees x with some elements dropped, the base layer all of x              LoRA and most others
//     rows       of what it adds to the weight some outputs get nothing (PEFT's rank_dropout)       LoHa, LoKr
//     whole      all of it at once (PEFT's module_dropout)                                          LoHa, LoKr
//     blocks     of a rotation become the identity                                                  BOFT
// Draws follow from a seed of the call and the place, so that the backward pass leaves out the same.
#pragma once
#include <graft/graph/formula.h>
#include <graft/graph/rules_model.h>

namespace graft {

struct left_out {
  bool elements = false, rows = false, whole = false, blocks = false;
  bool rescaled = false;  // rows that are left count for those that are not

  constexpr bool any() const { return elements || rows || whole || blocks; }
  constexpr bool changes_sum() const { return elements || rows || whole; }  // y is not x times one weight any more
  friend constexpr bool operator==(const left_out&, const left_out&) = default;
};

// 1 where something stays and 0 where it is left out, in the shape of `zeros`.
constexpr ex kept_places(ex zeros, ex seed, ex rate, int salt, int line) {
  builder& g = *zeros.g;
  const id ones = make::add(g, zeros.i, g.constant(1), line);
  return {&g, make::unary(g, op::step, make::dropout(g, ones, seed.i, rate.i, {salt}, line), line)};
}
// What a formula made of W, from the node numbered `first` on, with other blocks in the rotation of W: kept (R - I) + I,
// `kept` a number for each block.
template <class Kept> constexpr ex with_kept_blocks(ex W, ex made, id first, Kept kept) {
  builder& g = *W.g;
  sequence<id> now;
  for (id i = 0; i <= made.i; ++i) now.push(i);
  for (id i = first; i <= made.i; ++i) {
    node v = g.n[i];
    if (v.what == op::rotate && v.a == W.i) {
      const node r = g.n[v.b];
      const ex R{&g, v.b}, I{&g, g.leaf(op::eye, "I", 0, 2, {1}, {1}, r.d[2], r.d[3])};
      const ex zeros{&g, g.leaf(op::zero, "0", 0, 4, r.d[0], r.d[1], {1}, {1})};
      v.b = (mul(kept(zeros), R - I) + I).i;
    } else {
      id* const operand[3] = {&v.a, &v.b, &v.c};
      for (id* const o : operand)
        if (*o >= first) *o = now[*o];
    }
    now[i] = g.emit(v);
  }
  return {&g, now[made.i]};
}

}  // namespace graft
