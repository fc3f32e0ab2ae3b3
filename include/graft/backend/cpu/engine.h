// SPDX-License-Identifier: Apache-2.0
// The CPU as an executor sees it. An engine has a queue in which work is ordered (here: the caller's own thread), memory,
// a plan bound to tensors, and a way to evaluate a graph without one: the last two are in engine_plan.h, so that a file
// that finds them in a library needs no Eigen.
#pragma once
#include <graft/backend/call.h>
#include <graft/backend/cpu/operations.h>
#include <graft/backend/mode.h>
#include <graft/core/result.h>
#include <graft/plan/target.h>

#include <vector>

namespace graft::cpu {

template <class Real> struct engine {
  struct queue {
    host_function<Real> host{};  // what a formula calls outside the language
    operations<Real> has = every_operation<Real>();
    status knows(const graph& g) const {
      const id i = first_without(g, has.have);
      if (i < 0) return ok;
      return fail("the operation ", row(g[i].what).name,
                  " is not compiled into this layer type; run the graph with cpu::executor, which has all of them");
    }
  };
  using real = Real;
  static constexpr dtype computes = storage<Real>::type, keeps = computes;
  static constexpr bool reads_host_memory = true, binds_itself = true;
  static const target& runs_on(const queue&) { return cpu_target; }
  static const target& runs_eagerly_on(const queue&) { return eager_target; }

  class block {
   public:
    explicit block(long long bytes) : bytes_(static_cast<std::size_t>(bytes)) {}
    void* data() { return bytes_.data(); }

   private:
    std::vector<std::byte> bytes_;
  };
  // Launches belong to their adapter here: nothing is shared between adapters.
  struct shared {};
  static status open(queue&) { return ok; }
  static void begin(shared&, const capacity&, int) {}
  static void consider(shared&, const target&, const graph&, const size_values&, bool, const capacity&) {}
  static void complete(shared&, queue&) {}
  static bool has_room(const shared&, bool) { return true; }

  static result<block> allocate(queue&, long long bytes) { return block(bytes); }

  // to += from, numbers of our own one after the other.
  static status can_add(const mutable_view&) { return ok; }
  static status add(queue&, const view& from, const mutable_view& to);

  class bound;
  static status evaluate(queue& q, const graph& g, const size_values& s, const leaf_views& leaves,
                         const std::vector<mutable_view>& outputs);
};

}  // namespace graft::cpu
