// SPDX-License-Identifier: Apache-2.0
// code: a plan as a canonical list of integers, and one number for it. It holds operations, operands and launches, no
// sizes and no names: layers that differ only in shape have the same code, and so the same kernels.
#pragma once
#include <graft/plan/fuse.h>

namespace graft {

struct code {
  sequence<unsigned> words;
  unsigned long long key = 14695981039346656037ULL;  // FNV-1a over the words

  constexpr void add(unsigned w) {
    words.push(w);
    for (unsigned k = 0; k < 4; ++k) key = (key ^ ((w >> (8 * k)) & 0xffU)) * 1099511628211ULL;
  }
  friend constexpr bool operator==(const code& a, const code& b) {
    if (a.words.size() != b.words.size()) return false;
    for (int i = 0; i < a.words.size(); ++i)
      if (a.words[i] != b.words[i]) return false;
    return true;
  }
};

// Per node: one word for the operation, its flags and its slot, one for its launch, and one for each operand: data-time
// values by position, everything known earlier as 0xfffffffe, absent ones as 0xffffffff.
constexpr code encode(const graph& g, const plan& p) {
  code out;
  sequence<unsigned> position(g.size, 0);
  unsigned next = 0;
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    if (!p.live[i] || p.when.of[i] != stage::data) continue;
    position[i] = next++;
    const unsigned flags = (v.ta ? 0x100U : 0U) | (v.tb ? 0x200U : 0U) | (v.sum ? 0x400U : 0U);
    out.add(static_cast<unsigned>(v.what) | flags | (static_cast<unsigned>(p.place[i]) << 16U));
    out.add(static_cast<unsigned>(p.launch_of[i]));
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      out.add(o < 0 ? 0xffffffffU : p.when.of[o] == stage::data ? position[o] : 0xfffffffeU);
    }
    for (const dim argument : v.k)  // which axis, which norm: a size is none of the kernel's business
      if (argument.known()) out.add(static_cast<unsigned>(argument.v));
  }
  return out;
}

}  // namespace graft
