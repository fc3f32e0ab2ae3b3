// SPDX-License-Identifier: Apache-2.0
// Multi-LoRA batches: decides whether rows with an adapter can run in the launches of the base. They can if both plans,
// cut by GEMMs (target::work::by_products), differ in the slots of their GEMMs only; each row then brings what its
// adapter has in those slots. Rotations, norms and folded adapters need other launches, so their rows run as a batch of
// their own.
#pragma once
#include <graft/core/result.h>
#include <graft/plan/plan.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace graft {

// A block of a model with one choice of adapters, and its bound tensors: leaf(i) is the address of leaf i.
template <class Leaf> struct block_plan {
  const graph& g;
  const launch_plan& p;  // cut by GEMMs
  Leaf leaf;

  // The stored weight of a GEMM; null if the GEMM reads a computed copy.
  const void* weight_of(const gemm_slots& s) const {
    const id i = base_leaf(g, s.weight);
    return i < 0 ? nullptr : leaf(i);
  }
  // The operations of a call that are in no slot of a GEMM, and the leaves that they read. Norms and rotations count as
  // such even if the launch of a GEMM fuses them.
  struct non_gemm {
    std::vector<op> operations;
    std::map<std::string, const void*> leaves;
    friend bool operator==(const non_gemm&, const non_gemm&) = default;
  };
  non_gemm non_gemm_nodes() const {
    node_set counted(g.size), seen(g.size);
    for (const gemm_slots& s : p.products)
      for (const id i : s.inside) counted.add(i);
    non_gemm found;
    const auto visit = [&](const auto& self, id i) -> void {
      if (i < 0 || seen[i] || p.when.of[i] == stage::call) return;
      seen.add(i);
      if (is_leaf(g[i].what) && g[i].what != op::scalar) found.leaves[g.name(i).c_str()] = leaf(i);
      for (int k = 0; k < 3; ++k) self(self, g[i].operand(k));
    };
    for (const id n : p.nodes) {
      if (counted[n]) continue;
      counted.add(n);
      found.operations.push_back(g[n].what);
      for (int k = 0; k < 3; ++k) visit(visit, g[n].operand(k));
    }
    std::sort(found.operations.begin(), found.operations.end());
    return found;
  }
};

namespace detail {
inline bool same_gemm(const gemm_slots& a, const gemm_slots& b) {
  for (const low_rank_branch& s : b.branches)
    if (s.stores_shrink) return false;
  return a.weight_is_nt == b.weight_is_nt && a.act == b.act && (a.residual < 0) == (b.residual < 0) &&
         a.pre_epilogue < 0 && b.pre_epilogue < 0;
}
}  // namespace detail

// Returns true if two epilogue steps apply the same operation with the same tensor.
template <class Leaf>
bool same_epilogue(const block_plan<Leaf>& a, const epilogue_step& one, const block_plan<Leaf>& b,
                   const epilogue_step& other) {
  return one.what == other.what && is_leaf(a.g[one.operand].what) && is_leaf(b.g[other.operand].what) &&
         a.leaf(one.operand) == b.leaf(other.operand);
}
// Returns true if `other` is the base GEMM without an adapter, though its bias may be bound as another leaf.
template <class Leaf>
bool is_base_gemm(const block_plan<Leaf>& base, const gemm_slots& s, const block_plan<Leaf>& with,
                  const gemm_slots& other) {
  bool same = other.branches.empty() && other.prologue < 0 && other.epilogue_steps.size() == s.epilogue_steps.size();
  for (int k = 0; same && k < s.epilogue_steps.size(); ++k)
    same = same_epilogue(base, s.epilogue_steps[k], with, other.epilogue_steps[k]);
  return same;
}
// Calls found(k, j) for each GEMM k of the base and GEMM j of `with` that has the same weight and other slots. Fails if
// a GEMM has no counterpart or other nodes differ, or with the error of `found`.
template <class Leaf, class Found>
status match_gemms(const block_plan<Leaf>& base, const block_plan<Leaf>& with, const Found& found) {
  if (base.p.products.size() != with.p.products.size() || base.non_gemm_nodes() != with.non_gemm_nodes())
    return fail("an adapter needs other launches than the base; rows with it run as a batch of their own");
  for (int k = 0; k < base.p.products.size(); ++k) {
    const gemm_slots& s = base.p.products[k];
    int at = -1;
    for (int j = 0; j < with.p.products.size(); ++j) {
      const gemm_slots& other = with.p.products[j];
      if (base.weight_of(s) != nullptr && base.weight_of(s) == with.weight_of(other) && detail::same_gemm(s, other))
        at = j;
    }
    if (at < 0) return fail("an adapter is folded into a copy of a weight; rows with it run as a batch of their own");
    if (status good = found(k, at); !good) return good;
  }
  return ok;
}

}  // namespace graft
