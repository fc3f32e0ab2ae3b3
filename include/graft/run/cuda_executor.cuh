// SPDX-License-Identifier: Apache-2.0
// Runs one adapted layer on the GPU. All tensors are device memory of their owner; T is the type of x, y and the
// weight.
//     cuda::executor<__nv_bfloat16> q(graphs_of<linear_kind, lora<>, false>());
//     q.set("weight", w); …; q.set("scaling", 2.0);
//     q.prepare(stream, x);                // allocates; computes and packs what does not depend on x
//     q.forward(stream, x, y);             // launches, and nothing else: it may be captured
// A changed parameter is seen after the next prepare(). One call at a time: a layer has one workspace.
#pragma once
#include <graft/backend/cuda/program.cuh>
#include <graft/run/backend.h>
#include <graft/run/cuda_merge.cuh>

#include <memory>

namespace graft::cuda {

struct call_options {
  const void* residual = nullptr;  // like y, added after the activation
  activation act = activation::none;
  // The side branch of many tokens is computed by thread blocks that wait for each other, in a cooperative launch: it
  // finds them all resident or fails. Where no other layer runs on the device at the same time, that is so anyway, and
  // without it a layer can begin before the one ahead of it has ended.
  bool alone = false;
};

template <class T> class executor {
 public:
  explicit executor(const layer_graphs& graphs, backend how = backend::fused) : how_(how) { add(graphs); }

  // A further adapter on the same base; its number. Before any tensor is set.
  int add(const layer_graphs& graphs) {
    parts_.push_back(std::make_unique<part>(graphs));
    return static_cast<int>(parts_.size()) - 1;
  }
  // Tensors of the base belong to all adapters.
  status set(const char* name, const view& v, int adapter = 0) {
    return on_parts(name, adapter, [&](layer_state& s) { return s.set(name, v); });
  }
  status set(const char* name, double v, int adapter = 0) {
    return on_parts(name, adapter, [&](layer_state& s) { return s.set(name, v); });
  }
  status size(const char* name, long long v, int adapter = 0) {
    return on_parts(name, adapter, [&](layer_state& s) { return s.size(name, v); });
  }

  // Ready for calls with an x like this one, or with fewer tokens. A side branch of a rank above max_branch_rank is
  // folded into a copy of the weight unless `fold` is false.
  status prepare(cudaStream_t stream, const view& like, bool fold = true) {
    ready_ = false;
    auto facts = current_device();
    if (!facts) return facts.failure();
    device_ = *facts;
    if (status s = ask_residency(); !s) return s;
    base_ = std::make_unique<program<T>>(parts_[0]->state.graphs().base_forward);
    if (status s = bind(*base_, parts_[0]->state, like); !s) return s;
    if (status s = base_->refresh(stream); !s) return s;
    rank_ = 0, scales_ = shifts_ = pre_ = false;
    for (auto& p : parts_)
      if (status s = choose_graph(*p, like, fold); !s) return s;
    pre_ = pre_ && rank_ == 0;
    for (auto& p : parts_)
      if (pre_ && p->forward->has_pre()) p->forward->fuse_pre();
    for (auto& p : parts_)
      if (status s = pack(stream, *p); !s) return s;
    if (status s = reserve(stream, like); !s) return s;
    tokens_ = like.size[0];
    if (status s = make_active(stream, {0}); !s) return s;
    ready_ = true;
    chained_ = false;
    const status done = check(cudaStreamSynchronize(stream), "preparing a layer");
    for (auto& p : parts_) p->forward->forget_values();
    base_->forget_values();
    return done;
  }
  // One adapter: it is copied to where the kernels look, in the order of the stream, so that kernels captured before
  // see it; one that is folded into the weight cannot be switched below them. Several: their side branches are put next
  // to each other, which allocates, may need a larger rank, and is seen by calls from now on.
  status activate(cudaStream_t stream, const std::vector<int>& adapters) {
    if (adapters.empty()) return fail("activate() needs an adapter; enable(false) runs the base alone");
    for (const int a : adapters)
      if (a < 0 || a >= static_cast<int>(parts_.size()))
        return fail("there is no adapter ", a, "; this layer has ", static_cast<long long>(parts_.size()));
    if (!ready_) return fail("prepare() the layer before activate()");
    chained_ = false;  // the next call reads what is copied here
    return make_active(stream, adapters);
  }
  void enable(bool adapter) { enabled_ = adapter; }

  status forward(cudaStream_t stream, const view& x, const mutable_view& y, const call_options& options = {}) {
    if (!ready_) return fail("prepare() the layer before a call");
    part& p = *parts_[static_cast<std::size_t>(shown_)];
    program<T>& run = enabled_ ? *p.forward : *base_;
    result<bound_leaves> call = bind_call(run, p.state, x);
    if (!call) return call.failure();
    const long long expected = count(run.value(), run.value().out[0].at, call->sizes);
    if (y.data == nullptr || y.count() != expected)
      return fail("output 'y' has ", y.count(), " elements, expected ", expected);
    if (x.size[0] > tokens_)
      return fail("x has ", x.size[0], " rows, the layer was prepared for ", tokens_, "; prepare() it with this x");
    if (!run.fused()) {
      if (options.residual != nullptr || options.act != activation::none)
        return fail("this layer runs node by node and takes neither a residual nor an activation; apply them to y");
      return run.run_unfused(stream, call->sizes, call->leaf, y);
    }
    if (y.type != dtype_of<T>)
      return fail("output 'y' is ", name_of(y.type), ", this layer computes in ", name_of(dtype_of<T>));
    if (run.one_kernel() && x.type != dtype_of<T>)
      return fail("tensor 'x' is ", name_of(x.type), ", this layer computes in ", name_of(dtype_of<T>));
    linear_problem problem = run.problem(x.size[0], slot());
    problem.plain = options.residual == nullptr && options.act == activation::none;
    for (const void* pointer : {static_cast<const void*>(y.data), x.data})
      problem.aligned = problem.aligned && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
    linear_operands o;
    o.x = x.data, o.y = y.data, o.residual = options.residual, o.act = options.act, o.alone = options.alone;
    o.slot = slot(), o.a = active_->a.data();
    o.workspace = workspace_.data(), o.counters = counters_.as<std::uint32_t>();
    o.chained = std::exchange(chained_, true);
    return run.run(stream, call->sizes, call->leaf, problem, choose(problem, device_), o);
  }
  // What forward() launches for so many tokens.
  text describe(long long tokens) const {
    text t;
    if (!ready_) return t << "not prepared", t;
    const program<T>& run = enabled_ ? *parts_[static_cast<std::size_t>(shown_)]->forward : *base_;
    if (!run.fused()) return t << "unfused: a kernel per operation", t;
    const linear_choice c = choose(run.problem(tokens, slot()), device_);
    t << name_of(c.how) << ", " << c.launches << (c.launches == 1 ? " launch" : " launches");
    if (!run.one_kernel()) t << "; its input unfused: a kernel per operation";
    if (enabled_ && parts_[static_cast<std::size_t>(shown_)]->folded) t << "; adapter folded into a copy of the weight";
    return t;
  }
  long long workspace_bytes() const { return workspace_.bytes() + counters_.bytes(); }

  // What a launch that serves several layers needs of this one: its weight, its record and its sizes, if all of the
  // layer is one product.
  struct segment {
    linear_problem problem;
    const void* weight;
    adapter_slot slot;
  };
  result<segment> as_segment(long long tokens) const {
    if (!ready_) return fail("prepare() the layer before a call");
    const program<T>& run = enabled_ ? *parts_[static_cast<std::size_t>(shown_)]->forward : *base_;
    if (!run.one_kernel()) return fail("this layer is more than one product; call its forward()");
    return segment{run.problem(tokens, slot()), run.weight(), slot()};
  }

  // W' and, where the adapter changes it, b'; and back. See cuda_merge.cuh.
  status merge(cudaStream_t stream, const mutable_view& weight, const mutable_view& bias = {}) {
    chained_ = false;  // `weight` may be the one that the next call reads
    return merger_.merge(stream, parts_[static_cast<std::size_t>(shown_)]->state, weight, bias);
  }
  status unmerge(cudaStream_t stream, const char* what, const view& merged, const mutable_view& original) {
    chained_ = false;
    return merger_.unmerge(stream, parts_[static_cast<std::size_t>(shown_)]->state, what, merged, original);
  }

 private:
  struct part {
    explicit part(const layer_graphs& graphs) : state(graphs) {}
    layer_state state;
    std::unique_ptr<program<T>> forward;
    packed_adapter<T> packed;
    bool folded = false;
  };

  // What the kernels read now.
  const adapter_slot& slot() const { return enabled_ ? active_->record : bare_.record; }

  template <class F> status on_parts(const char* name, int adapter, F f) {
    if (adapter < 0 || adapter >= static_cast<int>(parts_.size()))
      return fail("there is no adapter ", adapter, "; this layer has ", static_cast<long long>(parts_.size()));
    ready_ = false;
    const graph& g = parts_[static_cast<std::size_t>(adapter)]->state.graphs().base_forward;
    if (g.find(name) < 0) return f(parts_[static_cast<std::size_t>(adapter)]->state);
    for (auto& p : parts_)
      if (status s = f(p->state); !s) return s;
    return ok;
  }
  status ask_residency() {
    if constexpr (sizeof(T) == 2) {
      if (!device_.hopper()) return ok;
      const void* kernel = detail::gemm_of<T, 256>(16);
      cudaLaunchAttribute cluster;
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {2, 1, 1};
      const std::size_t shared = detail::gemm_shared<256>(16);
      if (status s =
              check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
                    "the gemm kernel");
          !s)
        return s;
      const cudaLaunchConfig_t config{dim3(2 * device_.processors), dim3(384), shared, nullptr, &cluster, 1};
      return check(cudaOccupancyMaxActiveClusters(&device_.resident_pairs, kernel, &config),
                   "asking how many blocks fit");
    }
    return ok;
  }
  static result<bound_leaves> bind_call(const program<T>& p, const layer_state& state, const view& x) {
    if (p.value().size == 0) return fail("this method does not exist for this kind of layer");
    result<bound_leaves> b = state.bind(p.value());
    if (!b) return b;
    if (status s = layer_state::bind_data(p.value(), {{"x", x}}, *b); !s) return s.failure();
    return b;
  }
  static status bind(program<T>& p, const layer_state& state, view like) {
    if (like.data == nullptr) like.data = &like;  // only sizes and type count here
    result<bound_leaves> b = bind_call(p, state, like);
    if (!b) return b.failure();
    p.bind(b->sizes, b->leaf);
    return ok;
  }
  status choose_graph(part& p, const view& like, bool fold) {
    const layer_graphs& graphs = p.state.graphs();
    p.forward = std::make_unique<program<T>>(how_ == backend::eager ? graphs.literal : graphs.forward);
    if (status s = bind(*p.forward, p.state, like); !s) return s;
    p.folded = false;
    auto folded = std::make_unique<program<T>>(graphs.folded);
    const slot_form form = form_of(p.forward->value(), p.forward->slots(), folded->value(), folded->slots(),
                                   fold ? p.forward->side_rank() : 0);
    if (how_ == backend::fused && form == slot_form::folded) {
      if (status s = bind(*folded, p.state, like); !s) return s;
      p.forward = std::move(folded);
      p.folded = true;
    }
    if (!p.forward->fused()) return ok;
    rank_ = std::max(rank_, padded_rank(p.forward->side_rank()));
    scales_ = scales_ || p.forward->scales(), shifts_ = shifts_ || p.forward->shifts();
    pre_ = pre_ || p.forward->has_pre();
    return ok;
  }
  status pack(cudaStream_t stream, part& p) {
    if (status s = p.forward->refresh(stream); !s || !p.forward->fused()) return s;
    if (status s = p.packed.reserve(stream, p.forward->out_size(), p.forward->in_size(), rank_, pre_); !s) return s;
    if (status s = p.forward->pack_sides(stream, p.packed, 0); !s) return s;
    if (status s = p.packed.tile(stream, p.forward->out_size(), p.forward->in_size()); !s) return s;
    if (status s = p.forward->pack_pre(stream, p.packed); !s) return s;
    return p.forward->pack_post(stream, p.packed, scales_, shifts_);
  }
  status pack_together(cudaStream_t stream, const std::vector<int>& adapters) {
    int rank = 0;
    for (const int a : adapters) {
      const program<T>& f = *parts_[static_cast<std::size_t>(a)]->forward;
      if (!f.one_kernel() || f.has_pre() || parts_[static_cast<std::size_t>(a)]->folded ||
          f.slots().posts != base_->slots().posts)
        return fail("adapter ", a, " is more than a side branch of the product; only side branches add up");
      rank += f.side_rank();
    }
    const program<T>& first = *parts_[static_cast<std::size_t>(adapters[0])]->forward;
    if (status s = together_.reserve(stream, first.out_size(), first.in_size(), padded_rank(rank), false); !s) return s;
    rank = 0;
    for (const int a : adapters) {
      program<T>& f = *parts_[static_cast<std::size_t>(a)]->forward;
      if (status s = f.refresh(stream); !s) return s;
      if (status s = f.pack_sides(stream, together_, rank); !s) return s;
      if (a == adapters[0])
        if (status s = f.pack_post(stream, together_, scales_, shifts_); !s) return s;
      f.forget_values();
      rank += f.side_rank();
    }
    if (status s = together_.tile(stream, first.out_size(), first.in_size()); !s) return s;
    return workspace_.reserve(workspace_bound(tokens_, padded_rank(rank)));
  }
  status make_active(cudaStream_t stream, const std::vector<int>& adapters) {
    part& first = *parts_[static_cast<std::size_t>(adapters[0])];
    shown_ = adapters[0];
    if (adapters.size() > 1) {
      active_ = &together_;
      return pack_together(stream, adapters);
    }
    active_ = parts_.size() > 1 ? &switched_ : &first.packed;
    if (parts_.size() == 1 || !first.forward->fused()) return ok;
    if (switched_.record.rank != rank_ || (switched_.record.pre != nullptr) != pre_ || switched_.post.bytes() == 0)
      if (status s = switched_.reserve(stream, first.forward->out_size(), first.forward->in_size(), rank_, pre_); !s)
        return s;
    const long long columns = padded_rows(first.forward->out_size()) + row_padding;
    switched_.record.scale = scales_ ? switched_.post.template as<float>() : nullptr;
    switched_.record.shift = shifts_ ? switched_.post.template as<float>() + columns : nullptr;
    return switched_.copy_from(stream, first.packed);
  }
  status reserve(cudaStream_t stream, const view& like) {
    if (!base_->fused()) return ok;
    if (status s = workspace_.reserve(workspace_bound(like.size[0], rank_)); !s) return s;
    if (status s = counters_.reserve(counter_bytes(like.size[0])); !s) return s;
    if (status s = check(cudaMemsetAsync(counters_.data(), 0, static_cast<std::size_t>(counters_.bytes()), stream),
                         "clearing");
        !s)
      return s;
    if (status s = bare_.reserve(stream, base_->out_size(), base_->in_size(), 0, false); !s) return s;
    return base_->pack_post(stream, bare_, base_->scales(), base_->shifts());
  }

  std::vector<std::unique_ptr<part>> parts_;
  std::unique_ptr<program<T>> base_;
  packed_adapter<T> switched_, together_,
      bare_;  // what kernels read: of several adapters the active one, or their sum; the base's bias
  const packed_adapter<T>* active_ = nullptr;
  buffer workspace_, counters_;
  merger merger_;
  device_facts device_;
  backend how_;
  int rank_ = 0, shown_ = 0;                            // shown_: the adapter that merge() and describe() speak of
  bool scales_ = false, shifts_ = false, pre_ = false;  // what the adapters need of the slots
  long long tokens_ = 0;
  bool enabled_ = true, ready_ = false;
  bool chained_ = false;  // the next call may read weights and adapter before the kernel ahead of it has finished
};

}  // namespace graft::cuda
