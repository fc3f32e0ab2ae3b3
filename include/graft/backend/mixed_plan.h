// SPDX-License-Identifier: Apache-2.0
// Can rows with an adapter run in the launches of the base? They can if the plans of both by products differ in nothing but
// the slots of products: rows then bring what their own product has in its slots. Rotations, norms and folded adapters
// need other launches, and their rows run as a group.
#pragma once
#include <graft/core/result.h>
#include <graft/plan/plan.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace graft {

// A block of a model that is bound in one way. `Leaf(i)`: where the tensor of a leaf lies.
template <class Leaf> struct planned_block {
  const graph& g;
  const plan& p;  // by products
  Leaf leaf;

  // The stored weight of a product; null where it is a copy.
  const void* weight_of(const product_slots& s) const {
    const id i = base_leaf(g, s.weight);
    return i < 0 ? nullptr : leaf(i);
  }
  // What is computed with the data and is in no slot of a product: the operations, and the tensors that they read. Norms
  // and rotations are, also where the launch of a product takes them in.
  struct others {
    std::vector<op> operations;
    std::map<std::string, const void*> leaves;
    friend bool operator==(const others&, const others&) = default;
  };
  others beside_products() const {
    node_set counted(g.size), seen(g.size);
    for (const product_slots& s : p.products)
      for (const id i : s.inside) counted.add(i);
    others found;
    const auto visit = [&](const auto& self, id i) -> void {
      if (i < 0 || seen[i] || p.when.of[i] == stage::data) return;
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
inline bool same_besides_slots(const product_slots& a, const product_slots& b) {
  for (const side_branch& s : b.sides)
    if (s.kept) return false;
  return a.weight_by_row == b.weight_by_row && a.act == b.act && (a.residual < 0) == (b.residual < 0) &&
         a.before_posts < 0 && b.before_posts < 0;
}
}  // namespace detail

// Are two factors or summands of products the same tensor?
template <class Leaf>
bool same_post(const planned_block<Leaf>& a, const post_step& one, const planned_block<Leaf>& b,
               const post_step& other) {
  return one.what == other.what && is_leaf(a.g[one.operand].what) && is_leaf(b.g[other.operand].what) &&
         a.leaf(one.operand) == b.leaf(other.operand);
}
// Nothing but the product of the base, whose bias may be bound a second time?
template <class Leaf>
bool adds_nothing(const planned_block<Leaf>& base, const product_slots& s, const planned_block<Leaf>& with,
                  const product_slots& other) {
  bool same = other.sides.empty() && other.pre < 0 && other.posts.size() == s.posts.size();
  for (int k = 0; same && k < s.posts.size(); ++k) same = same_post(base, s.posts[k], with, other.posts[k]);
  return same;
}
// found(k, j): product j of the other block is product k of the base with other slots; or what it says instead.
template <class Leaf, class Found>
status match_products(const planned_block<Leaf>& base, const planned_block<Leaf>& with, const Found& found) {
  if (base.p.products.size() != with.p.products.size() || base.beside_products() != with.beside_products())
    return fail("an adapter needs other launches than the base; rows with it run as a group of their own");
  for (int k = 0; k < base.p.products.size(); ++k) {
    const product_slots& s = base.p.products[k];
    int at = -1;
    for (int j = 0; j < with.p.products.size(); ++j) {
      const product_slots& other = with.p.products[j];
      if (base.weight_of(s) != nullptr && base.weight_of(s) == with.weight_of(other) &&
          detail::same_besides_slots(s, other))
        at = j;
    }
    if (at < 0) return fail("an adapter is inside a copy of a weight; rows with it run as a group");
    if (status good = found(k, at); !good) return good;
  }
  return ok;
}

}  // namespace graft
