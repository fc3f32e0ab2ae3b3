// SPDX-License-Identifier: Apache-2.0
// target: a machine as a value, which plans are made for: what each kind of launch can take in on it, how many kernels
// that takes, its rates. The CPU runs row-wise work in chunks of rows, many ops per launch; a GPU runs GEMMs with
// prologue, branches and epilogue, and each remaining op as a kernel of its own. Targets for GPUs are defined with
// their kernels (backend/gpu/dispatch/targets.h); this folder contains no constants of a backend.
#pragma once
#include <graft/core/quant_format.h>
#include <graft/core/text.h>
#include <graft/graph/graph.h>
#include <graft/plan/launch/kinds.h>

namespace graft {

namespace detail {
struct planner;  // plan/fuse.h
}

struct target {
  enum class work : unsigned char { by_rows, by_products, by_nodes };  // how nodes are gathered into launches
  const char* name = "";
  work granularity = work::by_rows;
  // Groups nodes into launches of all kinds (plan/fuse_products.h); null: one launch per node. It is a pointer so that
  // programs without such a target do not compile it.
  target_function<void(const detail::planner&)> fuse_products{};
  int capability = 0;                  // CUDA compute capability, 90 for 9.0; 0: a CPU
  int sm_count = 0;                    // SMs
  double bytes_per_second = 0;         // memory bandwidth of a long copy; 0: unknown
  double flops_per_second = 0;         // peak flop/s of GEMMs; 0: unknown
  double launch_overhead_seconds = 0;  // per kernel in a sequence of kernels
  launch_kinds::values<detail::capabilities_of> capabilities{};

  // What the target can do of a kind of launch: to.can<gemm_launch>().max_branch_rank.
  template <class Kind> constexpr const typename Kind::capabilities& can() const {
    return static_cast<const detail::capabilities_of<Kind>&>(capabilities).capabilities;
  }
  template <class Kind> constexpr typename Kind::capabilities& can() {
    return static_cast<detail::capabilities_of<Kind>&>(capabilities).capabilities;
  }
  constexpr bool is_graph_break(op what) const {
    return what == op::host || (can<nodes_launch>().runs && !can<nodes_launch>().runs(what));
  }
  constexpr bool is_cpu() const { return capability == 0; }
};

inline constexpr target cpu_target{.name = "cpu"};
// Eager mode, one launch per node: the oracle of tests, and the cost of a formula without fusion.
inline constexpr target eager_target{.name = "eager", .granularity = target::work::by_nodes};

}  // namespace graft
