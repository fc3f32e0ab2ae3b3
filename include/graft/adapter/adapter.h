// SPDX-License-Identifier: Apache-2.0
// What makes a type an adapter: a name and one formula,
//     static constexpr const char* name;
//     static constexpr ex weight(scope p, ex W);      W' from the base weight and the adapter's own tensors
// An adapter that changes the bias has one more formula,
//     static constexpr ex bias(scope p, ex b);        b' from the base bias, which is zero where the layer has none
// or, where it reads the base layer too,
//     static constexpr ex bias(scope p, ex b, base_tensors base);
// A size that depends on the layer's sizes (LoKr's factors) is given by
//     static constexpr long long size(const char* name, long long out, long long in);     -1: not given here
// Where a second adapter of the method on one layer must still read the base weight (PEFT's DoRA: its norm), it has
//     static constexpr ex weight_with_base(scope p, ex W, ex base);      W: what the adapters before it made of `base`
// Where PEFT rotates the input by all such adapters in the order of their activation, the first one first (OFT),
//     static constexpr bool rotates_input = true;
// Where PEFT's dropout acts on one part of what the adapter adds, the formula is given in two parts by
//     static constexpr dropout_weight_parts dropout_parts(scope p, ex W);
// Where PEFT writes its backward pass by hand and uses another weight for the gradient of the input, that weight is
//     static constexpr ex input_gradient_weight(scope p, ex W);
// On the experts of a mixture W is [1, experts, out, in], the formula is that of one expert, and each has tensors of
// its own; a formula that reads other tensors than matrices, or combines rows otherwise, does not exist there.
// As a value (`formula`) an adapter is these functions, so that passes take it and a program can hold a list of them.
// The adapters of the library (adapter/all.h) have three more members: method, the name by which a program finds them;
// kinds, the kinds of layer on which they exist; sample, the sizes that tests, examples and benchmarks run them with.
#pragma once
#include <graft/graph/formula.h>

namespace graft {

template <class A>
concept adapter_formula = requires(scope p, ex W) {
  {A::weight(p, W)};
  {A::name};
};

// The tensors of the base layer without any adapter. The weight is empty where it is no matrix.
struct base_tensors {
  ex weight{}, bias{};
};
// W' = whole + dropped, for an adapter whose dropout acts on one part only: `dropped` multiplies dropout(x).
struct dropout_weight_parts {
  ex whole, dropped;
};

template <class... Adapters> struct adapter_list {};
namespace detail {
template <class...> struct join;
template <class... A> struct join<adapter_list<A...>> { using type = adapter_list<A...>; };
template <class... A, class... B, class... More> struct join<adapter_list<A...>, adapter_list<B...>, More...> {
  using type = typename join<adapter_list<A..., B...>, More...>::type;
};
}  // namespace detail
template <class... Lists> using join_adapters = typename detail::join<Lists...>::type;

// On which layers a formula exists: on all, only on those with a bias, or only on those without one.
enum class with_bias : unsigned char { either, always, never };
constexpr bool allows(with_bias rule, bool bias) {
  return rule == with_bias::either || (rule == with_bias::always) == bias;
}
template <class A> constexpr with_bias bias_rule() {
  if constexpr (requires { A::only; })
    return A::only;
  else
    return with_bias::either;
}

struct formula {
  const char* name = "";
  ex (*weight)(scope, ex) = nullptr;
  ex (*bias)(scope, ex, base_tensors) = nullptr;                          // null: it stays as it is
  long long (*size)(const char*, long long out, long long in) = nullptr;  // null: no size depends on the layer's
  ex (*input_gradient_weight)(scope, ex) = nullptr;                       // null: dx = dy W'
  // null: `weight` is called with the weight that the adapters before it made
  ex (*weight_with_base)(scope, ex, ex) = nullptr;
  dropout_weight_parts (*dropout_parts)(scope, ex) = nullptr;  // null: dropout acts on all that is added
  bool rotates_input = false;
  bool trains_bias = false;  // the base layer's own bias is a parameter too, as PEFT's `bias` says

