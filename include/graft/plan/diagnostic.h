// SPDX-License-Identifier: Apache-2.0
// The compile-time error messages, one class per mistake. Its static_assert is the sentence and its template arguments
// are the facts: layer, adapter, expression, line of the formula, sizes. The sentence says what to do and names the
// arguments, because not every compiler prints their names. docs/errors.md has an example of each.
//
// compile<Layer> of a wrong layer is the message class itself, so that the compiler prints few instantiation steps. A
// message derives from the layer's facts, so that code which uses them raises no second error.
#pragma once
#include <graft/core/array_size.h>
#include <graft/core/text.h>
#include <graft/plan/target.h>

namespace graft {

template <class Layer, const target& To = cpu_target> struct plan_of;  // plan/facts.h
namespace detail {
template <class Layer> struct without_adapter;
}

namespace diagnostic {

template <std::size_t N> struct str { char s[N]{}; };
// An expression as a template argument: g++ prints the first form as a string. clang would print numbers or shorten it,
// so it uses single letters.
template <str> struct expression {};
template <char...> struct spelled {};

#if defined(__clang__)
template <class, int... I> struct positions {};
template <const text& T, int... I> constexpr spelled<T.s[I]...> letters(positions<int, I...>) { return {}; }
template <const text& T> constexpr auto quoted() { return letters<T>(__make_integer_seq<positions, int, T.n>{}); }
#else
template <const text& T> constexpr auto quoted() {
  constexpr auto cut = [] {
    str<array_size(T.n + 1)> r{};
    for (int i = 0; i < T.n; ++i) r.s[i] = T.s[i];
    return r;
  }();
  return expression<cut>{};
}
#endif

// Always false; the condition of messages about a type.
template <class...> inline constexpr bool supported = false;

// ---- sizes
template <class Layer, class Adapter, class Expression, int formula_line, long long left_columns, long long right_rows>
struct inner_sizes_differ : plan_of<Layer> {
  static_assert(left_columns == right_rows,
                "graft: this matrix product does not fit: make the columns of the left operand equal to the rows of "
                "the right operand (inner_sizes_differ lists layer, adapter, expression, line of the formula, columns, "
                "rows)");
};
template <class Layer, class Adapter, class Expression, int formula_line, long long left, long long right>
struct sizes_differ : plan_of<Layer> {
  static_assert(left == right,
                "graft: these operands do not fit: make the two sizes equal (sizes_differ lists layer, adapter, "
                "expression, line of the formula, size on the left, size on the right)");
};
template <class Layer, class Adapter, class Expression, int formula_line, long long rows, long long columns>
struct matrix_is_not_square : plan_of<Layer> {
  static_assert(rows == columns,
                "graft: an inverse, a Neumann series or a rotation needs square matrices: make rows and columns equal "
                "(matrix_is_not_square lists layer, adapter, matrix, line of the formula, rows, columns)");
};
template <class Layer, class Adapter, class Expression, int formula_line, long long size, long long divisor>
struct size_is_not_divisible : plan_of<Layer> {
  static_assert(divisor > 0 && size % (divisor > 0 ? divisor : 1) == 0,
                "graft: this division leaves a remainder: choose a block size or factor that divides the size of the "
                "layer (size_is_not_divisible lists layer, adapter, expression, line of the formula, size, divisor)");
};
template <class Layer, class Adapter, class Expression, int formula_line, long long size, long long limit>
struct size_is_too_large : plan_of<Layer> {
  static_assert(size <= limit,
                "graft: this takes more than there is: choose a start and a size within the operand "
                "(size_is_too_large lists layer, adapter, expression, line of the formula, size, limit)");
};
template <class Layer, class Adapter, class Expression, int formula_line, long long size>
struct size_is_not_positive : plan_of<Layer> {
  static_assert(size > 0,
                "graft: this size must be at least 1, or dyn where it is known only at run time (size_is_not_positive "
                "lists layer, adapter, tensor or size, line of the formula, value)");
};
template <class Layer, class Adapter, class Expression, int formula_line, long long size, long long expected>
struct formula_changes_the_shape : plan_of<Layer> {
  static_assert(size == expected,
                "graft: the formula must return a weight of the shape of W and a bias of the shape of b "
                "(formula_changes_the_shape lists layer, adapter, expression, line of the formula, size, expected "
                "size)");
};

// ---- graph breaks
template <class Layer, class Adapter, class Expression, int formula_line, int graph_breaks>
struct host_function_breaks_the_graph : plan_of<Layer> {
  static_assert(graph_breaks == 0,
                "graft: fullgraph, but a host function cannot become part of a kernel: write it with the operations of "
                "the language, or drop fullgraph and run the layer in eager mode (host_function_breaks_the_graph lists "
                "layer, adapter, expression, line of the formula, number of breaks)");
};
template <class Layer, class Adapter, class Expression, int formula_line, int graph_breaks>
struct type_erased_adapter_breaks_the_graph : plan_of<Layer> {
  static_assert(graph_breaks == 0,
                "graft: fullgraph, but the formula of a type-erased adapter is not known while compiling: name the "
                "adapter's type in the layer, or drop fullgraph and run the layer in eager mode "
                "(type_erased_adapter_breaks_the_graph lists layer, adapter, expression, line of the formula, number "
                "of breaks)");
};
template <class Layer, class Adapter, class Expression, int formula_line, int graph_breaks>
struct data_dependent_size_breaks_the_graph : plan_of<Layer> {
  static_assert(graph_breaks == 0,
                "graft: fullgraph, but a number of rows depends on the data: keep every row and multiply the unwanted "
                "ones by 0, or drop fullgraph and run the layer in eager mode (data_dependent_size_breaks_the_graph "
                "lists layer, adapter, expression, line of the formula, number of breaks)");
};

// ---- kernels
template <class Layer, class Adapter, class Reason, int kernels> struct more_than_one_kernel : plan_of<Layer> {
  static_assert(
      kernels == 1,
      "graft: one_kernel, but a forward call takes more kernels on this target: change what the reason names, "
      "or drop one_kernel (more_than_one_kernel lists layer, adapter, reason, number of kernels)");
};

// ---- types
template <class Layer, class Type> struct not_an_element_type : plan_of<Layer> {
  static_assert(supported<Type>,
                "graft: this is not an element type: use float, double, bf16, nf4<Block> or int8 (not_an_element_type "
                "lists layer, type)");
};
template <class Layer, class Type> struct not_an_adapter : plan_of<detail::without_adapter<Layer>> {
  static_assert(supported<Type>,
                "graft: this is not an adapter: it needs a static constexpr const char* name and a static constexpr ex "
                "weight(scope, ex) that the compiler can evaluate (not_an_adapter lists layer, type)");
};

template <class Layer, class Type> struct not_a_block : plan_of<Layer> {
  static_assert(supported<Type>,
                "graft: this is not a block: it needs a static constexpr const char* name and a static constexpr ex "
                "run(block_scope, ex) that the compiler can evaluate (not_a_block lists a stand-in, type)");
};

// ---- limits of a graph
template <class Layer, class Adapter, class Expression, int formula_line> struct not_differentiable : plan_of<Layer> {
  static_assert(supported<Expression>,
                "graft: training, but this has no gradient: write it with the operations of the language, or put "
                "detach() around it to make it a constant of the backward pass (not_differentiable lists layer, "
                "adapter, expression, line of the formula)");
};
template <class Layer, class Block, class Expression, int formula_line, int operations>
struct no_kernel_on_this_target : plan_of<Layer> {
  static_assert(
      supported<Expression>,
      "graft: fullgraph, but this target has no kernel for an operation of the block: choose a target that has "
      "one, such as the CPU (no_kernel_on_this_target lists block, block, expression, line of the formula, "
      "number of such operations)");
};
template <class Layer, class Block, class Method, int formula_line>
struct not_on_experts : plan_of<detail::without_adapter<Layer>> {
  static_assert(supported<Method>,
                "graft: this method does not exist on the experts of a mixture: its formula has tensors that are no "
                "matrices, or operations that are not those of one expert's matrix, or it changes the bias: use LoRA, "
                "DoRA or another method there (not_on_experts lists a stand-in, block, method, line of the formula)");
};
template <class Layer, class Adapter> struct formula_is_too_large : plan_of<detail::without_adapter<Layer>> {
  static_assert(supported<Adapter>,
                "graft: this formula, or what is derived from it, takes more steps than the compiler allows for a "
                "constant expression: shorten the formula, or raise the limit (g++: -fconstexpr-ops-limit, "
                "-fconstexpr-depth; clang: -fconstexpr-steps, -fconstexpr-depth) (formula_is_too_large lists layer, "
                "adapter)");
};
template <class Layer, class Adapter, int names>
struct formula_has_too_many_sizes : plan_of<detail::without_adapter<Layer>> {
  static_assert(supported<Adapter>,
                "graft: this formula names more sizes than a graph holds: express some of them by others "
                "(formula_has_too_many_sizes lists layer, adapter, names that a graph holds)");
};
template <class Layer, class Adapter, class Name, int formula_line>
struct name_is_taken : plan_of<detail::without_adapter<Layer>> {
  static_assert(supported<Name>,
                "graft: two tensors of this formula have one name but differ in kind or shape: give the second one "
                "another name; \"weight\", \"bias\" and \"x\" belong to the layer itself (name_is_taken lists layer, "
                "adapter, name, line of the formula)");
};

}  // namespace diagnostic
}  // namespace graft
