// SPDX-License-Identifier: Apache-2.0
// gpu::layer: a layer type on the GPU, with its compile-time facts and its executor in one object. Instantiating it
// captures the graph, and is an error where the layer is wrong.
//     gpu::layer<q_proj> q;
//     q.on(stream); q.set("weight", w); …                  tensors in device memory of their owner
//     q.bind({.tokens = 4096});                            allocates; computes and packs what does not depend on x
//     q.forward(x, y);                                     launches, and nothing else: it may be captured
#pragma once
#include <graft/backend/gpu/runtime/engine.cuh>
#include <graft/plan/compile.h>
#include <graft/plan/explain.h>
#include <graft/run/executor_impl.h>
#include <graft/run/layer_type_ops.h>
#include <graft/run/type_kernels.h>

namespace graft::gpu {

// The CUDA type of activations for the element type of a layer; quantized weights have activations in bf16.
template <class Element> struct device_type { using type = float; };
template <> struct device_type<bf16> { using type = __nv_bfloat16; };
template <> struct device_type<f16> { using type = __half; };
template <int Block> struct device_type<nf4<Block>> { using type = __nv_bfloat16; };
template <> struct device_type<int8> { using type = __nv_bfloat16; };

template <class T> class executor : public graft::executor<engine<T>> {
 public:
  // Compiles all kernels, for sizes, ranks and adapters that are known only at run time.
  explicit executor(const layer_graphs& graphs, execution_mode run_mode = execution_mode::fused)
      : executor(graphs, run_mode, every_kernel_of_layers<T>()) {}
  executor(const layer_graphs& graphs, execution_mode run_mode, const kernel_set& kernels)
      : graft::executor<engine<T>>(graphs, run_mode) {
    this->queued().kernels = kernels;
  }
  // Sets the stream of the following calls. Its work must come after the earlier calls, because all share one
  // workspace. `exclusive` promises that no other work runs on the device.
  executor& on(cudaStream_t stream, bool exclusive = false) {
    this->queued().stream = stream, this->queued().exclusive = exclusive;
    return *this;
  }
  // Enables autotuning, before bind(): candidate launches are timed and the fastest one is used. `file` stores the
  // results, the default file if it is empty. The first call of a size takes longer, allocates and synchronizes: make
  // it before a capture.
  status enable_autotuning(const std::string& file = {}) { return engine<T>::enable_autotuning(this->queued(), file); }
  const autotuner* tuner() const { return this->queued().tuner.get(); }
  // Adds kernels to choose from.
  void add_kernels(const kernel_set& more) {
    kernel_set& own = this->queued().kernels;
    const bool grows = (own.gemm.have | more.gemm.have) != own.gemm.have;
    own.add(more);
    if (grows) this->kernels_changed();
  }
  // Describes what forward() launches for so many tokens.
  text describe(long long tokens) const {
    text t;
    const launch_plan* p = this->forward_plan();
    if (p == nullptr) return t << "not bound", t;
    const graph& g = this->bound_forward()->g();
    const binding<T>& with = this->bound_forward()->with.values;
    const gemm_kernel_mask& have = this->queued().kernels.gemm.have;
    for (int k = 0; k < p->launches.size(); ++k) {
      t << (k > 0 ? "; " : "");
      p->visit(p->launches[k], [&]<class Kind>(const Kind& l) {
        if constexpr (requires { launch_on_gpu<Kind>::describe(t, g, *p, with, l, tokens, have); })
          launch_on_gpu<Kind>::describe(t, g, *p, with, l, tokens, have);
        else
          t << traits_of(g[l.anchor()].what).name << " by itself";
      });
    }
    if (this->enabled() && this->runs_folded()) t << "; adapter folded into a copy of the weight";
    return t;
  }
};

template <class Layer, class... Options>
class layer : public compile<Layer, Options...>,
              public executor<typename device_type<typename compile<Layer, Options...>::layer::element>::type> {
  using checked = typename compile<Layer, Options...>::layer;  // sound even where Layer is not: no second error
  using element = typename device_type<typename checked::element>::type;
  using base = executor<element>;
  using selections = type_kernels<checked>;
  static constexpr sixteen_bit_types narrow =
      sixteen_bit_types_of(graft::detail::element_traits<typename checked::element>::stored);

 public:
  explicit layer(execution_mode run_mode = execution_mode::fused)
      : base(graphs_of<typename checked::kind, typename checked::adapter, checked::has_bias>(), run_mode,
             selected_kernels<element, selections::forward, narrow>()) {
    set_static_sizes<checked>(*this);
  }
  // The members below call those of executor, and add the kernels that only their callers need.
  status enable(bool adapter) {
    add_selected<selections::base>(has_base_);
    return base::enable(adapter);
  }
  result<int> add(const layer_graphs& another) {
    if (!std::exchange(has_all_, true)) base::add_kernels(every_kernel_of_one_adapter<element>());
    return base::add(another);
  }
  status activate(const std::vector<int>& adapters) {
    this->set_formula(0, derived_of<checked>::value);
    return base::activate(adapters);
  }
  void train(bool on) {
    add_selected<selections::training>(has_training_);
    base::train(on);
  }
  status backward(const view& x, const view& dy, const mutable_view& dx, const std::vector<gradient>& gradients) {
    add_selected<selections::backward>(has_backward_);
    return base::backward(x, dy, dx, gradients);
  }
  // Describes the layer, and what this GPU launches for it. Each line goes to a sink, any callable that takes a text.
  template <class Sink> void explain(Sink&& line, long long tokens) const {
    graft::explain<checked, sm_90>(line, tokens);
    text t;
    t << "  on this GPU: " << this->describe(tokens);
    line(t);
  }

 private:
  template <kernel_selection Which> void add_selected(bool& done) {
    if (!std::exchange(done, true)) base::add_kernels(selected_kernels<element, Which, narrow>());
  }
  bool has_base_ = false, has_backward_ = false, has_training_ = false, has_all_ = false;
};

}  // namespace graft::gpu
