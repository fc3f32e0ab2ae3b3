// SPDX-License-Identifier: Apache-2.0
// graph: a captured formula as a value. It has nodes in topological order, tables of sizes and paths, and requirements
// that the sizes must meet. Every pass is an ordinary constexpr function on it, which also runs in a test, under a
// debugger, and in a program that reads its formula from a file.
#pragma once
#include <graft/core/array_size.h>
#include <graft/graph/op.h>
#include <graft/graph/sizes.h>

namespace graft {

using id = int;
inline constexpr id none_id = -1;

struct node {
  op what = op::zero;
  bool ta = false, tb = false;  // operand a, b is transposed; gather, scatter: columns instead of rows
  bool sum = false;             // matmul: the products of all matrices are summed; others: see is_shard()
  bool orthogonal = false;      // the formula states that the inverse is the transpose
  bool from_base = false;       // is a base tensor, or is computed from one
  signed char rank = 4;         // leaves: number of axes in a file
  id a = none_id, b = none_id, c = none_id;
  dim d[4]{};                    // sizes, right aligned
  dim k[4]{{0}, {0}, {0}, {0}};  // integer arguments of an op: terms, top-k, axes, kernel, stride, padding
  double value = 0;              // constants
  const char* name = "";
  int path = 0;  // leaves: entry of the path table
  int line = 0;

  constexpr dim rows() const { return d[2]; }
  constexpr dim cols() const { return d[3]; }
  constexpr id operand(int i) const { return i == 0 ? a : i == 1 ? b : c; }
};

// Errors of a formula that do not depend on the sizes.
enum class formula_error : unsigned char {
  none,
  too_many_sizes,
  name_is_taken,
  size_is_negative,
  not_on_experts,
  not_differentiable
};

struct failure {
  formula_error what = formula_error::none;
  id at = none_id;
  int line = 0;
  const char* name = "";  // the leaf or size that the error names; not_on_experts: the method
  int number = 0;         // size_is_negative: the size
};

// A relation between two sizes that is checked when numbers are bound, at compile time or at run time.
struct requirement {
  enum class kind : unsigned char { inner, same, square, divides, at_most };
  kind what = kind::same;
  dim lhs{}, rhs{};
  id at = none_id;
  int line = 0;
};

// A named result of a graph. The gradient of a parameter has the parameter's name; the gradient of an input has the
// input's name after a "d".
struct output {
  id at = none_id;
  const char* name = "";
  int path = 0;
  bool of_input = false;
};

// A non-owning view of a graph. A builder owns the nodes while the graph is built, and a stored_graph of the exact size
// owns them afterwards.
struct graph {
  const node* n = nullptr;
  int size = 0;
  size_table sizes{};
  const requirement* need = nullptr;
  int needs = 0;
  const output* out = nullptr;
  int outs = 0;
  failure bad{};

  constexpr const node& operator[](id i) const { return n[i]; }
  constexpr const path_table& paths() const { return sizes.paths; }
  constexpr text name(id i) const { return paths().full(n[i].path, n[i].name); }
  [[gnu::cold]] constexpr text output_name(int k) const {
    text t;
    paths().print(t, out[k].path), t << (out[k].of_input ? "d" : "") << out[k].name;
    return t;
  }
  // find looks up a leaf, and result looks up an output, by path and name: "self_attn.q_proj.lora_A.weight".
  [[gnu::noinline]] constexpr id find(const char* full) const {
    for (id i = 0; i < size; ++i)
      if (is_leaf(n[i].what) && paths().is(n[i].path, n[i].name, full)) return i;
    return none_id;
  }
  constexpr int find_output(const char* full) const {
    for (int k = 0; k < outs; ++k) {
      const char* const rest = paths().strip_prefix(out[k].path, full);
      if (rest == nullptr || (out[k].of_input && *rest != 'd')) continue;
      if (same_text(out[k].of_input ? rest + 1 : rest, out[k].name)) return k;
    }
    return -1;
  }
  constexpr id result(const char* full) const {
    const int k = find_output(full);
    return k < 0 ? none_id : out[k].at;
  }
};

// The lengths of a graph's arrays, which an exact copy needs.
struct graph_counts {
  int nodes = 0, sizes = 0, paths = 0, needs = 0, outs = 0;
};
constexpr graph_counts counts_of(const graph& g) { return {g.size, g.sizes.count, g.paths().count, g.needs, g.outs}; }

// An owning graph with fixed capacities. fits() is false, and nothing is copied, where the source exceeds one of them.
template <int Nodes, int Sizes, int Paths, int Needs, int Outs> struct stored_graph {
  graph_counts of{};
  node n[array_size(Nodes)]{};
  size_entry sizes[array_size(Sizes)]{};
  path_entry paths[array_size(Paths)]{};
  requirement need[array_size(Needs)]{};
  output out[array_size(Outs)]{};
  failure bad{};

  constexpr bool fits() const {
    return of.nodes <= Nodes && of.sizes <= Sizes && of.paths <= Paths && of.needs <= Needs && of.outs <= Outs;
  }
  constexpr operator graph() const {
    return {n, of.nodes, {sizes, of.sizes, {paths, of.paths}}, need, of.needs, out, of.outs, bad};
  }
};
template <int Nodes, int Sizes, int Paths, int Needs, int Outs>
constexpr stored_graph<Nodes, Sizes, Paths, Needs, Outs> store_graph(const graph& from) {
  stored_graph<Nodes, Sizes, Paths, Needs, Outs> g;
  g.of = counts_of(from);
  if (!g.fits()) return g;
  for (int i = 0; i < g.of.nodes; ++i) g.n[i] = from.n[i];
  for (int i = 0; i < g.of.sizes; ++i) g.sizes[i] = from.sizes.e[i];
  for (int i = 0; i < g.of.paths; ++i) g.paths[i] = from.paths().e[i];
  for (int i = 0; i < g.of.needs; ++i) g.need[i] = from.need[i];
  for (int i = 0; i < g.of.outs; ++i) g.out[i] = from.out[i];
  g.bad = from.bad;
  return g;
}

// Returns true for a look-up or a loss on one rank's shard of the table or vocabulary, which begins at k[0]. Ids
// outside of the shard give zeros, so that an all-reduce of the ranks' results is the whole result.
constexpr bool is_shard(const node& v) { return v.sum && v.what != op::matmul; }

constexpr bool same_shape(const node& p, const node& q) {
  for (int i = 0; i < 4; ++i)
    if (p.d[i].v != q.d[i].v) return false;
  return true;
}
constexpr bool is_scalar(const node& v) {
  for (int i = 3; i >= 0; --i)
    if (v.d[i].v != 1) return false;
  return true;
}
[[gnu::noinline]] constexpr long long element_count(const graph& g, id i, const size_values& s) {
  long long n = 1;
  for (dim d : g[i].d) {
    const long long v = g.sizes.value(d, s);
    if (v == unknown) return unknown;
    n = saturating_multiply(n, v);
  }
  return n;
}
constexpr long long nominal_count(const graph& g, id i) {
  long long n = 1;
  for (dim d : g.n[i].d)
    if (d.v != 1) n = saturating_multiply(n, g.sizes.nominal(d));
  return n;
}

}  // namespace graft
