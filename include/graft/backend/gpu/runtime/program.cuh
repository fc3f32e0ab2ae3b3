// SPDX-License-Identifier: Apache-2.0
// program: a graph planned for the GPU, and what all layers that run it share: the kernels and the workspace of calls.
//
// bind() computes what does not depend on the data of calls and packs it for the kernels, all of which is in the
// binding of one layer; parameters_changed() repeats this for values that follow from parameters. A call is an
// execution (execution.cuh).
#pragma once
#include <graft/backend/call.h>
#include <graft/backend/execution_mode.h>
#include <graft/backend/gpu/kernels/attention/binding.cuh>
#include <graft/backend/gpu/kernels/gemm/binding.cuh>
#include <graft/backend/gpu/kernels/gemm/grouped_binding.cuh>
#include <graft/backend/gpu/kernels/wgrad/binding.cuh>
#include <graft/backend/gpu/runtime/kernel_set.cuh>
#include <graft/backend/gpu/runtime/parameter_expressions.cuh>
#include <graft/backend/gpu/runtime/values.cuh>
#include <graft/backend/gpu/runtime/workspace.cuh>
#include <graft/core/algorithm.h>

namespace graft::gpu {

// ---- Binding

// What a program is bound to for one layer: its tensors, the values that follow from them, and the
// launches that read their addresses. Layers of equal sizes share a program, and each has a binding of its own.

template <class T> struct binding {
  size_values sizes;
  leaf_views leaves;
  gpu::values values;
  node_set precomputed, changing;  // precomputed nodes; those of them that follow from parameters
  node_set borrowed{};             // parameter-stage values that another binding computes
  sequence<gemm_binding<T>> products;
  sequence<wgrad_binding<T>> sums;
  sequence<grouped_gemm_binding<T>> grouped;  // one for each launch of several products
  multi_lora_launches multi_lora;
  long long bound_version = -1;  // address version of the program that the launches were bound for

  // Makes this binding read parameter-stage values from that of another program of the same layer, whose
  // parameters_changed() must run first. `equal` has the node of that program for each node of this one, or none_id.
  void share_precomputed(const binding& from, const sequence<id>& equal) {
    if (borrowed.in.size() != equal.size()) borrowed = node_set(equal.size());
    for (id i = 0; i < equal.size(); ++i) {
      if (!changing[i] && !borrowed[i]) continue;
      if (equal[i] < 0 || !from.changing[equal[i]] || from.values.location(equal[i]).at == nullptr) continue;
      values.set_external(i, from.values.location(equal[i]));
      borrowed.add(i), changing.in[i] = precomputed.in[i] = false;
    }
    for (gemm_binding<T>& p : products)
      for (const gemm_binding<T>& other : from.products)
        if (p.makes_weight() && other.makes_weight() && equal[p.slots().weight] == other.slots().weight)
          p.borrow_weight(other);
  }
  status activate_adapter(cudaStream_t stream) {
    for (gemm_binding<T>& b : products)
      if (status s = b.activate_adapter(stream); !s) return s;
    return ok;
  }
  void skip_pdl_once() {
    for (gemm_binding<T>& b : products) b.skip_pdl_once();
  }
};

// ---- Program

template <class T> class execution;
template <class T> class program;

// What launches of a kind need on the GPU and how they run: the table of the backend, by kind. The folder of a kind's
// kernels defines it (kernels/*/launches.cuh), with these members (those after run() where a kind has a use for them):
//     each_own_node(program, l, f)  calls f for the nodes that may run as kernels of their own
//     each_stored(program, l, to)   tells the workspace what the launch stores besides its wgrads
//     run(execution, l, launch)     one launch in a call
//     each_operand(program, l, f)   calls f for the values that its kernels read as T, from the caller too
//     each_typed(program, l, to)    states which other values are stored as T
//     each_inherited(program, l, to)     states, after all kinds have, which values are stored as T because others are
//     each_precomputed(program, l, to)  states which precomputed values it reads besides operands of its nodes
//     scratch(program, l, sizes)    bytes of scratch memory besides that of those nodes
//     operands_are_packed           precomputed operands are packed for the launch, and not read as they are
//     describe(text, g, p, binding, l, tokens, have)  what it launches for so many tokens, in words
template <class Kind> struct launch_on_gpu;

// The values that a launch stores in the workspace.
template <class T> struct stored_nodes {
  const program<T>& in;
  const binding<T>& with;
  const size_values& sizes;
  int launch;
  sequence<workspace_layout::value>& written;

  void add(id i) const { add(i, element_count(in.value(), i, sizes)); }
  void add(id i, long long elements) const {
    if (!in.is_caller_memory(i))
      add_bytes(i, elements * (in.is_stored_as_t(i) ? static_cast<long long>(sizeof(T)) : 4));
  }
  void add_bytes(id i, long long bytes) const { written.push({launch, i, bytes}); }
};

// The values of a call that are stored as T, others in float.
template <class T> struct typed_values {
  program<T>& in;
  const binding<T>& with;

  void add(id i) const {
    if (const id at = unshaped(in.value(), i); at >= 0) in.stored_as_t_.add(at);
  }
  // Only a value that has rows for the tokens and does not come with the call.
  void add_rows(id i) const {
    const id at = unshaped(in.value(), i);
    if (at >= 0 && in.launches().when.has_token_rows[at] && !is_leaf(in.value()[at].what)) in.stored_as_t_.add(at);
  }
  bool has(id i) const { return in.stored_as_t_[unshaped(in.value(), i)]; }
};
// The precomputed values that launches read.
template <class T> struct precomputed_values {
  const program<T>& in;
  binding<T>& with;

  void add(id i) const { in.need(with, i); }
  void add_if_precomputed(id i) const { in.need_precomputed(with, i); }
};

template <class T> class program {
 public:
  program(const graph& g, launch_plan p);
  program(const program&) = delete;  // bindings point to its graph
  program& operator=(const program&) = delete;

  const graph& value() const { return g_; }
  const launch_plan& launches() const { return p_; }
  // Returns true if the plan is a single GEMM on the input. Only such a layer can be grouped with others that read the
  // same input, and can switch adapters without invalidating a captured graph.
  bool one_product() const {
    return p_.launches.size() == 1 && p_.products.size() == 1 && g_[p_.products[0].x].what == op::input &&
           p_.products[0].weight_is_nt && p_.products[0].input_rotation < 0;
  }
  // Binds `with`, which is new. All bindings of a program have the same sizes and share its workspace.
  status bind(cudaStream_t stream, const kernel_set& kernels, const size_values& s, const leaf_views& leaves,
              const capacity& limits, shared_adapter_args<T>& shared, dequantized_buffer& dequantized_weight,
              growing_buffer* model_memory, binding<T>& with);
  // Counts how often addresses that launches use have changed; a graph captured with an older version is invalid.
  long long address_version() const {
    return local_version_ + memory_.layout_version() + (dequantized_ != nullptr ? dequantized_->address_version() : 0) +
           (adapter_workspace_ != nullptr ? adapter_workspace_->address_version() : 0);
  }
  // Recomputes and repacks parameter-stage values after their tensors were written; it allocates nothing but `scratch`,
  // which replaces the workspace if other plans may use that at the same time.
  status parameters_changed(cudaStream_t stream, binding<T>& with, buffer* scratch = nullptr);
  // Recomputes all precomputed values after the weight was written.
  status weight_changed(cudaStream_t stream, binding<T>& with);
  // The number of plan launches that have run.
  long long launched() const { return launched_ * p_.launches.size(); }

 private:
  friend class execution<T>;  // a call
  template <class Kind> friend struct launch_on_gpu;
  friend struct stored_nodes<T>;
  friend struct typed_values<T>;
  friend struct precomputed_values<T>;

  status check_kernels() const;
  void make_launches(binding<T>& with) const;
  // Pads the adapters of a grouped GEMM to one rank. Quantized weights keep their own ranks.
  void set_common_ranks(binding<T>& with) const;
  // Collects which values are precomputed, and which of them follow from parameters.
  void collect(binding<T>& with);
  void need_precomputed(binding<T>& with, id i) const {
    i = unshaped_data(i);
    if (i >= 0 && p_.when.of[i] != stage::call) need(with, i);
  }
  id unshaped_data(id i) const {  // skips reshapes of call values, which have no launch
    while (i >= 0 && g_[i].what == op::reshape && p_.when.of[i] == stage::call) i = g_[i].a;
    return i;
  }
  void need(binding<T>& with, id i) const {
    if (i < 0 || with.precomputed[i]) return;
    with.precomputed.add(i);
    for (int o = 0; o < 3; ++o) need(with, g_[i].operand(o));
  }
  status pack(cudaStream_t stream, binding<T>& with);
  status reserve_values(binding<T>& with, const size_values& largest);
  bool is_stored_as_t(id i) const { return stored_as_t_[i]; }
  // Returns true if node i is an output that is written to the caller's memory. A single layer reserves none for it;
  // blocks of a model do.
  bool is_caller_memory(id i) const {
    if (in_model_ || missing_outputs_[i]) return false;
    for (int k = 0; k < g_.outs; ++k)
      if (unshaped(g_, g_.out[k].at) == i) return true;
    return false;
  }
  // Calls f for every launch, and every part of the plan that runs in another launch, as a value of its kind.
  template <class F> void each_of_all_kinds(F f) const {
    launch_kinds::each([&]<class Kind>(Kind*) {
      for (const Kind& one : p_.all<Kind>()) f(one);
    });
  }
  // Calls f for the nodes that a launch may have to compute by kernels of their own.
  template <class F> void each_computed(const graft::launch& l, F f) const {
    p_.each_wgrad(l, [&](int sum) { f(p_.all<wgrad_launch>()[sum].result); });
    p_.visit(l, [&]<class Kind>(const Kind& one) { launch_on_gpu<Kind>::each_own_node(*this, one, f); });
  }
  long long scratch_of(const binding<T>& with, const graft::launch& l, const size_values& s) const;
  void update_pointers(binding<T>& with);
  int padded_columns(const binding<T>& with, id i) const {
    return padded_rank(static_cast<int>(g_.sizes.value(g_[i].d[3], with.sizes)));
  }
  bool is_padded(id i) const {
    for (const padded_operand& p : pads_)
      if (p.what == i) return true;
    return false;
  }
  // Returns true if node i is as large as a weight, such as dW = dyᵀ x: without rows for the tokens, and wider than any
  // rank on both axes? It is then stored as T, but not in f16, whose range such sums may exceed.
  bool is_large_matrix(const binding<T>& with, id i) const {
    const node& v = g_[i];
    auto wide = [&](int axis) { return g_.sizes.value(v.d[axis], with.sizes) > wide_tile_rank; };
    return dtype_of<T> != dtype::f16 && p_.when.of[i] == stage::call && !p_.when.has_token_rows[i] &&
           !is_output(g_, i) && wide(2) && wide(3);
  }
  // Returns true if i is a value before the epilogue that other launches read.
  bool is_saved_for_later(id i) const {
    int outputs = 0;
    for (int k = 0; k < g_.outs; ++k) outputs += g_.out[k].at == i ? 1 : 0;
    return i >= 0 && readers_[i] > outputs + 1;
  }

  graph g_;
  launch_plan p_;
  sequence<id> inputs_;
  sequence<attention_binding<T>> attentions_;
  sequence<int> readers_;
  sequence<id> gemm_operands_;  // operands of GEMMs and wgrads, stored as T
  node_set computed_;           // nodes that launches of a call compute
  const kernel_set* kernels_ = nullptr;
  size_values reserved_;  // largest sizes that the workspace was laid out for
  node_set stored_as_t_;  // values of a call that are stored as T
  struct padded_operand {
    int before;  // index of the launch that reads it
    id what;
  };
  sequence<padded_operand> pads_;                // wgrad operands that are copied with padding
  parameter_expressions parameter_expressions_;  // expressions of precomputed values
  node_set missing_outputs_;                     // outputs for which the caller gives no memory of the written type
  workspace_layout memory_;
  const dequantized_buffer* dequantized_ = nullptr;
  long long local_version_ = 0, launched_ = 0;
  bool in_model_ = false;
  buffer own_counters_;
  long long workspace_bytes_ = 0;
  growing_buffer* adapter_workspace_ = nullptr;  // workspace shared by the adapters of a layer
  std::uint32_t* counters_ = nullptr;
};

// ---- Binding: which values are precomputed, and what is packed for the kernels

template <class T> program<T>::program(const graph& g, launch_plan p) : g_(g), p_(std::move(p)) {
  readers_ = graft::detail::count_readers(g_, p_.live);
  const auto& self = *this;  // nvcc cannot compile *this in a requires-expression of a lambda
  const auto push = [&](id i) { gemm_operands_.push(i); };
  each_of_all_kinds([&]<class Kind>(const Kind& one) {
    if constexpr (requires { launch_on_gpu<Kind>::each_operand(self, one, push); })
      launch_on_gpu<Kind>::each_operand(self, one, push);
  });
  for (id i = 0; i < g_.size; ++i)
    if (is_leaf(g_[i].what) && traits_of(g_[i].what).known_at == stage::call) inputs_.push(i);
  for (const attention_launch& l : p_.all<attention_launch>())
    attentions_.extend() = {g_, l.node, l.heads >= 0 ? &p_.all<rowwise_launch>()[l.heads] : nullptr};
  computed_ = node_set(g_.size);
  for (const graft::launch& l : p_.launches) each_computed(l, [&](id i) { computed_.add(i); });
}
// Names the first node that no kernel computes.
template <class T> status program<T>::check_kernels() const {
  if (p_.breaks > 0) return fail("host function '", g_[p_.first_break].name, "' cannot run on the GPU");
  return ok;
}
template <class T>
status program<T>::bind(cudaStream_t stream, const kernel_set& kernels, const size_values& s, const leaf_views& leaves,
                        const capacity& limits, shared_adapter_args<T>& shared, dequantized_buffer& dequantized_weight,
                        growing_buffer* model_memory, binding<T>& with) {
  if (status st = check_kernels(); !st) return st;
  for (id i = 0; i < g_.size; ++i) {
    const view& v = leaves[i];
    if (v.data != nullptr && !v.contiguous())
      return fail("tensor '", g_.name(i), "' is not stored row after row; on the GPU copy it first");
    if (status st = check_gpu_format(g_.name(i), v); !st) return st;
  }
  make_launches(with);
  kernels_ = &kernels, with.leaves = leaves, with.sizes = s;
  size_values largest = s;
  g_.sizes.set_tokens(largest, limits.tokens);
  reserved_ = largest;
  with.values = gpu::values(g_, largest, with.leaves, kernels.evaluate, &kernels.ranks);
  in_model_ = model_memory != nullptr;
  missing_outputs_ = node_set(g_.size);
  memory_.use_memory(in_model_ ? model_memory
                               : shared.shared_workspace.get());  // all plans of a layer or model share it
  with.values.dequantize_into(dequantized_ = &dequantized_weight, dtype_of<T>);
  if (kernels.launches.quantized.dequantize != nullptr) dequantized_weight.use_functions(kernels.launches.quantized);
  if (dequantized_weight.functions().dequantize == nullptr && with.values.has_quantized())
    return no_quantized_kernels();
  if (status st = dequantized_weight.reserve(with.values.dequantized_bytes(dtype_of<T>)); !st) return st;
  for (attention_binding<T>& a : attentions_)
    if (status st = a.bind(stream, largest, p_.to, kernels.attention); !st) return st;
  set_common_ranks(with);
  int rank = 0;
  for (gemm_binding<T>& b : with.products) {
    if (status st = b.bind(stream, largest, with.leaves, one_product() ? &shared : nullptr, &dequantized_weight); !st)
      return st;
    rank = max_of(rank, b.rank());
  }
  for (grouped_gemm_binding<T>& b : with.grouped) b.invalidate();
  collect(with);
  for (gemm_binding<T>& b : with.products)  // Q of W + P Q is computed into the operand of its GEMM
    if (const id i = b.update_source(); i >= 0 && readers_[i] == 1 && with.precomputed[i])
      with.values.into(i, {b.update_ptr(), dtype_of<T>});
  const bool grouped = one_product() && shared.used;
  adapter_workspace_ = grouped ? &shared.workspace : nullptr;
  workspace_bytes_ = with.products.empty() ? 0 : workspace_bound(limits.tokens, rank);
  if (grouped)
    if (status st = adapter_workspace_->reserve(std::exchange(workspace_bytes_, 0)); !st) return st;
  if (status st = reserve_values(with, largest); !st) return st;
  with.values.scratch_at(memory_.scratch(workspace_layout::between_calls));
  if (status st = parameter_expressions_.compute(stream, g_, kernels_->launches, with.values, with.precomputed); !st)
    return st;
  if (status st = pack(stream, with); !st) return st;
  if (with.products.empty()) return update_pointers(with), status(ok);
  buffer& counters = grouped ? shared.counters : own_counters_;
  const long long all = counter_bytes(limits.tokens);
  const bool grows = counters.bytes() < all;
  if (grows) {
    ++local_version_;
    if (status st = counters.reserve(all); !st) return st;
  }
  auto* const begin = counters.as<std::uint32_t>();
  if (std::exchange(counters_, begin) != begin || grows) {
    const auto bytes = static_cast<std::size_t>(counters.bytes());
    if (status st = check(cudaMemsetAsync(counters.data(), 0, bytes, stream), "clearing"); !st) return st;
  }
  return update_pointers(with), status(ok);
}
template <class T> status program<T>::parameters_changed(cudaStream_t stream, binding<T>& with, buffer* scratch) {
  if (with.bound_version != address_version()) update_pointers(with);
  with.values.scratch_at(memory_.scratch(workspace_layout::between_calls));
  if (scratch != nullptr) {
    const long long bytes = with.values.scratch(with.changing);
    if (bytes > scratch->bytes()) ++local_version_;  // also invalidates captured graphs of other plans of the model
    if (status s = scratch->reserve(bytes); !s) return s;
    with.values.scratch_at(scratch->as<float>());
  }
  if (status s = parameter_expressions_.compute(stream, g_, kernels_->launches, with.values, with.changing); !s)
    return s;
  return pack(stream, with);
}
template <class T> status program<T>::weight_changed(cudaStream_t stream, binding<T>& with) {
  if (with.bound_version != address_version()) update_pointers(with);
  with.values.scratch_at(memory_.scratch(workspace_layout::between_calls));
  if (status s = parameter_expressions_.compute(stream, g_, kernels_->launches, with.values, with.precomputed); !s)
    return s;
  with.skip_pdl_once();
  return pack(stream, with);
}
template <class T> void program<T>::make_launches(binding<T>& with) const {
  // The elements are large and must not move, so exactly as many as needed are reserved.
  with.sums.reserve(p_.all<wgrad_launch>().size()), with.products.reserve(p_.products.size());
  int joint = 0;
  for (const gemm_launch& l : p_.all<gemm_launch>()) joint += l.grouped > 0 ? 1 : 0;
  with.grouped.reserve(joint);
  sequence<int> by_sums(g_.size, 0);
  for (const wgrad_launch& s : p_.all<wgrad_launch>()) {
    with.sums.extend() = wgrad_binding<T>(s);
    if (!s.by_column) ++by_sums[unshaped(g_, s.left)], ++by_sums[unshaped(g_, s.right)];
  }
  for (const gemm_slots& s : p_.products)
    with.products.extend() = {g_, s,
                              s.pre_epilogue < 0 && by_sums[s.result] > 0 && by_sums[s.result] == readers_[s.result]};
  for (const gemm_launch& l : p_.all<gemm_launch>())
    if (l.grouped > 0) with.grouped.extend() = {l.product, l.grouped + 1};
}
template <class T> void program<T>::set_common_ranks(binding<T>& with) const {
  for (const gemm_launch& l : p_.all<gemm_launch>()) {
    if (l.grouped == 0) continue;
    int own[max_segments] = {};
    bool is_quantized = false;
    for (int k = 0; k <= l.grouped; ++k) {
      const gemm_slots& p = p_.products[l.product + k];
      own[k] = padded_rank(static_cast<int>(branch_rank(g_, p, with.sizes)));
      const id leaf = base_leaf(g_, p.weight);
      is_quantized = is_quantized || (leaf >= 0 && with.leaves[leaf].quant != nullptr);
    }
    const common_rank all = is_quantized ? common_rank{} : grouped_rank(own, l.grouped + 1, l.gated >= 0);
    for (int k = 0; k <= l.grouped; ++k)
      with.products[l.product + k].set_common_rank(all.rank, k == 1 && all.separate ? max_gated_rank : 0);
  }
}
template <class T> void program<T>::collect(binding<T>& with) {
  with.precomputed = with.changing = node_set(g_.size);
  const auto& self = *this;  // nvcc cannot compile *this in a requires-expression of a lambda
  const precomputed_values<T> to{self, with};
  each_of_all_kinds([&]<class Kind>(const Kind& one) {
    if constexpr (requires { launch_on_gpu<Kind>::each_precomputed(self, one, to); })
      launch_on_gpu<Kind>::each_precomputed(self, one, to);
  });
  for (const graft::launch& l : p_.launches)
    p_.visit(l, [&]<class Kind>(const Kind&) {
      if constexpr (!requires { launch_on_gpu<Kind>::operands_are_packed; })
        for (int n = l.first; n < l.first + l.count; ++n)
          for (int k = 0; k < 3; ++k) need_precomputed(with, g_[p_.nodes[n]].operand(k));
    });
  for (int k = 0; k < g_.outs; ++k) need_precomputed(with, g_.out[k].at);
  for (id i = 0; i < g_.size; ++i) with.changing.in[i] = with.precomputed[i] && p_.when.of[i] == stage::parameter;
  sequence<int> readers = readers_;  // packing counts as a reader
  for (const gemm_binding<T>& b : with.products)
    b.each_source([&](id i) {
      if (i >= 0) ++readers[i];
    });
  parameter_expressions_.find(g_, p_.when, readers, with.changing);
}
template <class T> status program<T>::pack(cudaStream_t stream, binding<T>& with) {
  branch_packer<T> packer(stream);
  for (id i = 0; i < g_.size; ++i)
    if (computed_[i] && g_[i].what == op::rotate && p_.when.of[g_[i].b] != stage::call)
      if (status s = with.values.compose_factors(stream, i); !s) return s;
  for (gemm_binding<T>& b : with.products)
    if (status s = b.pack(stream, with.values, packer, kernels_->gemm, kernels_->launches, p_.to); !s) return s;
  return packer.flush();
}

// ---- Memory of calls: element types and addresses of the values

// Decides the element types and reserves the workspace. Values that GEMMs read or write are stored as T, others in
// float.
template <class T> status program<T>::reserve_values(binding<T>& with, const size_values& largest) {
  stored_as_t_ = node_set(g_.size);
  auto& self = *this;  // nvcc cannot compile *this in a requires-expression of a lambda
  const typed_values<T> typed{self, with};
  for (const id i : gemm_operands_) typed.add(i);
  each_of_all_kinds([&]<class Kind>(const Kind& one) {
    if constexpr (requires { launch_on_gpu<Kind>::each_typed(self, one, typed); })
      launch_on_gpu<Kind>::each_typed(self, one, typed);
  });
  each_of_all_kinds([&]<class Kind>(const Kind& one) {
    if constexpr (requires { launch_on_gpu<Kind>::each_inherited(self, one, typed); })
      launch_on_gpu<Kind>::each_inherited(self, one, typed);
  });
  sequence<workspace_layout::value> written;
  constexpr long long size = sizeof(T);
  auto scratch = [&](int launch, long long bytes) {
    if (bytes > 0) written.push({launch, none_id, bytes});
  };
  scratch(workspace_layout::between_calls, with.values.scratch(with.precomputed));
  pads_.clear();
  for (int k = 0; k < p_.launches.size(); ++k) {
    const graft::launch& l = p_.launches[k];
    scratch(k, scratch_of(with, l, largest));
    for (const id i : padded_operands(g_, p_, l, largest, dtype_of<T>)) {
      pads_.push({k, i});
      written.push({k, i, g_.sizes.value(g_[i].d[2], largest) * padded_columns(with, i) * size});
    }
    const stored_nodes<T> store{*this, with, largest, k, written};
    p_.visit(l, [&]<class Kind>(const Kind& one) { launch_on_gpu<Kind>::each_stored(*this, one, store); });
    p_.each_wgrad(l, [&](int sum) {
      const wgrad_launch& w = p_.all<wgrad_launch>()[sum];
      store.add(w.result);
      if (w.scaled >= 0) store.add(w.scaled);
    });
  }
  return memory_.reserve(g_, p_, written, workspace_bytes_);
}
template <class T>
long long program<T>::scratch_of(const binding<T>& with, const graft::launch& l, const size_values& s) const {
  long long bytes = 0;
  each_computed(l, [&](id i) { bytes = max_of(bytes, with.values.scratch(i)); });
  auto& self = *this;  // nvcc cannot compile *this in a requires-expression of a lambda
  p_.visit(l, [&]<class Kind>(const Kind& one) {
    if constexpr (requires { launch_on_gpu<Kind>::scratch(self, one, s); })
      bytes = max_of(bytes, launch_on_gpu<Kind>::scratch(self, one, s));
  });
  return bytes;
}
// Sets the addresses of all values after the workspace has changed.
template <class T> void program<T>::update_pointers(binding<T>& with) {
  memory_.each([&](id i, void* at) { with.values.into(i, {at, stored_as_t_[i] ? dtype_of<T> : dtype::f32}); });
  for (gemm_binding<T>& b : with.products) b.drop_bound_launches();
  for (grouped_gemm_binding<T>& b : with.grouped) b.invalidate();
  with.bound_version = address_version();
}

}  // namespace graft::gpu
