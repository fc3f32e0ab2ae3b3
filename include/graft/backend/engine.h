// SPDX-License-Identifier: Apache-2.0
// Engine: what a backend offers to layers; ModelEngine: what it offers to whole models as well. Floors above this one
// know backends by these two concepts alone, so that a further backend is a folder of its own; test/support has a small
// one. An engine is a type without objects, whose state is in its queues.
//
// A queue orders work. A program is a planned graph with the workspace of its calls, a binding is the tensors of one of
// the layers that run it, with what follows from them, and a call has the inputs and outputs of one run.
#pragma once
#include <graft/backend/call.h>
#include <graft/backend/execution_mode.h>
#include <graft/backend/rank_reduce.h>
#include <graft/core/result.h>
#include <graft/plan/plan.h>
#include <graft/plan/target.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <vector>

namespace graft {

// Values of an engine's types, which stand for the operands of its functions.
template <class E> struct engine_operands {
  typename E::queue& queue;
  typename E::program& program;
  typename E::binding& binding;
  typename E::shared& shared;
  const graph& g;
  const launch_plan& p;
  const size_values& sizes;
  const leaf_views& leaves;
  const capacity& limits;
  const program_call& now;
  const view& from;
  const mutable_view& to;
  const std::vector<mutable_view>& outputs;
};

// A planned graph. It runs one call at a time.
template <class P>
concept engine_program = std::constructible_from<P, const graph&, launch_plan> && requires(const P& p) {
  { p.value() } -> std::same_as<const graph&>;
  { p.launches() } -> std::same_as<const launch_plan&>;
  { p.launched() } -> std::same_as<long long>;         // launches that have run
  { p.address_version() } -> std::same_as<long long>;  // changes with the addresses that captured calls use
};

template <class E>
concept Engine = engine_program<typename E::program> && std::default_initializable<typename E::binding> &&
    std::movable<typename E::binding> && std::default_initializable<typename E::queue> &&
    std::default_initializable<typename E::shared> && std::movable<typename E::memory> &&
    requires(engine_operands<E> o, typename E::memory& memory) {
  typename E::real;                                       // element type of values that callers exchange in host memory
  { E::compute_type } -> std::convertible_to<dtype>;      // element type of gradients that are added to others
  { E::storage_type } -> std::convertible_to<dtype>;      // element type of activations and weights
  { E::reads_host_memory } -> std::convertible_to<bool>;  // the engine's memory is the caller's
  { E::binds_itself } -> std::convertible_to<bool>;       // a layer need not state a capacity
  { E::adapters_share_launches } -> std::convertible_to<bool>;
  // Targets, which open() may set from the device.
  { E::open(o.queue) } -> std::same_as<status>;
  { E::runs_on(o.queue) } -> std::same_as<const target&>;
  { E::runs_eagerly_on(o.queue) } -> std::same_as<const target&>;
  // What the launches of a layer's adapters share: begin(), add_requirements() each adapter, finish(), which says
  // whether it changed the target.
  E::begin(o.shared, o.limits, 0);
  E::add_requirements(o.shared, o.g, o.p, o.sizes, true, o.limits);
  { E::finish(o.shared, o.queue) } -> std::same_as<bool>;
  { E::can_store_folded(o.shared, true) } -> std::same_as<bool>;
  // Programs. bind() that fails leaves the binding as it was.
  { E::bind(o.queue, o.program, o.binding, o.sizes, o.leaves, o.limits, o.shared) } -> std::same_as<status>;
  { E::run(o.queue, o.program, o.binding, o.now) } -> std::same_as<status>;
  { E::parameters_changed(o.queue, o.program, o.binding) } -> std::same_as<status>;
  { E::weight_changed(o.queue, o.program, o.binding) } -> std::same_as<status>;
  {
    E::activate_adapter(o.queue, o.binding)
    } -> std::same_as<status>;   // from now on launches read the adapter of this binding
  E::memory_changed(o.binding);  // tensors were written outside of calls
  E::share_precomputed(o.program, o.binding, o.program, o.binding);
  { E::evaluate(o.queue, o.g, o.sizes, o.leaves, o.outputs) } -> std::same_as<status>;  // without a plan
  // Memory.
  { E::allocate(o.queue, 1LL) } -> std::same_as<result<typename E::memory>>;
  { memory.data() } -> std::same_as<void*>;
  { E::can_add(o.to) } -> std::same_as<status>;
  { E::add(o.queue, o.from, o.to) } -> std::same_as<status>;
};

template <class E>
concept ModelEngine = Engine<E> && std::default_initializable<typename E::adapter_table> &&
    std::default_initializable<typename E::gradient_accumulators> && std::movable<typename E::captured> &&
    requires(engine_operands<E> o, typename E::memory& memory, typename E::numbers& numbers, const rank_reducer& ranks,
             void* at, status (*work)(std::size_t)) {
  typename E::launch_clock;
  { E::loss_rows } -> std::convertible_to<long long>;  // rows of a call of the head; 0: all rows
  { E::start(o.queue) } -> std::same_as<status>;
  { E::stream_of(o.queue) } -> std::same_as<const void*>;
  { E::set_collectives(o.queue, ranks) } -> std::same_as<status>;
  { E::enable_autotuning(o.queue, std::string()) } -> std::same_as<status>;
  { E::autotune_warning(o.queue) } -> std::same_as<std::string>;
  // Tensors, which come from host memory.
  { E::to_device(o.queue, o.from, dtype::f32, memory) } -> std::same_as<result<view>>;
  { E::copy(o.queue, at, at, 1LL) } -> std::same_as<status>;
  { E::clear(o.queue, at, 1LL) } -> std::same_as<status>;
  { E::fetch(o.queue, o.from, at) } -> std::same_as<status>;  // to host memory; it waits
  { numbers.write(at, 1LL) } -> std::same_as<status>;         // integers of a call
  { numbers.send(o.queue) } -> std::same_as<status>;
  { numbers.data() } -> std::same_as<const void*>;
  { E::evaluate_in_host_memory(o.queue, o.g, o.sizes, o.leaves, o.outputs) } -> std::same_as<status>;
  { E::run_concurrently(o.queue, std::size_t{}, work) } -> std::same_as<status>;
  { E::make_optimizer_step(o.queue) } -> std::same_as<typename E::updates>;
};

}  // namespace graft
