// SPDX-License-Identifier: Apache-2.0
// The captured graph is a value: nodes in topological order, a table of sizes, and the requirements that the sizes must
// meet. Every pass is an ordinary constexpr function on it; a test or a debugger can run the same pass at run time.
#pragma once
#include <graft/graph/op.h>
#include <graft/graph/sizes.h>

namespace graft {

using id = short;
inline constexpr id none_id = -1;
inline constexpr int max_nodes = 384;
inline constexpr int max_outputs = 16;
inline constexpr int max_requirements = 64;

struct node {
  op what = op::zero;
  bool ta = false, tb = false;  // operand a, b is used transposed; gather, scatter: columns instead of rows
  bool sum = false;             // matmul: the products of all matrices are summed into one
  bool orthogonal = false;      // a fact stated by the formula: the inverse is the transpose
  signed char rank = 4;         // leaves: number of sizes in a file
  id a = none_id, b = none_id, c = none_id;
  dim d[4]{};                    // sizes, right aligned
  dim k[4]{{0}, {0}, {0}, {0}};  // whole-number arguments of an op: terms, top-k, kernel, stride, padding
  double value = 0;              // constants
  const char* name = "";
  int line = 0;

  constexpr dim rows() const { return d[2]; }
  constexpr dim cols() const { return d[3]; }
  constexpr id operand(int i) const { return i == 0 ? a : i == 1 ? b : c; }
};

// What a graph cannot do whatever the sizes are. The numbers are part of docs/errors.md.
enum class fault : unsigned char { none, too_many_nodes, not_differentiable, not_invertible, not_a_matrix };

struct failure {
  fault what = fault::none;
  id at = none_id;
  int line = 0;
};

// What the sizes must satisfy; checked when numbers are bound, at compile time or at run time.
struct requirement {
  enum class kind : unsigned char { inner, same, square, divides };
  kind what = kind::same;
  dim lhs{}, rhs{};
  id at = none_id;
  int line = 0;
};

struct output {
  id at = none_id;
  const char* name = "";
};

// A view of a graph: what passes read and executors keep. The nodes lie in a builder while a graph is being made, and
// in a stored_graph of just their number afterwards.
struct graph {
  const node* n;
  int size;
  const size_table& sizes;
  const requirement* need;
  int needs;
  const output* out;
  int outs;
  failure bad;

  constexpr const node& operator[](id i) const { return n[i]; }
  constexpr id find(const char* name) const {
    for (int i = 0; i < size; ++i)
      if (is_leaf(n[i].what) && same_text(n[i].name, name)) return static_cast<id>(i);
    return none_id;
  }
  constexpr id result(const char* name) const {
    for (int i = 0; i < outs; ++i)
      if (same_text(out[i].name, name)) return out[i].at;
    return none_id;
  }
};

template <int Nodes> struct stored_graph {
  node n[Nodes > 0 ? Nodes : 1]{};
  int size = 0;
  size_table sizes{};
  requirement need[max_requirements]{};
  int needs = 0;
  output out[max_outputs]{};
  int outs = 0;
  failure bad{};

  constexpr operator graph() const { return {n, size, sizes, need, needs, out, outs, bad}; }
  constexpr const node& operator[](id i) const { return n[i]; }
  constexpr id find(const char* name) const { return graph(*this).find(name); }
  constexpr id result(const char* name) const { return graph(*this).result(name); }
};
inline constexpr stored_graph<0> empty_graph{};

template <int Nodes, class Made> constexpr stored_graph<Nodes> store(const Made& from) {
  stored_graph<Nodes> g;
  for (int i = 0; i < from.size; ++i) g.n[i] = from.n[i];
  g.size = from.size;
  g.sizes = from.sizes;
  for (int i = 0; i < from.needs; ++i) g.need[i] = from.need[i];
  g.needs = from.needs;
  for (int i = 0; i < from.outs; ++i) g.out[i] = from.out[i];
  g.outs = from.outs;
  g.bad = from.bad;
  return g;
}

constexpr bool same_shape(const node& p, const node& q) {
  for (int i = 0; i < 4; ++i)
    if (p.d[i] != q.d[i]) return false;
  return true;
}
constexpr bool is_scalar(const node& v) {
  for (dim d : v.d)
    if (d != dim{1}) return false;
  return true;
}
constexpr long long count(const graph& g, id i, const size_values& s) {
  long long n = 1;
  for (dim d : g[i].d) {
    const long long v = g.sizes.value(d, s);
    if (v == unknown) return unknown;
    n *= v;
  }
  return n;
}
constexpr long long nominal_count(const graph& g, id i) {
  long long n = 1;
  for (dim d : g[i].d) n *= g.sizes.nominal(d);
  return n;
}

}  // namespace graft
