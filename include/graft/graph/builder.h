// SPDX-License-Identifier: Apache-2.0
// builder: creates a graph node by node. Equal nodes are created once (hash-consing), every op checks its shape rule,
// and identities that hold for any operands (x + 0, I x, (Aᵀ)ᵀ) are applied at once. In canonical order
// (graph/canonical.h) the graph does not depend on the order in which a compiler evaluates operands.
#pragma once
#include <graft/core/sequence.h>
#include <graft/graph/graph.h>

namespace graft {

struct builder {
  sequence<node> n;
  sequence<size_entry> size_list;
  sequence<path_entry> path_list;
  sequence<requirement> need;
  sequence<output> out;
  failure bad{};
  int names = 0;  // named sizes so far
  static constexpr int buckets = 64;
  sequence<int> first{buckets};  // head of each hash chain: node + 1, or 0
  sequence<int> next;            // by node: the next node of its chain + 1, or 0

  [[gnu::cold, gnu::noinline]] constexpr builder() { path_list.push({}); }
  // Copies, moves and destruction are out of line, because every pass contains some of them.
  [[gnu::cold, gnu::noinline]] constexpr builder(const builder&) = default;
  [[gnu::cold, gnu::noinline]] constexpr builder(builder&&) = default;
  [[gnu::cold, gnu::noinline]] constexpr builder& operator=(const builder&) = default;
  [[gnu::cold, gnu::noinline]] constexpr builder& operator=(builder&&) = default;
  [[gnu::cold, gnu::noinline]] constexpr ~builder() = default;

  constexpr path_table paths() const { return {path_list.data(), path_list.size()}; }
  constexpr size_table sizes() const { return {size_list.data(), size_list.size(), paths()}; }
  constexpr operator graph() const {
    return {n.data(), n.size(), sizes(), need.data(), need.size(), out.data(), out.size(), bad};
  }
  constexpr id find(const char* full) const { return graph(*this).find(full); }
  constexpr id result(const char* full) const { return graph(*this).result(full); }

  // ---- paths
  constexpr int path(int above, const char* words) {
    while (*words != '\0') {
      int length = 0;
      while (words[length] != '\0' && words[length] != '.') ++length;
      above = word(above, words, length);
      words += length + (words[length] == '.' ? 1 : 0);
    }
    return above;
  }
  [[gnu::cold, gnu::noinline]] constexpr int word(int above, const char* text, int length) {
    for (int i = 0; i < path_list.size(); ++i) {
      const path_entry& p = path_list[i];
      bool equal = p.above == above && p.length == length;
      for (int k = 0; equal && k < length; ++k) equal = p.word[k] == text[k];
      if (equal) return i;
    }
    path_list.push({above, text, length});
    return path_list.size() - 1;
  }

