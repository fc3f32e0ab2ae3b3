// SPDX-License-Identifier: Apache-2.0
// The GPU engine: the interface through which executors and models use one device. A queue orders work on a stream;
// memory is device memory; run() launches the kernels of a program with a binding; evaluate() runs a graph node by
// node. T is the element type of x, y and the weight. Functions that query the device or evaluate a graph are defined
// after the class.
#pragma once
#include <graft/backend/engine.h>
#include <graft/backend/gpu/dispatch/targets.h>
#include <graft/backend/gpu/kernels/gemm/autotune.cuh>
#include <graft/backend/gpu/runtime/engine_memory.cuh>
#include <graft/backend/gpu/runtime/execution.cuh>
#include <graft/backend/gpu/runtime/graph_capture.cuh>
#include <graft/backend/gpu/runtime/stream_fork.cuh>
#include <graft/backend/rank_reduce.h>
#include <graft/core/algorithm.h>
#include <graft/derive/saved_tensors.h>

namespace graft::gpu {

class optimizer_step;

// All kernels including attention for whole models; defined in engine_models.cuh.
template <class T> kernel_set every_kernel_of();

struct add_numbers {
  const float* from;
  element_ptr<float> to;
  __device__ void operator()(long long i) const { to.add(i, from[i]); }
};

template <class T> struct engine {
  // In a GEMM of many tokens, the CTAs that compute the shrink wait for each other, so all of them must be
  // resident: a cooperative launch guarantees it or fails. `exclusive` promises that no other work runs on the device.
  // They are then resident without a cooperative launch, and a launch may start before the previous one has ended
  // (PDL).
  struct queue {
    cudaStream_t stream = nullptr;
    bool exclusive = false;
    target where{}, eager{};  // set by open()
    kernel_set kernels{};
    std::shared_ptr<owned_stream> own{};  // the stream of a model; a layer runs on its caller's stream
    std::shared_ptr<dequantized_buffer> dequantized_weight = std::make_shared<dequantized_buffer>();
    std::shared_ptr<growing_buffer> shared_workspace{};  // models only
    gpu::launch_clock* clock = nullptr;                  // times every launch if set
    std::shared_ptr<autotuner> tuner{};
    std::shared_ptr<stream_fork> fork{};  // models only
    buffer* scratch = nullptr;            // scratch memory of the forked stream that work is queued on
  };
  using real = float;  // element type of values that callers exchange in host memory
  using shared = shared_adapter_args<T>;
  using launch_clock = gpu::launch_clock;
  static constexpr dtype compute_type = dtype::f32, storage_type = dtype_of<T>;
  static constexpr bool reads_host_memory = false, binds_itself = false, adapters_share_launches = true;
  static const target& runs_on(const queue& q) { return q.where; }
  static const target& runs_eagerly_on(const queue& q) { return q.eager; }

  // Sets the targets of `q` from the current device.
  static status open(queue& q);

  // Bandwidth of a long copy: 0.88 of the peak that follows from memory clock and bus width. 0 if the driver reports
  // none.
  static double bytes_per_second() {
    const auto kilohertz = device_attribute(cudaDevAttrMemoryClockRate),
               bits = device_attribute(cudaDevAttrGlobalMemoryBusWidth);
    return kilohertz && bits ? 0.88 * 2e3 * *kilohertz * *bits / 8 : 0;
  }

  // begin(), add_requirements() per adapter, and finish() collect what the shared adapter arguments of a layer must
  // hold: the largest rank, a prologue, and a copy of the weight if an adapter is folded.
  static void begin(shared& s, const capacity& limits, int adapters) {
    s.used = limits.rank > 0 || adapters > 1;
    s.rank = padded_rank(limits.rank), s.prologue = s.weight = false;
    s.shared_workspace = std::make_unique<growing_buffer>(growing_buffer::growth::by_chunks);
  }
  static void add_requirements(shared& s, const graph& g, const launch_plan& p, const size_values& sizes, bool folded,
                               const capacity& limits) {
    s.weight = s.weight || folded;
    if (p.launches.size() != 1 || p.products.size() != 1 || p.products[0].input_rotation >= 0) return;
    if (limits.rank == 0) s.rank = max_of(s.rank, padded_rank(static_cast<int>(branch_rank(g, p.products[0], sizes))));
    s.prologue = s.prologue || p.products[0].prologue >= 0;
  }
  // A GEMM fuses either a prologue or a low-rank branch. If a layer's adapters need both, a separate kernel scales x.
  // Returns whether that changed the target.
  static bool finish(shared& s, queue& q) {
    bool& fuses_prologue = q.where.template can<gemm_launch>().fuses_prologue;
    const bool before = std::exchange(fuses_prologue, !s.used || s.rank == 0);
    s.prologue = s.prologue && fuses_prologue;
    return fuses_prologue != before;
  }
  // Enables autotuning. `file` stores the choices; if it is empty, the default file of the device does.
  static status enable_autotuning(queue& q, const std::string& file) {
    if (q.tuner != nullptr && (file.empty() || file == q.tuner->path())) return ok;
    const auto made = autotuner::open<uint4>(file);
    if (!made) return made.failure();
    q.tuner = *made, q.kernels.gemm.timed = autotuned_by(q.tuner.get());
    return ok;
  }
  static std::string autotune_warning(const queue& q) { return q.tuner == nullptr ? std::string() : q.tuner->note(); }
  static bool can_store_folded(const shared& s, bool folded) { return !s.used || !folded || s.weight; }

  // Queries how many clusters of two GEMM blocks are resident at the same time; each block occupies one SM.
  static status query_residency(queue& q);

  class memory {
   public:
    memory() = default;
    explicit memory(buffer b) : b_(std::move(b)) {}
    void* data() { return b_.data(); }
    buffer& storage() { return b_; }
    quant_state& quantization() {
      if (quantization_ == nullptr) quantization_ = std::make_unique<quant_state>();
      return *quantization_;
    }

   private:
    buffer b_;
    std::unique_ptr<quant_state> quantization_;  // scales and tables of a quantized weight
  };
  static result<memory> allocate(queue&, long long bytes) {
    buffer b;
    if (status s = b.reserve(bytes); !s) return s.failure();
    return memory(std::move(b));
  }

  // to += from, where `from` is contiguous float.
  static status can_add(const mutable_view& to) {
    if (to.contiguous() && element_ptr<float>::is_supported(to.type)) return ok;
    return fail("a gradient that is added to has gaps or is ", name_of(to.type),
                "; on the GPU give it contiguous memory of f32, bf16 or f16");
  }
  static status add(queue& q, const view& from, const mutable_view& to);
  // ---- For models, whose tensors are in device memory and whose callers exchange host memory
  // Collectives run on the communicator's stream. The model uses the same stream, so they are ordered with its
  // launches.
  static status set_collectives(queue& q, const rank_reducer& ranks) {
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
      q.own = std::make_shared<owned_stream>();
      if (status s = q.own->open(); !s) return s;
    }
    if (q.shared_workspace == nullptr)
      q.shared_workspace = std::make_shared<growing_buffer>(growing_buffer::growth::by_moving);
    if (q.fork == nullptr) q.fork = std::make_shared<stream_fork>();
    q.stream = q.own->stream(), q.exclusive = true;
    return open(q);
  }
  // Copies a tensor to device memory: numbers are stored as `as`, a quantized weight keeps its stored values and
  // scales.
  static result<view> to_device(queue& q, const view& host, dtype as, memory& into) {
    if (host.quant != nullptr) return upload_quantized(q.stream, host, into.storage(), into.quantization());
    return upload_tensor(q.stream, host, as, into.storage());
  }
  static status copy(queue& q, void* to, const void* from, long long bytes) {
    return check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, q.stream), "copying");
  }
  static status clear(queue& q, void* what, long long bytes) {
    return check(cudaMemsetAsync(what, 0, static_cast<std::size_t>(bytes), q.stream), "clearing");
  }
  // Calls work(k) for every k below `parts`; no call may read what another one writes. They run on forked streams,
  // unless they share the buffer of dequantized weights or run collectives, whose order must be the same on all ranks.
  template <class Work> static status run_concurrently(queue& q, std::size_t parts, Work work) {
    if (parts < 2 || q.fork == nullptr || q.dequantized_weight->bytes() > 0 || q.kernels.ranks.link != nullptr) {
      for (std::size_t k = 0; k < parts; ++k)
        if (status s = work(k); !s) return s;
      return ok;
    }
    const cudaStream_t own = q.stream;
    const status done = q.fork->run(own, parts, [&](std::size_t k, cudaStream_t stream, buffer& scratch) {
      q.stream = stream, q.scratch = &scratch;
      return work(k);
    });
    q.stream = own, q.scratch = nullptr;
    return done;
  }
  // Copies a tensor to host memory and waits for the stream.
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
    template <class Work> status run(queue& q, std::uint64_t version, Work work) {
      return work_.run(q.stream, version, work);
    }
    bool ready() const { return work_.captured(); }

   private:
    captured_graph work_;
  };
  // Defined in engine_models.cuh.
  class sampler;
  class gradient_accumulators;
  class adapter_table;
  using updates = optimizer_step;
  static updates make_optimizer_step(queue& q);
  class stream_event {
   public:
    status note(queue& q) { return ranks_ = &q.kernels.ranks, at_.note(q.stream); }
    status wait() const {
      if (status s = ranks_->until([&] { return at_.over(); }); !s) return s;
      return at_.wait();
    }

   private:
    gpu::stream_event at_;
    const rank_reducer* ranks_ = nullptr;
  };
  static constexpr long long loss_rows = 1024;  // rows per call of the head, which bounds the memory of the logits

  // Plans a graph; what the layers that run it share.
  using program = gpu::program<T>;
  // The tensors and precomputed values of one of them.
  using binding = gpu::binding<T>;
  // Binds `with`, which keeps what it was bound to if this fails.
  static status bind(queue& q, program& in, binding& with, const size_values& s, const leaf_views& leaves,
                     const capacity& limits, shared& adapters) {
    binding fresh;
    if (status done = in.bind(q.stream, q.kernels, s, leaves, limits, adapters, *q.dequantized_weight,
                              q.shared_workspace.get(), fresh);
        !done)
      return done;
    return with = std::move(fresh), status(ok);
  }
  static status run(queue& q, program& in, binding& with, const program_call& c) {
    if (q.tuner != nullptr) q.tuner->on(q.stream);
    return execution<T>(in, with, c, q.stream, q.where, q.exclusive).run(q.clock);
  }
  static status parameters_changed(queue& q, program& in, binding& with) {
    return in.parameters_changed(q.stream, with, q.scratch);
  }
  static status weight_changed(queue& q, program& in, binding& with) { return in.weight_changed(q.stream, with); }
  // Makes `mine`, a binding of `in`, read parameter-stage values from a binding of another program of the same layer
  // instead of computing them. The other one's parameters_changed() is called first. It is called after each bind().
  static void share_precomputed(const program& in, binding& mine, const program& other, const binding& from) {
    mine.share_precomputed(from, same_nodes(other.value(), in.value()));
  }
  static status activate_adapter(queue& q, binding& with) { return with.activate_adapter(q.stream); }
  // Tells that tensors were written outside of calls: the next launches must not start before that has ended.
  static void memory_changed(binding& with) { with.skip_pdl_once(); }

  // Evaluates a graph with one kernel per node. It waits for the stream, because its values are freed on return.
  static status evaluate(queue& q, const graph& g, const size_values& s, const leaf_views& leaves,
                         const std::vector<mutable_view>& outputs);
  // Evaluates a graph whose leaves and outputs are in host memory, in any element type and with any strides.
  static status evaluate_in_host_memory(queue& q, const graph& g, const size_values& s, leaf_views leaves,
                                        const std::vector<mutable_view>& outputs);
};

