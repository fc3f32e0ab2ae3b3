// SPDX-License-Identifier: Apache-2.0
// program: the data-time part of a plan as a canonical list of integers, and one number for it. It holds ops, operands
// and slots, no sizes and no names: layers that differ only in shape have the same program, and so the same kernels.
#pragma once
#include <graft/plan/fuse.h>

namespace graft {

struct program {
  unsigned word[max_nodes]{};
  int size = 0;
  unsigned long long key = 14695981039346656037ULL;  // FNV-1a over the words

  constexpr void add(unsigned w) {
    if (size < max_nodes) word[size++] = w;
    for (int k = 0; k < 4; ++k) key = (key ^ ((w >> (8 * k)) & 0xffU)) * 1099511628211ULL;
  }
  friend constexpr bool operator==(const program& a, const program& b) {
    if (a.size != b.size || a.key != b.key) return false;
    for (int i = 0; i < a.size; ++i)
      if (a.word[i] != b.word[i]) return false;
    return true;
  }
};

// 8 bits op, 2 bits transposition, 3 bits slot, 2 bits variant, then two operands of 8 bits: data-time values by
// position, everything computed earlier as the operand class 0xfe, absent ones as 0xff. A third operand is a word more.
constexpr program encode(const graph& g, const plan& p) {
  program out;
  const node_set live = reachable(g);
  int position[max_nodes]{}, next = 0;
  for (int k = 0; k < g.size; ++k) {
    const node& v = g.n[k];
    if (!live.in[k] || p.when.of[k] != stage::data) continue;
    position[k] = next++;
    auto operand = [&](id i) {
      return i < 0 ? 0xffU : p.when.of[i] == stage::data ? static_cast<unsigned>(position[i]) : 0xfeU;
    };
    const bool rms = row(v.what).kind == op_class::rowwise && v.k[0] == dim{1};
    const unsigned flags = (v.ta ? 0x100U : 0U) | (v.tb ? 0x200U : 0U) | (v.sum ? 0x2000U : 0U) | (rms ? 0x4000U : 0U);
    out.add(static_cast<unsigned>(v.what) | flags | (static_cast<unsigned>(p.place[k]) << 10U) | (operand(v.a) << 16U) |
            (operand(v.b) << 24U));
    if (v.c >= 0) out.add(operand(v.c));
  }
  return out;
}

}  // namespace graft
