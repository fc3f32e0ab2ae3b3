// SPDX-License-Identifier: Apache-2.0
// Builds a graph node by node: equal nodes are made once (hash-consing), every op states its shape rule, and the rules
// that hold for any operands (x + 0, I x, (Aᵀ)ᵀ) are applied on the way in. What it makes does not depend on the order in
// which a compiler evaluates the operands of an expression once it is put into canonical order (graph/canonical.h).
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
  int names = 0;  // of sizes
  static constexpr int buckets = 64;
  sequence<int> first{buckets};  // of the nodes with one hash, plus 1
  sequence<int> next;            // the node before with the same hash, plus 1

  [[gnu::cold, gnu::noinline]] constexpr builder() { path_list.push({}); }
  [[gnu::cold, gnu::noinline]] constexpr builder(const builder&) = default;  // compiled once, as what ends one is
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
      if (names == max_names) return stop({fault::too_many_sizes, none_id, 0, t.name}), dim{1};
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
    if (d.known()) return d;
    // Of several places in a formula that state a nominal number the largest counts, whichever was evaluated first.
    size_entry& e = size_list[d.entry()];
    if (e.nominal < nominal) e.nominal = nominal;
    e.tokens = e.tokens || tokens;
    return d;
  }
  constexpr bool is_size(dim d, size_entry::kind what) const { return !d.known() && size_list[d.entry()].what == what; }
  constexpr bool divided_by(dim q, dim divisor) const {
    return is_size(q, size_entry::kind::quotient) && size_list[q.entry()].b == divisor;
  }
  constexpr void in_order(dim& a, dim& b) const {
    if (sizes().order(b, a) >= 0) return;
    const dim t = a;
    a = b, b = t;
  }
  [[gnu::cold, gnu::noinline]] constexpr dim times(dim a, dim b) {
    if (a.known() && b.known()) return {a.v * b.v};
    if (a == dim{1}) return b;
    if (b == dim{1}) return a;
    if (divided_by(a, b)) return size_list[a.entry()].a;
    if (divided_by(b, a)) return size_list[b.entry()].a;
    in_order(a, b);
    return derived_size(size_entry::kind::product, a, b);
  }
  constexpr dim over(dim a, dim b, int line = 0) {
    if (b == dim{1}) return a;
    if (a == b) return {1};
    require(requirement::kind::divides, a, b, none_id, line);
    if (a.known() && b.known()) return {b.v > 0 ? a.v / b.v : 1};
    if (is_size(a, size_entry::kind::product)) {
      const size_entry& t = size_list[a.entry()];
      if (t.a == b) return t.b;
      if (t.b == b) return t.a;
    }
    return derived_size(size_entry::kind::quotient, a, b);
  }
  constexpr dim plus(dim a, dim b) {
    if (a.known() && b.known()) return {a.v + b.v};
    if (a == dim{0}) return b;
    if (b == dim{0}) return a;
    in_order(a, b);
    return derived_size(size_entry::kind::sum, a, b);
  }
  constexpr dim minus(dim a, dim b, int line = 0) {
    if (b == dim{0}) return a;
    if (a == b) return {0};
    require(requirement::kind::at_most, b, a, none_id, line);
    if (a.known() && b.known()) return {a.v > b.v ? a.v - b.v : 0};
    return derived_size(size_entry::kind::difference, a, b);
  }
  constexpr dim triangle(dim a) {
    return a.known() ? dim{a.v * (a.v - 1) / 2} : derived_size(size_entry::kind::triangle, a, {});
  }
  constexpr dim butterfly(dim block, dim factors) {
    return factors == dim{1} ? block : derived_size(size_entry::kind::butterfly, block, factors);
  }
  constexpr dim window(dim length, dim kernel, dim stride, dim pad) {
    return derived_size(size_entry::kind::window, length, kernel, stride, pad);
  }

  // ---- failures and requirements
  constexpr void stop(const failure& f) {
    if (bad.what == fault::none) bad = f;
  }
  // The same requirement may come from several places: the first line of them counts, whichever was evaluated first.
  [[gnu::cold, gnu::noinline]] constexpr void require(requirement::kind k, dim lhs, dim rhs, id at, int line) {
    if (k != requirement::kind::divides && lhs == rhs) return;
    if (k == requirement::kind::divides && lhs.known() && rhs.known() && rhs.v > 0 && lhs.v % rhs.v == 0) return;
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
        node& old =
            nodes[i - 1];  // of several places in the formula the first line counts, whichever was evaluated first
        if (v.line > 0 && (old.line == 0 || v.line < old.line)) old.line = v.line;
        return i - 1;
      }
    return append(v);
  }
  // A node that is known to be new.
  constexpr id append(const node& v) {
    int& bucket = first[bucket_of(v)];
    n.push(v), next.push(bucket);
    node* const made = n.data();
    made[n.size() - 1].from_base = v.what == op::base || (v.a >= 0 && made[v.a].from_base) ||
                                   (v.b >= 0 && made[v.b].from_base) || (v.c >= 0 && made[v.c].from_base);
    return bucket = n.size(), bucket - 1;
  }
  constexpr void reserve(int nodes) { n.reserve(nodes), next.reserve(nodes); }
  constexpr void give(id i, const char* name, int path = 0, bool of_input = false) {
    out.push({i, name, path, of_input});
  }
  // A node that keeps the shape of `like`; the start of most rules below.
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
  // A named leaf. The same one may be asked for again; another one of its name is a mistake.
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
          stop({fault::name_is_taken, i, line, name});
    return made;
  }
  [[gnu::cold, gnu::noinline]] constexpr id constant(double value) {
    node v{};
    v.what = op::constant;
    v.value = value;
    v.name = "constant";
    return emit(v);
  }
  // A size as a number.
  constexpr id number(dim d, int line = 0) {
    if (d.known()) return constant(d.v);
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