template <class T> status engine<T>::open(queue& q) {
  if (q.kernels.evaluate == nullptr) return fail("this executor was given no kernels");
  const auto major = device_attribute(cudaDevAttrComputeCapabilityMajor),
             minor = device_attribute(cudaDevAttrComputeCapabilityMinor),
             sm_count = device_attribute(cudaDevAttrMultiProcessorCount);
  for (const auto* a : {&major, &minor, &sm_count})
    if (!*a) return a->failure();
  q.where = device_target("this GPU", 10 * *major + *minor, *sm_count, *sm_count / 2, bytes_per_second());
  q.eager = q.where, q.eager.granularity = target::work::by_nodes;
  return is_hopper(q.where) ? query_residency(q) : status(ok);
}
template <class T> status engine<T>::query_residency(queue& q) {
  for (const kernel_entry& gemm : q.kernels.gemm.gemm) {
    if (gemm.kernel == nullptr) continue;
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {2, 1, 1};
    const auto shared_bytes = static_cast<int>(gemm.shared);
    if (status s = check(cudaFuncSetAttribute(gemm.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
                         "the gemm kernel");
        !s)
      return s;
    const cudaLaunchConfig_t config{
        dim3(static_cast<unsigned>(2 * q.where.sm_count)), dim3(gemm.threads), gemm.shared, nullptr, &cluster, 1};
    return check(
        cudaOccupancyMaxActiveClusters(&q.where.template can<gemm_launch>().resident_pairs, gemm.kernel, &config),
        "asking how many blocks fit");
  }
  return ok;
}
template <class T> status engine<T>::add(queue& q, const view& from, const mutable_view& to) {
  const auto* const values = static_cast<const float*>(from.data);
  return each(q.stream, to.count(), add_numbers{values, {to.data, to.type}}, "adding a gradient");
}
template <class T>
status engine<T>::evaluate(queue& q, const graph& g, const size_values& s, const leaf_views& leaves,
                           const std::vector<mutable_view>& outputs) {
  if (q.kernels.evaluate == nullptr) return fail("this executor was given no kernels");
  for (int k = 0; k < g.outs; ++k)
    if (const mutable_view& to = outputs[static_cast<std::size_t>(k)];
        to.data != nullptr && (!to.contiguous() || !element_ptr<float>::is_supported(to.type)))
      return fail("output '", g.output_name(k), "' has gaps or is ", name_of(to.type),
                  "; on the GPU give it contiguous memory of f32, bf16 or f16");
  for (id i = 0; i < g.size; ++i) {
    const view& v = leaves[i];
    if (v.data != nullptr && !v.contiguous())
      return fail("tensor '", g.name(i), "' is not stored row after row; on the GPU copy it first");
    if (status st = check_gpu_format(g.name(i), v); !st) return st;
  }
  values v(g, s, leaves, q.kernels.evaluate);
  dequantized_buffer dequantized_weight(q.kernels.launches.quantized);
  v.dequantize_into(&dequantized_weight, dtype::f32);
  if (status reserved = dequantized_weight.reserve(v.dequantized_bytes(dtype::f32)); !reserved) return reserved;
  if (status done = v.compute(q.stream, reachable(g)); !done) return done;
  for (int k = 0; k < g.outs; ++k)
    if (const mutable_view& to = outputs[static_cast<std::size_t>(k)]; to.data != nullptr)
      if (status done = v.copy(q.stream, g.out[k].at, {to.data, to.type}); !done) return done;
  return check(cudaStreamSynchronize(q.stream), "merging");
}
template <class T>
status engine<T>::evaluate_in_host_memory(queue& q, const graph& g, const size_values& s, leaf_views leaves,
                                          const std::vector<mutable_view>& outputs) {
  sequence<memory> copies;
  for (id i = 0; i < g.size; ++i) {
    view& v = leaves[i];
    if (v.data == nullptr || g[i].what == op::scalar) continue;
    result<view> placed = to_device(q, v, dtype::f32, copies.extend());
    if (!placed) return placed.failure();
    v = *placed;
  }
  std::vector<mutable_view> there(outputs.size());
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k].data == nullptr) continue;
    if (status done = copies.extend().storage().reserve(4 * outputs[k].count()); !done) return done;
    there[k] = {copies.back().data(), dtype::f32, {outputs[k].count()}, 1};
  }
  if (status done = evaluate(q, g, s, leaves, there); !done) return done;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k].data == nullptr) continue;
    std::vector<float> numbers(static_cast<std::size_t>(outputs[k].count()));
    if (status done = fetch(q, {there[k].data, dtype::f32, {outputs[k].count()}, 1}, numbers.data()); !done)
      return done;
    write_in_host_memory(outputs[k], numbers.data());
  }
  return ok;
}

static_assert(Engine<engine<float>> && Engine<engine<__nv_bfloat16>> && Engine<engine<__half>>);

}  // namespace graft::gpu
