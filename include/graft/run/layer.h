// SPDX-License-Identifier: Apache-2.0
// A layer type on the CPU: its compile-time facts and its executor in one object. Instantiating it captures the graph,
// and is an error where the layer is wrong.
#pragma once
#include <graft/backend/cpu/engine.h>
#include <graft/plan/compile.h>
#include <graft/run/executor.h>
#include <graft/run/static_sizes.h>
#include <graft/run/type_operations.h>
#if defined(GRAFT_CPU_COMPILED)  // set by linking graft::cpu_compiled
#include <graft/run/compiled.h>
#else
#include <graft/backend/cpu/engine_plan.h>
#include <graft/run/executor_calls.h>
#endif

namespace graft::cpu {

template <class Real> class executor : public graft::executor<engine<Real>> {
 public:
  using graft::executor<engine<Real>>::executor;
  // A function outside the language, for formulas that call one: eager mode only.
  void host(host_function<Real> f) { this->queued().host = std::move(f); }
};

namespace detail {
// Those of a layer type, where the library does not have all of them anyway: a weight of floats or doubles brings no
// products of narrower ones.
template <class Real, class Element, op_set Ops> operations<Real> operations_with() {
#if defined(GRAFT_CPU_COMPILED)
  return every_operation<Real>();
#else
  if constexpr (std::is_same_v<Real, Element>)
    return {&evaluate_node<Real, Ops, weights::as_wide>, Ops};
  else
    return {&evaluate_node<Real, Ops>, Ops, &decode_elements<Real>};
#endif
}
}  // namespace detail

template <class Layer, class... Options>
class layer : public compile<Layer, Options...>, public executor<typename compile<Layer, Options...>::real> {
  using checked = typename compile<Layer, Options...>::layer;  // sound even where Layer is not: no second error
  using own = type_operations<checked>;

 public:
  using real = typename compile<Layer, Options...>::real;
  explicit layer(mode how = mode::fused)
      : executor<real>(graphs_of<typename checked::kind, typename checked::adapter, checked::has_bias>(), how,
                       {.has = detail::operations_with<real, typename checked::element, own::forward>()}) {
    give_static_sizes<checked>(*this);
  }
  // What only some programs call brings its operations with it.
  status backward(const view& x, const view& dy, const mutable_view& dx, const std::vector<gradient>& gradients) {
    if (this->queued().has.have == own::forward)
      this->queued().has = detail::operations_with<real, typename checked::element, own::both>();
    return executor<real>::backward(x, dy, dx, gradients);
  }
  void train(bool on) {
    this->queued().has = detail::operations_with<real, typename checked::element, own::training>();
    this->know_formula(0, derived_of<checked>::value);
    executor<real>::train(on);
  }
  result<int> add(const layer_graphs& another) {
    this->queued().has = every_operation<real>();
    return executor<real>::add(another);
  }
  status activate(const std::vector<int>& adapters) {
    this->know_formula(0, derived_of<checked>::value);
    return executor<real>::activate(adapters);
  }
};

}  // namespace graft::cpu