  // ---- sizes
  [[gnu::cold, gnu::noinline]] constexpr dim entry(size_entry t) {
    const size_entry* const entries = size_list.data();
    for (int i = 0, count = size_list.size(); i < count; ++i) {
      const size_entry& o = entries[i];
      if (o.what == t.what && o.a.v == t.a.v && o.b.v == t.b.v && o.c.v == t.c.v && o.d.v == t.d.v &&
          o.path == t.path && same_text(o.name, t.name))
        return entry_dim(i);
    }
    if (t.what == size_entry::kind::name) {
      if (names == max_names) return stop({formula_error::too_many_sizes, none_id, 0, t.name}), dim{1};
      t.index = names++;
    }
    size_list.push(t);
    return entry_dim(size_list.size() - 1);
  }
  [[gnu::cold, gnu::noinline]] constexpr dim derived_size(size_entry::kind what, dim a, dim b, dim c = {}, dim d = {}) {
    size_entry t;
    t.what = what, t.a = a, t.b = b, t.c = c, t.d = d, t.nominal = 1;
    return entry(t);
  }
  constexpr dim size_named(const char* name, int path, int nominal, bool tokens = false) {
    size_entry t;
    t.name = name, t.path = path, t.nominal = nominal, t.tokens = tokens;
    const dim d = entry(t);
    if (d.is_static()) return d;
    // The largest nominal number that a formula states counts, so that evaluation order does not matter.
    size_entry& e = size_list[d.entry()];
    if (e.nominal < nominal) e.nominal = nominal;
    e.tokens = e.tokens || tokens;
    return d;
  }
  constexpr bool is_size(dim d, size_entry::kind what) const {
    return !d.is_static() && size_list[d.entry()].what == what;
  }
  constexpr bool divided_by(dim q, dim divisor) const {
    return is_size(q, size_entry::kind::quotient) && size_list[q.entry()].b == divisor;
  }
  constexpr void sort_operands(dim& a, dim& b) const {
    if (sizes().order(b, a) >= 0) return;
    const dim t = a;
    a = b, b = t;
  }
  [[gnu::cold, gnu::noinline]] constexpr dim times(dim a, dim b) {
    if (a.is_static() && b.is_static()) return {a.v * b.v};
    if (a == dim{1}) return b;
    if (b == dim{1}) return a;
    if (divided_by(a, b)) return size_list[a.entry()].a;
    if (divided_by(b, a)) return size_list[b.entry()].a;
    sort_operands(a, b);
    return derived_size(size_entry::kind::product, a, b);
  }
  constexpr dim over(dim a, dim b, int line = 0) {
    if (b == dim{1}) return a;
    if (a == b) return {1};
    require(requirement::kind::divides, a, b, none_id, line);
    if (a.is_static() && b.is_static()) return {b.v > 0 ? a.v / b.v : 1};
    if (is_size(a, size_entry::kind::product)) {
      const size_entry& t = size_list[a.entry()];
      if (t.a == b) return t.b;
      if (t.b == b) return t.a;
    }
    return derived_size(size_entry::kind::quotient, a, b);
  }
  constexpr dim plus(dim a, dim b) {
    if (a.is_static() && b.is_static()) return {a.v + b.v};
    if (a == dim{0}) return b;
    if (b == dim{0}) return a;
    sort_operands(a, b);
    return derived_size(size_entry::kind::sum, a, b);
  }
  constexpr dim minus(dim a, dim b, int line = 0) {
    if (b == dim{0}) return a;
    if (a == b) return {0};
    require(requirement::kind::at_most, b, a, none_id, line);
    if (a.is_static() && b.is_static()) return {a.v > b.v ? a.v - b.v : 0};
    return derived_size(size_entry::kind::difference, a, b);
  }
  constexpr dim triangle(dim a) {
    return a.is_static() ? dim{a.v * (a.v - 1) / 2} : derived_size(size_entry::kind::triangle, a, {});
  }
  constexpr dim butterfly(dim block, dim factors) {
    return factors == dim{1} ? block : derived_size(size_entry::kind::butterfly, block, factors);
  }
  constexpr dim window(dim length, dim kernel, dim stride, dim pad) {
    return derived_size(size_entry::kind::window, length, kernel, stride, pad);
  }

  // ---- failures and requirements
  constexpr void stop(const failure& f) {
    if (bad.what == formula_error::none) bad = f;
  }
  // A requirement that several lines of the formula state is recorded once, with the smallest line, so that evaluation
  // order does not matter.
  [[gnu::cold, gnu::noinline]] constexpr void require(requirement::kind k, dim lhs, dim rhs, id at, int line) {
    if (k != requirement::kind::divides && lhs == rhs) return;
    if (k == requirement::kind::divides && lhs.is_static() && rhs.is_static() && rhs.v > 0 && lhs.v % rhs.v == 0)
      return;
    for (requirement& r : need)
      if (r.what == k && r.lhs == lhs && r.rhs == rhs && r.at == at) {
        if (line > 0 && (r.line == 0 || line < r.line)) r.line = line;
        return;
      }
    need.push({k, lhs, rhs, at, line});
  }

