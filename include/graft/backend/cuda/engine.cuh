// SPDX-License-Identifier: Apache-2.0
// The GPU as an executor sees it: work is ordered on a stream of one device, memory is the device's, a plan bound to
// tensors launches its kernels. T is the type of x, y and the weight. What asks the device or evaluates node by node is
// defined in engine_calls.cuh.
#pragma once
#include <graft/backend/cuda/bound_plan_bind.cuh>
#include <graft/backend/cuda/bound_plan_memory.cuh>
#include <graft/backend/cuda/bound_plan_run.cuh>
#include <graft/backend/cuda/branches.cuh>
#include <graft/backend/cuda/captured.cuh>
#include <graft/backend/cuda/engine_memory.cuh>
#include <graft/backend/cuda/linear_timing.cuh>
#include <graft/backend/cuda/targets.h>
#include <graft/backend/rank_exchange.h>
#include <graft/core/few_numbers.h>
#include <graft/derive/keep.h>

namespace graft::cuda {

class parameter_updates;

// With attention by the kernels of models: engine_models.cuh.
template <class T> kernel_set every_kernel_of();
template <class T> kernel_set every_kernel_of_layers() {
  return {all_kernels<T>(), &evaluate_node<every_op>, all_launchers<T>(), nullptr, all_mixed_kernels<T>()};
}

template <class T> struct engine {
  // The side branch of many tokens is computed by thread blocks that wait for each other, in a cooperative launch: it finds
  // them all resident or fails. `alone`: no other layer runs on the device at the same time, so that is so anyway, and
  // a layer can begin before the one ahead of it has ended.
  struct queue {
    cudaStream_t stream = nullptr;
    bool alone = false;
    target where{}, eager{};  // found by open()
    kernel_set kernels{};
    std::shared_ptr<own_stream> own{};  // of a model; a layer runs on its caller's
    std::shared_ptr<code_panel> panel = std::make_shared<code_panel>();
    std::shared_ptr<call_room> room{};    // of a model
    cuda::launch_clock* clock = nullptr;  // notes the launches, where there is one
    std::shared_ptr<choice_timer> timer{};
    std::shared_ptr<branches> beside{};  // of a model
    buffer* scratch = nullptr;           // of the branch whose work is queued
  };
  using real = float;  // as callers in host memory see numbers
  using shared = shared_slots<T>;
  using launch_clock = cuda::launch_clock;
  static constexpr dtype computes = dtype::f32, keeps = dtype_of<T>;
  static constexpr bool reads_host_memory = false, binds_itself = false;
  static const target& runs_on(const queue& q) { return q.where; }
  static const target& runs_eagerly_on(const queue& q) { return q.eager; }

  // What the device of this thread can do.
  static status open(queue& q);

  // What memory gives to a long copy, 0.88 of what its pins could move; 0: the driver does not say.
  static double bytes_per_second() {
    const auto kilohertz = attribute_of_device(cudaDevAttrMemoryClockRate),
               bits = attribute_of_device(cudaDevAttrGlobalMemoryBusWidth);
    return kilohertz && bits ? 0.88 * 2e3 * *kilohertz * *bits / 8 : 0;
  }

  // Of all adapters of a layer: what the place that their launches read must have room for.
  static void begin(shared& s, const capacity& room, int adapters) {
    s.used = room.rank > 0 || adapters > 1;
    s.rank = padded_rank(room.rank), s.pre = s.weight = false;
    s.room = std::make_unique<call_room>(common_memory::growth::by_pieces);
  }
  static void consider(shared& s, const target& to, const graph& g, const size_values& sizes, bool folded,
                       const capacity& room) {
    const plan p = fuse(g, to);
    s.weight = s.weight || folded;
    if (p.launches.size() != 1 || p.products.size() != 1 || p.products[0].turn >= 0) return;
    if (room.rank == 0) s.rank = larger_of(s.rank, padded_rank(static_cast<int>(side_rank(g, p.products[0], sizes))));
    s.pre = s.pre || p.products[0].pre >= 0;
  }
  // A product has room for a factor of the input or for a side branch: where there are both, x is scaled by a kernel.
  static void complete(shared& s, queue& q) {
    q.where.takes_pre = !s.used || s.rank == 0;
    s.pre = s.pre && q.where.takes_pre;
  }
  // From now on launches are chosen by timing them; `file` keeps the choices, the usual one where it is empty.
  static status time_choices(queue& q, const std::string& file) {
    if (q.timer != nullptr && (file.empty() || file == q.timer->path())) return ok;
    const auto made = choice_timer::open(file);
    if (!made) return made.failure();
    q.timer = *made, q.kernels.linear.timed = timed_by(q.timer.get());
    return ok;
  }
  static std::string note_on_choices(const queue& q) { return q.timer == nullptr ? std::string() : q.timer->note(); }
  static bool has_room(const shared& s, bool folded) { return !s.used || !folded || s.weight; }

  // How many pairs of gemm blocks run at the same time: each takes a multiprocessor of its own.
  static status ask_residency(queue& q);

  class block {
   public:
    block() = default;
    explicit block(buffer b) : b_(std::move(b)) {}
    void* data() { return b_.data(); }
    buffer& memory() { return b_; }
    planes& beside() {
      if (beside_ == nullptr) beside_ = std::make_unique<planes>();
      return *beside_;
    }

   private:
    buffer b_;
    std::unique_ptr<planes> beside_;  // of codes
  };
  static result<block> allocate(queue&, long long bytes) {
    buffer b;
    if (status s = b.reserve(bytes); !s) return s.failure();
    return block(std::move(b));
  }

  // to += from, floats one after the other.
  static status can_add(const mutable_view& to) {
    if (to.contiguous() && cells<float>::can_be(to.type)) return ok;
    return fail("a gradient that is added to has gaps or is ", name_of(to.type),
                "; on the GPU give it one piece of f32, bf16 or f16");
  }
  static status add(queue& q, const view& from, const mutable_view& to);
  // ---- for models, which live in device memory; what callers bring and get is in host memory
  // Ranks order their exchanges on a stream: the model runs on it, so that they take place in the order of its launches.
  static status exchange_by(queue& q, const rank_exchange& ranks) {
    if (ranks.stream == nullptr)
      return fail("these ranks exchange host memory, and this model lives in a device's: use nccl_communicator");
    q.kernels.ranks = ranks;
    q.stream = static_cast<cudaStream_t>(ranks.stream), q.own = nullptr;
    return ok;
  }
  static const void* stream_of(const queue& q) { return q.stream; }
  static status start(queue& q) {
    if (q.kernels.evaluate == nullptr) q.kernels = every_kernel_of<T>();
    if (q.own == nullptr) {
      q.own = std::make_shared<own_stream>();
      if (status s = q.own->open(); !s) return s;
    }
    if (q.room == nullptr) q.room = std::make_shared<call_room>(common_memory::growth::by_moving);
    if (q.beside == nullptr) q.beside = std::make_shared<branches>();
    q.stream = q.own->stream(), q.alone = true;
    return open(q);
  }
  // A tensor in device memory: matrices as T, which products read in place, codes and everything else as it is stored.
  static result<view> place(queue& q, const view& host, dtype as, block& into) {
    if (host.beside != nullptr) return place_codes(q.stream, host, into.memory(), into.beside());
    return place_tensor(q.stream, host, as, into.memory());
  }
  static status copy(queue& q, void* to, const void* from, long long bytes) {
    return check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, q.stream), "copying");
  }
  static status clear(queue& q, void* what, long long bytes) {
    return check(cudaMemsetAsync(what, 0, static_cast<std::size_t>(bytes), q.stream), "clearing");
  }
  // work(k) for every k below `parts`, none of which reads what another one writes. In branches, unless they decode weights
  // into the same memory, or exchange anything with other ranks, who expect it in one order.
  template <class Work> static status side_by_side(queue& q, std::size_t parts, Work work) {
    if (parts < 2 || q.beside == nullptr || q.panel->bytes() > 0 || q.kernels.ranks.link != nullptr) {
      for (std::size_t k = 0; k < parts; ++k)
        if (status s = work(k); !s) return s;
      return ok;
    }
    const cudaStream_t own = q.stream;
    const status done = q.beside->run(own, parts, [&](std::size_t k, cudaStream_t stream, buffer& scratch) {
      q.stream = stream, q.scratch = &scratch;
      return work(k);
    });
    q.stream = own, q.scratch = nullptr;
    return done;
  }
  // The numbers of a tensor, in host memory; waits for the stream.
  static status fetch(queue& q, const view& from, void* to) {
    if (status s = copy(q, to, from.data, from.count() * bits_of(from.type) / 8); !s) return s;
    return wait(q);
  }
  class numbers {
   public:
    status write(const void* host, long long bytes) { return memory_.write(host, bytes); }
    status send(queue& q) { return memory_.send(q.stream); }
    const void* data() const { return memory_.data(); }

   private:
    staged_memory memory_;
  };
  static status wait(queue& q) {
    if (status s = q.kernels.ranks.until([&] { return cudaStreamQuery(q.stream) != cudaErrorNotReady; }); !s) return s;
    return check(cudaStreamSynchronize(q.stream), "waiting for the device");
  }
  class captured {
   public:
    template <class Work> status run(queue& q, std::uint64_t stamp, Work work) {
      return work_.run(q.stream, stamp, work);
    }
    bool ready() const { return work_.captured(); }

   private:
    captured_work work_;
  };
  // Of whole models: engine_models.cuh.
  class sampler;
  class gradient_sums;
  class bank;
  using updates = parameter_updates;
  static updates updates_on(queue& q);
  class moment {
   public:
    status note(queue& q) { return ranks_ = &q.kernels.ranks, at_.note(q.stream); }
    status wait() const {
      if (status s = ranks_->until([&] { return at_.over(); }); !s) return s;
      return at_.wait();
    }

   private:
    cuda::moment at_;
    const rank_exchange* ranks_ = nullptr;
  };
  static constexpr long long loss_rows = 1024;  // of a call of the head: logits exist for so many rows

  class bound {
   public:
    bound(const graph& g, const target& to) : plan_(g, to) {}
    status bind(queue& q, const size_values& s, const leaf_views& leaves, const capacity& room, shared& with) {
      return plan_.bind(q.stream, q.kernels, s, leaves, room, with, *q.panel, q.room.get());
    }
    // The tensors of one of several layers that share this plan.
    using binding = typename bound_plan<T>::binding;
    void exchange(binding& other) { plan_.exchange(other); }
    // What another plan of the same layer computes of the parameters is not computed again.
    static void take_known(binding& mine, const binding& from, const sequence<id>& equal) {
      bound_plan<T>::take_known(mine, from, equal);
    }
    long long launched() const { return plan_.launched(); }
    long long moves() const { return plan_.moves(); }
    const graph& value() const { return plan_.value(); }
    const plan& launches() const { return plan_.launches(); }
    const bound_plan<T>& made() const { return plan_; }
    bound_plan<T>& made() { return plan_; }
    call& next_call() { return plan_.next_call(); }
    call& this_call() { return plan_.this_call(); }
    const call& this_call() const { return plan_.this_call(); }
    status parameters_changed(queue& q) { return plan_.parameters_changed(q.stream, q.scratch); }
    status weight_changed(queue& q) { return plan_.weight_changed(q.stream); }
    // Of a layer in training: what follows from the parameters is computed once, by the forward pass, which is told of their
    // changes first.
    void borrow(bound& forward) {
      if (lender_ == &forward) return;
      lender_ = &forward;
      plan_.take_known(forward.plan_, same_nodes(forward.value(), value()));
    }
    status publish(queue& q) { return plan_.publish(q.stream); }
    void memory_changed() { plan_.unchain(); }
    status run(queue& q) {
      if (q.timer != nullptr) q.timer->on(q.stream);
      return plan_.run(q.stream, q.where, q.alone, q.clock);
    }

   private:
    bound_plan<T> plan_;
    const bound* lender_ = nullptr;
  };

  // Every node by a kernel of its own. Waits for the stream: the values live no longer than the call.
  static status evaluate(queue& q, const graph& g, const size_values& s, const leaf_views& leaves,
                         const std::vector<mutable_view>& outputs);
  // The same where everything lies in host memory, in any storage type and order.
  static status evaluate_in_host_memory(queue& q, const graph& g, const size_values& s, leaf_views leaves,
                                        const std::vector<mutable_view>& outputs);
};

}  // namespace graft::cuda
