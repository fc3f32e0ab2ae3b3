// SPDX-License-Identifier: Apache-2.0
// One printer for explain(), the documentation and the compile errors: expressions, sizes, requirements.
#pragma once
#include <graft/graph/graph.h>

namespace graft {

constexpr void print(text& t, const size_table& z, dim d, bool nested = false) {
  if (d.known()) {
    t << d.v;
    return;
  }
  const size_entry& e = z.e[d.entry()];
  using enum size_entry::kind;
  if (e.what == name) {
    t << e.name;
    return;
  }
  if (nested) t << '(';
  switch (e.what) {
    case name: break;
    case product: print(t, z, e.a, true), t << ' ', print(t, z, e.b, true); break;
    case quotient: print(t, z, e.a, true), t << '/', print(t, z, e.b, true); break;
    case triangle: print(t, z, e.a, true), t << '(', print(t, z, e.a, true), t << "-1)/2"; break;
    case window: t << "out_", print(t, z, e.a); break;
  }
  if (nested) t << ')';
}
// The sizes of node i as a file would list them; leading axes of size 1 are left out.
constexpr void print_shape(text& t, const graph& g, id i) {
  const node& v = g[i];
  int first = 0;
  if (is_leaf(v.what) && v.rank == 1) {
    t << '[', print(t, g.sizes, v.d[2]), t << ']';
    return;
  }
  while (first < 2 && v.d[first] == dim{1}) ++first;
  t << '[';
  for (int k = first; k < 4; ++k) {
    if (k > first) t << ", ";
    print(t, g.sizes, v.d[k]);
  }
  t << ']';
}

// How deep an expression is written out before a value gets a name of its own (t17), and which values have one anyway.
struct print_style {
  const bool* named = nullptr;
  int depth = 12;
};

constexpr int binding(op o) {  // how tightly an infix op holds its operands
  if (o == op::add || o == op::sub) return 1;
  if (o == op::mul || o == op::div) return 2;
  return o == op::matmul ? 3 : 4;
}
constexpr void print_number(text& t, double v) {
  if (v < 0) t << '-', v = -v;
  const auto whole = static_cast<long long>(v);
  t << whole;
  double rest = v - static_cast<double>(whole);
  if (rest <= 0) return;
  t << '.';
  for (int k = 0; k < 6 && rest > 1e-7; ++k) {
    rest *= 10;
    const auto digit = static_cast<int>(rest);
    t << digit;
    rest -= digit;
  }
}

constexpr void print(text& t, const graph& g, id i, print_style style = {}, int outer = 0, bool root = true) {
  const node& v = g[i];
  if (v.what == op::constant) return print_number(t, v.value);
  if (is_leaf(v.what)) {
    t << v.name;
    return;
  }
  if (!root && (style.depth == 0 || (style.named != nullptr && style.named[i]))) {
    t << 't' << static_cast<int>(i);
    return;
  }
  --style.depth;
  const op_row r = row(v.what);
  if (v.what == op::reshape || v.what == op::detach) {
    if (v.what == op::reshape) return print(t, g, v.a, style, outer, false);
    t << "const(", print(t, g, v.a, style, 0, false), t << ')';
    return;
  }
  if (v.what == op::transpose) {
    print(t, g, v.a, style, 4, false), t << "'";
    return;
  }
  if (r.infix[0] != '\0') {
    const int own = binding(v.what);
    const bool wrap = own < outer;
    if (wrap) t << '(';
    print(t, g, v.a, style, v.ta ? 4 : own, false);
    if (v.ta) t << "'";
    t << r.infix;
    print(t, g, v.b, style, v.tb ? 4 : own + (v.what == op::add || v.what == op::mul ? 0 : 1), false);
    if (v.tb) t << "'";
    if (wrap) t << ')';
    return;
  }
  t << (v.what == op::host ? v.name : r.name);
  if (v.what == op::rotate && v.tb) t << "_back";
  t << '(';
  for (int k = 0; k < r.arity; ++k) {
    if (k > 0) t << ", ";
    print(t, g, v.operand(k), style, 0, false);
  }
  if (v.what == op::neumann || v.what == op::topk_softmax) t << ", ", print(t, g.sizes, v.k[0]);
  t << ')';
}

constexpr text expression(const graph& g, id i, print_style style = {}) {
  text t;
  print(t, g, i, style);
  return t;
}

}  // namespace graft
