// SPDX-License-Identifier: Apache-2.0
// The printer of expressions, sizes and shapes, which explain(), the documentation and compile errors share.
#pragma once
#include <graft/graph/graph.h>

namespace graft {

[[gnu::cold]] constexpr void print(text& t, const size_table& z, dim d, bool nested = false) {
  if (d.is_static()) {
    t << d.v;
    return;
  }
  const size_entry& e = z.e[d.entry()];
  using enum size_entry::kind;
  if (e.what == name) return z.paths.print(t, e.path), void(t << e.name);
  if (nested) t << '(';
  switch (e.what) {
    case name: break;
    case sum: print(t, z, e.a, true), t << " + ", print(t, z, e.b, true); break;
    case difference: print(t, z, e.a, true), t << " - ", print(t, z, e.b, true); break;
    case product: print(t, z, e.a, true), t << ' ', print(t, z, e.b, true); break;
    case quotient: print(t, z, e.a, true), t << '/', print(t, z, e.b, true); break;
    case triangle: print(t, z, e.a, true), t << '(', print(t, z, e.a, true), t << "-1)/2"; break;
    case window: t << "out_", print(t, z, e.a); break;
    case butterfly: print(t, z, e.a, true), t << " 2^(", print(t, z, e.b, true), t << "-1)"; break;
  }
  if (nested) t << ')';
}
// Prints the shape of node i as a file lists it, without leading axes of size 1.
[[gnu::cold]] constexpr void print_shape(text& t, const graph& g, id i) {
  const node& v = g[i];
  int first = 0;
  if (is_leaf(v.what) && v.rank == 1) {
    t << '[', print(t, g.sizes, v.what == op::ids ? v.d[3] : v.d[2]), t << ']';
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

// Values deeper than `depth` are printed as a name (t17) instead of an expression, and values in `named` always are.
struct print_style {
  const bool* named = nullptr;
  int depth = 12;
};

// Returns true if an operand needs parentheses. A mix of matrix and elementwise products always has them.
constexpr bool needs_parentheses(op child, op parent, bool right) {
  auto sum = [](op o) { return o == op::add || o == op::sub; };
  auto factor = [](op o) { return o == op::mul || o == op::div; };
  if (traits_of(child).infix[0] == '\0' || traits_of(parent).kind == op_class::leaf) return false;
  if (sum(parent)) return sum(child) && right && parent == op::sub;
  if (factor(parent)) return !factor(child) || (right && (parent == op::div || child == op::div));
  if (parent == op::matmul) return child != op::matmul || right;
  return parent == op::transpose;
}
[[gnu::cold]] constexpr void print_number(text& t, double v) {
  if (v < 0) t << '-', v = -v;
  int exponent = 0;
  if (v > 0 && v < 1e-4)
    while (v < 1) v *= 10, --exponent;
  const auto whole = static_cast<long long>(v);
  t << whole;
  double rest = v - static_cast<double>(whole);
  if (rest > 1e-7) t << '.';
  for (int k = 0; k < 6 && rest > 1e-7; ++k) {
    rest *= 10;
    const auto digit = static_cast<int>(rest);
    t << digit;
    rest -= digit;
  }
  if (exponent < 0) t << 'e' << exponent;
}

// `parent` is the op whose operand node i is; any leaf op means that there is none.
[[gnu::cold]] constexpr void print(text& t, const graph& g, id i, print_style style = {}, op parent = op::zero,
                                   bool right = false, bool root = true) {
  const node& v = g[i];
  if (v.what == op::constant) return print_number(t, v.value);
  if (v.what == op::number) return print(t, g.sizes, v.k[0], true);
  if (v.what == op::saved) return void(t << v.name << v.k[0].v);
  if (is_leaf(v.what)) return g.paths().print(t, v.path), void(t << v.name);
  if (!root && (style.depth == 0 || (style.named != nullptr && style.named[i]))) {
    t << 't' << i;
    return;
  }
  --style.depth;
  const op_traits r = traits_of(v.what);
  auto inner = [&](id o, op around, bool on_right) { print(t, g, o, style, around, on_right, false); };
  if (v.what == op::reshape) return inner(v.a, parent, right);
  if (v.what == op::transpose) {
    inner(v.a, op::transpose, false), t << "'";
    return;
  }
  if (r.infix[0] != '\0') {
    const bool wrap = needs_parentheses(v.what, parent, right);
    if (wrap) t << '(';
    inner(v.a, v.ta ? op::transpose : v.what, false), t << (v.ta ? "'" : "") << r.infix;
    inner(v.b, v.tb ? op::transpose : v.what, true), t << (v.tb ? "'" : "") << (wrap ? ")" : "");
    return;
  }
  t << (v.what == op::host ? v.name : r.name);
  if (v.what == op::rotate && v.tb) t << "_back";
  if (v.what == op::gather && v.ta) t << "_columns";
  if (v.what == op::circulant) t << (v.tb ? "_mirrored" : "") << (v.ta ? "_sum" : "");
  t << '(';
  for (int k = 0; k < r.arity; ++k) {
    if (k > 0) t << ", ";
    inner(v.operand(k), op::zero, false);
  }
  if (v.what == op::neumann || v.what == op::topk_softmax) t << ", ", print(t, g.sizes, v.k[0]);
  if (traits_of(v.what).axes == axis_flow::mix_axis) t << ", axis " << v.k[0].v;
  if (v.what == op::slice) t << " from ", print(t, g.sizes, v.k[1]), t << " size ", print(t, g.sizes, v.d[v.k[0].v]);
  if (v.what == op::permute)
    for (const dim axis : v.k) t << ", " << axis.v;
  if (v.what == op::repeat || v.what == op::fold_columns) t << ", ", print(t, g.sizes, v.d[3]);
  t << ')';
}

[[gnu::cold]] constexpr text expression(const graph& g, id i, print_style style = {}) {
  text t;
  print(t, g, i, style);
  return t;
}

}  // namespace graft
