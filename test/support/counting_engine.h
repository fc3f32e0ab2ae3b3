// SPDX-License-Identifier: Apache-2.0
// A third engine, for tests: it evaluates the nodes of a graph one by one in double and counts what it is asked for. A
// call stands for as many launches as its plan has. Its target is a value of its queue, so that layers and blocks can
// be planned here as for any machine.
#pragma once
#include <graft/backend/cpu/runtime/engine_plan.h>
#include <graft/backend/engine.h>

namespace test {

using namespace graft;

struct engine_counts {
  int binds = 0, runs = 0, allocations = 0, evaluations = 0;
  long long launches = 0;
};

struct counting_engine {
  using base = cpu::engine<double>;
  using real = double;
  static constexpr dtype compute_type = dtype::f64, storage_type = dtype::f64;
  static constexpr bool reads_host_memory = true, binds_itself = true, adapters_share_launches = true;

  struct queue {
    base::queue evaluates{};
    engine_counts* count = nullptr;
    const target* to = &cpu_target;
  };
  class program {
   public:
    program(const graph& g, launch_plan p) : g_(g), p_(std::move(p)) {}
    const graph& value() const { return g_; }
    const launch_plan& launches() const { return p_; }
    long long launched() const { return launched_; }
    long long address_version() const { return 0; }

   private:
    friend struct counting_engine;
    graph g_;
    launch_plan p_;
    long long launched_ = 0;
  };
  struct binding {
    leaf_views leaves;
  };
  struct shared {
    int adapters = 0;
  };
  class memory : public base::memory {
   public:
    using base::memory::memory;
  };

  static status open(queue&) { return ok; }
  static const target& runs_on(const queue& q) { return *q.to; }
  static const target& runs_eagerly_on(const queue&) { return eager_target; }
  static void begin(shared& s, const capacity&, int) { s = {}; }
  static void add_requirements(shared& s, const graph&, const launch_plan&, const size_values&, bool, const capacity&) {
    ++s.adapters;
  }
  static bool finish(shared&, queue&) { return false; }
  static bool can_store_folded(const shared&, bool) { return true; }
  static status bind(queue& q, program&, binding& with, const size_values&, const leaf_views& leaves, const capacity&,
                     shared&) {
    ++q.count->binds;
    return with.leaves = leaves, status(ok);
  }
  static status run(queue& q, program& in, binding& with, const program_call& c) {
    leaf_views all = with.leaves;
    for (id i = 0; i < in.g_.size; ++i)
      if (c.data[i].data != nullptr) all[i] = c.data[i];
    ++q.count->runs, q.count->launches += in.p_.launches.size(), in.launched_ += in.p_.launches.size();
    return base::evaluate(q.evaluates, in.g_, c.sizes, all, {c.outputs.begin(), c.outputs.end()});
  }
  static status parameters_changed(queue&, program&, binding&) { return ok; }
  static status weight_changed(queue&, program&, binding&) { return ok; }
  static status activate_adapter(queue&, binding&) { return ok; }
  static void memory_changed(binding&) {}
  static void share_precomputed(const program&, binding&, const program&, const binding&) {}
  static status evaluate(queue& q, const graph& g, const size_values& s, const leaf_views& leaves,
                         const std::vector<mutable_view>& outputs) {
    ++q.count->evaluations;
    return base::evaluate(q.evaluates, g, s, leaves, outputs);
  }
  static result<memory> allocate(queue& q, long long bytes) {
    ++q.count->allocations;
    return memory(bytes);
  }
  static status can_add(const mutable_view&) { return ok; }
  static status add(queue& q, const view& from, const mutable_view& to) { return base::add(q.evaluates, from, to); }
};
static_assert(Engine<counting_engine>);

}  // namespace test
