// SPDX-License-Identifier: Apache-2.0
// Several LoRA layers one behind the other in one graph: what capturing a whole model costs, against capturing the one
// block that repeats.
#pragma once
#include <graft/graft.h>

namespace compile_bench {

using namespace graft;

struct name {
  char s[8]{};
};
constexpr name numbered(char letter, int i) {
  name n{};
  n.s[0] = letter;
  n.s[1] = static_cast<char>('0' + i / 10);
  n.s[2] = static_cast<char>('0' + i % 10);
  return n;
}
inline constexpr int most = 32;
struct names {
  name w[most]{}, a[most]{}, b[most]{};
};
constexpr names all_names() {
  names n{};
  for (int i = 0; i < most; ++i) n.w[i] = numbered('W', i), n.a[i] = numbered('A', i), n.b[i] = numbered('B', i);
  return n;
}
inline constexpr names table = all_names();

constexpr builder stack(int depth) {
  builder g{};
  const scope p{&g};
  const extent width = p.size("width", dyn, 4096);
  ex x = p.leaf(op::input, "x", 2, 1, 1, p.size("tokens", dyn, 4096), width);
  for (int i = 0; i < depth; ++i) {
    const ex W = p.leaf(op::base, table.w[i].s, 2, 1, 1, width, width);
    const ex A = p.param(table.a[i].s, 16, width), B = p.param(table.b[i].s, width, 16);
    x = {&g, apply(g, (W + p.scalar("scaling") * (B * A)).i, x.i)};
  }
  g.give(x.i, "y");
  return simplify(g);
}

}  // namespace compile_bench
