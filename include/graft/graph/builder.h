// SPDX-License-Identifier: Apache-2.0
// Builds a graph node by node: equal nodes are made once (hash-consing), every op states its shape rule, and the rules
// that hold for any operands (x + 0, I x, (Aᵀ)ᵀ) are applied on the way in.
#pragma once
#include <graft/graph/graph.h>

namespace graft {

struct builder : stored_graph<max_nodes> {
  // ---- sizes
  constexpr dim entry(size_entry t) {
    for (int i = 0; i < sizes.count; ++i) {
      const size_entry& o = sizes.e[i];
      if (o.what == t.what && o.a == t.a && o.b == t.b && o.c == t.c && o.d == t.d && same_text(o.name, t.name))
        return entry_dim(i);
    }
    if (sizes.count == max_entries) return stop(fault::too_many_nodes, none_id, 0), dim{1};
    sizes.e[sizes.count] = t;
    return entry_dim(sizes.count++);
  }
  constexpr dim size_named(const char* name, int nominal) {
    return entry({size_entry::kind::name, {}, {}, {}, {}, name, nominal});
  }
  constexpr bool divided_by(dim q, dim divisor) const {
    return !q.known() && sizes.e[q.entry()].what == size_entry::kind::quotient && sizes.e[q.entry()].b == divisor;
  }
  constexpr dim times(dim a, dim b) {
    if (a.known() && b.known()) return {a.v * b.v};
    if (a == dim{1}) return b;
    if (b == dim{1}) return a;
    if (divided_by(a, b)) return sizes.e[a.entry()].a;
    if (divided_by(b, a)) return sizes.e[b.entry()].a;
    if (b.v < a.v) {
      const dim t = a;
      a = b;
      b = t;
    }
    return entry({size_entry::kind::product, a, b, {}, {}, "", 1});
  }
  constexpr dim over(dim a, dim b, int line = 0) {
    if (b == dim{1}) return a;
    if (a == b) return {1};
    require(requirement::kind::divides, a, b, none_id, line);
    if (a.known() && b.known()) return {b.v > 0 ? a.v / b.v : 1};
    if (!a.known() && sizes.e[a.entry()].what == size_entry::kind::product) {
      const size_entry& t = sizes.e[a.entry()];
      if (t.a == b) return t.b;
      if (t.b == b) return t.a;
    }
    return entry({size_entry::kind::quotient, a, b, {}, {}, "", 1});
  }
  constexpr dim triangle(dim a) {
    return a.known() ? dim{a.v * (a.v - 1) / 2} : entry({size_entry::kind::triangle, a, {}, {}, {}, "", 1});
  }
  constexpr dim butterfly(dim block, dim factors) {
    return factors == dim{1} ? block : entry({size_entry::kind::butterfly, block, factors, {}, {}, "", 1});
  }
  constexpr dim window(dim length, dim kernel, dim stride, dim pad) {
    return entry({size_entry::kind::window, length, kernel, stride, pad, "", 1});
  }

  // ---- failures and requirements
  constexpr id stop(fault f, id at, int line) {
    if (bad.what == fault::none) bad = {f, at, line};
    return at < 0 ? id{0} : at;
  }
  constexpr void require(requirement::kind k, dim lhs, dim rhs, id at, int line) {
    if (k != requirement::kind::divides && lhs == rhs) return;
    if (k == requirement::kind::divides && lhs.known() && rhs.known() && rhs.v > 0 && lhs.v % rhs.v == 0) return;
    for (int i = 0; i < needs; ++i)
      if (need[i].what == k && need[i].lhs == lhs && need[i].rhs == rhs) return;
    if (needs < max_requirements)
      need[needs++] = {k, lhs, rhs, at, line};
    else
      stop(fault::too_many_nodes, none_id, line);
  }

  // ---- nodes
  static constexpr bool same(const node& p, const node& q) {
    if (p.what != q.what || p.a != q.a || p.b != q.b || p.c != q.c || p.ta != q.ta || p.tb != q.tb || p.sum != q.sum)
      return false;
    if (p.value != q.value || !same_shape(p, q)) return false;
    for (int i = 0; i < 4; ++i)
      if (p.k[i] != q.k[i]) return false;
    return (!is_leaf(p.what) && p.what != op::host) || same_text(p.name, q.name);
  }
  constexpr id emit(const node& v) {
    for (int i = 0; i < size; ++i)
      if (same(n[i], v)) return static_cast<id>(i);
    if (size == max_nodes) return stop(fault::too_many_nodes, static_cast<id>(size - 1), v.line);
    n[size] = v;
    return static_cast<id>(size++);
  }
  constexpr void give(id i, const char* name) {
    if (outs < max_outputs)
      out[outs++] = {i, name};
    else
      stop(fault::too_many_nodes, i, 0);
  }
  // A node that keeps the shape of `like`; the start of most rules below.
  constexpr node shaped(op o, id like, id a, id b = none_id, id c = none_id, int line = 0) const {
    node v{};
    v.what = o;
    v.a = a;
    v.b = b;
    v.c = c;
    for (int i = 0; i < 4; ++i) v.d[i] = n[like].d[i];
    v.line = line;
    return v;
  }
  constexpr id leaf(op o, const char* name, int rank, dim d0, dim d1, dim d2, dim d3, int line = 0) {
    node v{};
    v.what = o;
    v.name = name;
    v.rank = static_cast<signed char>(rank);
    v.d[0] = d0, v.d[1] = d1, v.d[2] = d2, v.d[3] = d3;
    v.line = line;
    return emit(v);
  }
  constexpr id constant(double value) {
    node v{};
    v.what = op::constant;
    v.value = value;
    v.name = "constant";
    return emit(v);
  }
  constexpr id zero_like(id like) {
    node v = shaped(op::zero, like, none_id);
    v.name = "0";
    return emit(v);
  }
  constexpr bool is(id i, op o) const { return i >= 0 && n[i].what == o; }
  constexpr bool is_value(id i, double value) const { return is(i, op::constant) && n[i].value == value; }
};

}  // namespace graft
