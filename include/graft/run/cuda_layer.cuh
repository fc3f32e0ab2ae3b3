// SPDX-License-Identifier: Apache-2.0
// A layer type on the GPU: its compile-time facts and its executor in one object. Instantiating it captures the graph,
// and is an error where the layer is wrong.
//     cuda::layer<q_proj> q;
//     q.on({.stream = stream}); q.set("weight", w); …      tensors in device memory of their owner
//     q.bind({.tokens = 4096});                            allocates; computes and packs what does not depend on x
//     q.forward(x, y);                                     launches, and nothing else: it may be captured
#pragma once
#include <graft/backend/cuda/engine_calls.cuh>
#include <graft/backend/cuda/kernels_for.h>
#include <graft/plan/compile.h>
#include <graft/plan/explain.h>
#include <graft/run/executor_calls.h>
#include <graft/run/static_sizes.h>
#include <graft/run/type_operations.h>

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
  explicit executor(const layer_graphs& graphs, mode how = mode::fused) : executor(graphs, how, every_kernel_of<T>()) {}
  executor(const layer_graphs& graphs, mode how, const kernel_set& kernels) : graft::executor<engine<T>>(graphs, how) {
    this->queued().kernels = kernels;
  }
  // Another stream; kernels and device stay.
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
        t << "stream of codes, 1 launch";
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

// What a layer of a type can launch, and so compiles: its operations, and the products that its sizes can want.
template <class Layer> struct kernels_of_type {
  using graphs = derived_of<Layer>;
  using plain = derived<typename Layer::kind, none, Layer::has_bias>;
  using operations = type_operations<Layer>;

  static constexpr int number(const graph& g, dim d) {
    const long long v = g.sizes.value(d, static_sizes<Layer>(g));
    return v > 0 ? static_cast<int>(v) : 0;
  }
  static constexpr kernel_list list_for(const graph& g) {
    const plan p = fuse(g, sm_90);
    kernel_list l;
    for (const product_slots& s : p.products) {
      int rank = 0;
      for (const side_branch& b : s.sides) {
        if (number(g, b.rank) == 0) return every_kernel();  // known only from the tensors
        rank += number(g, b.rank);
      }
      const dim n = g[s.weight].d[s.weight_by_row ? 2 : 3], k = g[s.weight].d[s.weight_by_row ? 3 : 2];
      const bool across = !s.weight_by_row && base_leaf(g, s.weight) >= 0;
      if (s.turned >= 0) l.add_turn(s.pre >= 0);
      l = l | kernels_for(number(g, n), number(g, k), padded_rank(rank), s.pre >= 0, across);
    }
    for (const token_sum& s : p.sums) {
      const int left = number(g, g[s.left].d[3]), right = number(g, g[s.right].d[3]),
                least = left < right ? left : right;
      for (const int rank : {16, 32, 64})
        if (least == 0 || padded_rank(least) == rank || (rank == 64 && least > 64)) l.add_sum(rank);
      if (least == 0 || least > 64) l.add_sum(wide_rank);
    }
    return l;
  }
  static constexpr launch_set launches_for(const graph& g) {
    target without_pre = sm_90;  // of an adapter with room for others
    without_pre.takes_pre = false;
    const plan p = fuse(g, sm_90);
    launch_set s =
        launches_of(g, p) | parameter_expressions::launches_before(g, p.when, [&](dim d) { return number(g, d); });
    for (const product_slots& of : p.products)
      if (of.pre >= 0) return s | launches_of(g, fuse(g, without_pre));
    return s;
  }
  template <class T, std::uint64_t Streams, std::uint32_t Gemms> static linear_kernels compiled() {
    linear_kernels k = compiled_kernels<T, Streams, Gemms>();
    k.codes = code_kernels_of<T, codes>();
    return k;
  }
  static constexpr code_form codes = form_of(graft::detail::real_of<typename Layer::element>::how, 64 * code_steps);
  static constexpr kernel_list products = list_for(plan_of<Layer, sm_90>::folded ? graphs::folded : graphs::forward);
  static constexpr kernel_list base_products = list_for(plain::forward);
  static constexpr kernel_list backward_products = list_for(graphs::backward) | list_for(plain::backward);
  static constexpr launch_set launches = launches_for(plan_of<Layer, sm_90>::folded ? graphs::folded : graphs::forward);
  static constexpr launch_set base_launches = launches_for(plain::forward);
  static constexpr launch_set backward_launches = launches_for(graphs::backward) | launches_for(plain::backward);
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
              &evaluate_node<own::operations::forward>, launchers_for<element, own::launches>()}) {
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
    this->queued().kernels.evaluate = &evaluate_node<own::operations::both>;
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
