// SPDX-License-Identifier: Apache-2.0
// The messages. One class per mistake; its static_assert is the sentence, its template arguments are the facts: the
// expression, the line of the formula, the sizes. docs/errors.md lists them with examples and cures.
#pragma once
#include <graft/core/text.h>

namespace graft {
namespace diagnostic {

template <int N> struct str { char s[N]{}; };
// The compiler prints the argument of the first form as a string; clang before 15 prints numbers, and gets letters.
template <str> struct expression {};
template <char...> struct spelled {};

#if defined(__clang__) && __clang_major__ < 15
template <class, int... I> struct positions {};
template <const text& T, int... I> constexpr spelled<T.s[I]...> letters(positions<int, I...>) { return {}; }
template <const text& T> constexpr auto quoted() { return letters<T>(__make_integer_seq<positions, int, T.n>{}); }
#else
template <const text& T> constexpr auto quoted() {
  constexpr auto cut = [] {
    str<T.n + 1> r{};
    for (int i = 0; i < T.n; ++i) r.s[i] = T.s[i];
    return r;
  }();
  return expression<cut>{};
}
#endif

struct none {};

template <class Expression, int formula_line, long long left, long long right> struct inner_sizes_differ {
  static_assert(left == right,
                "graft: a matrix product whose inner sizes differ; expression, line of the formula and both sizes are "
                "the arguments above");
};
template <class Expression, int formula_line, long long left, long long right> struct sizes_differ {
  static_assert(
      left == right,
      "graft: operands whose sizes differ; expression, line of the formula and both sizes are the arguments above");
};
template <class Expression, int formula_line, long long rows, long long columns> struct matrix_is_not_square {
  static_assert(rows == columns,
                "graft: this op needs square matrices; expression, line of the formula, rows and columns are the "
                "arguments above");
};
template <class Expression, int formula_line, long long size, long long divisor> struct size_is_not_divisible {
  static_assert(divisor > 0 && size % (divisor > 0 ? divisor : 1) == 0,
                "graft: a size is not divisible; choose a block size or factor that divides the layer's size, both are "
                "the arguments above");
};
template <class Expression, int formula_line, int graph_breaks> struct host_function_breaks_the_graph {
  static_assert(graph_breaks == 0,
                "graft: fullgraph, but a host function cannot be compiled into a kernel; write it with the operations "
                "of the language, or drop fullgraph and run it in eager mode");
};
template <class Expression, int formula_line, int graph_breaks> struct type_erased_adapter_breaks_the_graph {
  static_assert(graph_breaks == 0,
                "graft: fullgraph, but the adapter is type-erased, so its formula is not known while compiling; name "
                "the adapter's type in the layer");
};
template <class Expression, int formula_line, int graph_breaks> struct data_dependent_size_breaks_the_graph {
  static_assert(
      graph_breaks == 0,
      "graft: fullgraph, but a size depends on the data; mask the rows instead of dropping them, or drop fullgraph");
};
template <class Storage, bool supported> struct storage_has_no_lowering {
  static_assert(supported,
                "graft: fullgraph, but this backend has no kernel for the layer's storage type; the CPU computes on "
                "float, double and bf16");
};
template <class Type, bool is_element_type> struct not_an_element_type {
  static_assert(is_element_type, "graft: the layer's element type is not one of float, double, bf16, nf4<Block>, int8");
};
template <class Type, bool is_an_adapter> struct not_an_adapter {
  static_assert(
      is_an_adapter,
      "graft: the layer's adapter has no formula; it needs `static constexpr ex weight(scope, ex)` and a `name`");
};
template <class Expression, int formula_line, bool differentiable> struct not_differentiable {
  static_assert(differentiable, "graft: training, but this op has no gradient; use detach() around it or another op");
};
template <int nodes, int limit> struct formula_is_too_large {
  static_assert(nodes < limit, "graft: the formula needs more nodes or sizes than a graph holds; split the layer");
};

}  // namespace diagnostic
}  // namespace graft
