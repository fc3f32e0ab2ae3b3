// SPDX-License-Identifier: Apache-2.0
// fuse() for a GPU: each kind of launch claims the nodes that it takes in, and product_planner adds one launch per
// match in an order in which the inputs of every launch are computed before it.
#pragma once
#include <graft/plan/fuse.h>

namespace graft {

namespace detail {

// A node belongs to the first match that claims it; a node that nothing claims is a launch of its own.
struct product_planner : planner {
  struct claim_of_node {
    int kind = -1, index = -1;
    friend constexpr bool operator==(const claim_of_node&, const claim_of_node&) = default;
  };
  sequence<int> readers;
  sequence<claim_of_node> claims;
  launch_kinds::values<work_of> works;

  constexpr explicit product_planner(const planner& of)
      : planner(of), readers(count_readers(g, p.live)), claims(g.size, claim_of_node{}) {}

  template <class Kind> constexpr const typename Kind::capabilities& can() const { return p.to.can<Kind>(); }
  template <class Kind> constexpr typename Kind::work& work() { return static_cast<work_of<Kind>&>(works).work; }
  template <class Kind> constexpr const typename Kind::work& work() const {
    return static_cast<const work_of<Kind>&>(works).work;
  }
  template <class Kind> constexpr void claim(id i, int index) { claims[i] = {launch_kinds::index_of<Kind>, index}; }
  // The match of a kind that node i belongs to, or -1.
  template <class Kind> constexpr int claimed(id i) const {
    return claims[i].kind == launch_kinds::index_of<Kind> ? claims[i].index : -1;
  }
  constexpr bool is_free(id i) const { return member(i) && claims[i].kind < 0; }
  constexpr node_set free_nodes() const {
    node_set free(g.size);
    for (id i = 0; i < g.size; ++i) free.in[i] = is_free(i);
    return free;
  }
  // Returns true if all operands of the nodes from other launches are computed; `own` are the nodes of one match.
  template <class Kind> constexpr bool computed(const sequence<id>& nodes, int index) const {
    for (const id i : nodes)
      if (!computed<Kind>(i, index)) return false;
    return true;
  }
  template <class Kind> constexpr bool computed(id i, int index) const {
    return computed_before(i, {launch_kinds::index_of<Kind>, index});
  }
  constexpr bool computed(id i) const { return computed_before(i, {}); }
  constexpr bool computed(const sequence<id>& nodes) const {  // for nodes that other matches may contain too
    node_set own(g.size);
    for (const id i : nodes) own.add(i);
    for (const id i : nodes)
      if (!computed_before(i, {}, &own)) return false;
    return true;
  }
  // Calls f with the nodes of the launch that was opened last.
  template <class F> constexpr void each_node(F f) const {
    for (int n = p.launches[p.launches.size() - 1].first; n < p.nodes.size(); ++n) f(p.nodes[n]);
  }

  // Adds launches in node order. Passes are repeated until nothing is added, because a match whose inputs a later
  // launch computes has to wait for it.
  [[gnu::cold]] constexpr void gather() {
    mark_nodes_whole();
    auto& self = *this;  // nvcc cannot compile *this in a requires-expression of a lambda
    launch_kinds::each([&]<class Kind>(Kind*) {
      const bool by_node = p.to.granularity != target::work::by_products;
      if constexpr (requires { Kind::match(self); })
        if (!by_node || requires { Kind::by_nodes; }) Kind::match(self);
    });
    for (int before = -1; before != p.launches.size();) {
      before = p.launches.size();
      for (id i = 0; i < g.size; ++i)
        if (member(i) && g[i].what != op::reshape && p.launch_of[i] < 0) add_launch(i);
    }
  }

 private:
  // Adds the launch whose result is node i if its inputs are computed.
  [[gnu::cold]] constexpr void add_launch(id i) {
    auto& self = *this;
    launch_kinds::only(claims[i].kind, [&]<class Kind>(Kind*) {
      if constexpr (requires { Kind::add(self, 0, i); }) Kind::add(self, claims[i].index, i);
    });
    if (claims[i].kind >= 0 || !computed(i)) return;
    open(nodes_launch{i});
    add(i, launch_slot::standalone);
  }
  // The nodes of the match `own`, and those in `nodes`, count as computed. No template of a lambda: clang 14 does not
  // define one that a constant expression needs inside of another template.
  constexpr bool computed_before(id i, claim_of_node own, const node_set* nodes = nullptr) const {
    for (int k = 0; k < 3; ++k) {
      id o = g[i].operand(k);
      while (o >= 0 && g[o].what == op::reshape && member(o)) o = g[o].a;
      if (o >= 0 && member(o) && p.launch_of[o] < 0) {
        const bool is_own = own.kind >= 0 && claims[o] == own;
        if (!is_own && (nodes == nullptr || !(*nodes)[o])) return false;
      }
    }
    return true;
  }
};

}  // namespace detail

// The value of target::fuse_products for targets that run by products.
[[gnu::cold]] constexpr void fuse_products(const detail::planner& of) { detail::product_planner{of}.gather(); }

}  // namespace graft
