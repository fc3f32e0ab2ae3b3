// SPDX-License-Identifier: Apache-2.0
// cpu::layer: a layer type on the CPU, with its compile-time facts and its executor in one object. Instantiating it
// captures the graph, and is an error where the layer is wrong.
#pragma once
#include <graft/backend/cpu/runtime/engine.h>
#include <graft/plan/compile.h>
#include <graft/run/executor.h>
#include <graft/run/layer_type_ops.h>

#if defined(GRAFT_CPU_COMPILED)  // set by linking graft::cpu_compiled
#include <graft/run/cpu_compiled.h>
#else
#include <graft/backend/cpu/runtime/engine_plan.h>
#include <graft/run/executor_impl.h>
#endif

namespace graft::cpu {

template <class Real> class executor : public graft::executor<engine<Real>> {
 public:
  using graft::executor<engine<Real>>::executor;
  // Sets the host function of a formula that calls one, which only eager mode can run.
  void host(host_function<Real> f) { this->queued().host = std::move(f); }
};

namespace detail {
// The operations of a layer type, or all of them where the compiled library has them. A weight of the compute type
// needs no products of narrower types.
template <class Real, class Element, op_set Ops> operations<Real> operations_with() {
#if defined(GRAFT_CPU_COMPILED)
  return every_operation<Real>();
#else
  if constexpr (std::is_same_v<Real, Element>)
    return {&evaluate_node<Real, Ops, weights::as_wide>, Ops};
  else
    return {&evaluate_node<Real, Ops>, Ops, &dequantize_elements<Real>};
#endif
}
}  // namespace detail

// A layer of one type, to run and to train. Its tensors are set by the names of the formula; forward() computes y. To
// train it, call forward() and backward() in turn, write the parameters in place, and call parameters_changed():
//     graft::cpu::layer<q_proj, graft::fullgraph, graft::training> q;   // set(…) its tensors as for forward()
//     q.train(true);                               // forward() saves what backward() would compute again
//     q.forward(x, y);                             // then the loss and its gradient dy, by the program
//     q.backward(x, dy, dx, {{"lora_A.weight", dA}, {"lora_B.weight", dB}});
//     for (std::size_t i = 0; i < a.size(); ++i) a[i] -= rate * da[i];
//     q.parameters_changed();                      // what follows from them is computed again
// docs/how-to/train-a-layer.md is a whole program.
template <class Layer, class... Options>
class layer : public compile<Layer, Options...>, public executor<typename compile<Layer, Options...>::real> {
  using checked = typename compile<Layer, Options...>::layer;  // sound even where Layer is not: no second error
  using layer_ops = layer_type_ops<checked>;

 public:
  using real = typename compile<Layer, Options...>::real;
  explicit layer(execution_mode run_mode = execution_mode::fused)
      : executor<real>(graphs_of<typename checked::kind, typename checked::adapter, checked::has_bias>(), run_mode,
                       {.has = detail::operations_with<real, typename checked::element, layer_ops::forward>()}) {
    set_static_sizes<checked>(*this);
  }
  // The members below call those of executor, and add the operations that only their callers need.
  //
  // Computes dx = ∂loss/∂x and the listed gradients of parameters from x and dy = ∂loss/∂y. A dx without memory is not
  // computed. In training backward() follows a forward() with the same x.
  status backward(const view& x, const view& dy, const mutable_view& dx, const std::vector<gradient>& gradients) {
    if (this->queued().has.have == layer_ops::forward)
      this->queued().has = detail::operations_with<real, typename checked::element, layer_ops::both>();
    return executor<real>::backward(x, dy, dx, gradients);
  }
  // With `on`, forward() saves values that backward() needs too, in memory of the layer, and backward() takes less
  // time. Without it backward() recomputes everything from x.
  void train(bool on) {
    this->queued().has = detail::operations_with<real, typename checked::element, layer_ops::training>();
    this->set_formula(0, derived_of<checked>::value);
    executor<real>::train(on);
  }
  // Adds a further adapter on the same base, of any method, and returns its number; see executor::add.
  result<int> add(const layer_graphs& another) {
    this->queued().has = every_operation<real>();
    return executor<real>::add(another);
  }
  // Sets the adapters that act in the following calls: one, or several in this order.
  status activate(const std::vector<int>& adapters) {
    this->set_formula(0, derived_of<checked>::value);
    return executor<real>::activate(adapters);
  }
};

}  // namespace graft::cpu
