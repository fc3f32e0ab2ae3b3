// SPDX-License-Identifier: Apache-2.0
// The CPU as an executor sees it. An engine has a queue in which work is ordered (here: the caller's own thread), memory,
// a plan bound to tensors, and a way to evaluate a graph without one: the last two are in engine_plan.h, so that a file
// that finds them in a library needs no Eigen.
#pragma once
#include <graft/backend/call.h>
#include <graft/backend/cpu/launch_clock.h>
#include <graft/backend/cpu/operations.h>
#include <graft/backend/mode.h>
#include <graft/backend/rank_exchange.h>
#include <graft/core/result.h>
#include <graft/plan/target.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace graft::cpu {

class parameter_updates;

template <class Real> struct engine {
  struct queue {
    host_function<Real> host{};  // what a formula calls outside the language, and how it reaches other ranks
    status outside = ok;         // what went wrong there in this call
    operations<Real> has = every_operation<Real>();
    cpu::launch_clock* clock = nullptr;  // notes the launches, where there is one
    [[gnu::cold]] status knows(const graph& g, const leaf_views& leaves) const {
      if (has.decode == nullptr && has_codes(leaves))
        return fail(
            "a tensor is codes, and this layer has no products of them: name their type as that of the layer, as ",
            "in linear<4096, 4096, nf4<64>, lora<16>>, or use cpu::executor");
      const id i = first_without(g, has.have);
      if (i < 0) return ok;
      return fail("the operation ", row(g[i].what).name,
                  " is not compiled into this layer type; run the graph with cpu::executor, which has all of them");
    }
  };
  using real = Real;
  using launch_clock = cpu::launch_clock;
  static constexpr dtype computes = storage<Real>::type, keeps = computes;
  static constexpr bool reads_host_memory = true, binds_itself = true;
  static const target& runs_on(const queue&) { return cpu_target; }
  static const target& runs_eagerly_on(const queue&) { return eager_target; }

  class block {
   public:
    block() = default;
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

  // There is one way to run each launch here.
  static status time_choices(queue&, const std::string&) { return ok; }
  static std::string note_on_choices(const queue&) { return {}; }

  static result<block> allocate(queue&, long long bytes) { return block(bytes); }

  // to += from, numbers of our own one after the other.
  static status can_add(const mutable_view&) { return ok; }
  static status add(queue&, const view& from, const mutable_view& to);

  // ---- for models: the engine's memory is the caller's, so tensors are used where they lie and nothing waits
  static status start(queue&) { return ok; }
  static const void* stream_of(const queue&) { return nullptr; }
  static status exchange_by(queue& q, const rank_exchange& ranks) {
    q.host = [&q, ranks](const char* how, tensor<Real> in, tensor<Real> out) {
      std::copy_n(in.p, in.count(), out.p);
      const status s = ranks.link->reduce(view_into(out.p, out.count()), same_text(how, row(op::rank_max).name));
      if (!s && q.outside) q.outside = s;
    };
    return ok;
  }
  static result<view> place(queue&, const view& host, dtype, block&) { return host; }
  static status copy(queue&, void* to, const void* from, long long bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return ok;
  }
  // work(k) for every k below `parts`, none of which reads what another one writes.
  template <class Work> static status side_by_side(queue&, std::size_t parts, Work work) {
    for (std::size_t k = 0; k < parts; ++k)
      if (status s = work(k); !s) return s;
    return ok;
  }
  static status clear(queue&, void* what, long long bytes) {
    std::memset(what, 0, static_cast<std::size_t>(bytes));
    return ok;
  }
  class numbers {  // small ones of a call, where the engine reads them once they were sent
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
  // Of whole models: engine_models.h.
  class bank;
  class gradient_sums;
  using updates = parameter_updates;
  static updates updates_on(queue&);
  static constexpr long long loss_rows = 0;  // of a call of the head: all, since the plan cuts them into pieces

  // The same where everything lies in host memory.
  static status evaluate_in_host_memory(queue& q, const graph& g, const size_values& s, const leaf_views& leaves,
                                        const std::vector<mutable_view>& outputs) {
    return evaluate(q, g, s, leaves, outputs);
  }
  class bound;
  static status evaluate(queue& q, const graph& g, const size_values& s, const leaf_views& leaves,
                         const std::vector<mutable_view>& outputs);
};

}  // namespace graft::cpu
