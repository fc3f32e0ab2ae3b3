// SPDX-License-Identifier: Apache-2.0
// A layer type on the GPU: its compile-time facts and its executor in one object. Instantiating it captures the graph,
// and is an error where the layer is wrong.
//     cuda::layer<q_proj> q;
//     q.on({.stream = stream}); q.set("weight", w); …      tensors in device memory of their owner
//     q.bind({.tokens = 4096});                            allocates; computes and packs what does not depend on x
//     q.forward(x, y);                                     launches, and nothing else: it may be captured
#pragma once
#include <graft/backend/cuda/engine_calls.cuh>
#include <graft/plan/compile.h>
#include <graft/plan/explain.h>
#include <graft/run/executor_calls.h>
#include <graft/run/type_kernels.h>

namespace graft::cuda {

// The type that CUDA computes with for a storage type of ours.
template <class Element> struct device_type { using type = float; };
template <> struct device_type<bf16> { using type = __nv_bfloat16; };
template <> struct device_type<f16> { using type = __half; };
template <int Block> struct device_type<nf4<Block>> { using type = __nv_bfloat16; };
template <> struct device_type<int8> { using type = __nv_bfloat16; };

template <class T> class executor : public graft::executor<engine<T>> {
 public:
  // With every kernel there is: for sizes, ranks and adapters that are known only at run time.
  explicit executor(const layer_graphs& graphs, mode how = mode::fused)
      : executor(graphs, how, every_kernel_of_layers<T>()) {}
  executor(const layer_graphs& graphs, mode how, const kernel_set& kernels) : graft::executor<engine<T>>(graphs, how) {
    this->queued().kernels = kernels;
  }
  // Another stream; kernels and device stay. What runs there comes after the calls before: all share one workspace.
  executor& on(cudaStream_t stream, bool alone = false) {
    this->queued().stream = stream, this->queued().alone = alone;
    return *this;
  }
  // Before bind(): launches are timed, and the quickest of those that do the same is taken; `file` keeps what was found, the
  // usual one where it is empty. The first call of a size takes longer, allocates and waits: make it before one is captured.
  status time_choices(const std::string& file = {}) { return engine<T>::time_choices(this->queued(), file); }
  const choice_timer* timer() const { return this->queued().timer.get(); }
  // More kernels to choose from.
  void add_kernels(const linear_kernels& more, const launchers& others = {}) {
    this->queued().kernels.launches.add(others);
    if ((this->queued().kernels.linear.have | more.have) == this->queued().kernels.linear.have) return;
    this->queued().kernels.linear.add(more);
    this->kernels_changed();
  }
  // What forward() launches for so many tokens.
  text describe(long long tokens) const {
    text t;
    const plan* p = this->forward_plan();
    if (p == nullptr) return t << "not bound", t;
    const auto& made = this->bound_forward()->made();
    for (int k = 0; k < p->launches.size(); ++k) {
      const graft::launch& l = p->launches[k];
      t << (k > 0 ? "; " : "");
      if (l.product < 0) {
        t << row(made.value()[l.anchor].what).name << (l.sum >= 0 ? " over the tokens" : " by itself");
        continue;
      }
      if (const code_choice codes = made.product(l.product).codes_for(tokens, p->to); codes.groups > 0) {
        const int launches = launches_of(codes, made.product(l.product).rank());
        t << "stream of codes, " << launches << (launches == 1 ? " launch" : " launches");
        continue;
      }
      if (made.product(l.product).is_coded()) t << "decoding, ";
      if (streams_across(made.product(l.product).shape(tokens), p->to)) {
        t << "few rows across";
        continue;
      }
      const linear_choice c = choose(made.product(l.product).shape(tokens), p->to, this->queued().kernels.linear.have);
      t << name_of(c.how) << ", " << c.launches << (c.launches == 1 ? " launch" : " launches");
    }
    if (this->enabled() && this->runs_folded()) t << "; adapter folded into a copy of the weight";
    return t;
  }
};

// What a layer of a type has of them: compiled here, or found in graft::cuda_compiled.
template <class Layer> struct kernels_of_type : type_kernels<Layer> {
  using facts = type_kernels<Layer>;
  template <class T, std::uint64_t Streams, std::uint32_t Gemms> static linear_kernels compiled() {
    linear_kernels k;
    if constexpr (in_library)
      k = all_kernels<T>(), k.have = {k.have.streams & Streams, k.have.gemms & Gemms};
    else
      k = compiled_kernels<T, Streams, Gemms>(), k.codes = code_kernels_of<T, facts::codes>();
    return k;
  }
  static constexpr narrow_types narrow = narrow_types_of(graft::detail::real_of<typename Layer::element>::stored);
};

template <class Layer, class... Options>
class layer : public compile<Layer, Options...>,
              public executor<typename device_type<typename compile<Layer, Options...>::layer::element>::type> {
  using checked = typename compile<Layer, Options...>::layer;  // sound even where Layer is not: no second error
  using element = typename device_type<typename checked::element>::type;
  using base = executor<element>;
  using own = kernels_of_type<checked>;

 public:
  explicit layer(mode how = mode::fused)
      : base(graphs_of<typename checked::kind, typename checked::adapter, checked::has_bias>(), how,
             {own::template compiled<element, own::products.streams, own::products.gemms>(),
              &evaluate_own_node<own::operations::forward, own::narrow>, launchers_for<element, own::launches>()}) {
    give_static_sizes<checked>(*this);
  }
  // What only some programs call brings its kernels with it.
  status enable(bool adapter) {
    base::add_kernels(own::template compiled<element, own::base_products.streams, own::base_products.gemms>(),
                      launchers_for<element, own::base_launches>());
    return base::enable(adapter);
  }
  result<int> add(const layer_graphs& another) {
    base::add_kernels(all_kernels<element>(), all_launchers<element>());
    this->queued().kernels.evaluate = &evaluate_node<every_op>;
    return base::add(another);
  }
  status activate(const std::vector<int>& adapters) {
    this->know_formula(0, derived_of<checked>::value);
    return base::activate(adapters);
  }
  void train(bool on) {
    base::add_kernels(all_kernels<element>(),
                      all_launchers<element>());  // a value that is kept is no longer inside the product that made it
    base::train(on);
  }
  status backward(const view& x, const view& dy, const mutable_view& dx, const std::vector<gradient>& gradients) {
    base::add_kernels(own::template compiled<element, own::backward_products.streams, own::backward_products.gemms>(),
                      launchers_for<element, own::backward_launches>());
    this->queued().kernels.evaluate = &evaluate_own_node<own::operations::both, own::narrow>;
    return base::backward(x, dy, dx, gradients);
  }
  // The layer in words, and what this GPU launches for it. A line goes to a sink, any callable that takes a text.
  template <class Sink> void explain(Sink&& line, long long tokens) const {
    graft::explain<checked, sm_90>(line, tokens);
    text t;
    t << "  on this GPU: " << this->describe(tokens);
    line(t);
  }
};

}  // namespace graft::cuda
