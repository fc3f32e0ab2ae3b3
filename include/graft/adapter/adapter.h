// SPDX-License-Identifier: Apache-2.0
// What makes a type an adapter: a name and one formula,
//     static constexpr const char* name;
//     static constexpr ex weight(scope p, ex W);      W' from the base weight and the adapter's own tensors
// and, where the method touches the bias, one more:
//     static constexpr ex bias(scope p, ex b);        b' from the base bias, which is zero where the layer has none
// or, where it reads the base layer too,
//     static constexpr ex bias(scope p, ex b, base_tensors base);
// A size that depends on the layer's (LoKr's factors) is given by
//     static constexpr long long size(const char* name, long long out, long long in);     -1: no opinion
// Where a second adapter of the method on one layer must still see the base weight (PEFT's DoRA: its norm), it is
//     static constexpr ex weight_on(scope p, ex W, ex base);      W: what the adapters before it made of the base weight
// and where PEFT turns the input by all such adapters in the order of their activation, the first one first (OFT),
//     static constexpr bool turns_input = true;
// Where PEFT's dropout reaches only a part of what it adds, that part apart from the rest is
//     static constexpr parts_of_weight in_parts(scope p, ex W);
// Where PEFT writes its backward pass by hand and takes another weight for the gradient of the input, that weight is
//     static constexpr ex weight_seen_backward(scope p, ex W);
// As a value it is these functions: passes take it so, and a program can hold a list of them.
// The adapters of the library (adapter/all.h) also say by which name a program finds them (`method`), on which `kinds` of
// layer they exist, and a `sample` of sizes that tests, examples and benches run them with.
#pragma once
#include <graft/graph/formula.h>

namespace graft {

template <class A>
concept adapter_formula = requires(scope p, ex W) {
  {A::weight(p, W)};
  {A::name};
};

// The tensors of the base layer, whatever other adapters made of them; no weight where it is no matrix.
struct base_tensors {
  ex weight{}, bias{};
};
// Where dropout reaches only a part of what an adapter adds: W' = whole + dropped, and the second sees x with gaps.
struct parts_of_weight {
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
template <class... Lists> using joined = typename detail::join<Lists...>::type;

// Whether a formula exists only on layers that have a bias, or only on those that have none.
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
  ex (*weight_seen_backward)(scope, ex) = nullptr;                        // null: dx = dy W'
  // null: as `weight`, on what the adapters before it made of the base weight
  ex (*weight_on)(scope, ex, ex) = nullptr;
  parts_of_weight (*in_parts)(scope, ex) = nullptr;  // null: dropout reaches all that is added
  bool turns_input = false;
  bool trains_bias = false;  // the base layer's own bias is a parameter too, as PEFT's `bias` says

  // `base.bias` may be what `b` is.
  constexpr ex adapted_bias(scope p, ex b, base_tensors base) const {
    if (trains_bias && (*b).what == op::base) base.bias = b = p.param("base_layer.bias", b.rows());
    return bias == nullptr ? b : bias(p, b, base);
  }
  // On what other adapters made of the base weight.
  constexpr ex weight_after(scope p, ex W, ex base) const {
    return weight_on != nullptr ? weight_on(p, W, base) : weight(p, W);
  }
  constexpr long long adapter_size(const char* what, long long out, long long in) const {
    return size == nullptr ? unknown : size(what, out, in);
  }
};

namespace detail {
// Captured once per program, if at all: not worth the time an optimiser spends on it.
template <class A> struct formula_functions {
  [[gnu::cold]] static constexpr ex weight(scope p, ex W) { return A::weight(p, W); }
  [[gnu::cold]] static constexpr ex weight_on(scope p, ex W, ex base) { return A::weight_on(p, W, base); }
  [[gnu::cold]] static constexpr ex bias(scope p, ex b, base_tensors base) {
    if constexpr (requires { A::bias(p, b, base); })
      return A::bias(p, b, base);
    else
      return A::bias(p, b);
  }
  [[gnu::cold]] static constexpr parts_of_weight in_parts(scope p, ex W) { return A::in_parts(p, W); }
  [[gnu::cold]] static constexpr ex weight_seen_backward(scope p, ex W) { return A::weight_seen_backward(p, W); }
};
}  // namespace detail

template <class A> constexpr bool changes_bias() {
  return requires(scope p, ex b) { A::bias(p, b); }
  || requires(scope p, ex b, base_tensors base) { A::bias(p, b, base); };
}
template <class A> constexpr formula formula_of() {
  formula f{A::name, &detail::formula_functions<A>::weight};
  if constexpr (changes_bias<A>()) f.bias = &detail::formula_functions<A>::bias;
  if constexpr (requires(scope p, ex W) { A::in_parts(p, W); }) f.in_parts = &detail::formula_functions<A>::in_parts;
  if constexpr (requires { A::size("", 1LL, 1LL); }) f.size = &A::size;
  if constexpr (requires(scope p, ex W) { A::weight_seen_backward(p, W); })
    f.weight_seen_backward = &detail::formula_functions<A>::weight_seen_backward;
  if constexpr (requires(scope p, ex W) { A::weight_on(p, W, W); })
    f.weight_on = &detail::formula_functions<A>::weight_on;
  if constexpr (requires { A::turns_input; }) f.turns_input = A::turns_input;
  return f;
}

}  // namespace graft