  // The bias formula on `b`, which is base.bias for the first adapter of a layer.
  constexpr ex adapted_bias(scope p, ex b, base_tensors base) const {
    if (trains_bias && (*b).what == op::base) base.bias = b = p.param("base_layer.bias", b.rows());
    return bias == nullptr ? b : bias(p, b, base);
  }
  // Applies the formula to W, the weight after all earlier adapters; `base` is the weight before any of them.
  constexpr ex compose_weight(scope p, ex W, ex base) const {
    return weight_with_base != nullptr ? weight_with_base(p, W, base) : weight(p, W);
  }
  constexpr long long adapter_size(const char* what, long long out, long long in) const {
    return size == nullptr ? unknown : size(what, out, in);
  }
};

namespace detail {
// Operations that act on the matrix of each expert alone. A formula with others has no meaning for one expert.
constexpr bool acts_per_expert(const builder& g, id i) {
  const node& v = g.n[i];
  switch (v.what) {
    case op::matmul: return !v.sum;
    case op::transpose:
    case op::row_dot:
    case op::repeat:
    case op::fold_columns:
    case op::strict_upper:
    case op::inverse:
    case op::neumann:
    case op::orthonormal:
    case op::softmax: return true;
    case op::reshape: return is_leaf(g.n[v.a].what) && v.d[1] == g.n[v.a].d[2];  // a vector per expert
    case op::slice:
    case op::concat: return v.k[0].v >= 2;
    default: return is_pointwise(v.what) && v.what != op::dropout;
  }
}
// Captures one function of an adapter on W. Where W has an expert axis, the tensors that it declares have it too.
template <class A, class Function> constexpr auto captured_on(scope p, ex W, Function f) {
  const dim experts = (*W).d[1];
  if (experts == dim{1}) return f(p);
  p.experts = experts;
  const int before = p.g->n.size();
  const auto made = f(p);
  if constexpr (!requires { A::reads_all_experts; })
    for (id i = before; i < p.g->n.size(); ++i) {
      const node v = p.g->n[i];
      bool of_expert = false;
      for (int k = 0; k < 3; ++k) of_expert = of_expert || (v.operand(k) >= 0 && !is_scalar(p.g->n[v.operand(k)]));
      if (of_expert && !acts_per_expert(*p.g, i)) p.g->stop({formula_error::not_on_experts, i, v.line, A::name});
    }
  return made;
}
// Each function runs once per program at most, so `cold` spares the compiler the time to optimize it.
template <class A> struct formula_functions {
  [[gnu::cold]] static constexpr ex weight(scope p, ex W) {
    return captured_on<A>(p, W, [=](scope of) { return A::weight(of, W); });
  }
  [[gnu::cold]] static constexpr ex weight_with_base(scope p, ex W, ex base) {
    return captured_on<A>(p, W, [=](scope of) { return A::weight_with_base(of, W, base); });
  }
  [[gnu::cold]] static constexpr ex bias(scope p, ex b, base_tensors base) {
    if constexpr (requires { A::bias(p, b, base); })
      return A::bias(p, b, base);
    else
      return A::bias(p, b);
  }
  [[gnu::cold]] static constexpr dropout_weight_parts dropout_parts(scope p, ex W) {
    return captured_on<A>(p, W, [=](scope of) { return A::dropout_parts(of, W); });
  }
  [[gnu::cold]] static constexpr ex input_gradient_weight(scope p, ex W) {
    return captured_on<A>(p, W, [=](scope of) { return A::input_gradient_weight(of, W); });
  }
};
}  // namespace detail

template <class A> constexpr bool changes_bias() {
  return requires(scope p, ex b) { A::bias(p, b); }
  || requires(scope p, ex b, base_tensors base) { A::bias(p, b, base); };
}
template <class A> constexpr formula formula_of() {
  formula f{A::name, &detail::formula_functions<A>::weight};
  if constexpr (changes_bias<A>()) f.bias = &detail::formula_functions<A>::bias;
  if constexpr (requires(scope p, ex W) { A::dropout_parts(p, W); })
    f.dropout_parts = &detail::formula_functions<A>::dropout_parts;
  if constexpr (requires { A::size("", 1LL, 1LL); }) f.size = &A::size;
  if constexpr (requires(scope p, ex W) { A::input_gradient_weight(p, W); })
    f.input_gradient_weight = &detail::formula_functions<A>::input_gradient_weight;
  if constexpr (requires(scope p, ex W) { A::weight_with_base(p, W, W); })
    f.weight_with_base = &detail::formula_functions<A>::weight_with_base;
  if constexpr (requires { A::rotates_input; }) f.rotates_input = A::rotates_input;
  return f;
}

}  // namespace graft
