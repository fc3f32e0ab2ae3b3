// SPDX-License-Identifier: Apache-2.0
// The CPU engine as an executor sees it: a queue in which work is ordered (here the caller's own thread), memory, a
// program with bindings, and the evaluation of a graph without a plan. The last two are in engine_plan.h, so that a
// file that links them from a library needs no Eigen.
#pragma once
#include <graft/backend/call.h>
#include <graft/backend/cpu/runtime/compiled_ops.h>
#include <graft/backend/cpu/runtime/launch_clock.h>
#include <graft/backend/execution_mode.h>
#include <graft/backend/rank_reduce.h>
#include <graft/core/result.h>
#include <graft/plan/target.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace graft::cpu {

class optimizer_step;
template <class Real> class program;
template <class Real> struct binding;

template <class Real> struct engine {
  struct queue {
    host_function<Real> host{};  // runs host functions of a formula and all-reduces
    status host_error = ok;      // the error of a host function or all-reduce in this call
    operations<Real> has = every_operation<Real>();
    cpu::launch_clock* clock = nullptr;  // not null: records the launches
    bool batch_invariant = false;        // rows of a call have the same bits whatever other rows it has
    [[gnu::cold]] status check_supported_ops(const graph& g, const leaf_views& leaves) const {
      if (has.dequantize == nullptr && has_quantized(leaves))
        return fail(
            "a weight is quantized, and this layer has no GEMM for it: name its format in the layer's type, as ",
            "in linear<4096, 4096, nf4<64>, lora<16>>, or use cpu::executor");
      const id i = first_missing_op(g, has.have);
      if (i < 0) return ok;
      return fail("the operation ", traits_of(g[i].what).name,
                  " is not compiled into this layer type; run the graph with cpu::executor, which has all of them");
    }
  };
  using real = Real;
  using launch_clock = cpu::launch_clock;
  static constexpr dtype compute_type = storage<Real>::type, storage_type = compute_type;
  static constexpr bool reads_host_memory = true, binds_itself = true, adapters_share_launches = false;
  static const target& runs_on(const queue&) { return cpu_target; }
  static const target& runs_eagerly_on(const queue&) { return eager_target; }

  class memory {
   public:
    memory() = default;
    explicit memory(long long bytes) : bytes_(static_cast<std::size_t>(bytes)) {}
    void* data() { return bytes_.data(); }

   private:
    std::vector<std::byte> bytes_;
  };
  struct shared {};
  static status open(queue&) { return ok; }
  static void begin(shared&, const capacity&, int) {}
  static void add_requirements(shared&, const graph&, const launch_plan&, const size_values&, bool, const capacity&) {}
  static bool finish(shared&, queue&) { return false; }
  static bool can_store_folded(const shared&, bool) { return true; }

  // Every launch has one candidate, so there is nothing to time.
  static status enable_autotuning(queue&, const std::string&) { return ok; }
  static std::string autotune_warning(const queue&) { return {}; }

  static result<memory> allocate(queue&, long long bytes) { return memory(bytes); }

  // to += from, where `from` is contiguous and of type Real.
  static status can_add(const mutable_view&) { return ok; }
  static status add(queue&, const view& from, const mutable_view& to);

  // ---- for models: the engine's memory is the caller's, so tensors are read in place and nothing waits
  static status start(queue&) { return ok; }
  static const void* stream_of(const queue&) { return nullptr; }
  static status set_collectives(queue& q, const rank_reducer& ranks) {
    q.host = [&q, ranks](const char* operation, tensor<Real> in, tensor<Real> out) {
      std::copy_n(in.p, in.count(), out.p);
      const status s =
          ranks.link->reduce(view_into(out.p, out.count()), same_text(operation, traits_of(op::all_reduce_max).name));
      if (!s && q.host_error) q.host_error = s;
    };
    return ok;
  }
  static result<view> to_device(queue&, const view& host, dtype, memory&) { return host; }
  static status copy(queue&, void* to, const void* from, long long bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return ok;
  }
  // Runs work(k) for every k below `parts`; no work reads what another one writes.
  template <class Work> static status run_concurrently(queue&, std::size_t parts, Work work) {
    for (std::size_t k = 0; k < parts; ++k)
      if (status s = work(k); !s) return s;
    return ok;
  }
  static status clear(queue&, void* what, long long bytes) {
    std::memset(what, 0, static_cast<std::size_t>(bytes));
    return ok;
  }
  class numbers {  // small integers of a call, which the engine reads in place after send()
   public:
    status write(const void* host, long long) { return at_ = host, status(ok); }
    status send(queue&) { return ok; }
    const void* data() const { return at_; }

   private:
    const void* at_ = nullptr;
  };
  static status fetch(queue&, const view&, void*) { return ok; }
  class captured {
   public:
    template <class Work> status run(queue&, std::uint64_t, Work work) { return work(); }
    static bool ready() { return false; }
  };
  // Classes for whole models, defined in engine_models.h.
  class adapter_table;
  class gradient_accumulators;
  using updates = optimizer_step;
  static updates make_optimizer_step(queue&);
  static constexpr long long loss_rows = 0;  // rows of a call of the head; 0: all rows, since launches work by chunks

  // Evaluates a graph whose tensors are in host memory.
  static status evaluate_in_host_memory(queue& q, const graph& g, const size_values& s, const leaf_views& leaves,
                                        const std::vector<mutable_view>& outputs) {
    return evaluate(q, g, s, leaves, outputs);
  }
  // A graph planned, with the workspace that all layers share which run it, and the tensors of one of them.
  using program = cpu::program<Real>;
  using binding = cpu::binding<Real>;
  static status bind(queue& q, program& in, binding& with, const size_values& s, const leaf_views& leaves,
                     const capacity& limits, shared&);
  static status run(queue& q, program& in, binding& with, const program_call& c);
  static status parameters_changed(queue&, program&, binding& with);
  static status weight_changed(queue&, program&, binding& with);
  // Computes the values of the load and parameter stages, which the first call would compute otherwise.
  static void precompute(queue&, const program&, binding&);
  // Lets `mine`, a binding of `in`, read parameter-stage values from a binding of another program of the same layer,
  // whose calls come first, instead of computing them again.
  static void share_precomputed(const program& in, binding& mine, const program& other, const binding& from);
  // States that one block reads another one's output; launches of two blocks are not joined on the CPU.
  static status activate_adapter(queue&, binding&) { return ok; }
  static void memory_changed(binding&) {}
  static status evaluate(queue& q, const graph& g, const size_values& s, const leaf_views& leaves,
                         const std::vector<mutable_view>& outputs);
};

}  // namespace graft::cpu
