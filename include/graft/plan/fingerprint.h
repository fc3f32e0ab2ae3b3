// SPDX-License-Identifier: Apache-2.0
// plan_fingerprint: a plan as a canonical list of integers, and its 64-bit hash, the key. It contains operations,
// operands and launches but no sizes and no names: layers that differ only in shape share one key and its kernels.
#pragma once
#include <graft/plan/fuse.h>

namespace graft {

struct plan_fingerprint {
  sequence<unsigned> words;
  unsigned long long key = 14695981039346656037ULL;  // FNV-1a over the words

  constexpr void add(unsigned w) {
    words.push(w);
    for (unsigned k = 0; k < 4; ++k) key = (key ^ ((w >> (8 * k)) & 0xffU)) * 1099511628211ULL;
  }
  friend constexpr bool operator==(const plan_fingerprint& a, const plan_fingerprint& b) {
    if (a.words.size() != b.words.size()) return false;
    for (int i = 0; i < a.words.size(); ++i)
      if (a.words[i] != b.words[i]) return false;
    return true;
  }
};

// Each node of the call stage adds one word for operation, flags and slot, one for its launch, and one per operand: its
// position if it has the call stage too, 0xfffffffe if it is precomputed, 0xffffffff if it is absent. Integer arguments
// that are no sizes follow.
constexpr plan_fingerprint fingerprint_of(const graph& g, const launch_plan& p) {
  plan_fingerprint out;
  sequence<unsigned> position(g.size, 0);
  unsigned next = 0;
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    if (!p.live[i] || p.when.of[i] != stage::call) continue;
    position[i] = next++;
    const unsigned flags = (v.ta ? 0x100U : 0U) | (v.tb ? 0x200U : 0U) | (v.sum ? 0x400U : 0U);
    out.add(static_cast<unsigned>(v.what) | flags | (static_cast<unsigned>(p.slot_of[i]) << 16U));
    out.add(static_cast<unsigned>(p.launch_of[i]));
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      out.add(o < 0 ? 0xffffffffU : p.when.of[o] == stage::call ? position[o] : 0xfffffffeU);
    }
    for (const dim argument : v.k)  // axes and norm kinds are kernel properties, sizes are not
      if (argument.is_static()) out.add(static_cast<unsigned>(argument.v));
    if (traits_of(v.what).kind == op_class::attention && v.value != 0) out.add(0xfffffffdU);  // a soft cap of any size
  }
  return out;
}

}  // namespace graft