  // ---- nodes
  static constexpr bool same(const node& p, const node& q) {
    if (p.what != q.what || p.a != q.a || p.b != q.b || p.c != q.c || p.ta != q.ta || p.tb != q.tb || p.sum != q.sum)
      return false;
    if (p.value != q.value || p.path != q.path || !same_shape(p, q)) return false;
    for (int i = 0; i < 4; ++i)
      if (p.k[i].v != q.k[i].v) return false;
    if (is_named(p.what) && p.rank != q.rank) return false;
    return (!is_leaf(p.what) && p.what != op::host) || same_text(p.name, q.name);
  }
  static constexpr int bucket_of(const node& v) {
    return (static_cast<int>(v.what) + 7 * (v.a + 1) + 13 * (v.b + 1) + 5 * (v.c + 1) + 3 * v.path) % buckets;
  }
  [[gnu::cold, gnu::noinline]] constexpr id emit(const node& v) {
    node* const nodes = n.data();
    for (int i = first[bucket_of(v)]; i > 0; i = next[i - 1])
      if (nodes[i - 1].what == v.what && same(nodes[i - 1], v)) {
        node& old = nodes[i - 1];  // the smallest line counts, so that evaluation order does not matter
        if (v.line > 0 && (old.line == 0 || v.line < old.line)) old.line = v.line;
        return i - 1;
      }
    return append(v);
  }
  // Appends a node without the search for an equal one.
  constexpr id append(const node& v) {
    int& bucket = first[bucket_of(v)];
    n.push(v), next.push(bucket);
    node* const made = n.data();
    made[n.size() - 1].from_base = v.what == op::base || (v.a >= 0 && made[v.a].from_base) ||
                                   (v.b >= 0 && made[v.b].from_base) || (v.c >= 0 && made[v.c].from_base);
    return bucket = n.size(), bucket - 1;
  }
  constexpr void reserve(int nodes) { n.reserve(nodes), next.reserve(nodes); }
  constexpr void add_output(id i, const char* name, int path = 0, bool of_input = false) {
    out.push({i, name, path, of_input});
  }
  // A node with the shape of `like`, which most shape rules start from.
  [[gnu::cold, gnu::noinline]] constexpr node shaped(op o, id like, id a, id b = none_id, id c = none_id,
                                                     int line = 0) const {
    node v{};
    v.what = o;
    v.a = a;
    v.b = b;
    v.c = c;
    const node& shape = n[like];
    for (int i = 0; i < 4; ++i) v.d[i] = shape.d[i];
    v.line = line;
    return v;
  }
  // A named leaf. A second declaration returns the first one if it is equal, and is an error if it differs.
  [[gnu::cold, gnu::noinline]] constexpr id leaf(op o, const char* name, int path, int rank, dim d0, dim d1, dim d2,
                                                 dim d3, int line = 0) {
    node v{};
    v.what = o;
    v.name = name;
    v.path = path;
    v.rank = static_cast<signed char>(rank);
    v.d[0] = d0, v.d[1] = d1, v.d[2] = d2, v.d[3] = d3;
    v.line = line;
    const int before = n.size();
    const id made = emit(v);
    const node* const nodes = n.data();
    if (made == before && is_named(o))
      for (id i = 0; i < before; ++i)
        if (nodes[i].path == path && nodes[i].a < 0 && is_named(nodes[i].what) && same_text(nodes[i].name, name))
          stop({formula_error::name_is_taken, i, line, name});
    return made;
  }
  [[gnu::cold, gnu::noinline]] constexpr id constant(double value) {
    node v{};
    v.what = op::constant;
    v.value = value;
    v.name = "constant";
    return emit(v);
  }
  // A node whose value is the size d.
  constexpr id number(dim d, int line = 0) {
    if (d.is_static()) return constant(d.v);
    node v{};
    v.what = op::number;
    v.k[0] = d;
    v.name = "number";
    v.line = line;
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
